// Package ticktest runs a job of a scheduler on several replicas, each a process of its own whose clock is off, and judges what
// they have written into a database: whether each tick ran once. It is for the tests of the modules below adapters, whose
// schedulers the module of this package does not know.
package ticktest

// Package billing is the example of the README: a file of a service that wants one writer, and no late one.
package billing

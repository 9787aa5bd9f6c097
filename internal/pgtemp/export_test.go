package pgtemp

// StartContainer is the last choice of Start, for a test on a machine that has better ones.
var StartContainer = startContainer

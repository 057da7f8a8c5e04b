// Package seedjobs carries out the requests of operators about the copies of the group's replicas: make one anew,
// verify it, cancel an operation, list the past ones.
//
// The Controller is a replica's own. It keeps the open request, the history of operations and the pause after a
// failure, and fills the data directory when the agent decides so. The Client takes requests for any replica of the
// group and asks the Controller of this node or, with a call between nodes, that of another.
//
// It must not know the node: the parts above it come as functions in Config or ClientConfig. Package seeding copies the
// bytes.
//
// Start reading at Controller.
package seedjobs

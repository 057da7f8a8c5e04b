// Package seedjobs carries out what operators ask about the copies of the group's replicas: make one anew, verify it, cancel what is
// under way, list what happened.
//
// The Controller is a replica's own: it keeps the request that is open, the history of operations and the pause after a failure, and it
// fills the data directory when the agent decides so. The Client takes requests for any replica of the group and asks the Controller of
// this node or, with a call between nodes, that of another.
//
// It must not know the node: whatever is above it comes as a function in Config or ClientConfig. How bytes are copied is package
// seeding's.
//
// Start reading at Controller.
package seedjobs

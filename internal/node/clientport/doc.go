// Package clientport joins the listener to its node: the certificates, the rules and the roles by which clients log in, where their
// sessions run, when a commit counts as durable, who may cancel what, the virtual addresses, and sessions of the console.
//
// A Port exists on every node, also on one that serves no clients: it keeps the routes that the agent publishes.
//
// It must not know the node or how WAL travels: what it needs of them comes as functions and small interfaces in Config. How bytes go
// between clients and servers is package listener's.
//
// Start reading at Port.
package clientport

// Package clientport joins the listener to its node. It has the certificates, the rules and the roles by which clients
// log in, and the routes of their sessions. It also has the durability of commits, the permission to cancel, the
// virtual addresses, and sessions of the console.
//
// A Port exists on every node, also on one that serves no clients: it keeps the routes that the agent publishes.
//
// It must not know the node or the transport of WAL: it gets functions and small interfaces in Config. Package listener
// relays the bytes between clients and servers.
//
// Start reading at Port.
package clientport

// Package completion gives shells the words that can follow in a command line: the names of members, databases,
// settings and options of the group, as the agent of this node knows them.
package completion

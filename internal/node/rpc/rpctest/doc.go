// Package rpctest has a fake of the calls between nodes, for the tests of packages that ask other nodes.
//
// It must not know what the calls mean. Start reading at Calls.
package rpctest

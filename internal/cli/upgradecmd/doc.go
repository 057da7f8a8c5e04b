// Package upgradecmd is coterie upgrade: of Coterie itself on all nodes, and of the major version of PostgreSQL in a
// group.
//
// It prints what the nodes have found, waits for what they do, and asks one node after the other. The nodes decide
// whether an agent may restart and whether an upgrade can be made, and take its steps. Start reading at Upgrade.
package upgradecmd

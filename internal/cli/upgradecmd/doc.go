// Package upgradecmd is coterie upgrade: of the major version of PostgreSQL in a group.
//
// It prints what the nodes have found, waits for what they do, and asks one replica after the other to follow. The
// nodes decide whether an upgrade can be made, and take its steps. Start reading at Upgrade.
package upgradecmd

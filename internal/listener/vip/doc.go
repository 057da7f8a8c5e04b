// Package vip gives this machine the virtual addresses of the group's listener while its node is the primary. It puts
// them on the devices whose subnets they belong to, announces them to the neighbours, and removes them.
//
// It owns the addresses that it has added, and the sockets by which it announces them and learns of other holders.
//
// It must not know why the node is the primary, nor for how long: its caller names the addresses and the time until
// which it holds them.
//
// No safety rests on an address: any node's listener serves any client, and the answers of a primary that was cut off
// are decided elsewhere. An address that remains only costs its clients time. So each is given to the kernel with a
// lifetime of a few seconds that is renewed while the node leads. The kernel therefore removes it even if the agent was
// killed or stopped.
//
// Start reading at Holder.
package vip

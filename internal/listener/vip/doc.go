// Package vip gives this machine the virtual addresses of the group's listener while its node is the primary: it puts them on the
// devices whose subnets they belong to, tells the neighbours, and takes them off.
//
// It owns the addresses that it has put up, and the sockets by which it announces them and hears who else has them.
//
// It must not know why the node is the primary, nor for how long: it is told which addresses to hold and until when.
//
// No safety rests on an address: any node's listener serves any client, and what a primary that was cut off may say is decided
// elsewhere. An address that stays behind only costs its clients time. So each is given to the kernel with a lifetime of a few seconds
// that is renewed while the node leads: also where the agent was killed or stopped, the kernel takes it off.
//
// Start reading at Holder.
package vip

// Package mirror is a disk of a node that is a mirror: btrfs RAID 1 on two loop devices, each over a file. One side can
// be lost and come back, both can be lost, and blocks can be changed on one side behind the file system's back.
//
// It owns the files, the loop devices and the mount. It must not know the purpose of the files on it. It keeps no
// state: the kernel tells which device is over which file. The devices free themselves when the file system is
// unmounted, so a process that is killed leaves at most a mount. A side is lost by giving its device the size of one
// sector. The kernel refuses every request beyond it, as that of a disk that is gone. Start reading at Disk.Mount.
package mirror

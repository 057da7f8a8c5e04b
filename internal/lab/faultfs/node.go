package faultfs

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// device is what all files of a disk share.
type device struct {
	gate    *gate
	journal *journal
}

// node is a file or directory of the disk: the one below it, behind the gate.
type node struct {
	*fs.LoopbackNode
	disk *device
}

func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	below, ok := ops.(*fs.LoopbackNode)
	if !ok {
		return ops
	}
	return &node{below, n.disk}
}

// name is the node's path on the disk.
func (n *node) name() string { return n.EmbeddedInode().Path(n.Root()) }

func (n *node) child(name string) string { return filepath.Join(n.name(), name) }

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (child *fs.Inode, h fs.FileHandle, _ uint32, errno syscall.Errno) {
	n.disk.gate.pass() // an empty file needs no block: the first write to it does
	errno = n.disk.journal.added(n.child(name), func() (errno syscall.Errno) {
		child, h, _, errno = n.LoopbackNode.Create(ctx, name, readable(flags), mode, out)
		return errno
	})
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, n.handle(child, h), fuse.FOPEN_KEEP_CACHE, 0
}

// readable lets the journal read what is about to be overwritten.
func readable(flags uint32) uint32 {
	if flags&syscall.O_ACCMODE == syscall.O_WRONLY {
		return flags&^syscall.O_ACCMODE | syscall.O_RDWR
	}
	return flags
}

func (n *node) Tmpfile(ctx context.Context, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.disk.gate.pass()
	child, h, _, errno := n.LoopbackNode.Tmpfile(ctx, readable(flags), mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, n.handle(child, h), fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		n.disk.gate.pass()
		if errno := n.cut(0); errno != 0 {
			return nil, 0, errno
		}
	}
	h, _, errno := n.LoopbackNode.Open(ctx, readable(flags))
	if errno != 0 {
		return nil, 0, errno
	}
	return n.handle(n.EmbeddedInode(), h), fuse.FOPEN_KEEP_CACHE, 0
}

// cut tells the journal that a file is about to end at a size.
func (n *node) cut(size int64) syscall.Errno {
	f, err := os.OpenFile(filepath.Join(n.RootData.Path, n.name()), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return fs.ToErrno(err)
	}
	defer func() { _ = f.Close() }()
	return n.disk.journal.changing(int(f.Fd()), size, math.MaxInt64)
}

func (n *node) handle(child *fs.Inode, h fs.FileHandle) fs.FileHandle {
	below, ok := h.(*fs.LoopbackFile)
	if !ok {
		return h
	}
	fd, _ := below.PassthroughFd()
	return &file{below, n.disk, child, fd, inodeOf(fd)}
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if s, ok := h.(stream); ok && errno == 0 {
		st, err := n.disk.journal.stat(n.name())
		if err != nil {
			return nil, 0, fs.ToErrno(err)
		}
		return &directory{s, n, st.Ino}, f, 0
	}
	return h, f, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	n.disk.gate.pass()
	if errno := n.disk.gate.room(); errno != 0 {
		return nil, errno
	}
	errno = n.disk.journal.added(n.child(name), func() (errno syscall.Errno) {
		child, errno = n.LoopbackNode.Mkdir(ctx, name, mode, out)
		return errno
	})
	return child, errno
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	n.disk.gate.pass()
	errno = n.disk.journal.added(n.child(name), func() (errno syscall.Errno) {
		child, errno = n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
		return errno
	})
	return child, errno
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	n.disk.gate.pass()
	errno = n.disk.journal.added(n.child(name), func() (errno syscall.Errno) {
		child, errno = n.LoopbackNode.Symlink(ctx, target, name, out)
		return errno
	})
	return child, errno
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (child *fs.Inode, errno syscall.Errno) {
	n.disk.gate.pass()
	errno = n.disk.journal.added(n.child(name), func() (errno syscall.Errno) {
		child, errno = n.LoopbackNode.Link(ctx, target, name, out)
		return errno
	})
	return child, errno
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	n.disk.gate.pass()
	return n.disk.journal.removed(n.child(name), func() syscall.Errno { return n.LoopbackNode.Unlink(ctx, name) })
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	n.disk.gate.pass()
	return n.disk.journal.removed(n.child(name), func() syscall.Errno { return n.LoopbackNode.Rmdir(ctx, name) })
}

func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	n.disk.gate.pass()
	parent, ok := to.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return n.disk.journal.moved(n.child(name), parent.child(newName), flags, func() syscall.Errno {
		return n.LoopbackNode.Rename(ctx, name, to, newName, flags)
	})
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.disk.gate.pass()
	if f, ok := h.(*file); ok { // LoopbackNode looks for its own type of handle
		return f.setattr(ctx, in, out)
	}
	return n.disk.journal.do(func() syscall.Errno {
		if size, ok := in.GetSize(); ok {
			if errno := n.cut(int64(size)); errno != 0 {
				return errno
			}
		}
		return n.LoopbackNode.Setattr(ctx, h, in, out)
	})
}

// Statfs shows a full disk as full, so that monitoring sees it in time.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	if n.disk.gate.fault.Load().Kind == Full {
		out.Bfree, out.Bavail = 0, 0
	}
	return errno
}

// CopyFileRange is not offered, so that the kernel copies by reading and writing, which pass the gate.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOSYS
}

// file is an open file behind the gate.
type file struct {
	*fs.LoopbackFile
	disk  *device
	inode *fs.Inode
	fd    int    // as long as the file is open
	ino   uint64 // below
}

func (f *file) name() string { return f.inode.Path(f.inode.Root()) }

func (f *file) Write(ctx context.Context, data []byte, off int64) (n uint32, errno syscall.Errno) {
	f.disk.gate.pass()
	if errno := f.disk.gate.write(f.name); errno != 0 {
		return 0, errno
	}
	end := off + int64(len(data))
	if !f.allocated(ctx, uint64(end)) {
		if errno := f.disk.gate.room(); errno != 0 {
			return 0, errno
		}
	}
	errno = f.disk.journal.do(func() (errno syscall.Errno) {
		if errno = f.disk.journal.changing(f.fd, off, end); errno == 0 {
			n, errno = f.LoopbackFile.Write(ctx, data, off)
		}
		return errno
	})
	return n, errno
}

// Writev takes the way of Write, through the gate.
func (f *file) Writev(ctx context.Context, data [][]byte, off int64) (uint32, syscall.Errno) {
	return f.Write(ctx, slices.Concat(data...), off)
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	f.disk.gate.pass()
	const keepSize, punchHole = 1, 2
	if mode&punchHole == 0 && !f.allocated(ctx, off+size) {
		if errno := f.disk.gate.room(); errno != 0 {
			return errno
		}
	}
	end := int64(off + size)
	if mode&^keepSize == 0 {
		end = int64(off) // nothing that is there changes
	}
	return f.disk.journal.do(func() syscall.Errno {
		if errno := f.disk.journal.changing(f.fd, int64(off), end); errno != 0 {
			return errno
		}
		return f.LoopbackFile.Allocate(ctx, off, size, mode)
	})
}

// allocated reports whether the file has blocks up to end. While the disk is not full it is not called, and costs
// nothing. A file with holes counts as having none.
func (f *file) allocated(ctx context.Context, end uint64) bool {
	if f.disk.gate.fault.Load().Kind != Full {
		return true
	}
	var a fuse.AttrOut
	if f.Getattr(ctx, &a) != 0 {
		return false
	}
	return end <= a.Size && a.Blocks*512 >= a.Size
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	f.disk.gate.pass()
	if errno := f.disk.gate.sync(f.name); errno != 0 {
		return errno
	}
	return f.disk.journal.do(func() syscall.Errno {
		f.disk.journal.synced(f.ino)
		return f.LoopbackFile.Fsync(ctx, flags)
	})
}

func (f *file) Setattr(ctx context.Context, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f.disk.gate.pass()
	return f.setattr(ctx, in, out)
}

func (f *file) setattr(ctx context.Context, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.disk.journal.do(func() syscall.Errno {
		if size, ok := in.GetSize(); ok {
			if errno := f.disk.journal.changing(f.fd, int64(size), math.MaxInt64); errno != 0 {
				return errno
			}
		}
		return f.LoopbackFile.Setattr(ctx, in, out)
	})
}

// Ioctl is not passed on: cloning a file would go round the gate.
func (f *file) Ioctl(context.Context, uint32, uint64, []byte, []byte) (int32, syscall.Errno) {
	return 0, syscall.ENOTTY
}

// stream is what an open directory of the disk below can do.
type stream interface {
	fs.FileReaddirenter
	fs.FileReleasedirer
	fs.FileSeekdirer
	fs.FileFsyncdirer
}

// directory is an open directory; syncing it passes the gate.
type directory struct {
	stream
	node *node
	ino  uint64 // below
}

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	d.node.disk.gate.pass()
	if errno := d.node.disk.gate.sync(d.node.name); errno != 0 {
		return errno
	}
	return d.node.disk.journal.do(func() syscall.Errno {
		d.node.disk.journal.synced(d.ino)
		return d.stream.Fsyncdir(ctx, flags)
	})
}

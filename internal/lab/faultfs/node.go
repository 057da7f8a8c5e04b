package faultfs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// node is a file or directory of the disk: the one below it, behind the gate.
type node struct {
	*fs.LoopbackNode
	gate *gate
}

func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	below, ok := ops.(*fs.LoopbackNode)
	if !ok {
		return ops
	}
	return &node{below, n.gate}
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.gate.pass() // an empty file needs no block: the first write to it does
	child, h, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, n.handle(h), fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Tmpfile(ctx context.Context, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	n.gate.pass()
	child, h, _, errno := n.LoopbackNode.Tmpfile(ctx, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, n.handle(h), fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if flags&syscall.O_TRUNC != 0 {
		n.gate.pass()
	}
	h, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return n.handle(h), fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) handle(h fs.FileHandle) fs.FileHandle {
	if below, ok := h.(*fs.LoopbackFile); ok {
		return &file{below, n.gate}
	}
	return h
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, f, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if s, ok := h.(stream); ok && errno == 0 {
		return &directory{s, n.gate}, f, 0
	}
	return h, f, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	if errno := n.gate.room(); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Mknod(ctx context.Context, name string, mode, dev uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Mknod(ctx, name, mode, dev, out)
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Symlink(ctx, target, name, out)
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Link(ctx, target, name, out)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Rename(ctx, name, to, newName, flags)
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.gate.pass()
	if f, ok := h.(*file); ok { // LoopbackNode looks for its own type of handle
		return f.LoopbackFile.Setattr(ctx, in, out)
	}
	return n.LoopbackNode.Setattr(ctx, h, in, out)
}

// Statfs shows a full disk as full, so that monitoring sees it in time.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	errno := n.LoopbackNode.Statfs(ctx, out)
	if n.gate.fault.Load().Kind == Full {
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
	gate *gate
}

func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.gate.pass()
	if !f.allocated(ctx, uint64(off)+uint64(len(data))) {
		if errno := f.gate.room(); errno != 0 {
			return 0, errno
		}
	}
	return f.LoopbackFile.Write(ctx, data, off)
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	f.gate.pass()
	const punchHole = 2
	if mode&punchHole == 0 && !f.allocated(ctx, off+size) {
		if errno := f.gate.room(); errno != 0 {
			return errno
		}
	}
	return f.LoopbackFile.Allocate(ctx, off, size, mode)
}

// allocated reports whether the file has blocks up to end. While the disk is not full it is not called, and costs
// nothing. A file with holes counts as having none.
func (f *file) allocated(ctx context.Context, end uint64) bool {
	if f.gate.fault.Load().Kind != Full {
		return true
	}
	var a fuse.AttrOut
	if f.Getattr(ctx, &a) != 0 {
		return false
	}
	return end <= a.Size && a.Blocks*512 >= a.Size
}

func (f *file) Fsync(ctx context.Context, flags uint32) syscall.Errno {
	f.gate.pass()
	if errno := f.gate.sync(); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Fsync(ctx, flags)
}

func (f *file) Setattr(ctx context.Context, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	f.gate.pass()
	return f.LoopbackFile.Setattr(ctx, in, out)
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
	gate *gate
}

func (d *directory) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	d.gate.pass()
	if errno := d.gate.sync(); errno != 0 {
		return errno
	}
	return d.stream.Fsyncdir(ctx, flags)
}

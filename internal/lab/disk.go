package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lab/mirror"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// diskName is the name, among the helpers, of the process that serves the disk of one node. It is a process of its own,
// as a device is: nothing that befalls the node or the lab's commands ends it.
const diskName = "lab-disk"

// DiskStatus is the disk of a node as its server tells it.
type DiskStatus struct {
	faultfs.State
	Served bool `json:"served"` // false: the server is dead, and the disk with it; coterie lab start or up mounts it again
}

// disksDir holds what is below the disks, their sockets and the output of their servers. Only the lab's user writes it.
func (l *Lab) disksDir() string { return filepath.Join(l.dir, "disks") }

func (l *Lab) diskSocket(n Node) string { return filepath.Join(l.disksDir(), n.Name+".sock") }

// Disk puts a fault of a node's disk in force; the zero Fault heals it.
func (l *Lab) Disk(ctx context.Context, node string, f faultfs.Fault) (faultfs.State, error) {
	n, err := l.node(node)
	if err != nil {
		return faultfs.State{}, err
	}
	if !l.d.DiskFaults {
		return faultfs.State{}, noDisks()
	}
	if err := f.Check(); err != nil {
		return faultfs.State{}, usage("%s", err)
	}
	s, err := faultfs.Set(ctx, l.diskSocket(n), f)
	if err != nil {
		return s, fail.Unhealthyf("the disk of %s is not served: %s; coterie lab up mounts it again", node, err)
	}
	return s, nil
}

// ShowDisk asks how a node's disk is.
func (l *Lab) ShowDisk(ctx context.Context, node string) (faultfs.State, error) {
	n, err := l.node(node)
	if err != nil {
		return faultfs.State{}, err
	}
	s := l.diskStatus(ctx, n)
	switch {
	case s == nil:
		return faultfs.State{}, noDisks()
	case !s.Served:
		return s.State, fail.Unhealthyf("the disk of %s is not served; coterie lab up mounts it again", node)
	}
	return s.State, nil
}

// PowerLoss takes the power of nodes at one moment, as a rack that goes dark does. Their processes end, and writes
// to their disks that were not synced are lost, or part of them. Start brings a node back. PowerLoss returns the losses
// of each disk.
func (l *Lab) PowerLoss(ctx context.Context, loss faultfs.Loss, names ...string) (map[string]faultfs.Lost, error) {
	if !l.d.DiskFaults {
		return nil, noDisks()
	}
	if loss.Kept < 0 || loss.Kept > 1 {
		return nil, usage("%v of what was not synced: choose 0 to 1", loss.Kept)
	}
	var nodes []Node
	for _, name := range names {
		n, err := l.node(name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	running := map[string][]process{}
	var errs []error
	for _, n := range nodes { // all stand still before the first is without power
		all, err := l.freeze(n, WhatNode)
		running[n.Name] = all
		errs = append(errs, err)
	}
	lost := map[string]faultfs.Lost{}
	for _, n := range nodes {
		is, err := faultfs.LosePower(ctx, l.diskSocket(n), loss)
		if err != nil {
			errs = append(errs, nodeError{n.Name, fmt.Errorf("take the power of %s: %w", n.Name, err)})
		}
		lost[n.Name] = is
	}
	for _, n := range nodes {
		for _, p := range running[n.Name] {
			errs = append(errs, p.signal(syscall.SIGKILL))
		}
		errs = append(errs, awaitGone(running[n.Name], 10*time.Second), l.unmountDisk(n))
	}
	return lost, errors.Join(errs...)
}

// StorageMirror is the storage of a lab whose nodes are each on a mirror.
const StorageMirror = "mirror"

func (d description) checkDisks() error {
	switch {
	case d.Storage != "" && d.Storage != StorageMirror:
		return usage("--storage %q: there is %s, or leave it out", d.Storage, StorageMirror)
	case d.Storage != "" && d.DiskFaults:
		return usage("--storage %s and --disk-faults: choose one, as a node has one disk", d.Storage)
	}
	return nil
}

// mirrorOf returns the mirror of a node of a lab that has some.
func (l *Lab) mirrorOf(n Node) (mirror.Disk, error) {
	uid, gid, err := nodeUser()
	return mirror.Disk{Files: filepath.Join(l.disksDir(), n.Name), At: n.Dir, UID: uid, GID: gid}, err
}

// Mirror does something to the mirror of a node, and returns how it is then. Processes on a file system that gave up
// get nothing but errors: Heal ends them and mounts it anew.
func (l *Lab) Mirror(ctx context.Context, node string, do func(ctx context.Context, d mirror.Disk) error) (mirror.State, error) {
	n, err := l.node(node)
	if err != nil {
		return mirror.State{}, err
	}
	if l.d.Storage != StorageMirror {
		return mirror.State{}, usage("this lab was made without mirrors: make one with coterie lab up --storage %s", StorageMirror)
	}
	d, err := l.mirrorOf(n)
	if err == nil {
		err = do(ctx, d)
	}
	return d.State(ctx), err
}

// Mirrored reports whether the nodes of the lab are on mirrors.
func (l *Lab) Mirrored() bool { return l.d.Storage == StorageMirror }

// HealMirror gives the mirror of a node its sides back and makes them equal. Where the file system gave up, the node's
// processes end first, and it is mounted anew; Start brings the node back.
func (l *Lab) HealMirror(ctx context.Context, node string) (mirror.State, error) {
	return l.Mirror(ctx, node, func(ctx context.Context, d mirror.Disk) error {
		if err := d.Heal(ctx); err != nil {
			return err
		}
		if !d.State(ctx).ReadOnly {
			return nil
		}
		n, err := l.node(node)
		if err != nil {
			return err
		}
		if t, err := l.find(n); err == nil && t.running() {
			if err := l.killNode(n); err != nil {
				return err
			}
		}
		return errors.Join(d.Unmount(ctx), d.Mount(ctx), d.Scrub(ctx))
	})
}

// mirrorState returns how the mirror of a node is; nil where it has none.
func (l *Lab) mirrorState(ctx context.Context, n Node) *mirror.State {
	d, err := l.mirrorOf(n)
	if l.d.Storage != StorageMirror || err != nil {
		return nil
	}
	s := d.State(ctx)
	return &s
}

// eachMirror does something to the mirror of every node.
func (l *Lab) eachMirror(do func(n Node, d mirror.Disk) error) error {
	if l.d.Storage != StorageMirror {
		return nil
	}
	var errs []error
	for _, n := range l.Nodes() {
		d, err := l.mirrorOf(n)
		if err == nil {
			err = do(n, d)
		}
		if err != nil {
			errs = append(errs, nodeError{n.Name, err})
		}
	}
	return errors.Join(errs...)
}

// mountMirrors sees to it that every node has its mirror, before anything of the nodes is looked at.
func (l *Lab) mountMirrors(ctx context.Context) error {
	if l.d.Storage != StorageMirror {
		return nil
	}
	if err := mirror.Possible(); err != nil {
		return fail.Refusedf("%w", err)
	}
	return l.eachMirror(func(_ Node, d mirror.Disk) error { return d.Mount(ctx) })
}

func noDisks() error {
	return usage("this lab was made without disks that can fail: make one with coterie lab up --disk-faults")
}

// diskStatus asks how the node's disk is; nil where the lab has none.
func (l *Lab) diskStatus(ctx context.Context, n Node) *DiskStatus {
	if !l.d.DiskFaults {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := faultfs.Ask(ctx, l.diskSocket(n))
	return &DiskStatus{State: s, Served: err == nil}
}

// mountDisks sees to it that every node has its disk, before anything of the nodes is looked at.
func (l *Lab) mountDisks(ctx context.Context) error {
	if !l.d.DiskFaults {
		return l.mountMirrors(ctx)
	}
	if err := faultfs.Possible(); err != nil {
		return fail.Refusedf("%w", err)
	}
	for _, n := range l.Nodes() {
		if err := l.mountDisk(ctx, n); err != nil {
			return nodeError{n.Name, fmt.Errorf("mount the disk of %s: %w", n.Name, err)}
		}
	}
	return nil
}

// mountDisk mounts the node's disk unless it is mounted and alive. Processes on a dead one are killed: they get nothing
// but errors.
func (l *Lab) mountDisk(ctx context.Context, n Node) error {
	if !l.d.DiskFaults {
		return nil
	}
	mounted, err := faultfs.Mounted(n.Dir)
	if err != nil {
		return err
	}
	if mounted {
		if _, err := faultfs.Ask(ctx, l.diskSocket(n)); err == nil {
			return nil
		}
	}
	if t, err := l.find(n); err == nil && t.running() {
		l.progress.line("the disk of " + n.Name + " is dead; killing what ran on it")
		if err := errors.Join(l.endDiskServer(n), l.killNode(n)); err != nil {
			return err
		}
	}
	if err := l.unmountDisk(n); err != nil {
		return err
	}
	return l.serveDisk(ctx, n)
}

// serveDisk makes the directories, starts the server and waits until it answers.
func (l *Lab) serveDisk(ctx context.Context, n Node) error {
	uid, gid, err := nodeUser()
	if err != nil {
		return err
	}
	if err := os.Mkdir(l.disksDir(), 0o711); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // its user reaches the files below
		return err
	}
	for _, dir := range []string{n.Dir, n.disk} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// Below as well as where it is shown: the owner of a node directory decides where its sockets are, also while the
	// disk is away.
	if err := errors.Join(os.Lchown(n.disk, uid, gid), os.Lchown(n.Dir, uid, gid)); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(l.disksDir(), n.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd, err := l.helper(diskName, faultfs.Options{Below: n.disk, Mount: n.Dir, Socket: l.diskSocket(n), UID: uid, GID: gid}, log)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	l.servers.Go(func() { ended <- cmd.Wait() })
	starts, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var last error // of the last question
	err = retry.Until(starts, 20*time.Millisecond, func() (bool, error) {
		if _, last = faultfs.Ask(ctx, l.diskSocket(n)); last == nil {
			return true, nil
		}
		select {
		case exit := <-ended:
			return false, fmt.Errorf("its server ended: %w; see %s", errors.Join(exit, last), log.Name())
		default:
			return false, nil
		}
	})
	if starts.Err() != nil && ctx.Err() == nil {
		return last
	}
	return err
}

// healDisks releases the operations that the disks hold up, so that the processes on them can end. A server that does
// not answer is killed: then the kernel ends the operations.
func (l *Lab) healDisks(ctx context.Context) error {
	if !l.d.DiskFaults {
		return nil
	}
	var errs []error
	for _, n := range l.Nodes() {
		if _, err := faultfs.Set(ctx, l.diskSocket(n), faultfs.Fault{}); err != nil {
			errs = append(errs, l.endDiskServer(n))
		}
	}
	return errors.Join(errs...)
}

// removeDisks unmounts the disks and ends their servers. The directories below them stay.
func (l *Lab) removeDisks(ctx context.Context) error {
	if !l.d.DiskFaults {
		return l.eachMirror(func(_ Node, d mirror.Disk) error { return d.Unmount(ctx) })
	}
	var errs []error
	for _, n := range l.Nodes() {
		errs = append(errs, l.unmountDisk(n))
	}
	l.servers.Wait()
	return errors.Join(errs...)
}

func (l *Lab) unmountDisk(n Node) error {
	if err := faultfs.Unmount(n.Dir); err != nil {
		return err
	}
	return l.endDiskServer(n)
}

// endDiskServer kills the server of the node's disk, if one runs. Processes that wait for the disk get an error.
func (l *Lab) endDiskServer(n Node) error {
	uid, _, err := nodeUser()
	if err != nil {
		return err
	}
	ps, err := processes()
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ps {
		if c, ok := reexec.Parse[faultfs.Options](p.argv, diskName); ok && c.Mount == n.Dir && (p.uid == uid || p.uid == os.Getuid()) {
			errs = append(errs, p.signal(syscall.SIGKILL), awaitGone([]process{p}, 5*time.Second))
		}
	}
	return errors.Join(errs...)
}

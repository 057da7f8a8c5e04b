package faultfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Loss is a loss of power: data that was not synced is gone, or part of it.
type Loss struct {
	// Kept is the share of the data that was not synced and reached the disk all the same, block by block and name by
	// name: 0 to 1.
	Kept float64 `json:"kept,omitempty"`
	Seed uint64  `json:"seed,omitempty"` // of the choice
}

// Lost is what a loss of power took.
type Lost struct {
	Files  int `json:"files"`  // whose contents were put back
	Blocks int `json:"blocks"` // of 4 KiB, that were put back or cut off
	Names  int `json:"names"`  // changes of names that were undone
}

// LosePower takes the power of the disk that is served at the socket. Every later operation fails with EIO, and the
// server must be ended: the disk is mounted anew afterwards, with what it has kept.
func LosePower(ctx context.Context, socket string, l Loss) (Lost, error) {
	s, err := callWithin(ctx, lossTimeout, socket, request{Lose: &l})
	if s.Lost == nil {
		return Lost{}, errors.Join(err, errors.New("the disk's server does not say what was lost"))
	}
	return *s.Lost, err
}

// lose puts the disk back to what was synced.
func (j *journal) lose(l Loss) (Lost, error) {
	j.power.Lock()
	defer j.power.Unlock()
	if j.off {
		return Lost{}, errOff
	}
	j.off = true
	j.mu.Lock()
	defer j.mu.Unlock()
	rng := rand.New(rand.NewPCG(l.Seed, 7)) //nolint:gosec // not secret
	kept := func() bool { return rng.Float64() < l.Kept }
	if l.Kept > 0 {
		for _, r := range slices.Clone(j.names) {
			if kept() {
				j.commit(func(x *rename) bool { return x == r })
			}
		}
	}
	lost := Lost{Names: len(j.names)}
	var errs []error
	for _, r := range slices.Backward(j.names) {
		errs = append(errs, j.undo(r))
	}
	j.names = nil
	errs = append(errs, filepath.WalkDir(j.below, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		c := j.files[st.Ino]
		if c == nil {
			return nil
		}
		delete(j.files, st.Ino) // of several names one is enough
		n, err := c.restore(path, st.Size, kept)
		if n > 0 {
			lost.Files, lost.Blocks = lost.Files+1, lost.Blocks+n
		}
		return err
	}))
	return lost, errors.Join(errs...)
}

// undo takes a change of names back.
func (j *journal) undo(r *rename) error {
	var errs []error
	switch {
	case r.exchange:
		errs = append(errs, unix.Renameat2(unix.AT_FDCWD, j.path(r.new), unix.AT_FDCWD, j.path(r.old), unix.RENAME_EXCHANGE))
	case r.old != "" && r.new != "":
		errs = append(errs, os.Rename(j.path(r.new), j.path(r.old)))
	case r.new != "":
		errs = append(errs, os.Remove(j.path(r.new)))
	}
	taken := r.new
	if taken == "" {
		taken = r.old
	}
	switch {
	case r.kept != "":
		errs = append(errs, os.Rename(r.kept, j.path(taken)))
	case r.lost != 0:
		errs = append(errs, os.Mkdir(j.path(taken), r.rmdir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("undo %q to %q: %w", r.old, r.new, err)
	}
	return nil
}

// restore puts a file's contents back, and returns how many blocks were lost.
func (c *contents) restore(path string, size int64, kept func() bool) (lost int, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	shorter := size < c.size && kept() // it was cut off, and that is durable
	for at, b := range c.blocks {
		if shorter && at >= size || kept() {
			continue
		}
		if shorter {
			b = b[:min(int64(len(b)), size-at)]
		}
		if _, err := f.WriteAt(b, at); err != nil {
			return lost, err
		}
		lost++
	}
	if size <= c.size {
		return lost, nil
	}
	if !kept() {
		lost += int((size - c.size + block - 1) / block)
		return lost, f.Truncate(c.size)
	}
	for at := (c.size + block - 1) / block * block; at < size; at += block {
		if kept() {
			continue
		}
		if _, err := f.WriteAt(make([]byte, min(block, size-at)), at); err != nil {
			return lost, err
		}
		lost++
	}
	return lost, nil
}

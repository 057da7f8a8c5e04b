package faultfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// block is the unit in which contents are lost. PostgreSQL's pages have two of them, and so can be torn.
const block = 4096

// A disk writes back by itself what has not been synced for a while, or when there is too much of it.
const (
	writeBack = time.Minute
	maxUndo   = 256 << 20 // bytes of contents
)

// journal remembers each file and name as it was when it was synced last, so that a power loss can put that back. The
// directory below always holds the present contents, which the processes see.
//
// A sync of a file makes its contents durable, and the name that it was given last, as ext4, XFS and btrfs have it. A
// sync of a directory makes the names in it durable. The changes that a durable one rests upon are durable, too.
type journal struct {
	below, aside string

	// power is held for reading by every operation, and for writing by a power loss.
	power sync.RWMutex
	off   bool // guarded by power

	mu    sync.Mutex
	made  uint64 // names in aside so far
	names []*rename
	files map[uint64]*contents // by inode
	held  int                  // bytes of contents
}

// contents is how a file that has changed was at its last sync.
type contents struct {
	size   int64
	blocks map[int64][]byte // those that have been overwritten since
	since  time.Time
}

// rename is a change of names that is not durable: something got a name, lost one, or both.
type rename struct {
	old, new string    // relative to the root; empty: it had none, or has none
	ino      uint64    // of what was named
	dirs     [2]uint64 // inodes of the directories that were changed
	dir      bool
	kept     string // in aside: what lost its name
	lost     uint64 // its inode
	rmdir    os.FileMode
	exchange bool
	at       time.Time
}

func newJournal(below, aside string) (*journal, error) {
	old, err := filepath.Glob(filepath.Join(aside, "*"))
	if err != nil {
		return nil, err
	}
	for _, f := range old { // of a server that was killed: then nothing is lost
		if err := os.Remove(f); err != nil {
			return nil, fmt.Errorf("empty %s: %w", aside, err)
		}
	}
	return &journal{below: below, aside: aside, files: map[uint64]*contents{}}, nil
}

// do runs an operation unless the power is off.
func (j *journal) do(f func() syscall.Errno) syscall.Errno {
	j.power.RLock()
	defer j.power.RUnlock()
	if j.off {
		return syscall.EIO
	}
	return f()
}

func (j *journal) path(rel string) string { return filepath.Join(j.below, rel) }

// stat looks at a name, without following links.
func (j *journal) stat(rel string) (st unix.Stat_t, err error) {
	err = unix.Lstat(j.path(rel), &st)
	return st, err
}

func inodeOf(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// added runs an operation that makes a name.
func (j *journal) added(rel string, f func() syscall.Errno) syscall.Errno {
	return j.do(func() syscall.Errno {
		j.mu.Lock()
		defer j.mu.Unlock()
		_, before := j.stat(rel)
		if errno := f(); errno != 0 || before == nil {
			return errno
		}
		st, err := j.stat(rel)
		if err != nil {
			return syscall.EIO
		}
		if st.Nlink == 1 { // an inode may be used again
			j.forget(st.Ino)
			if st.Mode&unix.S_IFMT == unix.S_IFREG {
				j.files[st.Ino] = &contents{since: time.Now()}
			}
		}
		j.note(&rename{new: rel, ino: st.Ino, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR})
		return 0
	})
}

// removed runs an operation that takes a name away.
func (j *journal) removed(rel string, f func() syscall.Errno) syscall.Errno {
	return j.do(func() syscall.Errno {
		j.mu.Lock()
		defer j.mu.Unlock()
		st, err := j.stat(rel)
		if err != nil {
			return f()
		}
		r := &rename{old: rel, ino: st.Ino, lost: st.Ino, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, rmdir: os.FileMode(st.Mode).Perm()}
		if !r.dir && !j.onlyAdded(rel, st.Ino) {
			if r.kept, err = j.keep(rel); err != nil {
				return syscall.EIO
			}
		}
		if errno := f(); errno != 0 {
			j.drop(r)
			return errno
		}
		if !r.dir && r.kept == "" { // nothing of it was durable: it has never been
			j.names = without(j.names, func(x *rename) bool { return x.ino == st.Ino })
			if st.Nlink == 1 {
				j.forget(st.Ino)
			}
			return 0
		}
		j.note(r)
		return 0
	})
}

// moved runs an operation that gives something another name, in the place of what has it.
func (j *journal) moved(from, to string, flags uint32, f func() syscall.Errno) syscall.Errno {
	return j.do(func() syscall.Errno {
		j.mu.Lock()
		defer j.mu.Unlock()
		st, err := j.stat(from)
		if err != nil {
			return f()
		}
		r := &rename{old: from, new: to, ino: st.Ino, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, exchange: flags&unix.RENAME_EXCHANGE != 0}
		if was, err := j.stat(to); err == nil && was.Ino != st.Ino && !r.exchange {
			r.lost = was.Ino
			if was.Mode&unix.S_IFMT == unix.S_IFDIR {
				r.rmdir = os.FileMode(was.Mode).Perm()
			} else if r.kept, err = j.keep(to); err != nil {
				return syscall.EIO
			}
		}
		if errno := f(); errno != 0 {
			j.drop(r)
			return errno
		}
		j.note(r)
		return 0
	})
}

// note adds a change that has happened. The caller holds mu.
func (j *journal) note(r *rename) {
	for i, name := range []string{r.old, r.new} {
		if name == "" {
			continue
		}
		if st, err := j.stat(filepath.Dir(name)); err == nil {
			r.dirs[i] = st.Ino
		}
	}
	r.at = time.Now()
	j.names = append(j.names, r)
}

// keep gives a file that is about to lose its name another one, aside.
func (j *journal) keep(rel string) (string, error) {
	j.made++
	kept := filepath.Join(j.aside, strconv.FormatUint(j.made, 10))
	return kept, os.Link(j.path(rel), kept)
}

// drop removes what was kept of a change that is durable, or has not happened.
func (j *journal) drop(r *rename) {
	if r.kept == "" {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(r.kept, &st) == nil && st.Nlink == 1 {
		j.forget(st.Ino)
	}
	_ = os.Remove(r.kept) // a file more below the disk does no harm
}

// onlyAdded reports whether a file's one change is that it got this name, and nothing else happened to the name.
func (j *journal) onlyAdded(rel string, ino uint64) bool {
	n := 0
	for _, r := range j.names {
		switch {
		case r.ino == ino && r.old == "" && r.new == rel:
			n++
		case r.ino == ino, r.old == rel, r.new == rel:
			return false
		}
	}
	return n == 1
}

// changing notes a file's contents from off on, as far as they were synced, before they are overwritten or cut off.
// The caller is within do.
func (j *journal) changing(fd int, off, end int64) syscall.Errno {
	j.mu.Lock()
	defer j.mu.Unlock()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return syscall.EIO
	}
	c := j.files[st.Ino]
	if c == nil {
		c = &contents{size: st.Size, since: time.Now()}
		j.files[st.Ino] = c
	}
	for at := off / block * block; at < min(end, c.size); at += block {
		if _, have := c.blocks[at]; have {
			continue
		}
		b := make([]byte, min(block, c.size-at))
		n, err := unix.Pread(fd, b, at)
		if err != nil {
			return syscall.EIO
		}
		clear(b[n:])
		if c.blocks == nil {
			c.blocks = map[int64][]byte{}
		}
		c.blocks[at] = b
		j.held += len(b)
	}
	if j.held > maxUndo {
		j.writeBack(0)
	}
	return 0
}

// forget takes a file's contents for synced. The caller holds mu.
func (j *journal) forget(ino uint64) {
	if c := j.files[ino]; c != nil {
		for _, b := range c.blocks {
			j.held -= len(b)
		}
		delete(j.files, ino)
	}
}

// synced makes durable what a sync of a file or directory does.
func (j *journal) synced(ino uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget(ino)
	j.commit(func(r *rename) bool { return r.ino == ino || r.dirs[0] == ino || r.dirs[1] == ino })
}

// commit makes changes of names durable, and those they rest upon. The caller holds mu.
func (j *journal) commit(which func(*rename) bool) {
	var durable []*rename
	rest := make([]*rename, 0, len(j.names))
	for i := len(j.names) - 1; i >= 0; i-- {
		r := j.names[i]
		is := which(r)
		for k := 0; k < len(durable) && !is; k++ {
			is = durable[k].restsUpon(r)
		}
		if is {
			durable = append(durable, r)
			j.drop(r)
		} else {
			rest = append(rest, r)
		}
	}
	for i, k := 0, len(rest)-1; i < k; i, k = i+1, k-1 {
		rest[i], rest[k] = rest[k], rest[i]
	}
	j.names = rest
}

// restsUpon reports whether a change cannot be durable without an earlier one.
func (r *rename) restsUpon(earlier *rename) bool {
	if earlier.ino == r.ino || earlier.ino == r.dirs[0] || earlier.ino == r.dirs[1] {
		return true
	}
	for _, mine := range []string{r.old, r.new} {
		for _, its := range []string{earlier.old, earlier.new} {
			if mine != "" && (mine == its || r.dir && within(its, mine)) {
				return true
			}
		}
	}
	return false
}

func within(path, dir string) bool {
	return len(path) > len(dir) && path[:len(dir)] == dir && path[len(dir)] == '/'
}

func without(all []*rename, drop func(*rename) bool) []*rename {
	var out []*rename
	for _, r := range all {
		if !drop(r) {
			out = append(out, r)
		}
	}
	return out
}

// age lets the disk write back by itself what is old.
func (j *journal) age() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.writeBack(writeBack)
}

func (j *journal) writeBack(older time.Duration) {
	limit := time.Now().Add(-older)
	for ino, c := range j.files {
		if !c.since.After(limit) {
			j.forget(ino)
		}
	}
	j.commit(func(r *rename) bool { return !r.at.After(limit) })
}

var errOff = errors.New("the power is off already")

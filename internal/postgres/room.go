package postgres

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
)

// The bounds of what is kept for others on a file system of a given size.
const (
	slotKeepShare = 4        // a slot may hold a quarter of it,
	slotKeepMost  = 64 << 10 // MB, at most
	slotKeepLeast = 64       // MB
	walKeepShare  = 8        // what is kept without a slot: an eighth of it, at most minWalKeepMB
)

// walFileSystem returns the size of the file system that pg_wal is on, in MB.
func (i *Instance) walFileSystem() (mb int, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(i.path("pg_wal"), &st); err != nil {
		return 0, fmt.Errorf("look at the file system of pg_wal: %w", err)
	}
	return int(st.Blocks * uint64(st.Bsize) >> 20), nil
}

// slotKeep is the max_slot_wal_keep_size of a file system: a member that is away must not fill the disk of one that
// serves. What it then lacks it gets by a new copy.
func slotKeep(fsMB int) int {
	return max(slotKeepLeast, min(fsMB/slotKeepShare, slotKeepMost))
}

// boundRetention adds the limits of what is kept for others, unless the instance's own files say otherwise.
func (i *Instance) boundRetention(ctx context.Context, set map[string]string, floors map[string]int) {
	mb, err := i.walFileSystem()
	if err != nil {
		i.log.Warn("what slots may keep is not limited", "error", err)
		return
	}
	floors["wal_keep_size"] = min(minWalKeepMB, max(mb/walKeepShare, 16))
	if own, err := i.fileSetting(ctx, "max_slot_wal_keep_size"); err == nil && own == "-1" {
		set["max_slot_wal_keep_size"] = fmt.Sprintf("%dMB", slotKeep(mb))
	}
}

// Keeps reports whether the WAL after a position is still here, as a standby would ask for it, and else where what is here begins.
func (i *Instance) Keeps(ctx context.Context, at ag.LSN) (keeps bool, from ag.LSN, err error) {
	c, err := i.Control(ctx)
	if err != nil {
		return false, 0, err
	}
	segSize := ag.LSN(c.WalSegmentSize)
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return false, 0, err
	}
	first, any := ag.LSN(0), false
	for _, e := range entries {
		if seg, ok := segmentNumber(e.Name(), segSize); ok && (!any || seg < first) {
			first, any = seg, true
		}
	}
	return !any || at/segSize >= first, first * segSize, nil
}

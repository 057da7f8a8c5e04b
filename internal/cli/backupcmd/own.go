package backupcmd

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// ours reports whether the stanza says that it is the group's, by its owner's mark or by a backup.
func ours(p backup.Plan, have backup.Catalog) bool {
	return have.Owner == p.Group || slices.ContainsFunc(have.Backups, func(b backup.Backup) bool { return b.Group == p.Group })
}

// mayUse refuses a stanza that another group writes to, or may write to. The identifier of the cluster is no proof: a
// group that was restored, or made of a copy, has the identifier of the one that it comes from.
func (x *enabling) mayUse(p backup.Plan, have backup.Catalog) error {
	const rule = "two groups must never write to one archive"
	for _, b := range have.Backups {
		if b.Group != "" && b.Group != p.Group {
			return fail.Refusedf("the stanza %s in %s has backups of another group (%s); %s: name another one with --stanza", p.Stanza, p.Repository, b.Group, rule)
		}
	}
	known := x.before != nil && x.before.Stanza == p.Stanza && x.before.Repository == p.Repository && x.before.Group == p.Group
	switch {
	case x.takeOver, ours(p, have):
		return nil
	case have.Owner != "":
		return fail.Refusedf("the stanza %s in %s is of another group (%s), which has made no backup yet; %s: name another one with --stanza, or give --take-over if that group has ended",
			p.Stanza, p.Repository, have.Owner, rule)
	case known, have.System == 0, x.st.Primary != x.st.Node: // a secondary makes no stanza, and archives with that of the primary
		return nil
	}
	return fail.Refusedf("the stanza %s in %s exists, and nothing in it says that it is this group's; %s: name another one with --stanza, or give --take-over if nothing else archives there any more",
		p.Stanza, p.Repository, rule)
}

// claim puts the mark of this group into the repository, unless another group does so at the same time.
func (x *enabling) claim(ctx context.Context, tool backup.Tool, p backup.Plan, have backup.Catalog) error {
	if have.Owner == p.Group {
		return nil
	}
	if err := backup.Take(ctx, tool, p.Group, have.Owner); err != nil {
		return fmt.Errorf("the stanza %s in %s: %w", p.Stanza, p.Repository, err)
	}
	return nil
}

// mayWrite refuses a directory in which this user, the server's, makes no files. One that is not there is made, and an
// S3 store has none.
func mayWrite(dir string) error {
	st, err := os.Stat(dir)
	if dir == "" || err != nil {
		return nil //nolint:nilerr // the tool says what is wrong with it
	}
	if !st.IsDir() {
		return fail.Refusedf("%s is no directory; nothing was changed: name one that every replica reaches", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err == nil {
		return nil
	}
	name := func(uid uint32) string {
		id := strconv.FormatUint(uint64(uid), 10)
		if u, err := user.LookupId(id); err == nil {
			return u.Username
		}
		return id
	}
	self := name(uint32(os.Getuid()))
	return fail.Refusedf("the server's user %s may not write to %s, which belongs to %s; nothing was changed: give it to that user (chown %s %s), or name another directory", self, dir, name(st.Sys().(*syscall.Stat_t).Uid), self, word(dir))
}

package backups

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// The rate at which WAL gathers is that of the last ten minutes, as soon as ten seconds of them were seen.
const (
	mostSeen  = 10 * time.Minute
	leastSeen = 10 * time.Second
)

// gathering is how much WAL waited to be archived, the oldest first.
type gathering []gathered

type gathered struct {
	at    time.Time
	bytes int64
}

// add adds what waits now, and returns how many bytes a second it has become more since it was least; 0: it has not.
// The time before that does not count: an archive that fails only now would seem to have minutes more.
func (g *gathering) add(now time.Time, bytes int64) (rate int64) {
	*g = slices.DeleteFunc(append(*g, gathered{now, bytes}), func(x gathered) bool { return now.Sub(x.at) > mostSeen })
	least := (*g)[0]
	for _, x := range *g {
		if x.bytes <= least.bytes {
			least = x
		}
	}
	if d := now.Sub(least.at); d >= leastSeen && bytes > least.bytes {
		return max(1, int64(float64(bytes-least.bytes)/d.Seconds()))
	}
	return 0
}

// waiting adds the WAL that waits to be archived, and the reason as far as a look at the repository tells it.
func (s *Service) waiting(out *catalog.Backup, p backup.Plan) {
	u, err := s.Server.Unarchived()
	if err != nil {
		s.Log.Debug("WAL that waits to be archived", "err", err)
		return
	}
	out.Waiting, out.Free, out.Kept = u.Files, u.Free, int64(u.Files)*out.SegmentSize
	out.Rate = s.gathered.add(time.Now(), out.Kept)
	out.Since = u.Since
	if d, ok := (backup.Archiver{Free: out.Free, Rate: out.Rate}).FullIn(); ok {
		full := int64(d.Seconds())
		out.FullIn = &full
	}
	if out.FailedAt.After(out.ArchivedAt) && p.Repository.Directory != "" {
		out.Reason = s.lookAt(p.Repository.Directory, out.SegmentSize)
	}
}

// lookLimit is how long the file system of a repository may take to answer.
const lookLimit = 2 * time.Second

// lookAt returns what is wrong with the directory of a repository; "": nothing that a look tells. One look at it is
// under way at a time: a share whose server is gone may answer never.
func (s *Service) lookAt(dir string, segment int64) string {
	if s.asking == nil || s.askedOf != dir {
		answer := make(chan string, 1)
		s.asking, s.askedOf = answer, dir
		go func() { answer <- why(dir, segment) }()
	}
	select {
	case said := <-s.asking:
		s.asking = nil
		return said
	case <-time.After(lookLimit):
		return fmt.Sprintf("the file system of the repository %s does not answer", dir)
	}
}

// why returns why a directory takes no segment of that size; "": it would.
func why(dir string, segment int64) string {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	free := int64(st.Bavail) * st.Bsize
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("the repository %s is not there", dir)
	case err != nil:
		return fmt.Sprintf("the repository %s cannot be read: %v", dir, err)
	case st.Flags&unix.ST_RDONLY != 0:
		return fmt.Sprintf("the repository %s can only be read", dir)
	case free < segment:
		return fmt.Sprintf("the repository %s is full: %s are free", dir, units.Bytes(free))
	case st.Files > 0 && st.Ffree == 0:
		return fmt.Sprintf("the file system of the repository %s takes no more files", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Sprintf("the server's user may not write to the repository %s: %v", dir, err)
	}
	return ""
}

package seeding

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// starting is a directory with another copy of the cluster, such as a restored backup or a snapshot. Chunks that the
// target lacks are looked for there before they are requested from the source, which confirms them by hash. The
// directory's age, the way it was taken and later changes to it therefore do not affect the result, only the amount of
// traffic.
type starting struct {
	main   *os.Root
	spaces map[uint32]*os.Root
}

// checkFrom refuses an unusable starting point before anything is touched.
func checkFrom(from, target string) error {
	if from == "" {
		return nil
	}
	real, err := filepath.EvalSymlinks(from)
	switch {
	case !filepath.IsAbs(from):
		return fmt.Errorf("the starting point %q must be an absolute path", from)
	case err != nil:
		return fmt.Errorf("the starting point: %w", err)
	case fileio.Within(real, target) || fileio.Within(target, real):
		return fmt.Errorf("the starting point %s and the data directory must lie apart", from)
	case !fileio.Exists(filepath.Join(real, "PG_VERSION")):
		return fmt.Errorf("the starting point %s holds no PostgreSQL cluster (no PG_VERSION)", from)
	}
	return nil
}

// openStarting opens the directory after refusing a copy of something else. A snapshot's own pg_control may be missing,
// as it is in some backups; then the contents alone decide.
func openStarting(from string, info wire.Window) (*starting, error) {
	if err := tree.CheckOldCopy(from, info.SystemID, info.Major); err != nil {
		return nil, fmt.Errorf("the starting point %s: %w", from, err)
	}
	s := &starting{spaces: map[uint32]*os.Root{}}
	var err error
	if s.main, err = os.OpenRoot(from); err != nil {
		return nil, fmt.Errorf("the starting point: %w", err)
	}
	for _, t := range info.Spaces {
		root, err := os.OpenRoot(filepath.Join(from, "pg_tblspc", strconv.FormatUint(uint64(t.OID), 10)))
		if err != nil {
			continue // missing: fetched whole
		}
		s.spaces[t.OID] = root
	}
	return s, nil
}

func (s *starting) close() {
	for _, r := range s.spaces {
		_ = r.Close()
	}
	_ = s.main.Close()
}

// read fills buf with the starting point's bytes of a file from off on. Unreadable bytes count as missing.
func (s *starting) read(f wire.File, off int64, buf []byte) []byte {
	root := s.main
	if f.Space != 0 {
		root = s.spaces[f.Space]
	}
	if root == nil {
		return nil
	}
	in, err := root.Open(f.Name)
	if err != nil {
		return nil
	}
	n, err := fileio.ReadAt(in, buf, off)
	if err := errors.Join(err, in.Close()); err != nil {
		return nil
	}
	return buf[:n]
}

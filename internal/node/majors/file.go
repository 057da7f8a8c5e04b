package majors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// maxFile bounds the file of the state. A history of timelines is the longest part of it.
const maxFile = 4 << 20

// phases are those that a file can name. Another one is that of a later program, which alone knows what is to be done.
var phases = []major.Phase{major.Asked, major.Made, major.Passed, major.Done, major.GivenUp, major.Following, major.Copying}

// Read returns the state of the upgrade that this node has begun last; the zero value if there was none.
func Read(l config.Layout) (u major.Upgrade, err error) {
	f, err := os.Open(l.MajorFile())
	if errors.Is(err, fs.ErrNotExist) {
		return u, nil
	}
	if err != nil {
		return u, fmt.Errorf("read the state of the major upgrade: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err == nil {
		err = json.Unmarshal(b, &u)
	}
	if err == nil && !slices.Contains(phases, u.Phase) {
		err = fmt.Errorf("this program does not know the phase %q: start the version of coterie that has written it", u.Phase)
	}
	if err != nil {
		return u, fmt.Errorf("read the state of the major upgrade: %s: %w", l.MajorFile(), err)
	}
	return u, nil
}

func save(l config.Layout, u major.Upgrade) error {
	if err := durable.ReplaceJSON(l.MajorFile(), u); err != nil {
		return fmt.Errorf("store the state of the major upgrade: %w", err)
	}
	return nil
}

// stopped reports whether an administrator wants the upgrade given up.
func stopped(l config.Layout) bool {
	_, err := os.Lstat(l.MajorStop())
	return !errors.Is(err, fs.ErrNotExist)
}

// beside returns the directory for a cluster of another version: the name of the present one with the number behind it.
func beside(data string, from, to int) string {
	return strings.TrimSuffix(filepath.Clean(data), "-"+strconv.Itoa(from)) + "-" + strconv.Itoa(to)
}

// name has the node's configuration file name another cluster, by one replacement. Comments and order of the file stay
// where its lines are as usual; else it is written anew.
func name(dir string, cfg config.Config, binDir, data string) error {
	pg := *cfg.PostgreSQL
	was := pg
	pg.BinDir, pg.Data = binDir, data
	cfg.PostgreSQL = &pg
	path := filepath.Join(dir, config.File)
	old, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("change %s: %w", config.File, err)
	}
	text := edited(string(old), map[string][2]string{"bin_dir": {was.BinDir, binDir}, "data": {was.Data, data}})
	if now, err := config.Parse([]byte(text)); err != nil || now.PostgreSQL == nil || *now.PostgreSQL != pg {
		return cfg.Save(dir)
	}
	if err := durable.Replace(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("change %s: %w", config.File, err)
	}
	return nil
}

// fixed returns why a node's configuration file could not be replaced; nil: it could.
func fixed(dir string) error {
	path := filepath.Join(dir, config.File)
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st); err != nil {
		return fmt.Errorf("%s cannot be read: %w", path, err)
	}
	const attributes = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND
	switch has := st.Attributes & st.Attributes_mask; {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is no plain file, and is to name the other data directory; put the file itself there", path)
	case has&attributes != 0:
		return fmt.Errorf("%s has an attribute that keeps it as it is, and is to name the other data directory; chattr -i -a removes that", path)
	case has&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return fmt.Errorf("%s is mounted there, and is to name the other data directory; put the file itself there", path)
	}
	probe := path + ".probe" // root may do what a file system that is read-only does not
	err := os.WriteFile(probe, nil, 0o600)
	if err = errors.Join(err, ignoreMissing(os.Remove(probe))); err != nil {
		return fmt.Errorf("%s cannot be replaced, and is to name the other data directory: %w", path, err)
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// edited replaces the values of keys that are on lines of their own.
func edited(text string, values map[string][2]string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if v, ok := values[key]; ok && strings.HasPrefix(line, " ") && strings.Trim(strings.TrimSpace(rest), `"'`) == v[0] {
			line = strings.Replace(line, v[0], v[1], 1)
		}
		out.WriteString(line)
	}
	return out.String()
}

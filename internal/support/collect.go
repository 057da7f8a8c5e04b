package support

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/buildinfo"
)

// Node adds what is in a node directory: configuration, record, marks, the ends of the logs, and a list of its files. A
// file outside the directory is not followed to.
func (b *Bundle) Node(dir string, statements bool) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		b.Missing("node", err)
		return
	}
	defer func() { _ = root.Close() }()
	b.knowKeys(root)
	b.knowBackups(root)
	b.configuration(root)
	b.folderOf(root, "state", func(name string) bool { return strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".conf") })
	for _, name := range []string{"agent.log", "agent.log.1", "keeper.log", "keeper.log.1"} {
		if data, err := tail(root, "log/"+name); err == nil {
			b.Log("log/"+name, data)
		} else if !strings.HasSuffix(name, ".1") {
			b.Missing("log/"+name, err)
		}
	}
	for _, name := range []string{"postgres.log", "postgres.log.1"} {
		if data, err := tail(root, "log/"+name); err == nil {
			b.ServerLog("log/"+name, data, statements)
		} else if !strings.HasSuffix(name, ".1") {
			b.Missing("log/"+name, err)
		}
	}
	if data, err := tail(root, "state/decisions.jsonl"); err == nil {
		b.Log("state/decisions.jsonl", data)
	}
	b.Text("files.txt", list(root))
}

// knowKeys has the lines of this node's private keys removed wherever they appear.
func (b *Bundle) knowKeys(root *os.Root) {
	keys, _ := fs.Glob(root.FS(), "pki/*.key")
	for _, k := range keys {
		data, err := tail(root, k)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
				b.Redactor.Know(line)
			}
		}
	}
}

// secretOption is a line of pgBackRest's configuration whose value is a secret, as repo1-cipher-pass=….
var secretOption = regexp.MustCompile(`(?m)^\s*[a-z0-9-]*(?:key|pass|secret|token)[a-z0-9-]*\s*=\s*(.*?)\s*$`)

// knowBackups has the key and the passphrase of the repository of backups removed wherever they appear.
func (b *Bundle) knowBackups(root *os.Root) {
	more, _ := fs.Glob(root.FS(), "backup/conf.d/*.conf")
	for _, name := range append(more, "backup/pgbackrest.conf") {
		data, err := tail(root, name)
		if err != nil {
			continue
		}
		for _, m := range secretOption.FindAllSubmatch(data, -1) {
			b.Redactor.Know(string(m[1]))
		}
	}
}

// configuration adds coterie.yaml and the version of the data directory.
func (b *Bundle) configuration(root *os.Root) {
	for _, name := range []string{"coterie.yaml", "pgdata/PG_VERSION"} {
		if data, err := tail(root, name); err == nil {
			b.Text(name, data)
		} else if name == "coterie.yaml" {
			b.Missing(name, err)
		}
	}
}

// folderOf adds the files of a folder whose names are wanted.
func (b *Bundle) folderOf(root *os.Root, folder string, wanted func(string) bool) {
	entries, err := fs.ReadDir(root.FS(), folder)
	if err != nil {
		b.Missing(folder, err)
		return
	}
	for _, e := range entries {
		if !wanted(e.Name()) {
			continue
		}
		name := folder + "/" + e.Name()
		data, err := tail(root, name)
		switch clean, jsonErr := b.Redactor.JSON(data); {
		case err != nil:
			b.Missing(name, err)
		case strings.HasSuffix(name, ".json") && jsonErr == nil:
			b.Text(name, clean)
		default:
			b.Text(name, data)
		}
	}
}

// tail reads the end of a regular file, of at most MaxPart bytes, from the beginning of a line: what a line has is told
// from its beginning, be it a secret or a statement.
func tail(root *os.Root, name string) ([]byte, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0) // a fifo must not hold the command
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New(name + " is no regular file")
	}
	if st.Size() <= MaxPart {
		return io.ReadAll(io.LimitReader(f, MaxPart))
	}
	if _, err := f.Seek(st.Size()-MaxPart, io.SeekStart); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxPart))
	_, rest, _ := bytes.Cut(data, []byte("\n"))
	return rest, err
}

// list lists the files of a node directory with mode, size and time. Of the databases it lists the top only.
func list(root *os.Root) []byte {
	const most = 5000
	var out bytes.Buffer
	n := 0
	_ = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if n++; n > most {
			return fs.SkipAll
		}
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", path, err)
			return nil
		}
		st, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // it is gone
		}
		fmt.Fprintf(&out, "%s %12d %s %s\n", st.Mode(), st.Size(), st.ModTime().UTC().Format(time.RFC3339), path)
		if e.IsDir() && strings.Count(path, "/") == 1 && strings.HasPrefix(path, "pgdata/") {
			return fs.SkipDir
		}
		return nil
	})
	return out.Bytes()
}

// Host adds facts of the machine and of the disk that the node directory is on, and the version of this program.
func (b *Bundle) Host(dir string) {
	commit, date := buildinfo.Source()
	version := map[string]any{"version": buildinfo.Version, "commit": commit, "date": date, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
	b.JSON("version.json", version)
	facts := map[string]any{"processors": runtime.NumCPU(), "time": time.Now().UTC(), "user": os.Geteuid()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		facts["kernel"] = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Version[:])
	}
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err == nil {
		facts["node_directory"] = map[string]any{
			"path": dir, "filesystem_magic": fmt.Sprintf("%#x", s.Type), "bytes": int64(s.Blocks) * s.Bsize, "free_bytes": int64(s.Bavail) * s.Bsize,
			"inodes": s.Files, "free_inodes": s.Ffree,
		}
	}
	b.JSON("host/facts.json", facts)
	for _, path := range []string{
		"/etc/os-release", "/proc/loadavg", "/proc/meminfo", "/proc/uptime", "/proc/self/limits", "/proc/self/mountinfo", "/proc/pressure/cpu",
		"/proc/pressure/io", "/proc/pressure/memory", "/proc/net/dev", "/proc/diskstats", "/proc/sys/vm/overcommit_memory", "/sys/fs/cgroup/memory.max",
	} {
		f, err := os.Open(path)
		if err != nil {
			continue // not every kernel has each
		}
		data, err := io.ReadAll(io.LimitReader(bufio.NewReader(f), reserve))
		_ = f.Close()
		if err == nil {
			b.Text("host/"+strings.ReplaceAll(strings.TrimPrefix(filepath.Clean(path), "/"), "/", "-")+".txt", data)
		}
	}
}

package adopt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// RefusedError is a reason not to adopt a cluster, with the remedy.
type RefusedError struct {
	Reason string `json:"reason"`
	Fix    string `json:"fix"`
}

// Error returns the reason and the remedy.
func (r RefusedError) Error() string { return r.Reason + ": " + r.Fix }

func refuse(reason, fix string, a ...any) RefusedError {
	return RefusedError{reason, fmt.Sprintf(fix, a...)}
}

// Cluster names the places of a cluster's parts.
type Cluster struct {
	Data       string `json:"data"`
	ConfigFile string `json:"config_file"`
	Major      int    `json:"major"`
	Name       string `json:"name,omitempty"` // 15/main in Debian's layout
	Root       string `json:"-"`              // the prefix of /etc, /lib and /run; empty except in tests
}

// Apart reports whether postgresql.conf is outside the data directory.
func (c Cluster) Apart() bool { return filepath.Dir(c.ConfigFile) != c.Data }

var debianName = regexp.MustCompile(`^([0-9]+)/([A-Za-z0-9_.-]+)$`)

// Find locates a cluster: target is a data directory or, in Debian's layout, VERSION/NAME. configFile may be empty.
func Find(root, target, configFile string) (Cluster, error) {
	return FindOwned(root, target, configFile, os.Geteuid())
}

// FindOwned is Find for a server that will run as user uid.
func FindOwned(root, target, configFile string, uid int) (Cluster, error) {
	c := Cluster{Data: filepath.Clean(target), ConfigFile: configFile, Root: root}
	if m := debianName.FindStringSubmatch(target); m != nil {
		c.Name = target
		if c.ConfigFile == "" {
			c.ConfigFile = filepath.Join(root, "/etc/postgresql", m[1], m[2], "postgresql.conf")
		}
		data, err := confValue(c.ConfigFile, "data_directory")
		if err != nil || data == "" {
			return c, refuse(fmt.Sprintf("cluster %s was not found (%s names no data_directory)", target, c.ConfigFile), "list the clusters with pg_lsclusters, or give the data directory")
		}
		c.Data = filepath.Clean(data)
	}
	if !filepath.IsAbs(c.Data) || c.ConfigFile != "" && !filepath.IsAbs(c.ConfigFile) {
		return c, refuse("a relative path was given", "give the data directory as an absolute path or as VERSION/NAME, and --config-file as an absolute path")
	}
	if err := c.checkOwner(uid); err != nil {
		return c, err
	}
	if real, err := filepath.EvalSymlinks(c.Data); err == nil {
		c.Data = real
	}
	b, err := os.ReadFile(filepath.Join(c.Data, "PG_VERSION"))
	if err != nil {
		return c, refuse(fmt.Sprintf("%s is not the data directory of a cluster: %v", c.Data, err), "give the directory that has PG_VERSION in it")
	}
	if c.Major, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return c, refuse(fmt.Sprintf("%s has PostgreSQL %.20q", c.Data, b), "upgrade it with pg_upgrade to one of 14 to 18 first")
	}
	if c.Major < 14 || c.Major > 18 {
		return c, refuse(fmt.Sprintf("%s has PostgreSQL %d; supported are 14 to 18", c.Data, c.Major), "upgrade it with pg_upgrade first")
	}
	return c, c.findConfig()
}

// checkOwner refuses the data directory of another user: the server would not start, and its files could not be read.
func (c *Cluster) checkOwner(uid int) error {
	st, err := os.Stat(c.Data)
	if err != nil || !st.IsDir() {
		return refuse(fmt.Sprintf("%s is not a directory that can be read here", c.Data), "check the path, and that the user who runs the server may enter its parents")
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != uid {
		return refuse(fmt.Sprintf("%s belongs to user %s, the server would run as user %s", c.Data, unixuser.Name(owner), unixuser.Name(uid)), "run this as the owner of the data directory (root runs servers as user postgres)")
	}
	return nil
}

// findConfig looks for postgresql.conf in the places where a server started by the usual means would look.
func (c *Cluster) findConfig() error {
	inside := filepath.Join(c.Data, "postgresql.conf")
	if _, err := os.Stat(inside); err == nil && c.ConfigFile == "" {
		c.ConfigFile = inside
	}
	dirs, _ := filepath.Glob(filepath.Join(c.Root, "/etc/postgresql", strconv.Itoa(c.Major), "*", "postgresql.conf"))
	for _, f := range dirs {
		data, err := confValue(f, "data_directory")
		if real, rerr := filepath.EvalSymlinks(data); err != nil || rerr != nil || real != c.Data {
			continue
		}
		if c.ConfigFile == "" {
			c.ConfigFile = f
		}
		if c.Name == "" && c.ConfigFile == f {
			c.Name = fmt.Sprintf("%d/%s", c.Major, filepath.Base(filepath.Dir(f)))
		}
	}
	if c.ConfigFile == "" {
		return refuse(fmt.Sprintf("%s has no postgresql.conf and no cluster of /etc/postgresql/%d uses it", c.Data, c.Major), "name the file with --config-file")
	}
	if _, err := os.Stat(c.ConfigFile); errors.Is(err, fs.ErrNotExist) {
		return refuse(c.ConfigFile+" does not exist", "name the right file with --config-file")
	}
	return nil
}

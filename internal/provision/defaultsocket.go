package provision

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
)

// DefaultSocketDir is the directory in which distributions put PostgreSQL's socket, and in which clients on the host
// look for it.
const DefaultSocketDir = "/var/run/postgresql"

// DefaultSocket returns the path of the socket that programs on the host expect for a server at the port of listen. It
// returns "" if this node must not have the socket. That is so if the node listens at chosen addresses only, if the
// directory dir does not belong to its user, or if a cluster of the distribution, with its configuration below
// clusters, has the port.
func DefaultSocket(listen config.Address, dir, clusters string) string {
	addresses, _ := listen.Places()
	port := ""
	for _, a := range addresses {
		host, p, err := net.SplitHostPort(a)
		if err == nil && (host == "" || host == "0.0.0.0" || host == "::") {
			port = p
			break
		}
	}
	if port == "" {
		return ""
	}
	uid := os.Getuid()
	if u, err := daemon.ServerUser(); uid == 0 && err == nil {
		uid = u.UID
	}
	info, err := os.Stat(dir)
	if err != nil || !info.IsDir() || int(info.Sys().(*syscall.Stat_t).Uid) != uid {
		return ""
	}
	path := filepath.Join(dir, ".s.PGSQL."+port)
	for _, taken := range []string{path, path + ".lock"} {
		if _, err := os.Lstat(taken); err == nil {
			return ""
		}
	}
	files, _ := filepath.Glob(filepath.Join(clusters, "*", "*", "postgresql.conf")) // the pattern is well-formed
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || portOfCluster(string(b)) == port {
			return ""
		}
	}
	return path
}

var portLine = regexp.MustCompile(`(?m)^[ \t]*port[ \t]*=?[ \t]*'?([0-9]+)`)

// portOfCluster returns the port that a postgresql.conf sets. The last line that sets it takes precedence.
func portOfCluster(text string) string {
	port := "5432"
	for _, m := range portLine.FindAllStringSubmatch(text, -1) {
		port = strings.TrimLeft(m[1], "0")
	}
	return port
}

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

// DefaultSocketDir is where distributions have PostgreSQL's socket, and clients on the host look for it.
const DefaultSocketDir = "/var/run/postgresql"

// DefaultSocket returns the path of the socket that programs on the host expect of a server at that port, "" where it is not for this
// node: it listens at chosen addresses only, the directory is not that of its user, or a cluster of the distribution has the port.
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
	files, _ := filepath.Glob(filepath.Join(clusters, "*", "*", "postgresql.conf")) // the pattern is a good one
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil || portOfCluster(string(b)) == port {
			return ""
		}
	}
	return path
}

var portLine = regexp.MustCompile(`(?m)^[ \t]*port[ \t]*=?[ \t]*'?([0-9]+)`)

// portOfCluster is the port that a postgresql.conf sets, the last line counting.
func portOfCluster(text string) string {
	port := "5432"
	for _, m := range portLine.FindAllStringSubmatch(text, -1) {
		port = strings.TrimLeft(m[1], "0")
	}
	return port
}

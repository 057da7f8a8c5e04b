package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
)

// portsFree names every port of the lab that something else uses, and what that is.
func (l *Lab) portsFree() error {
	var taken []string
	var sockets []string
	for _, n := range l.Nodes() {
		for i := range 4 {
			if n.Witness && i < 2 {
				continue
			}
			s, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", n.address(i))
			if err != nil {
				taken = append(taken, strconv.Itoa(n.ports[i]))
				sockets = append(sockets, listening(n.ports[i])...)
				continue
			}
			_ = s.Close()
		}
	}
	if len(taken) == 0 {
		return nil
	}
	by := ""
	if who := holders(sockets); len(who) > 0 {
		by = " by " + strings.Join(who, ", ")
	}
	return api.Refused(fmt.Sprintf("ports of 127.0.0.1 are in use: %s%s; nothing was made: stop what uses them (a lab: coterie lab down --dir DIR), or choose other ports with --port", strings.Join(taken, ", "), by))
}

// listening returns the sockets that listen on a TCP port, as links to them read in /proc/PID/fd.
func listening(port int) (sockets []string) {
	const local, state, inode, listen = 1, 3, 9, "0A" // of proc_net_tcp(5)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listen && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
				sockets = append(sockets, "socket:["+f[inode]+"]")
			}
		}
	}
	return sockets
}

// holders describes the processes that have such sockets, as far as this user may see: the first few, and how many more.
func holders(sockets []string) (who []string) {
	const most = 3
	all, err := processes()
	if err != nil || len(sockets) == 0 {
		return nil
	}
	more := 0
	for _, p := range all {
		links, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.pid), "fd", "*"))
		if err != nil || !slices.ContainsFunc(links, func(link string) bool {
			to, err := os.Readlink(link)
			return err == nil && slices.Contains(sockets, to)
		}) {
			continue
		}
		if len(who) == most {
			more++
			continue
		}
		who = append(who, fmt.Sprintf("process %d (%s)", p.pid, strings.Join(p.argv, " ")))
	}
	if more > 0 {
		who = append(who, fmt.Sprintf("%d more", more))
	}
	return who
}

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
)

// onlyItsPorts checks that each node listens on its endpoint by TCP and UDP, on its client ports, for HTTP and for the
// console in the browser, and nowhere else: neither its agent, nor its keeper, nor PostgreSQL.
func onlyItsPorts(t *testing.T, g *group) {
	for _, r := range g.ready(t).Replicas {
		c, err := config.Load(g.node(r.Name))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, l := range []string{c.Endpoint.Listen, c.ReadWrite.Listen, c.ReadOnly.Listen, c.HTTP.Listen, c.HTTPS.Listen} {
			want = append(want, "tcp "+l[strings.LastIndexByte(l, ':')+1:])
		}
		want = append(want, "udp "+strings.TrimPrefix(want[0], "tcp "))
		slices.Sort(want)
		if have := listening(t, g.processes(r.Name)); !slices.Equal(have, want) {
			t.Errorf("%s listens at %v, and not at %v", r.Name, have, want)
		}
	}
}

// processes lists all processes of a node: agent and keeper name its directory, the server works in it.
func (g *group) processes(node string) []int {
	out := g.servers(node)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		words, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if slices.Contains(strings.Split(string(words), "\x00"), g.node(node)) {
			out = append(out, pid)
		}
	}
	return out
}

// listening lists the TCP sockets that listen, and those of UDP that accept any sender, of these processes.
func listening(t *testing.T, pids []int) []string {
	t.Helper()
	mine := map[string]bool{}
	for _, pid := range pids {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
			}
		}
	}
	var all []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		text, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line) // number, local address, remote address, state, …, inode
			if len(f) < 10 || !mine[f[9]] || strings.HasPrefix(table, "tcp") && f[3] != "0A" || strings.HasPrefix(table, "udp") && f[3] != "07" {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%.3s %d", table, port))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

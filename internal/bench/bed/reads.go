package bed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// readBytes returns the bytes that each process of each node's server has read from the disk so far. Unreachable
// servers are left out.
func (b *LabBed) readBytes() map[string]map[string]int64 {
	all := map[string]map[string]int64{}
	for _, n := range b.lab.Lab.Nodes() {
		if !n.Witness {
			all[n.Name] = serverReads(filepath.Join(b.lab.Dir(n.Name), "pgdata"))
		}
	}
	return all
}

// serverReads returns the reads of the children of a server's first process, which work for clients.
func serverReads(pgdata string) map[string]int64 {
	reads := map[string]int64{}
	text, err := os.ReadFile(filepath.Join(pgdata, "postmaster.pid"))
	if err != nil {
		return reads
	}
	server, _, _ := strings.Cut(string(text), "\n")
	lists, err := filepath.Glob(filepath.Join("/proc", server, "task", "*", "children"))
	if err != nil {
		return reads
	}
	var children []byte
	for _, list := range lists {
		some, _ := os.ReadFile(list)
		children = append(children, some...)
	}
	for _, pid := range strings.Fields(string(children)) {
		if n, ok := processReads(pid); ok {
			reads[pid] = n
		}
	}
	return reads
}

// processReads returns the bytes that a process has read from the disk: read_bytes in proc(5), which does not count the
// page cache.
func processReads(pid string) (n int64, ok bool) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "io"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "read_bytes: %d", &n); err == nil {
			return n, true
		}
	}
	return 0, false
}

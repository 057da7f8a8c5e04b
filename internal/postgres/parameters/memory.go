package parameters

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// backendMemory is the memory of a session beside its work_mem, about as PostgreSQL's own structures take it.
const backendMemory = 5 << 20

// Demand is the memory that a server takes by its settings, in bytes, and that its host has.
type Demand struct {
	SharedBuffers, WALBuffers uint64
	Connections               uint64
	WorkMem                   uint64 // counted once a session; a query may take it several times
	Maintenance               uint64 // of one worker of autovacuum
	Workers                   uint64
	Host                      uint64
}

// demandUnits are the settings of a Demand, with the unit in which the server's program prints each.
var demandUnits = map[string]uint64{
	"shared_buffers": 8192, "wal_buffers": 8192, "max_connections": 1, "work_mem": 1024, "maintenance_work_mem": 1024,
	"autovacuum_work_mem": 1024, "autovacuum_max_workers": 1,
}

// InDemand reports whether one of the settings counts in a Demand.
func InDemand(values map[string]string) bool {
	for name := range values {
		if _, counts := demandUnits[strings.ToLower(name)]; counts {
			return true
		}
	}
	return false
}

// Shared is what must be there when the server starts.
func (d Demand) Shared() uint64 { return d.SharedBuffers + d.WALBuffers }

// Sum is what the server may take when every session is in use.
func (d Demand) Sum() uint64 {
	return d.Shared() + d.Connections*(backendMemory+d.WorkMem) + d.Workers*d.Maintenance
}

// Refused returns an error if the host has not the shared memory: the server would not start.
func (d Demand) Refused() error {
	if d.Host == 0 || d.Shared() < d.Host {
		return nil
	}
	return fail.Error{
		Kind: fail.Refused, Hint: fmt.Sprintf("a quarter of the memory, %d MB, is usual for shared_buffers", d.Host>>22),
		Err: fmt.Errorf("shared_buffers %d MiB + wal_buffers %d MiB = %d MiB, and this host has %d MiB of memory: the server would not start again",
			d.SharedBuffers>>20, d.WALBuffers>>20, d.Shared()>>20, d.Host>>20),
	}
}

// Warning returns the arithmetic if the sum is above the memory of the host, else "".
func (d Demand) Warning() string {
	if d.Host == 0 || d.Sum() <= d.Host {
		return ""
	}
	return fmt.Sprintf("shared_buffers %d MiB + wal_buffers %d MiB + max_connections %d x (%d MiB + work_mem %s) + autovacuum_max_workers %d x %d MiB = %d MiB, and the host has %d MiB of memory: "+
		"it may run out when all sessions work", d.SharedBuffers>>20, d.WALBuffers>>20, d.Connections, backendMemory>>20, mebibytes(d.WorkMem), d.Workers, d.Maintenance>>20, d.Sum()>>20, d.Host>>20)
}

// mebibytes prints a size that may be below a mebibyte.
func mebibytes(n uint64) string {
	if n < 10<<20 && n%(1<<20) != 0 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Demand returns what this server would take with the settings, each of which Check has accepted. It does not ask the
// running server.
func (s Server) Demand(ctx context.Context, values map[string]string) (d Demand, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	is := map[string]int64{}
	for _, name := range slices.Sorted(maps.Keys(demandUnits)) {
		args := []string{"-C", name, "-D", s.PGData, "-c", "config_file=" + s.ConfigFile, "-c", "data_directory=" + s.PGData}
		for given, value := range values {
			if _, counts := demandUnits[strings.ToLower(given)]; counts {
				args = append(args, "-c", given+"="+value)
			}
		}
		cmd := exec.CommandContext(ctx, filepath.Join(s.Install.BinDir, "postgres"), args...)
		cmd.Env = programs.ToolEnv()
		out, err := cmd.Output()
		if err != nil {
			return d, fmt.Errorf("have PostgreSQL say its %s: %w", name, err)
		}
		if is[name], err = strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64); err != nil {
			return d, fmt.Errorf("%s: %w", name, err)
		}
	}
	if is["autovacuum_work_mem"] < 0 {
		is["autovacuum_work_mem"] = is["maintenance_work_mem"]
	}
	if is["wal_buffers"] < 0 { // as PostgreSQL chooses it
		is["wal_buffers"] = min(max(is["shared_buffers"]/32, 8), 2048)
	}
	size := func(name string) uint64 { return uint64(max(is[name], 0)) * demandUnits[name] }
	d = Demand{
		SharedBuffers: size("shared_buffers"), WALBuffers: size("wal_buffers"), Connections: size("max_connections"), WorkMem: size("work_mem"),
		Maintenance: size("autovacuum_work_mem"), Workers: size("autovacuum_max_workers"),
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err == nil {
		d.Host = host.Totalram * uint64(host.Unit)
	}
	return d, nil
}

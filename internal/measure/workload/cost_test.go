package workload

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// TestCostOfTheDriver measures what asking 5,000 times a second costs the client: the driver must not become what is
// measured.
func TestCostOfTheDriver(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("longer than the quick proof allows; make test-long runs it (COTERIE_LONG=1)")
	}
	dsn := database(t, "driver")
	const rate = 5000
	l := method.Load{Clients: 8, Rate: rate, WarmUp: time.Second, Duration: 4 * time.Second}
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		t.Fatal(err)
	}
	r, err := method.Run(t.Context(), l, Query{DSN: dsn, SQL: "select 1"}.Worker)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		t.Fatal(err)
	}
	user, system := after.Utime.Nano()-before.Utime.Nano(), after.Stime.Nano()-before.Stime.Nano()
	t.Logf("%.0f %% of that in the kernel, with the warm-up", 100*float64(system)/float64(max(user+system, 1)))
	core := r.ClientCPU * float64(runtime.NumCPU())
	t.Logf("%.0f per second cost %.1f %% of a core, %.1f %% at %d; schedule lag %.1f %%, p99 %v", r.Rate(), 100*core, 100*core*rate/r.Rate(), rate,
		100*r.ScheduleLag, method.Quantile(r.Latency, 99))
	if perOp := core / r.Rate(); perOp > 100e-6 {
		t.Errorf("an operation costs %.0f µs of a processor", perOp*1e6)
	}
}

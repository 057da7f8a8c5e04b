package endpointbench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/codec"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
)

// lan compares our link with direct replication, all on this machine: commits of one client, then of eight.
func (b *EndpointBench) lan(ctx context.Context) error {
	direct := arm{name: "direct"}
	if _, err := b.pair.admin.Exec(ctx, "CREATE TABLE IF NOT EXISTS lan (i int)"); err != nil {
		return err
	}
	var added, ratio []float64
	for range b.O.Rounds {
		got := map[string][2]float64{}
		for _, a := range []arm{direct, wayOurs} {
			if err := b.pair.Join(ctx, a); err != nil {
				return err
			}
			one, _, err := b.pgbench(ctx, 1)
			if err != nil {
				return err
			}
			_, many, err := b.pgbench(ctx, 8)
			if err != nil {
				return err
			}
			b.say("  %-24s one client %.3f ms, eight %.0f commits/s", a.name, one, many)
			got[a.name] = [2]float64{one, many}
			b.Times["lan one client, "+a.name] = append(b.Times["lan one client, "+a.name], one)
		}
		added = append(added, got[wayOurs.name][0]-got[direct.name][0])
		ratio = append(ratio, got[wayOurs.name][1]/got[direct.name][1])
	}
	for name, v := range map[string][]float64{"lan-commit-added": added, "lan-throughput-8": ratio} {
		mean, half := method.MeanAndHalf(v)
		b.figure(goals.Figure{Name: name, Measured: mean, Low: mean - half, High: mean + half, HasInterval: len(v) > 1})
	}
	return nil
}

// pgbench runs single-row inserts and returns the mean latency in ms and the commits per second.
func (b *EndpointBench) pgbench(ctx context.Context, clients int) (latency, tps float64, err error) {
	script := filepath.Join(b.pair.dir, "insert.sql")
	if err := os.WriteFile(script, []byte("INSERT INTO lan VALUES (1);\n"), 0o600); err != nil {
		return 0, 0, err
	}
	out, err := exec.CommandContext(ctx, "pgbench", "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-T", "5", "-f", script, b.pair.Primary.DSN()).Output()
	if err != nil {
		return 0, 0, fmt.Errorf("pgbench: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if v, ok := strings.CutPrefix(line, "latency average = "); ok {
			latency, _ = strconv.ParseFloat(strings.Fields(v)[0], 64)
		}
		if v, ok := strings.CutPrefix(line, "tps = "); ok {
			tps, _ = strconv.ParseFloat(strings.Fields(v)[0], 64)
		}
	}
	if tps == 0 {
		return 0, 0, fmt.Errorf("pgbench says %q", out)
	}
	return latency, tps, nil
}

// zstd compresses the WAL of a pgbench run, message by message.
func (b *EndpointBench) zstd(ctx context.Context) error {
	if err := b.pair.Join(ctx, arm{name: "direct"}); err != nil {
		return err
	}
	var from, to ag.LSN
	lsn := func(into *ag.LSN) error {
		var text string
		err := b.pair.admin.QueryRow(ctx, "SELECT pg_switch_wal()::text").Scan(&text)
		if err == nil {
			*into, err = ag.ParseLSN(text)
		}
		return err
	}
	dsn := b.pair.Primary.DSN()
	if out, err := exec.CommandContext(ctx, "pgbench", "-i", "-q", "-s", "10", dsn).CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench: %w: %s", err, out)
	}
	if _, err := b.pair.admin.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	if err := lsn(&from); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "pgbench", "-n", "-c", "8", "-T", "15", dsn).CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench: %w: %s", err, out)
	}
	if err := lsn(&to); err != nil {
		return err
	}
	var wal []byte
	const segment = 16 << 20
	for seg := uint64(from)/segment + 1; seg <= uint64(to)/segment; seg++ {
		text, err := os.ReadFile(filepath.Join(b.pair.Primary.Data(), "pg_wal", fmt.Sprintf("%08X%08X%08X", 1, seg/256, seg%256)))
		if err != nil {
			return err
		}
		if seg == uint64(to)/segment {
			text = text[:uint64(to)%segment]
		}
		wal = append(wal, text...)
	}
	var e codec.Encoder
	if err := e.Use(codec.Encoding{Codec: codec.Zstd, Level: 1}); err != nil {
		return err
	}
	const message = 37 << 10 // the mean of a busy walsender
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	busy, err := threadTime()
	if err != nil {
		return err
	}
	for rest := wal; len(rest) > 0; rest = rest[min(message, len(rest)):] {
		if _, err := e.Encode(rest[:min(message, len(rest))]); err != nil {
			return err
		}
	}
	end, err := threadTime()
	if err != nil {
		return err
	}
	s := e.Stats()
	b.say("  %d MB of WAL", len(wal)>>20)
	b.figure(goals.Figure{Name: "zstd-rate", Measured: float64(s.Raw) / (end - busy).Seconds() / 1e6})
	b.figure(goals.Figure{Name: "zstd-ratio", Measured: float64(s.Raw) / float64(s.Encoded)})
	return nil
}

// threadTime returns the processor time of the calling thread, which other programs do not lengthen.
func threadTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}

package listenerbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

var (
	rateLine  = regexp.MustCompile(`tps = ([0-9.]+)`)
	countLine = regexp.MustCompile(`number of transactions actually processed: ([0-9]+)`)
)

// measure runs a work in a way.
func (l *listenerBed) measure(ctx context.Context, w listenerWork, way string, seconds int) (listenerRun, error) {
	clients := l.pgbench
	if w.pgx > 0 {
		clients = l.connects
	}
	proxy, workers := l.processorTime(way), workersTime()
	tps, n, err := clients(ctx, w, way, seconds)
	if err != nil || n == 0 {
		return listenerRun{}, err
	}
	per := func(d time.Duration) float64 { return d.Seconds() / float64(n) * 100_000 }
	return listenerRun{Work: w.name, Arm: way, TPS: tps, CPU: per(l.processorTime(way) - proxy), Workers: per(spentSince(workers))}, nil
}

// pgbench returns the transactions per second that pgbench prints, and how many there were.
func (l *listenerBed) pgbench(ctx context.Context, w listenerWork, way string, seconds int) (tps float64, n int, err error) {
	cmd := l.client(ctx, way, append([]string{"-n", "-T", strconv.Itoa(seconds)}, w.args...)...)
	cmd.Env = append(cmd.Env, w.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("%w\n%s", err, out)
	}
	rate, count := rateLine.FindSubmatch(out), countLine.FindSubmatch(out)
	if rate == nil || count == nil {
		return 0, 0, fmt.Errorf("pgbench said nothing of tps:\n%s", out)
	}
	tps, err1 := strconv.ParseFloat(string(rate[1]), 64)
	n, err2 := strconv.Atoi(string(count[1]))
	return tps, n, errors.Join(err1, err2)
}

// connects runs the load of pgbench -S -C with clients of pgx: a session with a password for each transaction. libpq
// needs 2 to 3 ms of a processor for the proof of a password, which is more than the server takes. pgx needs a quarter
// of that, so that the measured path has a larger share of the result.
func (l *listenerBed) connects(ctx context.Context, w listenerWork, way string, seconds int) (tps float64, n int, err error) {
	c, err := l.secret(way)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+time.Minute)
	defer cancel()
	var clients sync.WaitGroup
	var count atomic.Int64
	failed := make([]error, w.pgx)
	for i := range w.pgx {
		clients.Go(func() {
			for time.Since(began) < time.Duration(seconds)*time.Second && failed[i] == nil {
				failed[i] = transact(ctx, c, 1+i)
				count.Add(1)
			}
		})
	}
	clients.Wait()
	return float64(count.Load()) / time.Since(began).Seconds(), int(count.Load()), errors.Join(failed...)
}

// transact is one transaction on a session of its own.
func transact(ctx context.Context, c *pgx.ConnConfig, account int) error {
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	_, err = conn.PgConn().Exec(ctx, fmt.Sprintf("SELECT abalance FROM pgbench_accounts WHERE aid = %d", account)).ReadAll()
	return errors.Join(err, conn.Close(ctx))
}

// secret is how pgx reaches the role with a password.
func (l *listenerBed) secret(way string) (*pgx.ConnConfig, error) {
	return pgx.ParseConfig(fmt.Sprintf("host=127.0.0.1 port=%d user=secret password=secret dbname=postgres sslmode=disable", l.ports[way]))
}

// processorTime is that of the proxy on that way; 0 where there is none.
func (l *listenerBed) processorTime(way string) time.Duration {
	p := l.proxies[way]
	if p == 0 {
		return 0
	}
	_, spent, _ := statOf(fmt.Sprintf("/proc/%d/stat", p))
	return spent
}

// workersTime returns the processor time of each of the kernel's worker threads. One of them writes the data that the
// kernel relays between a session and its server. The kernel does not report which one, nor for which session, so all
// of them are counted on every path.
func workersTime() map[string]time.Duration {
	all := make(map[string]time.Duration)
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		if name, spent, ok := statOf(file); ok && strings.HasPrefix(name, "kworker/") {
			all[file] = spent
		}
	}
	return all
}

// spentSince is what they have had since then.
func spentSince(before map[string]time.Duration) (d time.Duration) {
	for file, spent := range workersTime() {
		d += spent - before[file]
	}
	return d
}

// statOf reads a process's name and processor time.
func statOf(file string) (name string, spent time.Duration, ok bool) {
	text, err := os.ReadFile(file)
	end := strings.LastIndex(string(text), ") ") // a name may have brackets of its own
	if err != nil || end < 0 {
		return "", 0, false
	}
	head, f := string(text[:end]), strings.Fields(string(text[end+1:]))
	if len(f) < 13 {
		return "", 0, false
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	_, name, _ = strings.Cut(head, "(")
	return name, time.Duration(user+system) * 10 * time.Millisecond, true
}

// logins measures how long it takes to get a session with a password, directly and through the listener in turns, one
// every so often.
func (l *listenerBed) logins(ctx context.Context, n int, every time.Duration) (map[string][]float64, error) {
	ways := []string{wayDirect, wayListener}
	ms := make(map[string][]float64)
	t := time.NewTicker(every)
	defer t.Stop()
	for i := range n * len(ways) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-t.C:
		}
		way := ways[i%len(ways)]
		c, err := l.secret(way)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		conn, err := pgx.ConnectConfig(ctx, c)
		if err != nil {
			return nil, err
		}
		ms[way] = append(ms[way], float64(time.Since(began))/1e6)
		if err := conn.Close(ctx); err != nil {
			return nil, err
		}
	}
	return ms, nil
}

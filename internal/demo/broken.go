package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// How long the primary acknowledges without protection, and how many rows are enough.
const (
	brokenFor  = 10 * time.Second // its clients have to connect again first
	brokenRows = 20
)

// breakProtection removes the protection of the primary's acknowledgements: a default of synchronous_commit below on is
// set past the listener, and the clients have to connect again. Then the walsenders are stopped, so that no WAL leaves
// the server. It returns as soon as some acknowledged rows exist on this node only. (An empty synchronous_standby_names
// would not do: the agent holds answers until it has judged a changed setting, and fences.)
func breakProtection(ctx context.Context, dsn string, postmaster int, ledger *ledger.Ledger) (rows int64, err error) {
	conn, err := session.Open(ctx, dsn, "coterie demo")
	if err != nil {
		return 0, fmt.Errorf("break the protection: %w", err)
	}
	defer func() {
		c, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(c)
	}()
	if _, err := conn.Exec(ctx, "alter role all set synchronous_commit = local"); err != nil {
		return 0, fmt.Errorf("break the protection: %w", err)
	}
	senders := children(postmaster, "walsender")
	if len(senders) == 0 {
		return 0, errors.New("break the protection: the primary has no walsender")
	}
	for _, pid := range senders {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return 0, fmt.Errorf("hold the stream of process %d: %w", pid, err)
		}
	}
	before := ledger.Progress().Acknowledged
	_, err = conn.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'client backend' and usename = 'lab' and pid <> pg_backend_pid()")
	if err != nil {
		return 0, fmt.Errorf("break the protection: end the sessions: %w", err)
	}
	for end := time.Now().Add(brokenFor); time.Now().Before(end) && rows < brokenRows && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
		rows = ledger.Progress().Acknowledged - before
	}
	return rows, ctx.Err()
}

// children lists the processes that pid started and whose title holds the word; empty: all.
func children(pid int, word string) []int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	var found []int
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it ended
		}
		_, rest, ok := strings.Cut(string(b), ") ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 || fields[1] != strconv.Itoa(pid) {
			continue
		}
		title, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if err != nil || !strings.Contains(string(title), word) {
			continue
		}
		if n, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, n)
		}
	}
	return found
}

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
	brokenFor  = time.Second
	brokenRows = 20
)

// breakProtection removes the protection of the primary's acknowledgements. Its walsenders are stopped, so that no WAL
// leaves it. synchronous_standby_names is emptied without the agent, so that commits wait for no secondary. It returns
// as soon as some acknowledged rows exist on this node only. The agent finds the foreign value at its next check and
// fences. That takes part of a second, long enough for false acknowledgements.
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
	// The checkpointer tells the server's processes that commits wait for no secondary; one that is at a checkpoint
	// does so too late.
	if _, err := conn.Exec(ctx, "checkpoint"); err != nil {
		return 0, fmt.Errorf("break the protection: checkpoint: %w", err)
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
	for _, sql := range []string{"alter system set synchronous_standby_names = ''", "select pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return 0, fmt.Errorf("break the protection: %s: %w", sql, err)
		}
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

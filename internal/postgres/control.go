package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Control is what pg_control says, as printed by pg_controldata.
type Control struct {
	SystemID       string
	State          string // as printed: "in production", "shut down", "shut down in recovery", "in archive recovery", ...
	Timeline       ag.Timeline
	PrevTimeline   ag.Timeline
	CheckPoint     ag.LSN
	Redo           ag.LSN
	MinRecoveryEnd ag.LSN
	MinRecoveryTLI ag.Timeline
	DataChecksums  bool
	WalLogHints    bool
	BlockSize      int
	WalBlockSize   int
	WalSegmentSize int
	CatalogVersion string
	Settings       map[string]int // max_connections and the other settings of the primary that a standby may not undercut
}

// The states of pg_control that something is decided on.
const (
	stateShutDown         = "shut down"
	stateShutDownRecovery = "shut down in recovery"
)

// Clean reports whether the server was shut down in order, as a primary or in recovery.
func (c Control) Clean() bool { return c.State == stateShutDown || c.State == stateShutDownRecovery }

// Control reads pg_control. The server may be running or stopped. A torn read of a running server's file is repeated.
func (i *Instance) Control(ctx context.Context) (Control, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for try := 0; ; try++ {
		cmd := exec.CommandContext(ctx, i.bin("pg_controldata"), "-D", i.cfg.PGData)
		cmd.Env = toolEnv()
		out, err := cmd.Output()
		if err != nil {
			return Control{}, fmt.Errorf("read pg_control of %s: %w", i.cfg.PGData, withStderr(err))
		}
		c, err := parseControl(string(out))
		if err == nil || try == 4 {
			return c, err
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return Control{}, err
		}
	}
}

// parseControl reads the output of pg_controldata printed with LC_ALL=C.
func parseControl(out string) (Control, error) {
	if strings.Contains(out, "WARNING") {
		// The CRC does not match, or the file was made by another version: the values would be garbage.
		return Control{}, errors.New("read pg_control: " + strings.Join(strings.Fields(firstLines(out, 4)), " "))
	}
	v := map[string]string{}
	for line := range strings.Lines(out) {
		if key, value, ok := strings.Cut(line, ":"); ok {
			v[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	p := controlParser{values: v}
	c := Control{
		SystemID:       p.text("Database system identifier"),
		State:          p.text("Database cluster state"),
		Timeline:       ag.Timeline(p.num("Latest checkpoint's TimeLineID")),
		PrevTimeline:   ag.Timeline(p.num("Latest checkpoint's PrevTimeLineID")),
		CheckPoint:     p.lsn("Latest checkpoint location"),
		Redo:           p.lsn("Latest checkpoint's REDO location"),
		MinRecoveryEnd: p.lsn("Minimum recovery ending location"),
		MinRecoveryTLI: ag.Timeline(p.num("Min recovery ending loc's timeline")),
		DataChecksums:  p.num("Data page checksum version") != 0,
		WalLogHints:    p.text("wal_log_hints setting") == "on",
		BlockSize:      p.num("Database block size"),
		WalBlockSize:   p.num("WAL block size"),
		WalSegmentSize: p.num("Bytes per WAL segment"),
		CatalogVersion: p.text("Catalog version number"),
		Settings: map[string]int{
			"max_connections":           p.num("max_connections setting"),
			"max_worker_processes":      p.num("max_worker_processes setting"),
			"max_wal_senders":           p.num("max_wal_senders setting"),
			"max_prepared_transactions": p.num("max_prepared_xacts setting"),
			"max_locks_per_transaction": p.num("max_locks_per_xact setting"),
		},
	}
	if p.err != nil {
		return Control{}, fmt.Errorf("read pg_control: %w", p.err)
	}
	if c.WalSegmentSize < 1<<20 || c.WalSegmentSize > 1<<30 || c.WalSegmentSize&(c.WalSegmentSize-1) != 0 {
		return Control{}, fmt.Errorf("read pg_control: %d is not a WAL segment size", c.WalSegmentSize)
	}
	if c.WalBlockSize < 1<<10 || c.WalBlockSize > 1<<16 || c.WalBlockSize&(c.WalBlockSize-1) != 0 {
		return Control{}, fmt.Errorf("read pg_control: %d is not a WAL block size", c.WalBlockSize)
	}
	return c, nil
}

// controlParser keeps the first error, so that the field list above can be read as a list.
type controlParser struct {
	values map[string]string
	err    error
}

func (p *controlParser) text(key string) string {
	s, ok := p.values[key]
	if !ok && p.err == nil {
		p.err = fmt.Errorf("no line %q in the output of pg_controldata", key)
	}
	return s
}

func (p *controlParser) num(key string) int {
	s := p.text(key)
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%s: %.40q is not a number", key, s)
	}
	return int(n)
}

func (p *controlParser) lsn(key string) ag.LSN {
	l, err := ag.ParseLSN(p.text(key))
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("%s: %w", key, err)
	}
	return l
}

// toolEnv is the environment for PostgreSQL's tools: messages in English, and nothing of a caller's PG* variables, which
// would redirect them to another server.
func toolEnv() []string {
	env := []string{"LC_ALL=C", "LANGUAGE=", "PGSYSCONFDIR=/nonexistent"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			env = append(env, e)
		}
	}
	return env
}

// withStderr adds to the error of a command the end of what it said.
func withStderr(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || len(exit.Stderr) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, lastText(exit.Stderr))
}

// lastText is the end of a tool's output, for an error message.
func lastText(out []byte) string {
	s := strings.TrimSpace(string(out))
	if len(s) > 600 {
		s = "... " + s[len(s)-600:]
	}
	return s
}

func firstLines(s string, n int) string {
	lines := strings.SplitAfterN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

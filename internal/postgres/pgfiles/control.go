package pgfiles

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Control is the content of pg_control, as printed by pg_controldata.
type Control struct {
	SystemID       string
	State          string // as printed: "in production", "shut down", "shut down in recovery", "in archive recovery", ...
	Timeline       ag.Timeline
	PrevTimeline   ag.Timeline
	CheckPoint     ag.LSN
	Redo           ag.LSN
	NextXID        uint64 // of the next transaction that writes, with its epoch in the upper half
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

// The states of pg_control on which decisions depend.
const (
	stateShutDown         = "shut down"
	stateShutDownRecovery = "shut down in recovery"
)

// Clean reports whether the server was shut down cleanly, as a primary or in recovery.
func (c Control) Clean() bool { return c.State == stateShutDown || c.State == stateShutDownRecovery }

// ParseControl reads the output of pg_controldata printed with LC_ALL=C.
func ParseControl(out string) (Control, error) {
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
		NextXID:        p.xid("Latest checkpoint's NextXID"),
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

// controlParser keeps the first error, so that ParseControl reads as a list of fields.
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

// xid reads a number as 1:745, the epoch before the colon.
func (p *controlParser) xid(key string) uint64 {
	s := p.text(key)
	epoch, number, _ := strings.Cut(s, ":")
	e, err := strconv.ParseUint(epoch, 10, 32)
	n, nerr := strconv.ParseUint(number, 10, 32)
	if err = errors.Join(err, nerr); err != nil && p.err == nil {
		p.err = fmt.Errorf("%s: %.40q is not the number of a transaction", key, s)
	}
	return e<<32 | n
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

func firstLines(s string, n int) string {
	lines := strings.SplitAfterN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

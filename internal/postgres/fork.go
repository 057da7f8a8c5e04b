package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// ForkSummary is the summary.json of a kept tail.
type ForkSummary struct {
	SystemID string      `json:"system_identifier"`
	State    string      `json:"cluster_state"`
	Fork     ag.Position `json:"fork"`
	End      ag.Position `json:"end"`
	Time     time.Time   `json:"time"`
	Files    []string    `json:"files"`
	Bytes    int64       `json:"bytes"`
}

// KeepFork copies what a stopped copy has beyond the position from, its diverged tail, into dir before a rewind or reseed
// destroys it (S5): the WAL segments from the fork to the end, all timeline history files, pg_control and a summary.json,
// written last. A directory that has a summary is complete and left as it is.
func (i *Instance) KeepFork(ctx context.Context, from ag.Position, dir string) error {
	if exists(filepath.Join(dir, "summary.json")) {
		return nil
	}
	if err := i.keepFork(ctx, from, dir); err != nil {
		return fmt.Errorf("keep the diverged tail in %s: %w", dir, err)
	}
	return nil
}

func (i *Instance) keepFork(ctx context.Context, from ag.Position, dir string) error {
	c, err := i.Control(ctx)
	if err != nil {
		return err
	}
	s := ForkSummary{SystemID: c.SystemID, State: c.State, Fork: from, Time: time.Now().UTC()}
	// A copy whose end cannot be found (an interrupted rewind) is kept to the last file there is.
	if s.End, err = i.endOnDisk(ctx); err != nil {
		i.log.Warn("the end of the diverged tail is not known, everything from the fork on is kept", "error", err)
		s.End = ag.Position{LSN: maxLSN}
	}
	if err := os.MkdirAll(filepath.Join(dir, "pg_wal"), 0o700); err != nil {
		return err
	}
	names, err := i.forkFiles(ag.LSN(c.WalSegmentSize), from.LSN, s.End.LSN)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := copyDurably(i.path(name), filepath.Join(dir, strings.TrimPrefix(name, "global/")))
		if err != nil {
			return err
		}
		s.Files, s.Bytes = append(s.Files, name), s.Bytes+n
	}
	for _, d := range []string{filepath.Join(dir, "pg_wal"), dir, filepath.Dir(dir)} {
		if err := syncPath(d); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeDurably(filepath.Join(dir, "summary.json"), append(b, '\n'), 0o600)
}

var segmentPattern = regexp.MustCompile(`^([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})(\.partial)?$`)

// segmentNumber reads the number of a segment from its file's name.
func segmentNumber(name string, segSize ag.LSN) (seg ag.LSN, ok bool) {
	m := segmentPattern.FindStringSubmatch(name)
	if m == nil {
		return 0, false
	}
	hi, err1 := strconv.ParseUint(m[2], 16, 32)
	lo, err2 := strconv.ParseUint(m[3], 16, 32)
	return ag.LSN(hi)*((1<<32)/segSize) + ag.LSN(lo), errors.Join(err1, err2) == nil
}

// forkFiles lists what a fork is made of, relative to PGData. Segments beyond the end are preallocated ones.
func (i *Instance) forkFiles(segSize, from, end ag.LSN) ([]string, error) {
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		seg, ok := segmentNumber(e.Name(), segSize)
		if ok = ok && seg >= from/segSize && seg <= end/segSize; ok || strings.HasSuffix(e.Name(), ".history") {
			names = append(names, "pg_wal/"+e.Name())
		}
	}
	return append(names, "global/pg_control"), nil
}

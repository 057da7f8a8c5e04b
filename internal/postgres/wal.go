package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
)

// EndOfWAL returns the position behind the last WAL that this instance has, and has on disk.
//
// A running primary is asked for what it flushed. Everything else is read from pg_wal, record by record from the last
// checkpoint: a server that is down, one that crashed, one that still replays what it had, and a standby, whose own
// functions do not know of WAL it received before its last start. Of a running standby the server's word counts too where
// it is further. While a standby streams the answer is a lower bound; sealing ends the stream first.
func (i *Instance) EndOfWAL(ctx context.Context) (ag.Position, error) {
	said, recovery, running := i.runningEnd(ctx)
	if running && !recovery {
		return said, nil
	}
	var end ag.Position
	var err error
	for try := 0; try < 3; try++ { // a restartpoint of a running standby may remove files below our feet
		if end, err = i.endOnDisk(ctx); err == nil || !running || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return ag.Position{}, fmt.Errorf("find the end of WAL in %s: %w", i.cfg.PGData, err)
	}
	if running && said.Compare(end) > 0 {
		end = said
	}
	return end, nil
}

// runningEnd asks a server that accepts sessions how far its WAL goes.
func (i *Instance) runningEnd(ctx context.Context) (p ag.Position, recovery, running bool) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	err := i.main.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery)
	})
	if err == nil {
		p, err = i.identify(ctx)
	}
	return p, recovery, err == nil
}

// endOnDisk finds the end of WAL from the files.
func (i *Instance) endOnDisk(ctx context.Context) (ag.Position, error) {
	if exists(i.path("backup_label")) {
		return ag.Position{}, errors.New("the copy was made by a backup or a rewind and has not been started since: start it as a secondary first")
	}
	c, err := i.Control(ctx)
	if err != nil {
		return ag.Position{}, err
	}
	tips, err := i.tips(ctx, c)
	if err != nil {
		return ag.Position{}, err
	}
	for k, l := range tips {
		tip := l[len(l)-1].tli
		end, found, err := i.endAlong(ctx, c, l)
		if err != nil {
			return ag.Position{}, err
		}
		last := k == len(tips)-1
		if last && !found {
			return ag.Position{}, fmt.Errorf("the record of the last checkpoint, %d:%s, is not in pg_wal: the copy cannot recover; seed it again", c.Timeline, c.CheckPoint)
		}
		if found && (end.Timeline == tip || last) {
			return end, nil
		}
	}
	panic("unreachable: the last tip returns")
}

func (i *Instance) endAlong(ctx context.Context, c Control, l lineage) (ag.Position, bool, error) {
	w := newWALFiles(i.path("pg_wal"), c, l)
	defer w.close()
	end, found, err := walEnd(ctx, w, c.CheckPoint)
	if err != nil || !found {
		return end, found, err
	}
	return end, true, i.flushTail(w, end)
}

// flushTail flushes the last two segments, so that what is promised from here survives a power loss.
func (i *Instance) flushTail(w *walFiles, end ag.Position) error {
	last := (end.LSN - 1) / w.segSize
	for _, seg := range []ag.LSN{last, max(last, 1) - 1} {
		err := syncPath(i.path("pg_wal", segmentName(end.Timeline, seg, w.segSize)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return syncPath(i.path("pg_wal"))
}

// tips returns the lineages on which the instance's WAL may end, the newest timeline first, the one pg_control names last.
// A newer one counts only where a record of it is found: its history file alone means that an upstream has it.
func (i *Instance) tips(ctx context.Context, c Control) ([]lineage, error) {
	files, err := i.historyFiles()
	if err != nil {
		return nil, err
	}
	base := max(c.Timeline, c.MinRecoveryTLI)
	var tips []lineage
	for tli, size := range files {
		if tli <= base || size == 0 {
			continue
		}
		l, err := i.lineage(ctx, tli)
		if err != nil {
			return nil, err
		}
		recovered := c.MinRecoveryEnd == 0 || l.contains(ag.Position{Timeline: base, LSN: c.MinRecoveryEnd}) // 0: was a primary
		if recovered && l.contains(ag.Position{Timeline: c.Timeline, LSN: c.CheckPoint}) {
			tips = append(tips, l)
		}
	}
	slices.SortFunc(tips, func(a, b lineage) int { return cmp.Compare(b[len(b)-1].tli, a[len(a)-1].tli) })
	own, err := i.lineage(ctx, base)
	if errors.Is(err, os.ErrNotExist) {
		own, err = newLineage(base, nil), nil // as recovery does: a timeline whose history is not here
	}
	return append(tips, own), err
}

// maxChecksum bounds the work one comparison may ask for.
const maxChecksum = 1 << 20

// WALChecksum returns the CRC-32C of the n bytes of WAL before pos, along the history of pos.Timeline. ok is false when
// they are not here: removed, or not there yet, as far as page headers tell (ask only for what lies before EndOfWAL). Two
// copies that agree on it over the last 16 KiB are on one history (SAFETY 1.3).
func (i *Instance) WALChecksum(ctx context.Context, pos ag.Position, n int) (crc uint32, ok bool, err error) {
	if n <= 0 || n > maxChecksum || ag.LSN(n) > pos.LSN {
		return 0, false, fmt.Errorf("checksum of %d bytes of WAL before %s: out of range", n, pos)
	}
	c, err := i.Control(ctx)
	if err != nil {
		return 0, false, err
	}
	lineages, err := i.lineagesThrough(ctx, pos)
	if err != nil {
		return 0, false, err
	}
	for _, l := range lineages {
		crc, err := i.checksumAlong(c, l, pos.LSN-ag.LSN(n), pos.LSN)
		if err == nil {
			return crc, true, nil
		}
		if !errors.Is(err, errNoWAL) {
			return 0, false, fmt.Errorf("checksum of WAL before %s: %w", pos, err)
		}
	}
	return 0, false, nil
}

// lineagesThrough returns the known lineages that pos lies on. The bytes before pos are the same in all of them, but a copy
// may hold them only in the files of a later timeline.
func (i *Instance) lineagesThrough(ctx context.Context, pos ag.Position) ([]lineage, error) {
	files, err := i.historyFiles()
	if err != nil {
		return nil, err
	}
	files[pos.Timeline] = 1 // the timeline itself, for which there is no file if it is the first
	var through []lineage
	for _, tli := range slices.Sorted(maps.Keys(files)) {
		if tli < pos.Timeline || files[tli] == 0 {
			continue
		}
		l, err := i.lineage(ctx, tli)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if l.contains(pos) {
			through = append(through, l)
		}
	}
	return through, nil
}

func (i *Instance) checksumAlong(c Control, l lineage, from, to ag.LSN) (crc uint32, err error) {
	size := ag.LSN(c.WalSegmentSize)
	for from < to {
		end := min(to, (from/size+1)*size)
		if crc, err = i.checksumSegment(c, l, from, end, crc); err != nil {
			return 0, err
		}
		from = end
	}
	return crc, nil
}

// checksumSegment adds the bytes from..to, which lie in one segment, to the CRC. Any file of the lineage serves whose
// timeline holds them: the parts that two of its files have in common are equal.
func (i *Instance) checksumSegment(c Control, l lineage, from, to ag.LSN, crc uint32) (uint32, error) {
	for _, s := range slices.Backward(l) {
		if to > s.end {
			continue
		}
		w := newWALFiles(i.path("pg_wal"), c, lineage{s})
		sum, err := checksumPages(w, from, to, crc)
		w.close()
		if !errors.Is(err, errNoWAL) {
			return sum, err
		}
	}
	return 0, errNoWAL
}

func checksumPages(w *walFiles, from, to ag.LSN, crc uint32) (uint32, error) {
	for from < to {
		start := from - from%w.page
		p, err := w.at(start)
		if err != nil {
			return 0, err
		}
		end := min(to, start+w.page)
		crc = crc32.Update(crc, castagnoli, p.data[from-start:end-start])
		from = end
	}
	return crc, nil
}

// pollInterval is how often a change that the server does not announce is looked for.
const pollInterval = 5 * time.Millisecond

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
// A running primary is asked for what it flushed. Of a standby that has streamed since its start, what is behind its replay is read; of
// everything else all of pg_wal, record by record from the last checkpoint: a server that is down, one that crashed, one that still
// replays what it had, and a standby that has not streamed yet, whose own functions do not know of WAL it received before its
// start. Of a running standby the server's word counts too where it is further. While a standby streams the answer is a
// lower bound; sealing ends the stream first.
func (i *Instance) EndOfWAL(ctx context.Context) (ag.Position, error) {
	said, err := i.runningEnd(ctx)
	running := err == nil
	if running && !said.recovery {
		return said.at, nil
	}
	var end ag.Position
	for try := 0; try < 3; try++ { // a restartpoint of a running standby may remove files below our feet
		ok := false
		if end, ok, err = i.endBehindReplay(ctx, said); !ok && err == nil {
			end, err = i.endOnDisk(ctx)
		}
		if err == nil || !running || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return ag.Position{}, fmt.Errorf("find the end of WAL in %s: %w", i.cfg.PGData, err)
	}
	if running && said.at.Compare(end) > 0 {
		end = said.at
	}
	return end, nil
}

// saidEnd is what a server that accepts sessions says of the end of its WAL.
type saidEnd struct {
	recovery bool
	at       ag.Position // flushed; of a standby as far as it is of the timeline that it replays
	replayed ag.LSN      // of a standby
	received ag.LSN      // of a standby, and flushed: 0 if nothing since its start
	segment  int         // size of a file
	page     int
}

const saidEndQuery = `SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn()::text, pg_last_wal_receive_lsn()::text,
  pg_size_bytes(current_setting('wal_segment_size')), current_setting('wal_block_size')::bigint`

func (i *Instance) runningEnd(ctx context.Context) (said saidEnd, err error) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	err = i.main.do(ctx, func(c *pgx.Conn) error {
		said = saidEnd{}
		return c.QueryRow(ctx, saidEndQuery).Scan(&said.recovery, lsn(&said.replayed), lsn(&said.received), &said.segment, &said.page)
	})
	if err != nil {
		return saidEnd{}, err
	}
	if said.at, err = i.identify(ctx); err != nil {
		return saidEnd{}, err
	}
	return said, nil
}

// endBehindReplay finds the end of WAL of a standby that has streamed since its start: it reads on where replay is. Before it asked for a
// stream it had replayed all the whole records that were here, so what is behind was received since, and is flushed as far as the server
// says. A record counts only if all of it was: behind that the file may hold what remains of its former life. ok is false where no file is
// known to lead on from there.
func (i *Instance) endBehindReplay(ctx context.Context, said saidEnd) (end ag.Position, ok bool, err error) {
	if said.received == 0 {
		return ag.Position{}, false, nil
	}
	at := ag.Position{Timeline: said.at.Timeline, LSN: said.replayed}
	through, err := i.lineagesThrough(ctx, at)
	if err != nil {
		return ag.Position{}, false, err
	}
	for _, l := range slices.Backward(through) { // the newest timeline first, if a record of it is there
		w := newWALFiles(i.path("pg_wal"), Control{WalSegmentSize: said.segment, WalBlockSize: said.page}, l)
		e, found, err := walEnd(ctx, w, said.replayed, said.received)
		w.close()
		if err != nil {
			return ag.Position{}, false, err
		}
		tip := l[len(l)-1].tli
		if found && e.Timeline == tip || tip == at.Timeline {
			if !found {
				e = at
			}
			return e, true, nil
		}
	}
	return ag.Position{}, false, nil
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
	end, found, err := walEnd(ctx, w, c.CheckPoint, maxLSN)
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
// they are not here: removed, or not there yet, as far as page headers tell (ask only for what lies before EndOfWAL).
// Two copies that agree on it over the last 16 KiB are on one history (docs/internals/safety.md, "Timelines").
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

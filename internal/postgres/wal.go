package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// EndOfWAL returns the position after the last WAL that this instance has on disk.
//
// A running primary is asked for its flushed position. For a standby that has streamed since its start, the WAL after
// its replay position is read. Otherwise all of pg_wal is read, record by record from the last checkpoint. That is the
// case of a server that is down or crashed or still replays its own WAL, and of a standby that has not streamed yet,
// whose functions do not know WAL received before its start. The replayed position of a running standby counts as well
// if it is further. Its received position does not: it may lie inside a record. While a standby streams the result is a
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
		return ag.Position{}, fmt.Errorf("find the end of WAL in %s: %w", i.Config().PGData, err)
	}
	if replayed := (ag.Position{Timeline: said.at.Timeline, LSN: said.replayed}); running && replayed.Compare(end) > 0 {
		end = replayed
	}
	return end, nil
}

// saidEnd is the end of WAL as a server that accepts sessions reports it.
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
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = i.main.Do(ctx, func(c *pgx.Conn) error {
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

// endBehindReplay finds the end of WAL of a standby that has streamed since its start, reading on from its replay
// position. Before it requested a stream it had replayed every whole record that was here. So later WAL was received
// since, and is flushed as far as the server reports. A record counts only if all of it was received: the rest of the
// file may be old content. ok is false if no file is known to continue from there.
func (i *Instance) endBehindReplay(ctx context.Context, said saidEnd) (end ag.Position, ok bool, err error) {
	if said.received == 0 {
		return ag.Position{}, false, nil
	}
	at := ag.Position{Timeline: said.at.Timeline, LSN: said.replayed}
	through, err := i.lineagesThrough(ctx, at)
	if err != nil {
		return ag.Position{}, false, err
	}
	for _, l := range slices.Backward(through) { // the newest timeline first, if a record of it exists
		w := pgfiles.OpenWAL(i.path("pg_wal"), pgfiles.Control{WalSegmentSize: said.segment, WalBlockSize: said.page}, l)
		e, found, err := pgfiles.End(ctx, w, said.replayed, said.received)
		w.Close()
		if err != nil {
			return ag.Position{}, false, err
		}
		tip := l[len(l)-1].TLI
		if found && e.Timeline == tip || tip == at.Timeline {
			if !found {
				e = at
			}
			return e, true, nil
		}
	}
	return ag.Position{}, false, nil
}

// Holds reports whether this instance holds its WAL up to a position that it reported once. The bytes behind the last
// whole record count as well, as far as they belong to a record that began. Recovery ends before them after a crash,
// and nothing was lost.
func (i *Instance) Holds(ctx context.Context, pos ag.Position) (bool, error) {
	if said, err := i.runningEnd(ctx); err == nil && said.at.Timeline >= pos.Timeline && max(said.at.LSN, said.received) >= pos.LSN {
		return true, nil
	}
	c, err := i.Control(ctx)
	if err != nil {
		return false, err
	}
	tips, err := i.tips(ctx, c)
	if err != nil {
		return false, err
	}
	for _, l := range tips {
		if !l.Contains(pos) {
			continue
		}
		if pos.LSN <= c.CheckPoint {
			return true, nil
		}
		w := pgfiles.OpenWAL(i.path("pg_wal"), c, l)
		holds, err := pgfiles.Holds(ctx, w, c.CheckPoint, pos.LSN)
		w.Close()
		if holds || err != nil {
			return holds, err
		}
	}
	return false, nil
}

// endOnDisk finds the end of WAL from the files alone.
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
		tip := l[len(l)-1].TLI
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

func (i *Instance) endAlong(ctx context.Context, c pgfiles.Control, l pgfiles.Lineage) (ag.Position, bool, error) {
	w := pgfiles.OpenWAL(i.path("pg_wal"), c, l)
	defer w.Close()
	end, found, err := pgfiles.End(ctx, w, c.CheckPoint, pgfiles.MaxLSN)
	if err != nil || !found {
		return end, found, err
	}
	return end, true, i.flushTail(w, end)
}

// flushTail flushes the last two segments, so that a promised position survives a power loss.
func (i *Instance) flushTail(w *pgfiles.WAL, end ag.Position) error {
	last := (end.LSN - 1) / w.SegSize
	for _, seg := range []ag.LSN{last, max(last, 1) - 1} {
		err := syncPath(i.path("pg_wal", pgfiles.SegmentName(end.Timeline, seg, w.SegSize)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return syncPath(i.path("pg_wal"))
}

// tips returns the lineages on which the instance's WAL may end, the newest timeline first and the one of pg_control
// last. A newer one counts only if a record of it is found: its history file alone means that an upstream has it.
func (i *Instance) tips(ctx context.Context, c pgfiles.Control) ([]pgfiles.Lineage, error) {
	files, err := i.historyFiles()
	if err != nil {
		return nil, err
	}
	base := max(c.Timeline, c.MinRecoveryTLI)
	var tips []pgfiles.Lineage
	for tli, size := range files {
		if tli <= base || size == 0 {
			continue
		}
		l, err := i.lineage(ctx, tli)
		if err != nil {
			return nil, err
		}
		recovered := c.MinRecoveryEnd == 0 || l.Contains(ag.Position{Timeline: base, LSN: c.MinRecoveryEnd}) // 0: was a primary
		if recovered && l.Contains(ag.Position{Timeline: c.Timeline, LSN: c.CheckPoint}) {
			tips = append(tips, l)
		}
	}
	slices.SortFunc(tips, func(a, b pgfiles.Lineage) int { return cmp.Compare(b[len(b)-1].TLI, a[len(a)-1].TLI) })
	own, err := i.lineage(ctx, base)
	if errors.Is(err, os.ErrNotExist) {
		own, err = pgfiles.NewLineage(base, nil), nil // as recovery does: a timeline whose history is not here
	}
	return append(tips, own), err
}

// maxChecksum bounds the bytes of one comparison.
const maxChecksum = 1 << 20

// WALChecksum returns the CRC-32C of the n bytes of WAL before pos, along the history of pos.Timeline. ok is false if
// they are not here, removed or not received yet, as far as page headers tell: ask only for what lies before EndOfWAL.
// Two copies with the same result over the last 16 KiB are on one history (docs/internals/safety.md, "Timelines").
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
		crc, err := pgfiles.Checksum{Dir: i.path("pg_wal"), Control: c, Along: l}.Of(pos.LSN-ag.LSN(n), pos.LSN)
		if err == nil {
			return crc, true, nil
		}
		if !errors.Is(err, pgfiles.ErrNoWAL) {
			return 0, false, fmt.Errorf("checksum of WAL before %s: %w", pos, err)
		}
	}
	return 0, false, nil
}

// lineagesThrough returns the known lineages that contain pos. The bytes before pos are the same in all of them, but a
// copy may hold them only in the files of a later timeline.
func (i *Instance) lineagesThrough(ctx context.Context, pos ag.Position) ([]pgfiles.Lineage, error) {
	files, err := i.historyFiles()
	if err != nil {
		return nil, err
	}
	files[pos.Timeline] = 1 // the timeline itself, which has no file if it is the first
	var through []pgfiles.Lineage
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
		if l.Contains(pos) {
			through = append(through, l)
		}
	}
	return through, nil
}

// pollInterval is the pause between two looks for a change that the server does not announce.
const pollInterval = 5 * time.Millisecond

// History returns the ancestry of a timeline from its pg_wal/<tli>.history. It has one entry per timeline, from the
// oldest that left its parent to tli itself, each with its parent and the LSN where it leaves it. Timeline 1 has no
// file and an empty history. PostgreSQL does not know epochs: Epoch is zero. The error wraps os.ErrNotExist if the file
// does not exist here.
func (i *Instance) History(ctx context.Context, tli ag.Timeline) ([]ag.TimelineEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", tli, err)
	}
	if tli <= 1 {
		return nil, nil
	}
	content, err := os.ReadFile(i.historyPath(tli))
	if err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", tli, err)
	}
	return pgfiles.ParseHistory(string(content), tli)
}

func (i *Instance) lineage(ctx context.Context, tip ag.Timeline) (pgfiles.Lineage, error) {
	entries, err := i.History(ctx, tip)
	if err != nil {
		return nil, err
	}
	return pgfiles.NewLineage(tip, entries), nil
}

func (i *Instance) historyPath(tli ag.Timeline) string {
	return i.path("pg_wal", fmt.Sprintf("%08X.history", uint32(tli)))
}

// historyFiles returns the size of every history file by timeline.
func (i *Instance) historyFiles() (map[ag.Timeline]int64, error) {
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return nil, fmt.Errorf("list timelines: %w", err)
	}
	files := map[ag.Timeline]int64{}
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), ".history")
		if !ok || len(hex) != 8 {
			continue
		}
		id, err := strconv.ParseUint(hex, 16, 32)
		if err != nil {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list timelines: %w", err)
		}
		files[ag.Timeline(id)] = info.Size()
	}
	return files, nil
}

// Keeps reports whether the WAL after a position is still here, as a standby would request it; if not, from is where
// the WAL here begins.
func (i *Instance) Keeps(ctx context.Context, at ag.LSN) (keeps bool, from ag.LSN, err error) {
	c, err := i.Control(ctx)
	if err != nil {
		return false, 0, err
	}
	segSize := ag.LSN(c.WalSegmentSize)
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return false, 0, err
	}
	first, any := ag.LSN(0), false
	for _, e := range entries {
		if seg, ok := pgfiles.SegmentNumber(e.Name(), segSize); ok && (!any || seg < first) {
			first, any = seg, true
		}
	}
	return !any || at/segSize >= first, first * segSize, nil
}

// MissingRedo returns where recovery of this copy begins, if there is no WAL of that place here: a new copy has none
// before it has streamed. Only a source can give it then.
func (i *Instance) MissingRedo(ctx context.Context) (at ag.LSN, missing bool, err error) {
	c, err := i.Control(ctx)
	if err != nil {
		return 0, false, err
	}
	if at, err = i.labelledStart(); err != nil {
		return 0, false, err
	}
	if at == 0 {
		at = c.Redo
	}
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return 0, false, err
	}
	segSize := ag.LSN(c.WalSegmentSize)
	here := slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		seg, ok := pgfiles.SegmentNumber(e.Name(), segSize)
		return ok && seg == at/segSize
	})
	return at, !here, nil
}

// labelledStart returns where recovery begins by the backup_label, which PostgreSQL removes once it has read the first
// WAL; 0 if there is none.
func (i *Instance) labelledStart() (ag.LSN, error) {
	b, err := os.ReadFile(i.path("backup_label"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "START WAL LOCATION: "); ok {
			at, _, _ := strings.Cut(rest, " ")
			return ag.ParseLSN(at)
		}
	}
	return 0, errors.New("backup_label does not say where its WAL begins")
}

// syncPath flushes a file or a directory.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flush %s: %w", path, err)
	}
	return nil
}

// Unarchived is the WAL that waits to be archived.
type Unarchived struct {
	Files int
	Since time.Time // when the first of them was complete; zero: none waits
	Free  int64     // bytes that the server may still fill beside them
}

// Unarchived returns the WAL that waits to be archived. It reads the directory itself: where archiving has failed for
// long there are very many files, and the server's session has logins to serve.
func (i *Instance) Unarchived() (u Unarchived, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(i.path("pg_wal"), &fs); err != nil {
		return u, fmt.Errorf("look at the file system of pg_wal: %w", err)
	}
	u.Free = int64(fs.Bavail) * fs.Bsize
	dir, err := os.Open(i.path("pg_wal", "archive_status"))
	if err != nil {
		return u, fmt.Errorf("count WAL that is not archived: %w", err)
	}
	defer func() { _ = dir.Close() }()
	var first string
	for names := []string(nil); err == nil; {
		names, err = dir.Readdirnames(1000)
		for _, name := range names {
			if strings.HasSuffix(name, ".ready") {
				u.Files++
				if first == "" || name < first {
					first = name
				}
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		return u, fmt.Errorf("count WAL that is not archived: %w", err)
	}
	if st, err := os.Stat(i.path("pg_wal", "archive_status", first)); first != "" && err == nil { // else it was archived meanwhile
		u.Since = st.ModTime()
	}
	return u, nil
}

// ArchiveAgain has the server of a primary archive the WAL of earlier timelines once more that it still holds. A
// standby notes each segment as archived when it has received it, because its primary archives; what that one had not
// archived when it died would be in no archive. It must be called only where archiving a file twice does no harm. It
// returns the number of files.
func (i *Instance) ArchiveAgain(before ag.Timeline) (n int, err error) {
	dir := i.path("pg_wal", "archive_status")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("look for WAL to archive again: %w", err)
	}
	for _, e := range entries {
		name, done := strings.CutSuffix(e.Name(), ".done")
		var tli uint32
		if _, err := fmt.Sscanf(name, "%08X", &tli); !done || err != nil || len(name) != 24 || ag.Timeline(tli) >= before {
			continue
		}
		if _, err := os.Stat(i.path("pg_wal", name)); err != nil { // PostgreSQL removes it
			continue
		}
		ready := filepath.Join(dir, name+".ready")
		err := os.Rename(filepath.Join(dir, e.Name()), ready)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, fmt.Errorf("have WAL archived again: %w", err)
		}
		if err == nil {
			n++
			_ = os.Chtimes(ready, time.Time{}, time.Now()) // since when it waits, if it still does
		}
	}
	return n, nil
}

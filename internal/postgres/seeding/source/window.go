package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// window is one backup window of the source: the time between pg_backup_start and pg_backup_stop, in one session that
// it keeps. It survives the connections of the target.
type window struct {
	info    wire.Window
	member  ag.ReplicaID
	epoch   ag.Epoch
	data    string
	standby bool // the source is a secondary: the primary keeps the WAL
	spaces  map[uint32]string
	files   []wire.File
	pages   *pageReader
	hash    pagesum.Hash

	patience time.Duration // for databases that are being created

	mu      sync.Mutex
	conn    *pgx.Conn
	catalog string // databases and their tablespaces when the window began
	dirs    string // and their directories
	users   int    // connections that use it
	idle    time.Time
	stopped *wire.Ending // the backup is ended in the server
	ended   *wire.Ending
	closed  bool
	err     error     // the reason why it was closed early
	done    time.Time // when the target reported that its copy is installed
}

// slotPrefix begins the names of slots that keep WAL for a seeding. The rest of the name is the member.
const slotPrefix = "cot_seed_"

// open begins a backup window for the member. If it fails, the parts created so far are removed.
func (s *Source) open(ctx context.Context, h wire.Hello) (*window, error) {
	ctx, cancel := context.WithTimeout(ctx, wire.WindowTimeout)
	defer cancel()
	conn, err := s.cfg.Connect(ctx)
	if err != nil {
		return nil, err
	}
	w := &window{member: h.Member, epoch: h.Epoch, data: s.data(), conn: conn, idle: time.Now(), standby: h.After != nil, patience: cmp.Or(s.cfg.CreationWait, creationWait)}
	if err := w.enter(ctx, h); err != nil {
		s.drop(w)
		return nil, err
	}
	return w, nil
}

// enter opens the kind of window that the member requests: first the slot, then the checkpoint
// (docs/internals/postgresql.md, "Seeding").
func (w *window) enter(ctx context.Context, h wire.Hello) (err error) {
	if err := w.identify(ctx); err != nil {
		return err
	}
	w.info.ID, w.info.Key = newWindowID(), pagesum.NewKey()
	if w.hash, err = pagesum.NewHash(w.info.Key); err != nil {
		return err
	}
	if err := w.quiet(ctx); err != nil { // otherwise this window would be useless
		return err
	}
	switch {
	case h.Anchor:
		return w.keep(ctx, slotPrefix+string(h.Member))
	case w.standby:
		w.catalog = h.After.Catalog
		if err := w.catchUp(ctx, h.After.After); err != nil {
			return err
		}
	default:
		if err := w.reserve(ctx, slotPrefix+string(h.Member)); err != nil {
			return fmt.Errorf("reserve WAL for the copy: %w", err)
		}
		// This is read before the backup begins: databases created after its checkpoint are replayed.
		if w.catalog, err = w.databases(ctx); err != nil {
			return err
		}
	}
	w.dirs = w.directories()
	if err := w.begin(ctx, !h.Spread); err != nil {
		return fmt.Errorf("begin the backup: %w", err)
	}
	// Since identify a tablespace may have been made, or replayed here. One that is made from now on is in the WAL.
	if err := w.tablespaces(ctx); err != nil {
		return err
	}
	if w.standby && w.info.Start < h.After.Since {
		return wire.Refuse(wire.CodeGone, fmt.Sprintf("a backup here begins at %s, and the primary keeps WAL from %s on", w.info.Start, h.After.Since))
	}
	if err := w.list(ctx); err != nil {
		return err
	}
	w.pages = &pageReader{size: w.info.Page, verify: w.info.Checksums && !h.Corrupt, start: w.info.Start, insert: w.insertLSN}
	return nil
}

// keep makes this a window that only keeps WAL, for a copy that is made from a secondary. It makes the slot first, then
// lists the databases, then makes a checkpoint. The secondary's backup begins at or after that checkpoint.
func (w *window) keep(ctx context.Context, slot string) error {
	if err := w.reserve(ctx, slot); err != nil {
		return fmt.Errorf("reserve WAL for the copy: %w", err)
	}
	a := &wire.Anchor{}
	var since, after string
	if err := w.conn.QueryRow(ctx, `SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = $1`, slot).Scan(&since); err != nil {
		return fmt.Errorf("reserve WAL for the copy: %w", err)
	}
	var err error
	if a.Catalog, err = w.databases(ctx); err != nil {
		return err
	}
	w.catalog, w.dirs = a.Catalog, w.directories()
	if _, err := w.conn.Exec(ctx, `CHECKPOINT`); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := w.conn.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&after); err != nil {
		return err
	}
	if a.Since, err = ag.ParseLSN(since); err != nil {
		return err
	}
	if a.After, err = ag.ParseLSN(after); err != nil {
		return err
	}
	w.info.Start, w.info.Anchor = a.Since, a
	return nil
}

// catchUp waits until this secondary has replayed to lsn.
func (w *window) catchUp(ctx context.Context, lsn ag.LSN) error {
	var now ag.LSN
	err := retry.Until(ctx, 50*time.Millisecond, func() (ok bool, err error) {
		now, err = w.insertLSN(ctx)
		return now >= lsn, err
	})
	if err != nil {
		return fmt.Errorf("this secondary has replayed up to %s and not to %s: %w", now, lsn, err)
	}
	return nil
}

// identify reads the properties that both copies must have in common, and refuses a source that cannot give a
// consistent copy.
func (w *window) identify(ctx context.Context) error {
	var walLevel, fpw string
	var recovery bool
	err := w.conn.QueryRow(ctx, `SELECT current_setting('wal_level'), current_setting('full_page_writes'), pg_is_in_recovery()`).Scan(&walLevel, &fpw, &recovery)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	switch {
	case recovery && !w.standby:
		return errors.New("this node's server is in recovery; a copy is made from the primary")
	case w.standby && !recovery:
		return errors.New("this node's server is not in recovery, as that of a secondary is")
	case walLevel == "minimal":
		return errors.New("wal_level is minimal; a copy needs replica or logical")
	case fpw != "on":
		return errors.New("full_page_writes is off; a copy made while it is off cannot be repaired by WAL")
	}
	return w.describe(ctx)
}

// describe reads the properties of the cluster and the places of its parts.
func (w *window) describe(ctx context.Context) error {
	var checksums string
	err := w.conn.QueryRow(ctx, `SELECT s.system_identifier::text, current_setting('server_version_num')::int / 10000,
		current_setting('block_size')::int, current_setting('data_checksums') FROM pg_control_system() s`).
		Scan(&w.info.SystemID, &w.info.Major, &w.info.Page, &checksums)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	w.info.Checksums = checksums == "on"
	if w.info.Page < 1024 || w.info.Page > 32768 {
		return fmt.Errorf("block size %d", w.info.Page)
	}
	w.info.WAL = wire.Space{Location: filepath.Join(w.data, "pg_wal")}
	w.info.WAL.Identify()
	return w.tablespaces(ctx)
}

// tablespaces reads the places of the tablespaces.
func (w *window) tablespaces(ctx context.Context) error {
	rows, err := w.conn.Query(ctx, `SELECT oid::bigint, pg_tablespace_location(oid) FROM pg_tablespace WHERE oid NOT IN (1663, 1664)`)
	if err != nil {
		return fmt.Errorf("list tablespaces: %w", err)
	}
	w.info.Spaces, w.spaces = nil, map[uint32]string{}
	var oid int64
	var location string
	_, err = pgx.ForEachRow(rows, []any{&oid, &location}, func() error {
		t := wire.Space{OID: uint32(oid), Location: location}
		t.Identify()
		w.info.Spaces = append(w.info.Spaces, t)
		w.spaces[uint32(oid)] = location
		return nil
	})
	if err != nil {
		return fmt.Errorf("list tablespaces: %w", err)
	}
	return nil
}

// reserve makes the slot that keeps WAL from before the window's redo position on. A leftover slot is made anew.
func (w *window) reserve(ctx context.Context, slot string) error {
	w.info.Slot = slot
	const drop = `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`
	if _, err := w.conn.Exec(ctx, drop, slot); err != nil {
		return err
	}
	_, err := w.conn.Exec(ctx, `SELECT pg_create_physical_replication_slot($1, true)`, slot)
	return err
}

func (w *window) begin(ctx context.Context, fast bool) error {
	start := `SELECT pg_backup_start('coterie', $1)::text`
	if w.info.Major < 15 {
		start = `SELECT pg_start_backup('coterie', $1, false)::text`
	}
	var redo string
	if err := w.conn.QueryRow(ctx, start, fast).Scan(&redo); err != nil {
		return err
	}
	var err error
	if w.info.Start, err = ag.ParseLSN(redo); err != nil {
		return err
	}
	var tli int64
	if err := w.conn.QueryRow(ctx, `SELECT timeline_id FROM pg_control_checkpoint()`).Scan(&tli); err != nil {
		return err
	}
	w.info.Timeline = ag.Timeline(tli)
	return nil
}

// databases describes the things that a file copy of a template changes without WAL: rows of pg_database with their
// tablespaces.
func (w *window) databases(ctx context.Context) (string, error) {
	var s *string
	err := w.conn.QueryRow(ctx, `SELECT string_agg(oid || ':' || dattablespace, ' ' ORDER BY oid) FROM pg_database`).Scan(&s)
	if err != nil || s == nil {
		return "", fmt.Errorf("list databases: %w", err)
	}
	return *s, nil
}

// underWay reports whether a database is being created, dropped or moved: a session that copies its files holds such a
// lock until it commits.
func (w *window) underWay(ctx context.Context) (yes bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return false, errors.New("the window has ended")
	}
	err = w.conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass
		AND mode IN ('ShareLock', 'AccessExclusiveLock') AND granted)`).Scan(&yes)
	if err != nil {
		return false, fmt.Errorf("ask whether a database is being created: %w", err)
	}
	return yes, nil
}

// quiet waits until no database is being created, for at most w.patience.
func (w *window) quiet(ctx context.Context) error {
	until := time.Now().Add(w.patience)
	return retry.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		busy, err := w.underWay(ctx)
		return !busy || time.Now().After(until), err
	})
}

// changed returns the reason why a change of databases makes one more window necessary, or "". A creation whose WAL
// lies before the end of the backup is committed by now and shows in the catalog, or is still in progress. An abandoned
// creation has removed its directory, as replay will.
func (w *window) changed(ctx context.Context) (string, error) {
	busy, err := w.underWay(ctx) // first: a creation that ends in between shows in the catalog
	if err != nil {
		return "", err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return "", errors.New("the window has ended")
	}
	after, err := w.databases(ctx)
	switch {
	case err != nil:
		return "", err
	case after != w.catalog || w.directories() != w.dirs:
		return "a database was created, dropped or moved meanwhile", nil
	case busy:
		return "a database is being created, dropped or moved", nil
	}
	return "", nil
}

// directories lists the directories of databases. An uncommitted creation, whose WAL may nevertheless be replayed,
// shows nowhere else.
func (w *window) directories() string {
	found := numbered(filepath.Join(w.data, "base"))
	for _, location := range w.spaces {
		versions, _ := os.ReadDir(location)
		for _, v := range versions {
			if strings.HasPrefix(v.Name(), datadir.VersionPrefix(w.info.Major)) {
				found = append(found, numbered(filepath.Join(location, v.Name()))...)
			}
		}
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

// numbered returns the paths of the entries of a directory whose names begin with a digit. The name of the directory
// may be anything, which is why this is no pattern.
func numbered(dir string) (found []string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if c := e.Name()[0]; c >= '0' && c <= '9' {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

func (w *window) list(ctx context.Context) error {
	var logDir string
	if err := w.conn.QueryRow(ctx, `SELECT current_setting('log_directory')`).Scan(&logDir); err != nil {
		return fmt.Errorf("ask for log_directory: %w", err)
	}
	l := &datadir.Lister{LogDir: datadir.LogDir(logDir), Version: datadir.VersionPrefix(w.info.Major)}
	var err error
	w.files, err = l.List(w.data, w.info.Spaces)
	return err
}

// size returns the number of bytes of files that the window lists.
func (w *window) size() (n int64) {
	for _, f := range w.files {
		n += f.Size
	}
	return n
}

func (w *window) insertLSN(ctx context.Context) (ag.LSN, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return 0, errors.New("the window has ended")
	}
	var s string
	if err := w.conn.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text`).Scan(&s); err != nil {
		return 0, err
	}
	return ag.ParseLSN(s)
}

// end closes the backup; a repeated call returns the same answer. For a window that only keeps WAL it returns the
// changes of databases since the window began.
func (w *window) end(ctx context.Context) (wire.Ending, error) {
	if e, ended := w.wasEnded(); ended {
		return e, nil
	}
	if err := w.quiet(ctx); err != nil {
		return wire.Ending{}, err
	}
	e := wire.Ending{}
	var err error
	if w.info.Anchor == nil {
		if e, err = w.stop(ctx); err != nil {
			return wire.Ending{}, fmt.Errorf("end the backup: %w", err)
		}
	}
	if e.Again, err = w.changed(ctx); err != nil || w.info.Anchor != nil {
		return e, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = &e
	if w.conn != nil {
		closeConn(w.conn)
		w.conn = nil
	}
	return e, nil
}

func (w *window) wasEnded() (wire.Ending, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended == nil {
		return wire.Ending{}, false
	}
	return *w.ended, true
}

// stop reads pg_control, which comes last of all files, and ends the backup in the server.
func (w *window) stop(ctx context.Context) (e wire.Ending, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped != nil { // the answer was lost with its connection
		return *w.stopped, nil
	}
	if w.conn == nil {
		return e, errors.New("the window has ended")
	}
	if e.Control, err = w.control(ctx); err != nil {
		return e, err
	}
	stop := `SELECT lsn::text, labelfile, spcmapfile FROM pg_backup_stop(false)`
	if w.info.Major < 15 {
		stop = `SELECT lsn::text, labelfile, spcmapfile FROM pg_stop_backup(false, false)`
	}
	var lsn, label string
	var spaces *string
	if err := w.conn.QueryRow(ctx, stop).Scan(&lsn, &label, &spaces); err != nil {
		return e, err
	}
	e.Label = []byte(label)
	if spaces != nil {
		e.Spaces = []byte(*spaces)
	}
	if e.End, err = ag.ParseLSN(lsn); err == nil {
		w.stopped = &e
	}
	return e, err
}

// drop ends the rest of the window, its slot included. After an error the slot may still be there.
func (w *window) drop(connect func(context.Context) (*pgx.Conn, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.conn != nil {
		closeConn(w.conn) // ends the backup in the server, too
		w.conn = nil
	}
	if w.info.Slot == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	_, err = conn.Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1 AND NOT active`, w.info.Slot)
	return err
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the session ends either way
}

// path returns the path of a listed file at the source.
func (w *window) path(f wire.File) string {
	if f.Space == 0 {
		return filepath.Join(w.data, filepath.FromSlash(f.Name))
	}
	return filepath.Join(w.spaces[f.Space], filepath.FromSlash(f.Name))
}

// owned reports whether a slot's name is one that windows create, and returns its member.
func owned(slot string) (member string, ok bool) {
	if len(slot) <= len(slotPrefix) || slot[:len(slotPrefix)] != slotPrefix {
		return "", false
	}
	return slot[len(slotPrefix):], true
}

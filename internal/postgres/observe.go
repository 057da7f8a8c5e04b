package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// Observation is the state of a running server at one moment, as the server reports it.
type Observation struct {
	InRecovery      bool
	Timeline        ag.Timeline // of what it writes, or of what it replays
	Receive         ag.LSN      // in recovery: flushed by the walreceiver since start; 0 or low if it has not streamed
	Replay          ag.LSN      // in recovery: replayed
	Insert          ag.LSN      // as primary
	Flush           ag.LSN      // as primary: flushed; in recovery: the highest of Receive and Replay
	Whole           ag.Position // the end of whole records that are flushed; 0: not known yet. A lower bound while WAL comes in
	SegmentSize     int
	BlockSize       int
	ReplayPaused    bool
	Short           string // why replay was paused by the server itself: settings that are below the primary's
	WalReceiver     *WalReceiver
	SyncNames       string // synchronous_standby_names in force in the observing session
	SyncSource      string // file that value comes from
	SyncWritten     string // synchronous_standby_names in postgresql.auto.conf, in force after the next reload
	IsWritten       bool   // it is there
	ConfLoadTime    time.Time
	Replication     []Walsender
	Slots           []Slot
	ServerVersion   int // server_version_num
	PostmasterStart time.Time
	SyncRepWaiters  int // sessions whose commit waits for synchronous replication
}

// WalReceiver is the row of pg_stat_wal_receiver. No row exists while the receiver waits for its connection.
type WalReceiver struct {
	PID         int
	Status      string
	ReceivedTLI ag.Timeline
	Written     ag.LSN
	Flushed     ag.LSN
	LatestEnd   ag.LSN
	Slot        string
	LastMessage time.Time
}

// Walsender is one row of pg_stat_replication. The instance's own session is left out.
type Walsender struct {
	PID         int
	Application string
	User        string
	Address     string // of its client; empty behind a Unix socket
	State       string
	SyncState   string
	Sent        ag.LSN
	Write       ag.LSN
	Flush       ag.LSN
	Replay      ag.LSN
	ReplyTime   time.Time
}

// Slot is one row of pg_replication_slots.
type Slot struct {
	Name      string
	Type      string // physical or logical
	Active    bool
	ActivePID int
	Restart   ag.LSN // 0 while it reserves nothing
	WALStatus string // reserved, extended, unreserved, lost
	Temporary bool
}

const serverQuery = `
SELECT r.yes,
       pg_last_wal_receive_lsn()::text,
       pg_last_wal_replay_lsn()::text,
       CASE WHEN NOT r.yes THEN pg_current_wal_insert_lsn()::text END,
       CASE WHEN NOT r.yes THEN pg_current_wal_flush_lsn()::text END,
       CASE WHEN r.yes THEN pg_is_wal_replay_paused() ELSE false END,
       s.setting, coalesce(s.sourcefile, ''),
       pg_conf_load_time(), pg_postmaster_start_time(),
       current_setting('server_version_num')::int,
       pg_size_bytes(current_setting('wal_segment_size'))::int, current_setting('wal_block_size')::int,
       (SELECT count(*)::int FROM pg_stat_activity WHERE wait_event_type = 'IPC' AND wait_event = 'SyncRep'),
       CASE WHEN NOT r.yes THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint ELSE 0 END
FROM pg_settings s, (SELECT pg_is_in_recovery() AS yes) r
WHERE s.name = 'synchronous_standby_names'`

const walReceiverQuery = `
SELECT coalesce(pid, 0), coalesce(status, ''), coalesce(received_tli, 0), written_lsn::text, flushed_lsn::text,
       latest_end_lsn::text, coalesce(slot_name, ''), last_msg_receipt_time
FROM pg_stat_wal_receiver`

const walsendersQuery = `
SELECT pid, coalesce(application_name, ''), coalesce(usename::text, ''), coalesce(host(client_addr), ''), coalesce(state, ''), coalesce(sync_state, ''), sent_lsn::text, write_lsn::text,
       flush_lsn::text, replay_lsn::text, reply_time
FROM pg_stat_replication WHERE (application_name = $1 AND usename = session_user) IS NOT TRUE ORDER BY application_name, pid`

// namesQuery is what tells whose a walsender is. It is asked ten times a second, and its rows are not sorted.
const namesQuery = `
SELECT pid, coalesce(application_name, ''), coalesce(state, '') FROM pg_stat_replication WHERE (application_name = $1 AND usename = session_user) IS NOT TRUE`

const slotsQuery = `
SELECT slot_name, slot_type, active, coalesce(active_pid, 0), restart_lsn::text, coalesce(wal_status, ''), temporary
FROM pg_replication_slots ORDER BY slot_name`

// Observe reads the server's state through the instance's permanent sessions, within two seconds.
func (i *Instance) Observe(ctx context.Context) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	var o Observation
	err := i.main.Do(ctx, func(c *pgx.Conn) error {
		o = Observation{}
		b := &pgx.Batch{}
		b.Queue(serverQuery).QueryRow(o.scanServer)
		b.Queue(walReceiverQuery).Query(o.scanWalReceiver)
		b.Queue(walsendersQuery, session.Name).Query(o.scanWalsenders)
		b.Queue(slotsQuery).Query(o.scanSlots)
		return c.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return Observation{}, fmt.Errorf("observe PostgreSQL: %w", err)
	}
	if !o.InRecovery {
		i.repl.Rest()
		o.Whole = i.whole(ctx, o)
		if o.SyncWritten, o.IsWritten, err = i.writtenSync(); err != nil {
			return Observation{}, fmt.Errorf("observe PostgreSQL: %w", err)
		}
		return o, nil
	}
	o.Flush = max(o.Receive, o.Replay)
	if o.Timeline, err = i.replayTimeline(ctx, o); err != nil {
		return Observation{}, fmt.Errorf("observe PostgreSQL: %w", err)
	}
	o.Whole = i.whole(ctx, o)
	if o.ReplayPaused {
		o.Short = i.short(ctx)
	}
	return o, nil
}

// replayTimeline returns the timeline that a standby replays. While the standby streams on the timeline it was last
// known to replay, that is the one: replay is never newer than what is received, and never goes back.
func (i *Instance) replayTimeline(ctx context.Context, o Observation) (ag.Timeline, error) {
	known := i.replays.Load()
	if w := o.WalReceiver; known != nil && w != nil && w.Status == "streaming" && w.ReceivedTLI == known.timeline && o.PostmasterStart.Equal(known.of) {
		i.repl.Rest()
		return known.timeline, nil
	}
	p, err := i.identify(ctx)
	if err == nil {
		i.replays.Store(&replayed{p.Timeline, o.PostmasterStart})
	}
	return p.Timeline, err
}

// replayed is the timeline that a server replayed when it was last asked.
type replayed struct {
	timeline ag.Timeline
	of       time.Time // its start
}

func (o *Observation) scanServer(row pgx.Row) error {
	return row.Scan(&o.InRecovery, lsn(&o.Receive), lsn(&o.Replay), lsn(&o.Insert), lsn(&o.Flush), &o.ReplayPaused,
		&o.SyncNames, &o.SyncSource, &o.ConfLoadTime, &o.PostmasterStart, &o.ServerVersion, &o.SegmentSize, &o.BlockSize, &o.SyncRepWaiters, &o.Timeline)
}

func (o *Observation) scanWalReceiver(rows pgx.Rows) error {
	for rows.Next() {
		w, last := &WalReceiver{}, (*time.Time)(nil)
		if err := rows.Scan(&w.PID, &w.Status, &w.ReceivedTLI, lsn(&w.Written), lsn(&w.Flushed), lsn(&w.LatestEnd), &w.Slot, &last); err != nil {
			return err
		}
		if last != nil {
			w.LastMessage = *last
		}
		if w.PID != 0 {
			o.WalReceiver = w
		}
	}
	return rows.Err()
}

func (o *Observation) scanWalsenders(rows pgx.Rows) error {
	for rows.Next() {
		w, reply := Walsender{}, (*time.Time)(nil)
		if err := rows.Scan(&w.PID, &w.Application, &w.User, &w.Address, &w.State, &w.SyncState, lsn(&w.Sent), lsn(&w.Write), lsn(&w.Flush), lsn(&w.Replay), &reply); err != nil {
			return err
		}
		if reply != nil {
			w.ReplyTime = *reply
		}
		o.Replication = append(o.Replication, w)
	}
	return rows.Err()
}

func (o *Observation) scanSlots(rows pgx.Rows) error {
	for rows.Next() {
		s := Slot{}
		if err := rows.Scan(&s.Name, &s.Type, &s.Active, &s.ActivePID, lsn(&s.Restart), &s.WALStatus, &s.Temporary); err != nil {
			return err
		}
		o.Slots = append(o.Slots, s)
	}
	return rows.Err()
}

// lsnScanner reads the text form of a pg_lsn; NULL is 0.
type lsnScanner struct{ to *ag.LSN }

func lsn(to *ag.LSN) *lsnScanner { return &lsnScanner{to} }

// Scan implements sql.Scanner.
func (s *lsnScanner) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*s.to = 0
		return nil
	case string:
		l, err := ag.ParseLSN(v)
		*s.to = l
		return err
	}
	return fmt.Errorf("%T is not the text of a WAL position", src)
}

// Walsenders returns process, name and state of the walsenders that are not the agent's own. It uses a session of its
// own.
func (i *Instance) Walsenders(ctx context.Context) (out []Walsender, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = i.watch.Do(ctx, func(c *pgx.Conn) error {
		out = nil
		rows, err := c.Query(ctx, namesQuery, session.Name)
		if err != nil {
			return err
		}
		for rows.Next() {
			w := Walsender{}
			if err := rows.Scan(&w.PID, &w.Application, &w.State); err != nil {
				return err
			}
			out = append(out, w)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("look for walsenders: %w", err)
	}
	return out, nil
}

// CurrentFlush returns how far a primary has flushed its WAL, or a standby has replayed it. It uses a session of its
// own.
func (i *Instance) CurrentFlush(ctx context.Context) (ag.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	var at ag.LSN
	err := i.wal.Do(ctx, func(c *pgx.Conn) error {
		results, err := c.PgConn().Exec(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END").ReadAll()
		if err != nil {
			return err
		}
		if len(results) != 1 || len(results[0].Rows) != 1 {
			return errors.New("unexpected answer")
		}
		at, err = ag.ParseLSN(string(results[0].Rows[0][0]))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the flushed position: %w", err)
	}
	return at, nil
}

// FlushLSN returns how far WAL is durable here: on a primary the flushed position, in recovery the higher of received
// and replayed.
func (i *Instance) FlushLSN(ctx context.Context) (ag.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	var l ag.LSN
	err := i.main.Do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT (CASE WHEN pg_is_in_recovery()
			THEN greatest(coalesce(pg_last_wal_receive_lsn(), '0/0'), coalesce(pg_last_wal_replay_lsn(), '0/0'))
			ELSE pg_current_wal_flush_lsn() END)::text`).Scan(lsn(&l))
	})
	if err != nil {
		return 0, fmt.Errorf("ask for the flushed position: %w", err)
	}
	return l, nil
}

// freshSegment is how many bytes of a WAL segment may be used for it to count as new.
const freshSegment = 1 << 20

// FreshSegment makes a primary begin a new WAL segment, unless the present one is new, and returns where it begins,
// flushed up to there; 0 if it did not. A standby that follows a new primary fetches the segment of the switch from its
// beginning, even if it has a part of it already (RequestXLogStreaming in PostgreSQL). It counts as synchronous only
// beyond that segment.
func (i *Instance) FreshSegment(ctx context.Context) (ag.LSN, error) {
	var begins ag.LSN
	err := i.server.Fresh(ctx, func(c *pgx.Conn) error {
		var used bool
		err := c.QueryRow(ctx, `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') % setting::numeric > $1
			FROM pg_settings WHERE name = 'wal_segment_size'`, freshSegment).Scan(&used)
		if err != nil || !used {
			return err
		}
		if _, err := c.Exec(ctx, "SELECT pg_switch_wal()"); err != nil {
			return err
		}
		return c.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(lsn(&begins))
	})
	if err != nil {
		return 0, fmt.Errorf("begin a WAL segment: %w", err)
	}
	return begins, nil
}

// Checkpoint performs a checkpoint, or a restartpoint in recovery, as fast as it can. It has no time limit of its own.
func (i *Instance) Checkpoint(ctx context.Context) error {
	// Not in the main session: a checkpoint may take a minute, and observation must continue.
	err := i.server.Fresh(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CHECKPOINT")
		return err
	})
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// exec runs one command in the main session.
func (i *Instance) exec(ctx context.Context, sql string, args ...any) error {
	return i.main.Do(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql, args...)
		return err
	})
}

// identify returns the timeline that the server writes or replays, and the end of its WAL there. On a primary that is
// the flushed position. In recovery it is the higher of the replayed position and, if it is of the same timeline, the
// received one.
func (i *Instance) identify(ctx context.Context) (ag.Position, error) {
	var p ag.Position
	err := i.repl.Do(ctx, func(c *pgx.Conn) error {
		results, err := c.PgConn().Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
		if err != nil {
			return err
		}
		if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) < 3 {
			return errors.New("IDENTIFY_SYSTEM: unexpected answer")
		}
		row := results[0].Rows[0]
		var tli uint32
		if _, err := fmt.Sscan(string(row[1]), &tli); err != nil {
			return fmt.Errorf("IDENTIFY_SYSTEM: timeline %.20q: %w", row[1], err)
		}
		lsn, err := ag.ParseLSN(string(row[2]))
		p = ag.Position{Timeline: ag.Timeline(tli), LSN: lsn}
		return err
	})
	if err != nil {
		return ag.Position{}, fmt.Errorf("ask for the timeline: %w", err)
	}
	return p, nil
}

// The ends that a running server reports may lie inside a record. A walsender sends as far as WAL is flushed, and a
// background flush ends at a page. After a crash the end is that of the last whole record, which is earlier. So what
// others remember of a copy must be the end of a whole record that is flushed here.

// wholeEnd is the end of whole records of a running server, as far as it is known. It only moves forward while the
// server runs.
type wholeEnd struct {
	mu      sync.Mutex // guards the fields below
	of      time.Time  // start of that server
	at      ag.Position
	pending ag.LSN // of a primary: the end of the last record that was inserted when it was last observed
	tried   ag.LSN // of a standby: what it had received when its WAL was read to the end
}

// Budget of one reading of a standby's WAL behind its replay position. The rest is read at the next observation.
const (
	wholeChunk  = 8 << 20
	wholeBudget = 50 * time.Millisecond
)

// whole returns the end of whole records that are flushed. While WAL comes in it is a lower bound; 0: not known yet.
func (i *Instance) whole(ctx context.Context, o Observation) ag.Position {
	w := &i.wholeEnd
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.of.Equal(o.PostmasterStart) {
		w.of, w.at, w.pending, w.tried = o.PostmasterStart, ag.Position{}, 0, 0
	}
	if !o.InRecovery {
		w.flushed(o)
		return w.at
	}
	if o.Replay >= w.at.LSN {
		w.at = ag.Position{Timeline: o.Timeline, LSN: o.Replay}
	}
	if o.Receive > w.at.LSN && o.Receive != w.tried {
		i.readOn(ctx, w, o)
	}
	return w.at
}

// flushed moves the end of a primary. The position at which the next record will be inserted is the end of a record.
// Once everything before it is flushed, it counts.
func (w *wholeEnd) flushed(o Observation) {
	for range 2 {
		if w.pending != 0 && w.pending <= o.Flush {
			w.at = ag.Position{Timeline: o.Timeline, LSN: max(w.at.LSN, w.pending)}
		} else if w.pending != 0 {
			return
		}
		w.pending = beforeHeader(o.Insert, o.SegmentSize)
	}
}

// beforeHeader returns the end of the record before an insert position. At the beginning of a page PostgreSQL reports
// the position behind the page's header.
func beforeHeader(at ag.LSN, segment int) ag.LSN {
	const page, short, long = 8192, 24, 40 // bytes; with larger pages the result may be lower than it need be
	switch {
	case segment > 0 && at%ag.LSN(segment) == long:
		return at - long
	case at%page == short:
		return at - short
	}
	return at
}

// readOn follows the records of a standby behind the last known end. A record counts only if all of it was received:
// the rest of a file may be old content.
func (i *Instance) readOn(ctx context.Context, w *wholeEnd, o Observation) {
	through, err := i.lineagesThrough(ctx, w.at)
	if err != nil {
		return // a file was removed meanwhile: the next observation reads again
	}
	until := time.Now().Add(wholeBudget)
	for _, l := range slices.Backward(through) { // the newest timeline first
		files := pgfiles.OpenWAL(i.path("pg_wal"), pgfiles.Control{WalSegmentSize: o.SegmentSize, WalBlockSize: o.BlockSize}, l)
		moved, err := w.follow(ctx, files, o.Receive, until)
		files.Close()
		if err != nil || moved {
			return
		}
	}
	w.tried = o.Receive
}

// follow reads until the budget or the WAL ends. It reports whether it came further.
func (w *wholeEnd) follow(ctx context.Context, files *pgfiles.WAL, receive ag.LSN, until time.Time) (moved bool, err error) {
	for time.Now().Before(until) && w.at.LSN < receive {
		limit := min(receive, w.at.LSN+wholeChunk)
		end, found, err := pgfiles.End(ctx, files, w.at.LSN, limit)
		if err == nil && !found && limit < receive { // one long record
			end, found, err = pgfiles.End(ctx, files, w.at.LSN, receive)
		}
		switch {
		case err != nil && !errors.Is(err, pgfiles.ErrNoWAL):
			return moved, err
		case err != nil || !found:
			return moved, nil
		}
		w.at, moved = end, true
	}
	return moved, nil
}

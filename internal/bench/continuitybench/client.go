package continuitybench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// The database is TPC-B's, with fewer accounts. The sums of all four tables are equal at any moment.
const (
	branches = 32
	tellers  = 10     // of a branch
	accounts = 10_000 // of a branch
	tables   = `
		create schema if not exists coterie_continuity;
		create table if not exists coterie_continuity.branches (bid int primary key, balance bigint not null default 0) with (fillfactor = 20);
		create table if not exists coterie_continuity.tellers (tid int primary key, balance bigint not null default 0) with (fillfactor = 20);
		create table if not exists coterie_continuity.accounts (aid int primary key, balance bigint not null default 0);
		create table if not exists coterie_continuity.history (tid int, bid int, aid int, delta int, mtime timestamptz)`
	fill = `
		insert into coterie_continuity.branches (bid) select generate_series(1, %d);
		insert into coterie_continuity.tellers (tid) select generate_series(1, %d);
		insert into coterie_continuity.accounts (aid) select generate_series(1, %d);
		analyze coterie_continuity.branches; analyze coterie_continuity.tellers; analyze coterie_continuity.accounts`
	sums = `select (select coalesce(sum(delta), 0) from coterie_continuity.history), (select sum(balance) from coterie_continuity.branches)::bigint,
		(select sum(balance) from coterie_continuity.tellers)::bigint, (select sum(balance) from coterie_continuity.accounts)::bigint,
		(select count(*) from coterie_continuity.history), (select count(*) from coterie_ledger.entry)`
)

// Names of the prepared statements of a client, in the order of a transaction.
const (
	begin      = "begin"
	putAccount = "put_account"
	getAccount = "get_account"
	putTeller  = "put_teller"
	putBranch  = "put_branch"
	putHistory = "put_history"
	putLedger  = "put_ledger"
	commit     = "commit"
)

// statements are those of pgbench's TPC-B with -M prepared, and the insertion of the ledger's row.
var statements = [][2]string{
	{begin, "BEGIN"},
	{putAccount, "UPDATE coterie_continuity.accounts SET balance = balance + $1 WHERE aid = $2"},
	{getAccount, "SELECT balance FROM coterie_continuity.accounts WHERE aid = $1"},
	{putTeller, "UPDATE coterie_continuity.tellers SET balance = balance + $1 WHERE tid = $2"},
	{putBranch, "UPDATE coterie_continuity.branches SET balance = balance + $1 WHERE bid = $2"},
	{putHistory, "INSERT INTO coterie_continuity.history (tid, bid, aid, delta, mtime) VALUES ($1, $2, $3, $4, CURRENT_TIMESTAMP)"},
	{putLedger, ledger.Insert},
	{commit, "COMMIT"},
}

// loadTables makes the tables of TPC-B and fills them.
func loadTables(ctx context.Context, dsn string) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, tables); err != nil {
		return fmt.Errorf("make the tables: %w", err)
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(fill, branches, branches*tellers, branches*accounts)); err != nil {
		return fmt.Errorf("fill the tables: %w", err)
	}
	return nil
}

// client runs TPC-B, one transaction after the other. A transaction that failed is not run again: the next one is.
type client struct {
	*visitor
}

func (c *client) prepare(ctx context.Context) error {
	for _, s := range statements {
		if _, err := c.s.Conn().Prepare(ctx, s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) run(ctx context.Context) {
	for ctx.Err() == nil {
		if c.s.Conn() == nil {
			if err := c.connect(ctx, c.prepare); err != nil {
				if ctx.Err() == nil {
					c.load.fail(err)
				}
				return
			}
		}
		if err := c.transact(ctx); err != nil {
			c.load.fail(err)
			return
		}
		if c.load.pace > 0 && !method.Pause(ctx, rand.N(2*c.load.pace)) { //nolint:gosec // spreads clients
			return
		}
	}
}

// transact runs one transaction and notes what the client knows of it. An error is of the ledger.
func (c *client) transact(ctx context.Context) error {
	row, err := c.load.ledger.Next(c.number)
	if err != nil {
		return err
	}
	t := transaction{begun: c.load.now()}
	outcome, state, _ := c.s.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		err := c.tpcb(ctx, conn, row, &t)
		if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
			if _, undo := conn.Exec(ctx, "ROLLBACK"); undo != nil {
				return fmt.Errorf("%w; then %w", err, undo)
			}
		}
		return err
	})
	if outcome == session.Unknown && t.committing == 0 {
		outcome = session.Fail // the client has not asked for a commit
	}
	t.done, t.outcome, t.state, t.dropped = c.load.now(), outcome, state, c.s.Conn() == nil
	c.transacted(t)
	if outcome != session.OK {
		c.failed(t.done, state, t.dropped)
		session.Pause(ctx)
	}
	return c.load.ledger.Conclude(row, outcome, state)
}

func (c *client) tpcb(ctx context.Context, conn *pgx.Conn, row ledger.Row, t *transaction) error {
	bid, delta := 1+rand.IntN(branches), rand.IntN(10_001)-5_000              //nolint:gosec // spreads load
	tid, aid := 1+rand.IntN(branches*tellers), 1+rand.IntN(branches*accounts) //nolint:gosec // spreads load
	do := func(name string, args ...any) (pgconn.CommandTag, error) {
		sent := c.load.now()
		tag, err := conn.Exec(ctx, name, args...)
		c.asked(request{sent, c.load.now(), err == nil})
		return tag, err
	}
	if _, err := do(begin); err != nil {
		return err
	}
	t.opened = c.load.now()
	for _, one := range []struct {
		name string
		args []any
	}{
		{putAccount, []any{delta, aid}},
		{getAccount, []any{aid}},
		{putTeller, []any{delta, tid}},
		{putBranch, []any{delta, bid}},
		{putHistory, []any{tid, bid, aid, delta}},
		{putLedger, []any{row.Run, row.Client, row.Seq, row.Payload}},
	} {
		tag, err := do(one.name, one.args...)
		if err == nil && tag.RowsAffected() != 1 {
			err = fmt.Errorf("%s: %s", one.name, tag)
		}
		if err != nil {
			return err
		}
	}
	t.committing = c.load.now()
	tag, err := do(commit)
	if err == nil && tag.String() != "COMMIT" {
		return &pgconn.PgError{Severity: "ERROR", Code: "25P02", Message: "COMMIT was answered by " + tag.String()}
	}
	return err
}

// stateEvery is how often a session with a state asks something.
const stateEvery = 100 * time.Millisecond

// checkWithin bounds the wait for a session's own notification.
const checkWithin = 20 * time.Second

// stateful is a session with settings, channels and prepared statements.
type stateful struct {
	*visitor
	checks chan chan error
}

func (s *stateful) tenant() string { return fmt.Sprintf("tenant-%d", s.number) }

func (s *stateful) channel() string { return fmt.Sprintf("continuity_%d", s.number) }

// setUp brings a new session into its state.
func (s *stateful) setUp(ctx context.Context) error {
	for _, text := range []string{
		"SET work_mem = '5MB'", "SET my.tenant = '" + s.tenant() + "'", "SET search_path = coterie_continuity, public",
		"LISTEN coterie_lost", "LISTEN " + s.channel(), "PREPARE by_name (int) AS SELECT balance FROM branches WHERE bid = $1",
	} {
		if _, err := s.s.Conn().Exec(ctx, text); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"of_protocol": "SELECT balance FROM tellers WHERE tid = $1",
		"of_session":  "SELECT current_setting('my.tenant') || ' ' || current_setting('work_mem') WHERE $1",
	} {
		if _, err := s.s.Conn().Prepare(ctx, name, text); err != nil {
			return err
		}
	}
	return nil
}

func (s *stateful) run(ctx context.Context) {
	for ctx.Err() == nil {
		if s.s.Conn() == nil {
			if err := s.connect(ctx, s.setUp); err != nil {
				if ctx.Err() == nil {
					s.load.fail(err)
				}
				return
			}
		}
		r, _ := s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "of_protocol", 1+s.number)
			return err
		})
		s.asked(r)
		select {
		case answer := <-s.checks:
			answer <- s.look(ctx)
		case <-time.After(stateEvery):
		case <-ctx.Done():
		}
	}
}

// do runs op and notes its failure. As a request the caller notes it, if it is one.
func (s *stateful) do(ctx context.Context, op func(context.Context, *pgx.Conn) error) (request, error) {
	sent := s.load.now()
	outcome, state, err := s.s.Do(ctx, op)
	done := s.load.now()
	if outcome != session.OK {
		s.failed(done, state, s.s.Conn() == nil)
	}
	return request{sent, done, outcome == session.OK}, err
}

// look is check. It is many round trips and a wait for a notification, so it is not one of the requests by whose time
// sessions are judged.
func (s *stateful) look(ctx context.Context) error {
	_, err := s.do(ctx, s.check)
	return err
}

// check returns an error if the session is not as setUp has made it.
func (s *stateful) check(ctx context.Context, conn *pgx.Conn) error {
	var settings, channels string
	if err := conn.QueryRow(ctx, "of_session", true).Scan(&settings); err != nil {
		return fmt.Errorf("a prepared statement of the protocol: %w", err)
	}
	if want := s.tenant() + " 5MB"; settings != want {
		return fmt.Errorf("the settings are %q, and were %q", settings, want)
	}
	const listens = "SELECT string_agg(c, ' ' ORDER BY c) FROM pg_listening_channels() c"
	if err := conn.QueryRow(ctx, listens, pgx.QueryExecModeSimpleProtocol).Scan(&channels); err != nil {
		return fmt.Errorf("the channels: %w", err)
	}
	if want := s.channel() + " coterie_lost"; channels != want {
		return fmt.Errorf("it listens to %q, and listened to %q", channels, want)
	}
	if _, err := conn.Exec(ctx, "EXECUTE by_name (1)"); err != nil {
		return fmt.Errorf("a statement by PREPARE: %w", err)
	}
	if _, err := conn.Exec(ctx, "NOTIFY "+s.channel()); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return fmt.Errorf("a notification: %w", err)
		}
		if n.Channel == s.channel() {
			return nil
		}
	}
}

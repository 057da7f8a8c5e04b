package listener

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestSessionsThroughManyLosses executes random scripts on a session that loses its server again and again: by the
// death of the node or of the connection alone, and by planned failovers there and back; between two requests, between
// two statements of a transaction, in a failed one, and under a statement. Its client sees what that of a session sees
// that stays, but for the lost transactions.
func TestSessionsThroughManyLosses(t *testing.T) {
	far, near := farPrimary(t)
	near.role("mover", "login")
	near.role("lender", "")
	defer sameSchemas(t, near)()
	for _, s := range near.servers {
		s.sql(t, "drop sequence if exists public.lossy", "create sequence public.lossy", "grant all on public.lossy to public")
		defer s.sql(t, "drop sequence public.lossy")
	}
	losses := 0
	ended, scripts := runScripts(t, 12, func(r *rand.Rand) bool {
		l := &losing{t: t, far: far, near: near, r: r}
		defer func() { losses += l.losses }()
		return l.run()
	})
	t.Logf("%d of %d sessions ended, after %d losses: %v", ended, scripts, losses, near.srv.Stats().Unmoved)
	if ended > scripts*3/4 || losses < 2*scripts {
		t.Error("most sessions ended, or few servers were lost")
	}
}

// losing is a script under way.
type losing struct {
	t            *testing.T
	far, near    *group
	r            *rand.Rand
	moved, stays *pgconn.PgConn
	losses       int
	script       []string
}

// lossScript is a random script. Transactions are short, and their statements change nothing in the session.
func lossScript(r *rand.Rand) (script []string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	for range 3 {
		for _, s := range stateScript(r)[:5] {
			if !strings.HasPrefix(s, "begin") && !strings.HasPrefix(s, "savepoint") {
				script = append(script, s)
			}
		}
		script = append(script, pick("", "begin", "begin", "start transaction"))
		for range r.IntN(4) {
			script = append(script, pick("select 1", "select x from t", "select count(*) from pg_prepared_statements", "select current_setting('my.x', true)", "select current_user, session_user", "select 1/0"))
		}
		script = append(script, pick("commit", "rollback", "commit", "end"))
		switch r.IntN(40) {
		case 0:
			script = append(script, "select nextval('public.lossy') > 0; select currval('public.lossy') > 0", "select currval('public.lossy') > 0")
		case 1:
			script = append(script, "select length(set_config('my.x', repeat('x', 1100000), false))")
		}
		script = append(script, "select length(current_setting('my.x', true))")
	}
	return append(script, "rollback", "select name, setting from pg_settings where source = 'session' order by name", "select name, statement from pg_prepared_statements order by name")
}

// run executes a script. It reports false if the session ended.
func (l *losing) run() bool {
	t := l.t
	l.script = lossScript(l.r)
	l.moved = l.near.mustDial(l.near.rw, "user=mover").PgConn()
	var err error
	if l.stays, err = pgconn.Connect(t.Context(), "host="+l.near.servers["a"].dir+" user=mover dbname=postgres"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = l.moved.Close(context.Background()), l.stays.Close(context.Background())
		waitFor(t, "its session has ended", func() bool { return len(l.near.srv.Sessions())+len(l.far.srv.Sessions()) == 0 })
		l.near.returns(l.far)
	}()
	for _, statement := range l.script {
		if l.r.IntN(5) == 0 && !l.lose() {
			return false
		}
		if strings.HasPrefix(statement, "begin") || strings.HasPrefix(statement, "start") {
			l.settle()
		}
		got, ended := observe(t, l.moved, statement)
		if ended && l.losses > 0 {
			return false
		}
		if want, _ := observe(t, l.stays, statement); got != want {
			t.Errorf("after %d losses, at the end at %s, of %q:\n%s\n%s\nwant\n%s", l.losses, l.near.routes.Load().Primary, l.script, statement, got, want)
			return true
		}
	}
	return true
}

// lose has the session lose its server. A transaction that was open is rolled back. It reports false if the session
// ended.
func (l *losing) lose() bool {
	l.losses++
	status := l.moved.TxStatus()
	if l.near.routes.Load().Primary == "b" { // its server is at its own node
		if status != 'I' && !l.rollBack() {
			return false
		}
		l.handOver("a")
		return true
	}
	if status == 'I' && l.r.IntN(50) > 0 {
		l.settle()
	}
	switch how := l.r.IntN(4); {
	case status == 'I' && how == 0:
		l.handOver("b")
		return true
	case status == 'I' && how == 1:
		return l.dropped()
	case status == 'T' && how < 2:
		return l.underStatement()
	}
	l.near.dies()
	if status == 'T' { // its next statement fails
		got, ended := observe(l.t, l.moved, "select 1")
		if ended {
			return false
		}
		if !strings.Contains(got, "40001") || l.moved.TxStatus() != 'E' {
			l.t.Errorf("in the lost transaction of %q: %s", l.script, got)
		}
	}
	return status == 'I' || l.rollBack()
}

// settle waits until the state of the session is known, if that may be.
func (l *losing) settle() {
	x := l.near.sessionOf(l.moved.Conn())
	if x == nil || l.moved.TxStatus() != 'I' {
		return
	}
	settled := func() bool {
		x.work.Lock()
		defer x.work.Unlock()
		k := &x.work.Known
		if k.Unchanged.Holds() && (k.Told != nil || k.Refusal != "") || x.work.Tracker.Why() != "" || !k.Follows {
			return true
		}
		k.Next, k.Pause = time.Now(), 0 // not ever more seldom
		return false
	}
	for end := time.Now().Add(10 * time.Second); !settled() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// rollBack rolls the transaction of both sessions back.
func (l *losing) rollBack() bool {
	got, ended := observe(l.t, l.moved, "rollback")
	if want, _ := observe(l.t, l.stays, "rollback"); !ended && got != want {
		l.t.Errorf("ROLLBACK in %q: %s\nwant %s", l.script, got, want)
	}
	return !ended
}

// underStatement has the node die under a statement of the transaction.
func (l *losing) underStatement() bool {
	const statement = "select pg_sleep(64)"
	failed := make(chan error, 1)
	go func() {
		_, err := l.moved.Exec(context.Background(), statement).ReadAll()
		failed <- err
	}()
	waitFor(l.t, "it runs", func() bool { return l.near.waiting(statement) > 0 })
	l.near.dies()
	l.far.srv.CutBusy("the node is dead")
	if code := sqlstate(<-failed); code != "40001" {
		l.t.Errorf("under a statement of %q: %s", l.script, code)
	}
	return !l.moved.IsClosed() && l.rollBack()
}

// dropped has the connection to the server end, and nothing else.
func (l *losing) dropped() bool {
	before := l.near.srv.Stats()
	l.near.mu.Lock()
	l.near.cut()
	l.near.mu.Unlock()
	waitFor(l.t, "it has moved or ended", func() bool {
		now := l.near.srv.Stats()
		return now.Moved > before.Moved || now.Cut[endLost] > before.Cut[endLost]
	})
	return l.near.srv.Stats().Moved > before.Moved
}

// handOver carries out a planned failover to that node.
func (l *losing) handOver(to ag.ReplicaID) {
	from := l.far
	if to == "a" {
		from = l.near
		l.near.mu.Lock()
		l.near.cuts = false
		l.near.mu.Unlock()
	}
	l.near.srv.HoldNew(true)
	from.srv.Drain(true)
	from.drained()
	from.srv.ReadStates(l.t.Context())
	from.srv.CloseServer("planned failover")
	waitFor(l.t, "its sessions have left", func() bool { return len(from.srv.Sessions()) == 0 })
	epoch := l.near.routes.Load().Epoch + 1
	l.far.publish(pairRoutes(epoch, "a", to))
	l.near.publish(pairRoutes(epoch, "b", to))
	l.near.srv.CloseEpoch(epoch, "the primary has changed")
	from.srv.Drain(false)
	l.near.srv.HoldNew(false)
}

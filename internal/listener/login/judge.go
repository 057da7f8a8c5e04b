package login

import (
	"context"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/attempts"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

// memberships returns the roles of which the user is a member, as the judging replica knows them. The client is not
// authenticated, so no error to it mentions them.
func (c *Client) memberships(ctx context.Context) ([]string, error) {
	p := c.newLoginBudget()
	for {
		r, err := c.route(ctx, p)
		if err != nil {
			return nil, err
		}
		role, err := c.judge(ctx, r)
		if err == nil {
			return role.Memberships(c.Start.User), nil
		}
		if _, final := pgwire.AsError(err); final {
			return nil, err
		}
		if err := c.retry(ctx, p, r, err); err != nil {
			return nil, err
		}
	}
}

// judge returns the role facts that decide a login. They are the primary's, since a secondary may not have replayed
// an ALTER ROLE yet. For a reader they are the secondary's own if the primary does not answer soon.
func (c *Client) judge(ctx context.Context, r routing.Route) (Role, error) {
	routes := c.srv.Routes()
	if routes == nil || c.Intent == ag.ReadWrite || r.ID == routes.Primary {
		return c.roleFacts(ctx, r)
	}
	primary, ok := routes.Target(routes.Primary)
	if !ok || !routes.WriteOpen || c.srv.PrimarySilent() {
		return c.ownJudgement(ctx, r)
	}
	soon, cancel := context.WithTimeout(ctx, primaryBudget)
	role, err := c.roleFacts(soon, routing.Route{Target: primary, Epoch: routes.Epoch, Changed: r.Changed})
	cancel()
	if err == nil || ctx.Err() != nil {
		return role, err
	}
	c.srv.silentSince.Store(int64(boottime.Now()))
	c.srv.Log.Info("a reader is judged by its replica: the primary does not answer", "replica", r.ID, "error", err)
	return c.ownJudgement(ctx, r)
}

// A reader's login waits for the primary for primaryBudget. After it did not answer, other logins do not wait for
// primaryAgain.
const (
	primaryBudget = time.Second
	primaryAgain  = 5 * time.Second
)

// PrimarySilent reports whether the primary recently did not answer.
func (s *Logins) PrimarySilent() bool {
	at := s.silentSince.Load()
	return at != 0 && boottime.Now()-time.Duration(at) < primaryAgain
}

// roleFacts asks the route's replica about the role. The end of that replica's leadership ends the question, so a
// silent replica is waited for no longer than the group does.
func (c *Client) roleFacts(ctx context.Context, r routing.Route) (Role, error) {
	if err := c.spend(ctx); err != nil {
		return Role{}, err
	}
	ctx, done := c.asking(ctx)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempts.Attempt{Replica: r.ID, Epoch: r.Epoch, Intent: c.Intent, Cancel: cancel}
	defer c.srv.Attempts.Abandon(a)
	if !c.srv.Attempts.Begin(a) {
		return Role{}, attempts.ErrMoved
	}
	ctx, stopTimer := context.WithTimeout(ctx, c.srv.Limits.BackendHandshake)
	defer stopTimer()
	began := time.Now()
	defer func() { c.until = c.until.Add(time.Since(began)) }() // not the client's own time
	role, err := c.srv.Verifier(ctx, r.ID, c.Start.User)
	if bad, evicted := pgwire.AsError(context.Cause(ctx)); err != nil && evicted {
		return role, bad
	}
	if err != nil {
		return role, fmt.Errorf("ask replica %s about the role: %w", r.ID, err)
	}
	return role, nil
}

// ownJudgement returns the role facts of the copy that a reader will read, if they are recent enough to decide.
func (c *Client) ownJudgement(ctx context.Context, r routing.Route) (Role, error) {
	role, err := c.roleFacts(ctx, r)
	if err != nil || c.Intent == ag.ReadWrite || role.Age <= c.srv.AuthStaleness {
		return role, err
	}
	c.srv.Log.Warn("a reader is refused: the primary does not answer, and the replica's copy may be too old to say who may log in",
		"replica", r.ID, "auth_staleness", c.srv.AuthStaleness)
	bad := pgwire.Fatal("stale roles", pgwire.StateCannotConnect, "the primary does not answer, and the data of replica %s may be too old to say who may log in", r.ID)
	bad.Hint = "Try again when the group has a primary. How old it may be is auth_staleness in coterie.yaml, " + c.srv.AuthStaleness.String() + " here."
	return role, bad
}

// sameLogin reports whether a proof against one node's role facts holds for another's.
func sameLogin(was, is Role) bool {
	return is.Found && is.CanLogin && is.Password == was.Password && auth.CheckValidUntil(is) == nil
}

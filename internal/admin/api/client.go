package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// ErrNoAgent is returned when no agent serves the node directory. It is a fail.Error.
var ErrNoAgent error = fail.Error{Kind: fail.Unhealthy, Err: errors.New("no agent is running")}

// Client talks to the agent of one node through its private socket.
type Client struct {
	http   http.Client
	socket string
	owner  int

	look, silent time.Duration // lookEvery and silentLimit; tests shorten them

	session bool // the statements of SQL are those of one session
	asked   int  // of them so far
}

// InSession returns a client whose calls of SQL are one session of the console: its settings and its transaction last
// from one to the next. It is for one goroutine. The session ends with Close, or when a call is cancelled.
func (c *Client) InSession() *Client {
	out := NewClient(c.socket, c.owner)
	t := out.http.Transport.(*http.Transport)
	t.DisableKeepAlives, t.MaxConnsPerHost = false, 1
	out.session = true
	return out
}

// Close ends the session of a client of InSession.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// NewClient returns a client of the agent that listens at the socket. The agent must run as the user owner, or as root:
// the socket may lie below /tmp, where another user could have made it first. A call to any other process fails before
// anything is sent.
func NewClient(socket string, owner int) *Client {
	return &Client{socket: socket, owner: owner, look: lookEvery, silent: silentLimit, http: http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx, socket, owner)
		},
	}}}
}

// dial connects to the agent of a node that the user owner runs.
func dial(ctx context.Context, socket string, owner int) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	if err := checkAgent(c, owner); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Process returns the process of the agent; 0 if it is one that this process cannot see, as in another container.
func (c *Client) Process(ctx context.Context) (pid int, err error) {
	conn, err := dial(ctx, c.socket, c.owner)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	cred, err := peerOf(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

// checkAgent returns an error unless the process at the other end of a connection runs as the user owner or as root.
func checkAgent(c net.Conn, owner int) error {
	uid, err := peerUser(c)
	if err != nil {
		return err
	}
	if uid != owner && uid != 0 {
		return fmt.Errorf("%s belongs to user %s, and the node to user %s: it is not this node's agent, and nothing was sent to it; "+
			"remove the directory that the socket is in, then start the agent", c.RemoteAddr(), unixuser.Name(uid), unixuser.Name(owner))
	}
	return nil
}

// Status returns the group's status as this node knows it.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, "GET", "status", nil, &s)
}

// Decisions returns the node's last decisions, oldest first.
func (c *Client) Decisions(ctx context.Context) ([]Decision, error) {
	var all []Decision
	return all, c.call(ctx, "GET", "decisions", nil, &all)
}

// Explain returns the changes of leadership that all reachable members remember, as raw JSON.
func (c *Client) Explain(ctx context.Context) (json.RawMessage, error) {
	var raw json.RawMessage
	return raw, c.call(ctx, "GET", "explain", nil, &raw)
}

// Failover requests a failover and waits for its end.
func (c *Client) Failover(ctx context.Context, r FailoverRequest) (FailoverResult, error) {
	var out FailoverResult
	return out, c.call(ctx, "POST", "failover", r, &out)
}

// Restart requests the replacement of the agent by a new one. The answer may be lost with the old agent.
func (c *Client) Restart(ctx context.Context, r RestartRequest) error {
	return c.call(ctx, "POST", "restart", r, nil)
}

// Programs returns the versions of the members' agents and of what is installed on their machines.
func (c *Client) Programs(ctx context.Context) ([]Program, error) {
	var all []Program
	return all, c.call(ctx, "POST", "programs", struct{}{}, &all)
}

// RestartAgent requests the restart of a member's agent. The answer may be lost with the agent of this node.
func (c *Client) RestartAgent(ctx context.Context, r AgentRequest) error {
	return c.call(ctx, "POST", "restart-agent", r, nil)
}

// Major makes a request about a major upgrade of PostgreSQL.
func (c *Client) Major(ctx context.Context, r MajorRequest) (MajorPlan, error) {
	var out MajorPlan
	return out, c.call(ctx, "POST", "major", r, &out)
}

// CreateToken returns a new join token.
func (c *Client) CreateToken(ctx context.Context, r TokenRequest) (TokenResult, error) {
	var out TokenResult
	return out, c.call(ctx, "POST", "token", r, &out)
}

// RotateAuthority begins to replace the group's certificate authority, or abandons that.
func (c *Client) RotateAuthority(ctx context.Context, r RotateRequest) (Rotation, error) {
	var out Rotation
	return out, c.call(ctx, "POST", "authority/rotate", r, &out)
}

// Remove takes a member out of the group.
func (c *Client) Remove(ctx context.Context, id ag.ReplicaID) error {
	return c.call(ctx, "POST", "remove", id, nil)
}

// Replace takes a lost member out of the group, and returns a token for the node that replaces it.
func (c *Client) Replace(ctx context.Context, r ReplaceRequest) (TokenResult, error) {
	var out TokenResult
	return out, c.call(ctx, "POST", "replace", r, &out)
}

// Leave has another member take the node out of the group.
func (c *Client) Leave(ctx context.Context) error {
	return c.call(ctx, "POST", "leave", struct{}{}, nil)
}

// Resume continues a suspended replica.
func (c *Client) Resume(ctx context.Context, id ag.ReplicaID) error {
	return c.call(ctx, "POST", "resume", id, nil)
}

// Trust ends the quarantine of a replica's copy without replacing it, and returns the reason of the quarantine.
func (c *Client) Trust(ctx context.Context, id ag.ReplicaID) (string, error) {
	var was string
	return was, c.call(ctx, "POST", "trust", id, &was)
}

// Seed requests a new copy on a replica, or the verification of its copy. out receives the operation.
func (c *Client) Seed(ctx context.Context, r SeedRequest, out any) error {
	return c.call(ctx, "POST", "seed", r, out)
}

// CancelSeeding ends a copy or a verification; out receives the operation.
func (c *Client) CancelSeeding(ctx context.Context, id ag.ReplicaID, out any) error {
	return c.call(ctx, "POST", "seed/cancel", id, out)
}

// Seedings returns a replica's copies and verifications, oldest first.
func (c *Client) Seedings(ctx context.Context, id ag.ReplicaID, out any) error {
	return c.call(ctx, "POST", "seedings", id, out)
}

// Set changes settings of the group.
func (c *Client) Set(ctx context.Context, r SettingsRequest) error {
	return c.call(ctx, "POST", "settings", r, nil)
}

// BackupStep has the primary do a step of a backup that is made of this node's copy.
func (c *Client) BackupStep(ctx context.Context, r backup.StepRequest) (backup.StepAnswer, error) {
	var out backup.StepAnswer
	return out, c.call(ctx, "POST", "backup/step", r, &out)
}

// BackupRun has a replica make a backup of its server. It does not wait for its end.
func (c *Client) BackupRun(ctx context.Context, r BackupRunRequest) (backup.Run, error) {
	var out backup.Run
	return out, c.call(ctx, "POST", "backup/run", r, &out)
}

// BackupActivity returns a replica's work on backups.
func (c *Client) BackupActivity(ctx context.Context, on ag.ReplicaID) (backup.Activity, error) {
	var out backup.Activity
	return out, c.call(ctx, "POST", "backup/activity", on, &out)
}

// Link asks a member for the measurements of its path to another one.
func (c *Client) Link(ctx context.Context, r LinkRequest) (Link, error) {
	var out Link
	return out, c.call(ctx, "POST", "link", r, &out)
}

// SQL runs one statement of the console. The error is one of the call; an error of the statement is in the answer.
func (c *Client) SQL(ctx context.Context, text string) (SQLAnswer, error) {
	var out SQLAnswer
	if !c.session {
		return out, c.call(ctx, "POST", "sql", text, &out)
	}
	c.asked++
	err := c.call(ctx, "POST", "sql", text, &out)
	if err != nil { // the session is lost, or its connection may be: the next statement begins another one
		c.Close()
		c.http, c.asked = c.InSession().http, 0
	}
	return out, err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	asked := ctx
	ctx, done := c.watch(ctx)
	defer done()
	req, err := http.NewRequestWithContext(ctx, method, "http://agent/api/v1/"+path, body)
	if err != nil {
		return err
	}
	if c.session {
		req.Header.Set(sessionHeader, strconv.Itoa(c.asked))
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNoAgent
	}
	switch {
	case err != nil && errors.Is(asked.Err(), context.Canceled):
		return interrupted(method)
	case err != nil && errors.Is(context.Cause(ctx), errSilent):
		return c.silence(method)
	}
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	dec := json.NewDecoder(io.LimitReader(resp.Body, 16<<20))
	if resp.StatusCode != http.StatusOK {
		var e failure
		err := dec.Decode(&e)
		if err != nil && resp.StatusCode == http.StatusNotFound {
			return fail.Refusedf("the agent of this node is of a version that does not know this command; nothing was changed. To replace it by the installed program, run here: coterie restart")
		}
		if err != nil || e.Message == "" {
			return fmt.Errorf("the agent answered %s", resp.Status)
		}
		return fail.Error{Kind: e.Kind, Number: e.Number, Err: errors.New(e.Message)}
	}
	if out == nil {
		return nil
	}
	if err := dec.Decode(out); err != nil && errors.Is(asked.Err(), context.Canceled) {
		return interrupted(method)
	} else if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return c.silence(method)
	} else if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10)) // the connection serves another request then
	return nil
}

// interruption is the error of a caller that did not wait for the agent's answer, as after Ctrl-C. It is a
// context.Canceled.
type interruption string

// Error returns what the interruption means for what was asked.
func (i interruption) Error() string { return string(i) }

// Unwrap makes it a context.Canceled.
func (interruption) Unwrap() error { return context.Canceled }

// interrupted returns the error of a call whose caller has not waited for the answer. The agent goes on with a change
// that it has begun.
func interrupted(method string) error {
	if method == http.MethodGet {
		return interruption("interrupted before the agent answered")
	}
	return interruption("interrupted before the agent answered: what it was asked for may go on, and may be done already; see coterie status")
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// Sync is a value of synchronous_standby_names. The zero value means that commits wait for nobody.
type Sync struct {
	Names []string // application names, see Application
	Num   int      // how many of them a commit waits for
	First bool     // FIRST (by order) instead of ANY
}

// Equal reports whether both settings mean the same.
func (s Sync) Equal(t Sync) bool {
	if s.Num == 0 || t.Num == 0 {
		return s.Num == t.Num
	}
	a, b := s.Names, t.Names
	if !s.First { // for ANY the order means nothing
		a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	}
	return s.First == t.First && s.Num == t.Num && slices.Equal(a, b)
}

// String prints the setting as PostgreSQL reads it: ANY 1 ("cot_n1_7","cot_n2_7"), or nothing when Num is 0.
func (s Sync) String() string {
	if s.Num == 0 {
		return ""
	}
	method := "ANY"
	if s.First {
		method = "FIRST"
	}
	quoted := make([]string, len(s.Names))
	for k, n := range s.Names {
		quoted[k] = pgx.Identifier{n}.Sanitize()
	}
	return fmt.Sprintf("%s %d (%s)", method, s.Num, strings.Join(quoted, ","))
}

// ParseSync reads PostgreSQL's grammar of synchronous_standby_names: ”, a, b (FIRST 1), n (a, b) (FIRST n),
// FIRST n (a, b), ANY n (a, b).
func ParseSync(value string) (Sync, error) {
	tokens, err := syncTokens(value)
	if err != nil {
		return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: %w", value, err)
	}
	if len(tokens) == 0 {
		return Sync{}, nil
	}
	s := Sync{Num: 1, First: true}
	if open := slices.IndexFunc(tokens, func(t syncToken) bool { return t.is("(") }); open >= 0 {
		if s, err = parseSyncMethod(tokens[:open]); err != nil {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: %w", value, err)
		}
		if !tokens[len(tokens)-1].is(")") {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: no closing parenthesis at the end", value)
		}
		tokens = tokens[open+1 : len(tokens)-1]
	}
	for k, t := range tokens {
		if comma := k%2 == 1; comma != t.is(",") || !comma && t.punct {
			return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: unexpected %q", value, t.text)
		}
		if !t.punct {
			s.Names = append(s.Names, t.text)
		}
	}
	if len(tokens)%2 == 0 {
		return Sync{}, fmt.Errorf("synchronous_standby_names %.200q: a name is missing", value)
	}
	return s, nil
}

func parseSyncMethod(tokens []syncToken) (Sync, error) {
	s := Sync{First: true}
	if len(tokens) == 2 && !tokens[0].quoted {
		switch strings.ToUpper(tokens[0].text) {
		case "FIRST":
		case "ANY":
			s.First = false
		default:
			return Sync{}, fmt.Errorf("unknown method %q", tokens[0].text)
		}
		tokens = tokens[1:]
	}
	if len(tokens) != 1 || tokens[0].quoted {
		return Sync{}, errors.New("a number is expected before the list")
	}
	n, err := strconv.Atoi(tokens[0].text)
	if err != nil || n <= 0 {
		return Sync{}, fmt.Errorf("%q is not a number of secondaries", tokens[0].text)
	}
	s.Num = n
	return s, nil
}

type syncToken struct {
	text   string
	punct  bool // one of ( ) ,
	quoted bool
}

func (t syncToken) is(p string) bool { return t.punct && t.text == p }

func syncTokens(s string) ([]syncToken, error) {
	if strings.IndexByte(s, 0) >= 0 {
		return nil, errors.New("a setting has no zero bytes")
	}
	var tokens []syncToken
	for k := 0; k < len(s); {
		switch c := s[k]; {
		case strings.IndexByte(" \t\n\r\f\v", c) >= 0:
			k++
		case strings.IndexByte("(),", c) >= 0:
			tokens = append(tokens, syncToken{text: string(c), punct: true})
			k++
		case c == '"':
			text, n, ok := quotedName(s[k:])
			if !ok {
				return nil, errors.New("a quoted name does not end")
			}
			tokens = append(tokens, syncToken{text: text, quoted: true})
			k += n
		default:
			end := k
			for end < len(s) && strings.IndexByte(" \t\n\r\f\v(),\"", s[end]) < 0 {
				end++
			}
			tokens = append(tokens, syncToken{text: s[k:end]})
			k = end
		}
	}
	return tokens, nil
}

// quotedName reads a name in double quotes at the start of s and returns how many bytes it took.
func quotedName(s string) (name string, n int, ok bool) {
	var b strings.Builder
	for k := 1; k < len(s); k++ {
		switch {
		case s[k] != '"':
			b.WriteByte(s[k])
		case k+1 < len(s) && s[k+1] == '"':
			b.WriteByte('"')
			k++
		default:
			return b.String(), k + 1, true
		}
	}
	return "", 0, false
}

const applicationPrefix = "cot_"

// Application is the application_name that the primary's agent gives a member's walsender in an epoch: cot_<member>_<epoch>.
func Application(member ag.ReplicaID, epoch ag.Epoch) string {
	return fmt.Sprintf("%s%s_%d", applicationPrefix, member, epoch)
}

// ParseApplication is the inverse of Application, in any case of letters: PostgreSQL counts whatever walsender has such a name.
func ParseApplication(name string) (member ag.ReplicaID, epoch ag.Epoch, ok bool) {
	name = strings.ToLower(name)
	rest, ok := strings.CutPrefix(name, applicationPrefix)
	cut := strings.LastIndexByte(rest, '_')
	if !ok || cut <= 0 {
		return "", 0, false
	}
	e, err := strconv.ParseUint(rest[cut+1:], 10, 64)
	if err != nil || Application(ag.ReplicaID(rest[:cut]), ag.Epoch(e)) != name {
		return "", 0, false
	}
	return ag.ReplicaID(rest[:cut]), ag.Epoch(e), true
}

// SetSync sets synchronous_standby_names in the running server, primary or in recovery, and returns when sessions begun
// from now on see the value, loaded by the second of two reloads (docs/internals/safety.md, "Proof of a setting").
// Walsenders read it each in their own time: that it is in force is proved on the streams, by the caller.
func (i *Instance) SetSync(ctx context.Context, s Sync) error {
	if s.Num < 0 || s.Num > len(s.Names) {
		return fmt.Errorf("set synchronous_standby_names: %d of %d names", s.Num, len(s.Names))
	}
	if err := i.alterSystem(ctx, "synchronous_standby_names", s.String()); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	if err := i.reload(ctx); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	if err := i.reload(ctx); err != nil {
		return fmt.Errorf("set synchronous_standby_names: %w", err)
	}
	got, source, err := i.SyncInForce(ctx)
	if err != nil {
		return err
	}
	if !got.Equal(s) {
		return fmt.Errorf("set synchronous_standby_names: %q was set, but %q from %s is in force; another program changes this setting, which belongs to the group: stop it", s, got, source)
	}
	return nil
}

// SyncInForce returns the synchronous_standby_names that a session begun now sees, and the file it comes from.
func (i *Instance) SyncInForce(ctx context.Context) (s Sync, sourcefile string, err error) {
	var value string
	err = i.fresh(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT setting, coalesce(sourcefile, '') FROM pg_settings WHERE name = 'synchronous_standby_names'`).
			Scan(&value, &sourcefile)
	})
	if err == nil {
		s, err = ParseSync(value)
	}
	if err != nil {
		return Sync{}, "", fmt.Errorf("read synchronous_standby_names: %w", err)
	}
	return s, sourcefile, nil
}

// alterSystem writes one setting into postgresql.auto.conf. ALTER SYSTEM takes no parameters; both parts are quoted here.
func (i *Instance) alterSystem(ctx context.Context, name, value string) error {
	if strings.ContainsAny(value, "\x00\n\r") {
		return fmt.Errorf("%s: a value is one line", name)
	}
	return i.exec(ctx, "ALTER SYSTEM SET "+pgx.Identifier{name}.Sanitize()+" = "+quoteLiteral(value))
}

// quoteLiteral quotes a string constant so that it means the same whatever standard_conforming_strings says.
func quoteLiteral(s string) string {
	quoted := strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(s)
	if strings.Contains(s, `\`) {
		return " E'" + quoted + "'"
	}
	return "'" + quoted + "'"
}

// reload makes the postmaster read its files again and waits until a fresh session has inherited the result. Two requests
// sent without that wait could be served by one load.
func (i *Instance) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	before, err := i.loadTime(ctx)
	if err != nil {
		return err
	}
	if err := i.exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	for {
		now, err := i.loadTime(ctx)
		if err != nil {
			return err
		}
		if now.After(before) {
			return nil
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the configuration to be loaded: %w", err)
		}
	}
}

// loadTime is when the postmaster last read its configuration, as a fresh session inherits it.
func (i *Instance) loadTime(ctx context.Context) (t time.Time, err error) {
	err = i.fresh(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&t) })
	return t, err
}

// ProbeCommit starts a tiny commit that waits for the synchronous secondaries, on a session of its own with that pid. The
// channel gives its outcome once: nil when the commit was confirmed by them. The end of ctx ends the session; a commit
// whose wait was cut short is an error, whatever the server said to the client.
func (i *Instance) ProbeCommit(ctx context.Context) (done <-chan error, pid int, err error) {
	var cancelled error // written and read by the session's own goroutine only, once connected
	conn, err := i.connect(ctx, func(c *pgx.ConnConfig) {
		c.RuntimeParams["synchronous_commit"] = "on"
		c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			if n.SeverityUnlocalized == "WARNING" { // "canceling wait for synchronous replication"
				cancelled = errors.New(n.Message)
			}
		}
	})
	if err != nil {
		return nil, 0, fmt.Errorf("probe commit: %w", err)
	}
	result := make(chan error, 1)
	go func() {
		defer closeConn(conn)
		_, err := conn.PgConn().Exec(ctx, "SELECT pg_logical_emit_message(true, 'coterie', 'probe')").ReadAll()
		if err == nil {
			err = cancelled
		}
		if err != nil {
			err = fmt.Errorf("probe commit: %w", err)
		}
		result <- err
	}()
	return result, int(conn.PgConn().PID()), nil
}

// WaitingInSyncRep reports whether the backend with that pid waits for synchronous replication now. It says false also
// when it could not ask.
func (i *Instance) WaitingInSyncRep(ctx context.Context, pid int) bool {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	waiting := false
	err := i.main.do(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'IPC' AND wait_event = 'SyncRep')", pid).
			Scan(&waiting)
	})
	return err == nil && waiting
}

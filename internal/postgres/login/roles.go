package login

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// Role is what authentication needs of a role.
type Role struct {
	Name        string
	Password    string // the verifier (SCRAM-SHA-256$... or md5...), never the password itself; "" for none
	CanLogin    bool
	ValidUntil  *time.Time // nil for no limit
	Super       bool
	Replication bool
	ConnLimit   int      // -1 for none
	MemberOf    []string // direct and indirect memberships as granted, itself not included
	Rounds      int      // of SCRAM, of most roles of the server, whether this one exists or not; 0 if not known
}

// LogValue keeps the verifier out of logs.
func (r Role) LogValue() slog.Value {
	return slog.GroupValue(slog.String("name", r.Name), slog.Bool("login", r.CanLogin), slog.Bool("super", r.Super),
		slog.Bool("password", r.Password != ""))
}

// Roles answers what the authentication of a client asks of a running server.
type Roles struct {
	server session.Server
	s      *session.Session // used for short questions only

	mu      sync.Mutex
	rounds  int           // of SCRAM, of most roles; 0: not known yet
	counted time.Duration // when rounds was last read, CLOCK_BOOTTIME; 0: never
}

// New returns the roles of a server, read in the session s.
func New(server session.Server, s *session.Session) *Roles { return &Roles{server: server, s: s} }

// ErrNoRole means that the role does not exist.
var ErrNoRole = errors.New("no such role")

// pg_hba's +role counts a superuser as a member only of what it was granted, so pg_has_role would be wrong here.
const roleQuery = `
WITH RECURSIVE granted(oid) AS (
    SELECT m.roleid FROM pg_auth_members m JOIN pg_authid a ON a.oid = m.member WHERE a.rolname = $1
    UNION
    SELECT m.roleid FROM pg_auth_members m JOIN granted g ON m.member = g.oid)
SELECT rolname, coalesce(rolpassword, ''), rolcanlogin,
       CASE WHEN isfinite(rolvaliduntil) THEN rolvaliduntil END, coalesce(rolvaliduntil = '-infinity', false),
       rolsuper, rolreplication, rolconnlimit,
       ARRAY(SELECT a.rolname::text FROM granted g JOIN pg_authid a ON a.oid = g.oid ORDER BY 1)
FROM pg_authid WHERE rolname = $1`

// roundsQuery returns the rounds of SCRAM of most roles that may log in, or those of new passwords if none has any.
const roundsQuery = `
SELECT coalesce(
    (SELECT n::int FROM (SELECT substring(rolpassword FROM '^SCRAM-SHA-256\$([0-9]{1,9}):') AS n FROM pg_authid WHERE rolcanlogin) x
     WHERE n IS NOT NULL GROUP BY n ORDER BY count(*) DESC, n LIMIT 1),
    current_setting('scram_iterations', true)::int, 0)`

// countEvery is how often the rounds are counted, at most. It does not depend on the name that is asked for.
const countEvery = time.Minute

// usualRounds returns the rounds of SCRAM of most roles; 0 if they could not be counted yet.
func (r *Roles) usualRounds(ctx context.Context, c *pgx.Conn) int {
	r.mu.Lock()
	known, due := r.rounds, r.counted == 0 || boottime.Now()-r.counted >= countEvery
	if due {
		r.counted = boottime.Now()
	}
	r.mu.Unlock()
	if !due {
		return known
	}
	n := 0
	if err := c.QueryRow(ctx, roundsQuery).Scan(&n); err != nil {
		return known
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds = n
	return n
}

// Verifier returns the role of that name. ErrNoRole comes with a Role that has only Rounds. It reads the role at every
// call, in a session that observation does not use.
func (r *Roles) Verifier(ctx context.Context, user string) (Role, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	var role Role
	var never bool
	err := r.s.Do(ctx, func(c *pgx.Conn) error {
		role.Rounds = r.usualRounds(ctx, c)
		return c.QueryRow(ctx, roleQuery, user).Scan(&role.Name, &role.Password, &role.CanLogin, &role.ValidUntil, &never,
			&role.Super, &role.Replication, &role.ConnLimit, &role.MemberOf)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Role{Rounds: role.Rounds}, ErrNoRole
	case err != nil:
		return Role{}, fmt.Errorf("read the role: %w", err)
	case never:
		role.ValidUntil = &time.Time{}
	}
	return role, nil
}

// Defaults that take more than 8 KB on the disk are not read: every role may give itself some of hundreds of MB, and
// the server would need seconds to unpack them, for each client that gives the name and for those behind it. A setting
// of the pair takes precedence over one of the role, of the database, and of all.
const defaultsQuery = `
SELECT split_part(d.text, '=', 1), substr(d.text, strpos(d.text, '=') + 1)
FROM (SELECT CASE WHEN setrole <> 0 AND setdatabase <> 0 THEN 3 WHEN setrole <> 0 THEN 2 WHEN setdatabase <> 0 THEN 1 ELSE 0 END AS rank, c AS text
      FROM pg_db_role_setting, unnest(CASE WHEN pg_column_size(setconfig) <= 8192 THEN setconfig END) c
      WHERE setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = $1))
        AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = $2))) d
WHERE split_part(d.text, '=', 1) IN ('default_transaction_read_only', 'coterie.intent', 'coterie.max_lag')
ORDER BY d.rank`

// Defaults returns which of default_transaction_read_only, coterie.intent and coterie.max_lag are set for sessions of
// the role in the database (ALTER ROLE, ALTER DATABASE).
func (r *Roles) Defaults(ctx context.Context, user, database string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	found := make(map[string]string)
	err := r.s.Do(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, defaultsQuery, user, database)
		if err != nil {
			return err
		}
		var name, value string
		_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { found[name] = value; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the defaults of the role: %w", err)
	}
	return found, nil
}

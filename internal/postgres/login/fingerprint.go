package login

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// Fingerprint stands for the state that a new session of a role in a database begins with.
type Fingerprint struct {
	Text        string // differs if any part does: role, memberships, database, their settings, the configuration, the server
	Exclusive   bool   // a backend serves one session only: a superuser's or replication role's, or one that a login trigger must see
	NotReusable bool   // the session's role is set for the role or the database, and DISCARD ALL does not restore it
}

// Settings that are too large to be read (defaultsQuery) may set the role.
//
// A changed row has another xmin or, in the same transaction, another ctid.
const fingerprintQuery = `
WITH RECURSIVE granted(oid, mark) AS (
    SELECT m.roleid, m.xmin::text || m.ctid FROM pg_auth_members m JOIN pg_authid a ON a.oid = m.member WHERE a.rolname = $1
    UNION
    SELECT m.roleid, m.xmin::text || m.ctid FROM pg_auth_members m JOIN granted g ON m.member = g.oid)
SELECT concat_ws(' ', pg_postmaster_start_time(), pg_conf_load_time(), pg_is_in_recovery(), a.oid, a.xmin, a.ctid, d.oid, d.xmin, d.ctid,
           s.mark, (SELECT string_agg(g.mark, ' ' ORDER BY g.mark) FROM granted g)),
       a.rolsuper OR a.rolreplication OR coalesce((to_jsonb(d) ->> 'dathasloginevt')::boolean, false),
       coalesce(s.fixed, false)
FROM pg_authid a, pg_database d, LATERAL (
    SELECT string_agg(xmin::text || ctid, ' ' ORDER BY setdatabase, setrole) AS mark,
           bool_or(CASE WHEN pg_column_size(setconfig) > 8192 THEN true ELSE EXISTS (SELECT FROM unnest(setconfig) c WHERE lower(split_part(c, '=', 1)) IN ('role', 'session_authorization')) END) AS fixed
    FROM pg_db_role_setting WHERE setdatabase IN (0, d.oid) AND setrole IN (0, a.oid)) s
WHERE a.rolname = $1 AND d.datname = $2`

// Fingerprint returns the present fingerprint of the role in the database. If either does not exist, the result is
// Exclusive.
func (r *Roles) Fingerprint(ctx context.Context, user, database string) (m Fingerprint, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = r.s.Do(ctx, func(c *pgx.Conn) (err error) { m, err = FingerprintOn(ctx, c, user, database); return err })
	return m, err
}

// FingerprintSession opens a session on which the statement of that name returns fingerprints.
func (r *Roles) FingerprintSession(ctx context.Context, statement string) (net.Conn, error) {
	c, err := r.server.Connect(ctx, nil)
	if err != nil {
		return nil, err
	}
	return PrepareFingerprints(ctx, c, statement)
}

// PrepareFingerprints prepares a statement of that name in a superuser's session. Its parameters are the names of a
// role and of a database; its result is the fields of their Fingerprint, or no row if either does not exist. The caller
// owns the returned connection, and c must not be used any more.
func PrepareFingerprints(ctx context.Context, c *pgx.Conn, statement string) (net.Conn, error) {
	_, err := c.Prepare(ctx, statement, fingerprintQuery)
	if err != nil {
		session.Close(c)
		return nil, fmt.Errorf("prepare the fingerprint statement: %w", err)
	}
	h, err := c.PgConn().Hijack()
	if err != nil {
		session.Close(c)
		return nil, fmt.Errorf("take over the session for fingerprints: %w", err)
	}
	return h.Conn, nil
}

// FingerprintOn returns the fingerprint by a superuser's session of the server.
func FingerprintOn(ctx context.Context, c *pgx.Conn, user, database string) (m Fingerprint, err error) {
	switch err := c.QueryRow(ctx, fingerprintQuery, user, database).Scan(&m.Text, &m.Exclusive, &m.NotReusable); {
	case errors.Is(err, pgx.ErrNoRows):
		return Fingerprint{Exclusive: true}, nil
	case err != nil:
		return m, fmt.Errorf("read what a session would begin with: %w", err)
	}
	return m, nil
}

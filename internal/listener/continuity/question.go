package continuity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// ownStatement is the name of the statement by which a session is asked. It exists only while it is asked.
const ownStatement = "coterie.session_state"

// GiveBack is the type of the messages by which another node's listener gives a session back. PostgreSQL has none of
// that type.
const GiveBack = '~'

// Bounds of a session's state, in bytes of the answer and in prepared statements.
const (
	maxAnswer     = 1 << 20
	maxStatements = 2000
)

// reported are the settings that a server may report to its client (ParameterStatus).
var reported = strings.Fields(`application_name client_encoding DateStyle default_transaction_read_only in_hot_standby integer_datetimes
	IntervalStyle is_superuser scram_iterations search_path server_encoding server_version session_authorization
	standard_conforming_strings TimeZone`)

// Kinds of the rows of an answer.
const (
	rowSetting   = "setting"
	rowReported  = "reported"
	rowRole      = "role"
	rowUser      = "user"
	rowChannel   = "channel"
	rowStatement = "statement" // of the protocol
	rowPrepared  = "prepared"  // by PREPARE
	rowExtension = "extension"
	rowRefusal   = "refusal"
	rowTells     = "tells" // its role may execute the functions by which package indoubt asks for its transaction
	rowRuleless  = "ruleless"
)

// question asks a backend for everything that it can tell of its session. $1 is a list of settings that no view lists,
// $2 the reported ones, $3 the name of the statement itself. Every name and operator is of pg_catalog, whatever the
// search path. PostgreSQL 16 and later tell the types of results.
const question = `select '` + rowSetting + `', s.name, pg_catalog.current_setting(s.name), ''
	from pg_catalog.pg_settings s
	where s.source operator(pg_catalog.=) any ('{session,client,user,database,"database user",global}'::pg_catalog.text[])
		and s.context operator(pg_catalog.<>) 'internal'
		and s.name operator(pg_catalog.<>) all ('{transaction_isolation,transaction_read_only,transaction_deferrable,session_authorization,role,seed}'::pg_catalog.text[])
union all select '` + rowSetting + `', n, pg_catalog.current_setting(n, true), ''
	from pg_catalog.unnest($1::pg_catalog.text[]) n where pg_catalog.current_setting(n, true) is not null
union all select '` + rowSetting + `', n.name, pg_catalog.current_setting(n.name, true), ''
	from (select pg_catalog.split_part(c, '=', 1) as name from pg_catalog.pg_db_role_setting d,
			pg_catalog.unnest(case when pg_catalog.pg_column_size(d.setconfig) operator(pg_catalog.<=) 8192 then d.setconfig end) c
		where ` + itsDefaults + `) n
	where pg_catalog.strpos(n.name, '.') operator(pg_catalog.>) 0 and pg_catalog.current_setting(n.name, true) is not null
union all select '` + rowReported + `', n, pg_catalog.current_setting(n, true), ''
	from pg_catalog.unnest($2::pg_catalog.text[]) n where pg_catalog.current_setting(n, true) is not null
union all select '` + rowRole + `', pg_catalog.current_setting('role'), '', ''
union all select '` + rowUser + `', session_user::pg_catalog.text, '', ''
union all select '` + rowChannel + `', c, '', '' from pg_catalog.pg_listening_channels() c
union all select case when p.from_sql then '` + rowPrepared + `' else '` + rowStatement + `' end, p.name, p.statement,
		pg_catalog.concat((p.parameter_types::pg_catalog.oid[])::pg_catalog.text, ' ', pg_catalog.to_jsonb(p) operator(pg_catalog.->>) 'result_types')
	from pg_catalog.pg_prepared_statements p where p.name operator(pg_catalog.<>) $3
union all select '` + rowExtension + `', e.extname::pg_catalog.text, '', '' from pg_catalog.pg_extension e
union all select '` + rowTells + `', '', '', '' where not exists (
	select from pg_catalog.unnest('{pg_current_xact_id_if_assigned(),pg_walfile_name(pg_lsn)}'::pg_catalog.text[]) f
	where not pg_catalog.has_function_privilege('pg_catalog.' operator(pg_catalog.||) f, 'execute'))
union all select '` + rowRuleless + `', '', '', '' where not exists (select from pg_catalog.pg_rewrite r
	where r.ev_type operator(pg_catalog.<>) '1'::pg_catalog."char" and r.oid operator(pg_catalog.>=) 16384::pg_catalog.oid)
union all select '` + rowRefusal + `', 'it has temporary objects', '', '' where exists (select from pg_catalog.pg_depend d
	where d.refclassid operator(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid
		and d.refobjid operator(pg_catalog.=) pg_catalog.pg_my_temp_schema() and d.refobjid operator(pg_catalog.<>) 0::pg_catalog.oid)
union all select '` + rowRefusal + `', 'its role or database has settings that are too large to be read', '', '' where exists (select
	from pg_catalog.pg_db_role_setting d where pg_catalog.pg_column_size(d.setconfig) operator(pg_catalog.>) 8192 and ` + itsDefaults + `)
union all select '` + rowRefusal + `', 'it holds an advisory lock', '', '' where exists (select from pg_catalog.pg_locks l
	where l.pid operator(pg_catalog.=) pg_catalog.pg_backend_pid() and l.locktype operator(pg_catalog.=) 'advisory')
union all select '` + rowRefusal + `', 'it has a temporary replication slot', '', '' where exists (select from pg_catalog.pg_get_replication_slots() s
	where s.temporary and s.active_pid operator(pg_catalog.=) pg_catalog.pg_backend_pid())
union all select '` + rowRefusal + `', 'it has a cursor WITH HOLD', '', ''
	where exists (select from pg_catalog.pg_cursors c where c.is_holdable)
union all select '` + rowRefusal + `', 'its role cannot see every setting that it may have changed', '', ''
	where not pg_catalog.pg_has_role('pg_read_all_settings', 'usage')
		and exists (select from pg_catalog.pg_roles r where r.rolsuper and r.oid operator(pg_catalog.=) ` + loginUser + `)`

// itsDefaults chooses the rows of pg_db_role_setting that apply to the session. Those of other databases would take
// long where an owner has made them large, and every session is asked within the 2 s of a planned failover.
const itsDefaults = `d.setdatabase operator(pg_catalog.=) any (array[0::pg_catalog.oid, (select b.oid from pg_catalog.pg_database b
		where b.datname operator(pg_catalog.=) pg_catalog.current_database())])
	and d.setrole operator(pg_catalog.=) any (array[0::pg_catalog.oid, ` + loginUser + `])`

// loginUser is the user that has logged in, whatever SET SESSION AUTHORIZATION says.
const loginUser = `(select a.usesysid from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) a)`

// notDeferred is the statement before a question in its transaction, by whose snapshot it would wait for the
// transactions of other sessions: where SERIALIZABLE, READ ONLY and DEFERRABLE are the session's defaults. It holds for
// that transaction only. SET TRANSACTION does the same, and warns outside a block.
const notDeferred = "set transaction_deferrable = off"

// ReadOnly is the setting by which transactions of a session are READ ONLY, unless they say otherwise.
const ReadOnly = "default_transaction_read_only"

// Question returns the requests that ask a backend for the state of its session. names are settings with a dot, which
// no view lists. readOnly is whether its transactions are READ ONLY by default. The requests leave the session's
// unnamed statement as it is. Their answer ends with one ReadyForQuery.
func Question(names []string, readOnly bool) []byte {
	closed := pgwire.AppendMessage(nil, 'C', pgwire.AppendCString([]byte{'S'}, ownStatement))
	b := slices.Clone(closed) // an earlier question that failed has left it
	if readOnly {
		b = appendParse(b, ownStatement, notDeferred, nil)
		b = appendBind(b, ownStatement)
		b = append(pgwire.AppendMessage(b, 'E', []byte{0, 0, 0, 0, 0}), closed...)
	}
	b = appendParse(b, ownStatement, question, []uint32{textArray, textArray, text})
	b = appendBind(b, ownStatement, list(names), list(reported), ownStatement)
	b = append(pgwire.AppendMessage(b, 'E', []byte{0, 0, 0, 0, 0}), closed...)
	return pgwire.AppendMessage(b, 'S', nil)
}

// across asks a backend of another version why its session, which is in the state of another one, could still surprise
// its client. Types have other numbers in another cluster, and drivers keep those that they have seen.
const across = `select '` + rowRefusal + `', 'its database has types of its own, which have other numbers on the other version', '', '' where exists (
	select from pg_catalog.pg_type t where t.oid operator(pg_catalog.>=) 16384::pg_catalog.oid and (
		t.typtype operator(pg_catalog.=) any ('{e,r,m}'::pg_catalog."char"[])
		or t.typtype operator(pg_catalog.=) 'b'::pg_catalog."char" and t.typcategory operator(pg_catalog.<>) 'A'::pg_catalog."char"
		or t.typtype operator(pg_catalog.=) 'c'::pg_catalog."char" and exists (
			select from pg_catalog.pg_class c where c.oid operator(pg_catalog.=) t.typrelid and c.relkind operator(pg_catalog.=) 'c'::pg_catalog."char")))`

// acrossResults is the rest of it, for a backend that tells the types of results.
const acrossResults = `
union all select '` + rowRefusal + `', 'a prepared statement of it returns rows of a type that has another number on the other version', '', '' where exists (
	select from pg_catalog.pg_prepared_statements p, pg_catalog.unnest(p.result_types) r
	where r::pg_catalog.oid operator(pg_catalog.>=) 10000::pg_catalog.oid)`

// Across returns the request for Refused to the backend of a session that was made again, whose answer ends with one
// ReadyForQuery.
func (s *State) Across() []byte {
	q := across
	if s.major() >= 16 {
		q += acrossResults
	}
	return pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, q))
}

// Refused returns why a session whose backend has answered Across cannot take the place of one of another version;
// "": it can.
func (a *Answer) Refused() string {
	if a.failed != "" {
		return a.failed
	}
	return a.Row()[1]
}

// The types of the question's parameters.
const (
	text      = 25
	textArray = 1009
)

// list returns names of letters, digits, dots, underscores and dollars as an array.
func list(names []string) string { return "{" + strings.Join(names, ",") + "}" }

func appendParse(b []byte, name, statement string, types []uint32) []byte {
	body := pgwire.AppendCString(pgwire.AppendCString(nil, name), statement)
	body = binary.BigEndian.AppendUint16(body, uint16(len(types)))
	for _, t := range types {
		body = binary.BigEndian.AppendUint32(body, t)
	}
	return pgwire.AppendMessage(b, 'P', body)
}

// appendBind binds the unnamed portal, with parameters and results as text.
func appendBind(b []byte, statement string, values ...string) []byte {
	body := pgwire.AppendCString([]byte{0}, statement)
	body = binary.BigEndian.AppendUint16(body, 0)
	body = binary.BigEndian.AppendUint16(body, uint16(len(values)))
	for _, v := range values {
		body = binary.BigEndian.AppendUint32(body, uint32(len(v)))
		body = append(body, v...)
	}
	return pgwire.AppendMessage(b, 'B', binary.BigEndian.AppendUint16(body, 0))
}

// Answer is the answer to requests of this package while it arrives.
type Answer struct {
	Aside         []byte // messages that PostgreSQL sent the client meanwhile, in order
	Notifications []byte // the notifications among them
	GivenBack     bool   // the session is given back instead: the server did not get the requests

	status  [][2]string // ParameterStatus messages, in order
	rows    [][4]string
	failed  string // the first error
	bytes   int
	partial []byte // the beginning of a message
	skip    int    // bytes of one that is too large, still to come
}

// errMalformed means that a backend's answer is not one of PostgreSQL.
var errMalformed = errors.New("malformed answer of PostgreSQL")

// Feed takes the next bytes of the backend. used is how many belong to the answer, which is whole with done. An answer
// that is too long is read to its end, and counts as failed. So does one for which the session is given back.
func (a *Answer) Feed(b []byte) (used int, done bool, err error) {
	for used < len(b) {
		if a.skip > 0 {
			n := min(a.skip, len(b)-used)
			used, a.skip = used+n, a.skip-n
			continue
		}
		had := len(a.partial)
		m := b[used:]
		if had == 0 && m[0] == GiveBack {
			a.GivenBack = true
			a.fail("it is leaving its server")
			return used, true, nil
		}
		if had > 0 {
			m = append(a.partial, m...)
		}
		if len(m) < 5 {
			a.partial = append([]byte(nil), m...)
			return len(b), false, nil
		}
		n := int(binary.BigEndian.Uint32(m[1:])) + 1
		if n < 5 || n > 1<<30 {
			return used, false, errMalformed
		}
		if n > maxAnswer && m[0] != 'D' && m[0] != 'E' {
			return used, false, fmt.Errorf("%w: a message of %d bytes", errMalformed, n)
		}
		if n > maxAnswer {
			a.tooLarge()
			a.partial, a.skip = nil, n-had
			continue
		}
		if len(m) < n {
			a.partial = append([]byte(nil), m...)
			return len(b), false, nil
		}
		a.partial = nil
		used += n - had
		if a.message(m[0], m[5:n]) {
			return used, true, nil
		}
	}
	return used, false, nil
}

// message takes one message, and reports whether the answer ends with it.
func (a *Answer) message(typ byte, body []byte) (last bool) {
	if a.bytes += len(body) + 5; a.bytes > maxAnswer {
		a.tooLarge()
	}
	switch typ {
	case 'D':
		if row, ok := fourColumns(body); ok && a.failed == "" {
			a.rows = append(a.rows, row)
		}
	case 'E':
		a.fail(pgwire.ErrorField(body, 'M'))
	case 'S':
		if f := strings.Split(string(body), "\x00"); len(f) >= 2 {
			a.status = append(a.status, [2]string{f[0], f[1]})
		}
		a.aside(typ, body)
	case 'A', 'N':
		a.aside(typ, body)
	case 'Z':
		if string(body) != "I" {
			a.fail(inTransaction)
		}
		return true
	}
	return false
}

// inTransaction is the error of an answer after which a transaction is open.
const inTransaction = "it is in a transaction"

// Begun reports whether a whole answer had no error and left a transaction open.
func (a *Answer) Begun() bool { return a.failed == inTransaction }

// aside keeps a message for the client.
func (a *Answer) aside(typ byte, body []byte) {
	if len(a.Aside) > maxAnswer {
		a.fail("too many notifications arrived meanwhile")
	}
	a.Aside = pgwire.AppendMessage(a.Aside, typ, body)
	if typ == 'A' {
		a.Notifications = pgwire.AppendMessage(a.Notifications, typ, body)
	}
}

func (a *Answer) tooLarge() {
	a.rows = nil
	a.fail("its state is too large")
}

func (a *Answer) fail(why string) {
	if a.failed == "" {
		a.failed = why
	}
}

// fourColumns reads a row of four columns as text; NULL is an empty text. Other rows are of other requests.
func fourColumns(body []byte) (row [4]string, ok bool) {
	if len(body) < 2 || binary.BigEndian.Uint16(body) != uint16(len(row)) {
		return row, false
	}
	body = body[2:]
	for i := range row {
		if len(body) < 4 {
			return row, false
		}
		n := int32(binary.BigEndian.Uint32(body))
		body = body[4:]
		if n < 0 {
			continue
		}
		if int(n) > len(body) {
			return row, false
		}
		row[i], body = string(body[:n]), body[n:]
	}
	return row, true
}

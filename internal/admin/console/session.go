package console

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// Limits of a session.
const (
	maxPrepared = 256
	maxSettings = 256
	maxKept     = 4 << 20 // bytes of prepared statements, arguments and rows of suspended portals
	maxAnswered = 100_000 // rows of the answers to a text that are returned together
)

// Transaction states, as in ReadyForQuery.
const (
	txIdle   = 'I'
	txOpen   = 'T'
	txFailed = 'E'
)

// Session is the state of one client, or of one command, at the console. It is not safe for concurrent use.
type Session struct {
	backend  Backend
	who      Principal
	settings map[string]string  // by lower-case name
	first    map[string]string  // the settings as the session began
	local    map[string]*string // what settings had that were set for the transaction; nil: they were not set
	before   map[string]string  // the settings as the transaction began
	changed  []string           // settings that are to be reported to the client
	tx       byte
	reads    bool // the transaction only reads
	limits   Limits

	variables map[string]dialect.Value // of the running batch, by name
	caught    *failure                 // of the CATCH block that is run; nil: none is
	lastError int64                    // @@ERROR: the number of the last statement's error; 0: it had none
	lastRows  *int64                   // @@ROWCOUNT: the rows of the last statement; nil: there was none
	aborts    bool                     // XACT_ABORT: an error dooms the transaction
	doomed    bool                     // the transaction can only be rolled back

	interrupt <-chan struct{} // requests to cancel the running statement; nil: there are none
	look      Look            // nil: the role keeps what it had
	looked    time.Time       // when the role was last looked up
	late      func()          // is told of a statement that took too long; nil: nobody is
}

// NewSession returns a session of the principal.
func NewSession(b Backend, who Principal) *Session {
	s := &Session{backend: b, who: who, tx: txIdle, limits: Limits{}.withDefaults()}
	s.first = s.defaults()
	s.reset()
	return s
}

// Run executes one statement, or a batch, and returns its whole answer. The error is an *Error; the answer of a batch
// that has one is that of the statements before it.
func (s *Session) Run(ctx context.Context, text string) (Result, error) {
	if !batch.Compound(text) {
		return s.one(ctx, text)
	}
	var out []Result
	rows := 0
	err := s.compound(ctx, text, func(st batch.Statement) error {
		r, err := s.one(ctx, st.Text)
		if err != nil {
			return err
		}
		if rows += len(r.Rows); rows > maxAnswered {
			return Errorf("54000", "the answers to one text have at most %d rows", maxAnswered)
		}
		out = append(out, r)
		return nil
	}, func(r Result) { out = append(out, r) })
	var r Result
	if len(out) > 0 {
		r, r.Next = out[0], out[1:]
	}
	if err != nil {
		return r, AsError(err)
	}
	return r, nil
}

// IsScript reports whether a text is more than one statement, or has variables or control flow.
func IsScript(text string) bool { return batch.Compound(text) }

// one executes one statement and returns its whole answer.
func (s *Session) one(ctx context.Context, text string) (Result, error) {
	var k whole
	r, err := s.run(ctx, text, nil, &k)
	s.executed(err, len(k.Rows))
	if err != nil {
		return Result{}, AsError(err) // a tag would say that it was done
	}
	if k.Result.Columns != nil {
		return k.Result, nil
	}
	return r, nil
}

// run executes a statement with the arguments of its parameters and maintains the state of the transaction. The rows of
// a query go to the receiver; those of other statements are in the result.
func (s *Session) run(ctx context.Context, text string, args []any, to Rows) (Result, error) {
	ctx, stop := s.interruptible(ctx)
	defer stop()
	kind := classify(text)
	limit := s.limit(kind, text)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	if own := s.timeout(); own > 0 && own < limit {
		ctx, cancel = context.WithTimeoutCause(ctx, own, errTimeout)
		defer cancel()
	}
	if s.tx == txFailed && kind != kindEnd {
		return Result{}, Errorf("25P02", "current transaction is aborted, commands ignored until end of transaction block")
	}
	var r Result
	err := s.renew(ctx, lookEvery)
	if err == nil {
		r, err = s.dispatch(ctx, kind, text, args, to)
	}
	switch cause := context.Cause(ctx); {
	case err == nil:
	case errors.Is(cause, errInterrupted):
		err = Errorf("57014", "%v", errInterrupted)
	case errors.Is(cause, errTimeout) && !waited(err):
		err = Errorf("57014", "%v", errTimeout)
	case errors.Is(cause, errLate) && !waited(err):
		if s.late != nil {
			s.late()
		}
		err = Errorf("57014", "canceling statement: it took longer than %v", limit)
	}
	if err != nil && s.tx == txOpen {
		s.tx = txFailed
	}
	return r, err
}

// kind is the kind of a statement.
type kind int

const (
	kindUnknown  kind = iota
	kindLanguage      // availability-group language
	kindQuery         // SQL on the views
	kindBegin
	kindEnd // COMMIT and ROLLBACK
	kindSet
	kindShow
	kindAccepted // accepted, and without an effect here: DISCARD, LISTEN, …
)

// firstWords maps the first word of a statement to its kind. The parser of the language recognises its own.
var firstWords = map[string]kind{
	"SELECT": kindQuery, "WITH": kindQuery, "VALUES": kindQuery, "TABLE": kindQuery, "(": kindQuery,
	"BEGIN": kindBegin, "START": kindBegin,
	"COMMIT": kindEnd, "END": kindEnd, "ROLLBACK": kindEnd, "ABORT": kindEnd,
	"SET": kindSet, "RESET": kindSet, "SHOW": kindShow,
	"DISCARD": kindAccepted, "DEALLOCATE": kindAccepted, "LISTEN": kindAccepted, "UNLISTEN": kindAccepted, "CLOSE": kindAccepted,
	"SAVEPOINT": kindAccepted, "RELEASE": kindAccepted, "USE": kindAccepted,
}

func classify(text string) kind {
	if ddl.Owns(text) {
		return kindLanguage
	}
	w := words(text, 2)
	if len(w) == 0 {
		return kindUnknown
	}
	if w[0] == "ROLLBACK" && len(w) > 1 && w[1] == "TO" {
		return kindAccepted
	}
	return firstWords[w[0]]
}

// words returns the first words of a text in upper case, without comments.
func words(text string, n int) []string {
	parts, err := ddl.Split(text)
	if err != nil || len(parts) == 0 {
		return nil
	}
	text = stripComments(parts[0].Text)
	if strings.HasPrefix(text, "(") {
		return []string{"("}
	}
	fields := strings.FieldsFunc(text, func(r rune) bool { return !wordRune(r) })
	for i := range fields[:min(n, len(fields))] {
		fields[i] = strings.ToUpper(fields[i])
	}
	return fields[:min(n, len(fields))]
}

func wordRune(r rune) bool {
	return r == '_' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// stripComments removes the comments at the beginning of a statement.
func stripComments(text string) string {
	for {
		text = strings.TrimSpace(text)
		switch {
		case strings.HasPrefix(text, "--"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			_, text, _ = strings.Cut(text, "*/")
		default:
			return text
		}
	}
}

func (s *Session) dispatch(ctx context.Context, k kind, text string, args []any, to Rows) (Result, error) {
	switch k {
	case kindLanguage:
		return s.language(ctx, text)
	case kindQuery:
		return Result{Tag: "SELECT"}, s.backend.Query(ctx, s.who, Question{text, args, s.values()}, to)
	case kindBegin:
		return s.begin(words(withoutComments(text), 64))
	case kindEnd:
		word := words(text, 1)[0]
		if s.doomed && word != "ROLLBACK" && word != "ABORT" {
			e := Errorf("25P02", "the transaction cannot be committed: roll it back")
			e.Number = 3930
			return Result{}, e
		}
		return s.end(word), nil
	case kindSet:
		return s.set(text)
	case kindShow:
		return s.show(text)
	case kindAccepted:
		w := words(text, 2)
		if len(w) > 1 && w[0] == "USE" && w[1] != "MASTER" && w[1] != "COTERIE" {
			return Result{Tag: w[0], Notices: []Notice{{"NOTICE", "USE has no effect: the statements go on in the console; connect to another database for its data"}}}, nil
		}
		if slices.Equal(w, []string{"DISCARD", "ALL"}) {
			s.reset()
		}
		return Result{Tag: w[0]}, nil
	default:
		return Result{}, notHere(text)
	}
}

// elsewhere are statements of T-SQL that are done otherwise here.
var elsewhere = map[string]string{
	"BACKUP": "coterie backup run, on a node, makes a backup", "RESTORE": "coterie restore, on a machine of its own, makes a group of a backup",
	"KILL": "SELECT pg_terminate_backend(pid), in another database; coterie.sessions has the pids", "RECONFIGURE": "ALTER AVAILABILITY GROUP ... SET PARAMETER, or coterie settings set",
	"SHUTDOWN": "coterie restart, or the unit of the node",
	"FAILOVER": "ALTER AVAILABILITY GROUP [group] FAILOVER, on the replica that is to lead; in the shell: coterie failover --to NAME", "SWITCHOVER": "ALTER AVAILABILITY GROUP [group] FAILOVER, on the replica that is to lead; in the shell: coterie failover --to NAME",
	"PROMOTE": "ALTER AVAILABILITY GROUP [group] FAILOVER, on the replica that is to lead; in the shell: coterie failover --to NAME", "STATUS": "SELECT * FROM coterie.replicas; in the shell: coterie status",
	"HELP": "docs/language.md has the statements, docs/views.md the views", "QUIT": "\\q ends psql", "EXIT": "\\q ends psql",
	"GRANT": "GRANT and REVOKE, in any other database of the group", "REVOKE": "GRANT and REVOKE, in any other database of the group",
	"EXPLAIN": "the views have no query plans; EXPLAIN FAILOVER tells which replica would take over",
}

// objects are what CREATE, ALTER and DROP are refused for, by the second word, with what to do instead.
var objects = map[string]string{
	"SYSTEM":   "coterie settings set NAME=VALUE, or ALTER AVAILABILITY GROUP ... SET PARAMETER: for every replica, also the next primary",
	"DATABASE": "connect to any other database, such as postgres; ALTER AVAILABILITY GROUP ... ADD DATABASE creates one that is to be listed", "ROLE": "connect to any other database, such as postgres", "USER": "connect to any other database, such as postgres",
}

// isProcedure reports whether the first word of a text is the name of a procedure of SQL Server.
func isProcedure(word string) bool {
	name := strings.ToLower(word[strings.LastIndex(word, ".")+1:])
	return strings.HasPrefix(name, "sp_") || strings.HasPrefix(name, "xp_")
}

func notHere(text string) error {
	if _, err := ddl.Split(text); err != nil {
		return err
	}
	w := words(text, 1)
	name := "this"
	if len(w) > 0 {
		name = w[0]
	}
	hint := cmp.Or(elsewhere[name], objects[second(text, name)], "the console takes SELECT on the views sys.* and coterie.*, and availability-group statements; for the data connect to another database")
	switch {
	case name == "EXEC" || name == "EXECUTE":
		return noProcedure(text)
	case isProcedure(name): // T-SQL takes a procedure without EXEC at the beginning of a batch
		return noProcedure("EXEC " + text)
	}
	switch name {
	case "ELSE":
		return Errorf("42601", "incorrect syntax near 'ELSE'").WithHint("an IF and its ELSE belong into one text: " + inPieces)
	}
	if word := second(text, name); word != "" && word != "AVAILABILITY" && dialect.Alike("AVAILABILITY", word) {
		return Errorf("42601", "incorrect syntax near '%s'", word).WithHint("perhaps " + name + " AVAILABILITY GROUP")
	}
	return Errorf("0A000", "%s is not a statement of the console", name).WithHint(hint)
}

// second returns the word behind CREATE, ALTER or DROP; "" behind another one.
func second(text, first string) string {
	if w := words(text, 2); len(w) > 1 && (first == "CREATE" || first == "ALTER" || first == "DROP") {
		return w[1]
	}
	return ""
}

// begin begins a transaction.
func (s *Session) begin(w []string) (Result, error) {
	r := Result{Tag: w[0]}
	if r.Tag == "START" {
		r.Tag = "START TRANSACTION" // as PostgreSQL answers it
	}
	switch {
	case s.tx != txIdle && len(w) > 1 && w[1] == "TRAN":
		return Result{}, Errorf("0A000", "BEGIN TRAN within a transaction is not supported in the console").WithHint("COMMIT the first one: a transaction holds nothing back here")
	case s.tx != txIdle:
		r.Notices = []Notice{{"WARNING", "there is already a transaction in progress"}}
	}
	if s.tx == txIdle {
		s.before, s.reads = maps.Clone(s.settings), s.settings[readOnly] == "on"
	}
	s.tx = txOpen
	s.access(w)
	return r, nil
}

func (s *Session) end(word string) Result {
	tag := map[string]string{"COMMIT": "COMMIT", "END": "COMMIT"}[word]
	if tag == "" || s.tx == txFailed {
		tag = "ROLLBACK"
	}
	r := Result{Tag: tag}
	if s.tx == txIdle {
		r.Notices = []Notice{{"WARNING", "there is no transaction in progress"}}
	}
	s.tx, s.doomed, s.reads = txIdle, false, false
	s.endSettings(tag == "COMMIT")
	return r
}

// language parses and executes a statement of the availability-group language.
func (s *Session) language(ctx context.Context, text string) (Result, error) {
	st, err := ddl.Parse(text)
	if err != nil {
		return Result{}, err
	}
	if n, ok := st.Action.(ddl.Needless); ok {
		return Result{Tag: n.Words, Notices: []Notice{{"WARNING", "not needed, and nothing was done: " + n.Why()}}}, nil
	}
	if st.Kind() != ddl.KindReport {
		if err := s.renew(ctx, 0); err != nil {
			return Result{}, err
		}
	}
	if err := s.Permit(st); err != nil {
		return Result{}, err
	}
	if s.readsOnly() && st.Kind() != ddl.KindReport {
		e := Errorf("25006", "cannot execute %s in a read-only transaction", st.Verb())
		if s.tx != txIdle {
			return Result{}, e.WithHint("end the transaction, and SET default_transaction_read_only = off if it began as the session's do")
		}
		return Result{}, e.WithHint("SET default_transaction_read_only = off")
	}
	r, err := s.backend.Execute(ctx, s.who, st)
	if err == nil && s.tx == txOpen && st.Kind() != ddl.KindReport {
		r.Notices = append(r.Notices, Notice{"NOTICE", "executed at once: a transaction does not hold it back, nor undo it"})
	}
	return r, err
}

// Permit returns the error of a statement for which the user has not the privilege; the backend is told of it. The
// error is an *Error.
func (s *Session) Permit(st ddl.Statement) error {
	if err := s.who.permit(st); err != nil {
		s.backend.Denied(s.who, st, err)
		return err
	}
	return nil
}

func (p Principal) permit(st ddl.Statement) *Error {
	switch needs := st.Needs(); {
	case needs <= p.May:
		return nil
	case p.Reads != "": // a role that is granted would change nothing
		return Errorf("42501", "permission denied: %s changes the group, and this way is for reading only, with every role", st.Verb()).WithHint(p.Reads)
	case needs == ddl.MayConfigureServers:
		return Errorf("42501", "permission denied: settings of PostgreSQL and rules for logins need a superuser, since some run programs on the servers or let superusers in").
			WithHint("log in as a superuser, or run coterie settings set or coterie hba set on a node")
	default:
		return Errorf("42501", "permission denied: %s needs the role %s", st.Verb(), RoleFor(needs)).
			WithHint("GRANT " + RoleFor(needs) + " TO " + pgx.Identifier{p.User}.Sanitize() + ", in any other database of the group")
	}
}

// Execute runs a statement of the language that was not typed, within the time that one which acts may take. It is
// what Run is for its text: the same refusals, with the same numbers. The error is an *Error.
func (s *Session) Execute(ctx context.Context, st ddl.Statement) (Result, error) {
	read, err := st.Checked()
	if err != nil {
		return Result{}, AsError(err)
	}
	return s.one(ctx, read.String())
}

// RoleFor returns the role that has the privilege.
func RoleFor(p ddl.Privilege) string {
	switch p {
	case ddl.MayAdminister:
		return "coterie_admin"
	case ddl.MayOperate:
		return "coterie_operator"
	default:
		return "coterie_viewer"
	}
}

// PrivilegeOf returns the privilege that a role has by its memberships.
func PrivilegeOf(super bool, user string, memberOf []string) ddl.Privilege {
	if super {
		return ddl.MayConfigureServers
	}
	for _, p := range []ddl.Privilege{ddl.MayAdminister, ddl.MayOperate, ddl.MayLook} {
		if user == RoleFor(p) || slices.Contains(memberOf, RoleFor(p)) {
			return p
		}
	}
	return ddl.MayNothing
}

// describe returns the columns and parameters of a statement without running it.
func (s *Session) describe(ctx context.Context, text string, given []Type) (columns []Column, params []Type, err error) {
	switch classify(text) {
	case kindQuery:
		ctx, stop := s.interruptible(ctx)
		defer stop()
		ctx, cancel := context.WithTimeoutCause(ctx, s.limits.Statement, errLate)
		defer cancel()
		return s.backend.Describe(ctx, s.who, text, given)
	case kindShow:
		return []Column{{showName(text), Text}}, given, nil
	case kindLanguage:
		st, err := ddl.Parse(text)
		if err != nil {
			return nil, nil, err
		}
		return Columns(st), given, nil
	case kindUnknown:
		if len(words(text, 1)) > 0 {
			return nil, nil, notHere(text)
		}
		if _, err := ddl.Split(text); err != nil {
			return nil, nil, err
		}
	default:
	}
	return nil, given, nil
}

// Columns returns the columns of a report; nil for other statements.
func Columns(s ddl.Statement) []Column {
	switch s.Action.(type) {
	case ddl.Script:
		return []Column{{"script", Text}}
	case ddl.ExplainFailover:
		return []Column{{"replica", Text}, {"ready", Bool}, {"because", Text}}
	case ddl.VerifyRouting:
		return []Column{{"node", Text}, {"intent", Text}, {"target", Text}, {"entry", Int4}, {"passed_over", Text}}
	case ddl.TraceFlags:
		if s.Kind() == ddl.KindReport {
			return []Column{{"TraceFlag", Int4}, {"Status", Int4}, {"Global", Int4}, {"Session", Int4}}
		}
	default:
	}
	return nil
}

var errClosed = errors.New("the client has gone")

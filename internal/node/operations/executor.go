package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Executor runs statements of administrators on this node: those that change the configuration, operations, and queries
// on the views. It implements console.Backend.
type Executor struct{ *Service }

// Version is PostgreSQL's.
func (e Executor) Version() string { return e.Status.Version() }

// Describe returns what a query will answer.
func (e Executor) Describe(ctx context.Context, who console.Principal, query string, given []console.Type) ([]console.Column, []console.Type, error) {
	oids := make([]uint32, len(given))
	for i, t := range given {
		oids[i] = uint32(t)
	}
	columns, params, err := e.Views.Describe(ctx, who.User, query, oids)
	types := make([]console.Type, len(params))
	for i, p := range params {
		types[i] = console.Type(p)
	}
	return columnsOf(columns), types, queryFailed(err)
}

// Query runs a query on the views and sends its rows as they come.
func (e Executor) Query(ctx context.Context, who console.Principal, q console.Question, to console.Rows) error {
	if e.Status.Removed() {
		to.Notice(fmt.Sprintf("%s was removed from the group: these rows are what it saw last, and it is no member any more; run the query on a member%s. %s", e.Self, e.another(), afterRemoval))
	}
	return queryFailed(e.Views.Query(ctx, catalog.Question{User: who.User, Text: q.SQL, Args: q.Args, Variables: q.Variables}, rowsFor{to}))
}

// rowsFor sends the rows of the views to a session of the console.
type rowsFor struct{ console.Rows }

// Columns implements catalog.Rows.
func (r rowsFor) Columns(list []catalog.Column) error { return r.Rows.Columns(columnsOf(list)) }

func columnsOf(columns []catalog.Column) []console.Column {
	out := make([]console.Column, len(columns))
	for i, c := range columns {
		out[i] = console.Column{Name: c.Name, Type: console.Type(c.Type)}
	}
	return out
}

func queryFailed(err error) error {
	var known *catalog.Error
	if errors.As(err, &known) {
		return console.Errorf(known.State, "%s", known.Message).WithHint(known.Hint)
	}
	return err
}

// Execute runs a statement of the language, here or, by way of the quorum's store, wherever it must, and waits for its
// effect.
func (e Executor) Execute(ctx context.Context, who console.Principal, s ddl.Statement) (console.Result, error) {
	start := time.Now()
	r, err := e.execute(ctx, s)
	if err != nil {
		err = e.withSQLState(err)
	}
	if s.Kind() != ddl.KindReport {
		if err == nil {
			e.note(who, s.Redacted(), time.Since(start), nil)
			e.Status.NoteStatement(who.User, s.Redacted())
			return r, nil
		}
		noted := console.AsError(err)
		noted.Message = s.RedactedText(noted.Message) // PostgreSQL, and the replica that asks it, quote the value
		e.note(who, s.Redacted(), time.Since(start), noted)
	}
	return r, err
}

// Denied implements console.Backend.
func (e Executor) Denied(who console.Principal, s ddl.Statement, err *console.Error) {
	e.note(who, s.Redacted(), 0, err)
}

// Note keeps for the audit what an administrator had this node do otherwise than by a statement, and how it ended.
func (s *Service) Note(who console.Principal, operation string, took time.Duration, err error) {
	s.note(who, operation, took, err)
}

func (s *Service) note(who console.Principal, operation string, took time.Duration, err error) {
	a := catalog.Act{User: who.User, Via: string(who.Via), From: who.From, Operation: operation, Result: catalog.ActDone, Took: took}
	if who.May > ddl.MayNothing {
		a.Privilege = console.RoleFor(who.May)
	}
	if who.May > ddl.MayAdminister {
		a.Privilege = "superuser"
	}
	if who.Via == "" {
		a.Via = string(console.ViaSQL)
	}
	if err != nil {
		known := console.AsError(err)
		a.Result, a.Number, a.Message = catalog.ActFailed, known.Number, known.Message
		if known.State == "42501" || known.State == "28000" { // without the privilege, or the proof of the password
			a.Result = catalog.ActDenied
		}
	}
	s.Status.NoteAct(s.Logger, a)
}

// withSQLState gives the errors of the management paths a state.
func (s *Service) withSQLState(err error) error {
	if errors.Is(err, etcd.ErrNoQuorum) {
		if s.Status.Removed() {
			return s.removed()
		}
		return fail.Numberedf(988, "no majority of the quorum answers: nothing was changed").WithHint("SELECT * FROM sys.dm_hadr_cluster_members")
	}
	return err
}

func (e Executor) execute(ctx context.Context, s ddl.Statement) (console.Result, error) {
	switch s.Kind() {
	case ddl.KindReport:
		return e.runReport(ctx, s)
	case ddl.KindOperation:
		return e.operate(ctx, s)
	default:
		return e.change(ctx, s)
	}
}

// where is the place of a statement that runs here. A replica that is being promoted counts as the primary: it is about
// to be, and must not be taken out of the group meanwhile.
func (e Executor) where(r ag.Record) ddl.Context {
	c := ddl.Context{Self: e.Self}
	if r.Epoch.Phase != ag.PhaseSeal {
		c.Primary = r.Epoch.Leader
	}
	return c
}

// change makes one compare-and-swap of the configuration, again from the start if another change was made first.
func (e Executor) change(ctx context.Context, s ddl.Statement) (console.Result, error) {
	r := console.Result{Tag: s.Verb()}
	var created []string // also by an attempt that another writer overtook
	for {
		x, err := e.Store.Read(ctx)
		if err != nil {
			return r, err
		}
		next, notices, err := s.Change(x.Group, e.where(x.Record))
		if err != nil {
			return r, err
		}
		if err := e.holdsEverywhere(x.Group.Profile, next.Profile); err != nil {
			return r, err
		}
		warned, err := e.checkParameters(ctx, x.Group, next)
		if err != nil {
			return r, err
		}
		told, err := e.checkRules(ctx, x.Group, next)
		if err != nil {
			return r, err
		}
		made, err := e.createDatabases(ctx, x, next)
		if err != nil {
			return r, err
		}
		created = append(created, made...)
		r.Notices = append(warned, told...)
		for _, n := range notices {
			r.Notices = append(r.Notices, console.Notice{Severity: "NOTICE", Message: n.Message})
		}
		for _, name := range created {
			r.Notices = append(r.Notices, console.Notice{Severity: "NOTICE", Message: fmt.Sprintf("database %s was created", name) + e.near(ctx, x, name)})
		}
		if reflect.DeepEqual(next, x.Group) {
			return r, nil // it is so already
		}
		rev, err := e.Store.UpdateGroup(ctx, x.GroupRev, next)
		if errors.Is(err, etcd.ErrConflict) {
			continue
		}
		if err != nil {
			return r, err
		}
		e.Agent.Wake()
		r.Notices = append(r.Notices, e.homeless(ctx, x.Group, next)...)
		r.Notices = append(r.Notices, stalls(x, next)...)
		if !s.NoWait {
			r.Notices = append(r.Notices, e.await(ctx, x.Group, next, rev)...)
		}
		return r, nil
	}
}

// stalls returns a notice where a change of what commits need stops them, since too few secondaries acknowledge at
// present.
func stalls(x etcd.Snapshot, next ag.Group) []console.Notice {
	leader := x.Record.Epoch.Leader
	_, was := x.Group.CommitTarget(x.Group.TakePart(leader))
	_, needs := next.CommitTarget(next.TakePart(leader))
	var st agent.Status
	if err := json.Unmarshal(x.Statuses[leader], &st); err != nil || needs <= was {
		return nil
	}
	there := 0
	for _, m := range st.Members {
		if r, ok := next.Replica(m.ID); ok && r.AvailabilityMode == ag.SynchronousCommit && !slices.Contains(st.Mute, m.ID) {
			there++
		}
	}
	if there >= needs {
		return nil
	}
	back := "DEFAULT"
	if x.Group.Required != nil {
		back = strconv.Itoa(*x.Group.Required)
	}
	return []console.Notice{{Severity: "WARNING", Message: fmt.Sprintf("no commit is acknowledged from now on: %d secondaries must acknowledge, and %d do at present; "+
		"start the others, or go back by REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = %s", needs, there, back)}}
}

// homeless returns a notice for each virtual address that a change adds and that a replica could not hold as the
// primary, as none of its devices is in the subnet. It is no error: in another subnet clients use another address.
func (e Executor) homeless(ctx context.Context, was, is ag.Group) (out []console.Notice) {
	old, added := virtual(was), virtual(is)
	added = slices.DeleteFunc(added, func(p netip.Prefix) bool { return slices.Contains(old, p) })
	if len(added) == 0 {
		return nil
	}
	nodes := e.Status.Facts(ctx).Nodes
	for _, p := range added {
		var without []string
		for _, r := range is.Replicas {
			n := nodes[r.ID]
			here := func(x netip.Prefix) bool { return x.Addr() != p.Addr() && p.Masked().Contains(x.Addr().Unmap()) }
			if r.HasData() && n.Connected && len(n.Networks) > 0 && !slices.ContainsFunc(n.Networks, here) {
				without = append(without, string(r.ID))
			}
		}
		if len(without) > 0 {
			out = append(out, console.Notice{Severity: "NOTICE", Message: fmt.Sprintf(
				"no device of %s is in %s: where it is the primary, %s is not up, and clients reach the group by another address", strings.Join(without, ", nor of "), p.Masked(), p.Addr())})
		}
	}
	return out
}

// virtual returns the virtual addresses of a group, with their subnets.
func virtual(g ag.Group) (out []netip.Prefix) {
	for _, l := range g.Options.Listeners {
		for _, text := range l.Addresses {
			if p, err := netip.ParsePrefix(text); err == nil { // the statement that added it was checked
				out = append(out, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
			}
		}
	}
	return out
}

// createDatabases creates the databases that the change registers and that are absent, on the primary, before anything
// is written.
func (e Executor) createDatabases(ctx context.Context, x etcd.Snapshot, next ag.Group) (made []string, err error) {
	for _, name := range next.Options.Databases {
		if slices.Contains(x.Group.Options.Databases, name) {
			continue
		}
		leader, ok := x.Group.Replica(x.Record.Epoch.Leader)
		if !ok || x.Record.Epoch.Phase != ag.PhaseLead {
			return made, console.Errorf("57P03", "the group has no primary at present, on which database %q could be looked for", name)
		}
		var created bool
		if leader.ID == e.Self {
			created, err = e.CreateDatabase(ctx, name)
		} else {
			created, err = rpc.Call(ctx, e.Calls, leader, rpc.CreateDatabase, name)
		}
		if err != nil {
			return made, fmt.Errorf("on the primary %s: %w", leader.ID, err)
		}
		if created {
			made = append(made, name)
		}
	}
	return made, nil
}

// near returns what to say of a database that was created: how it is undone, as after a mistyped name, and whether
// another one differs from it by the case of letters alone.
func (e Executor) near(ctx context.Context, x etcd.Snapshot, name string) string {
	others := slices.Clone(x.Group.Options.Databases)
	for _, d := range e.Status.Facts(ctx).Nodes[x.Record.Epoch.Leader].Databases {
		others = append(others, d.Name)
	}
	i := slices.IndexFunc(others, func(other string) bool { return other != name && strings.EqualFold(other, name) })
	undo := fmt.Sprintf(`REMOVE DATABASE %s, and DROP DATABASE "%s" on the primary`, ddl.Brackets(name), strings.ReplaceAll(name, `"`, `""`))
	if i < 0 {
		return ", since the primary had none of that name. If you meant another one: " + undo
	}
	if !slices.Contains(x.Group.Options.Databases, others[i]) {
		undo += ", and ADD DATABASE " + ddl.Brackets(others[i])
	}
	return fmt.Sprintf("; it is another one than %s, because a name keeps its case here, as one in quotes does in PostgreSQL. If you meant that one: %s", others[i], undo)
}

// CreateDatabase creates a database on this node, which must be the primary, unless the database exists.
func (s *Service) CreateDatabase(ctx context.Context, name string) (bool, error) {
	if v := s.Agent.View(); s.Server == nil || v == nil || v.Role() != ag.RolePrimary {
		return false, errors.New("this node is not the primary")
	}
	ctx, cancel := context.WithTimeout(ctx, 25*time.Second) // within the time of a control call
	defer cancel()
	return s.Server.CreateDatabase(ctx, name)
}

// SQL runs one statement for a client of the management socket, which is an administrator.
func (s *Service) SQL(ctx context.Context, text string) (any, error) {
	session := console.NewSession(Executor{s}, console.Principal{User: "coterie", May: ddl.MayConfigureServers, Via: console.ViaSocket})
	if held := api.SessionOf(ctx); held != nil {
		if held.Value == nil {
			held.Value = session
		}
		session = held.Value.(*console.Session)
	}
	r, failed := session.Run(ctx, text)
	var a api.SQLAnswer
	var err error
	if failed != nil {
		if a.Error, err = json.Marshal(failed); err != nil {
			return a, err
		}
	}
	if failed == nil || r.Tag != "" { // a batch has answers of the statements before its error
		a.Result, err = json.Marshal(r)
	}
	return a, err
}

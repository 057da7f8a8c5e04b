package web

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/action"
	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Bounds of a join token that is made in a browser.
const (
	tokenTime = 15 * time.Second // that its making may take
	tokenLife = 24 * time.Hour
)

// Token is the document of a join token. It is answered once, and kept nowhere.
type Token struct {
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"`
	Command string    `json:"command"` // what is run on the machine that joins; it has the token
}

// errPlans refuses a plan beyond those that a node makes at once. Every role that may look can ask for one.
var errPlans = &console.Error{State: "53300", Message: "too many plans of this role, or of all, are being made", Hint: "Try again in a moment."}

// planning reads the document of a plan, and has a place for it until leave.
func (s *Server) planning(w http.ResponseWriter, r *http.Request, x *session, body *json.RawMessage) (leave func(), ok bool) {
	if !readJSON(w, r, body) {
		return nil, false
	}
	if leave, ok = s.plans.enter(x.who.User); !ok {
		refuseChange(w, "", errPlans)
	}
	return leave, ok
}

// plan answers what would become of the group if a member joined it, and how an administrator does it by hand. Nothing
// is changed.
func (s *Server) plan(w http.ResponseWriter, r *http.Request, x *session) {
	var body json.RawMessage
	leave, ok := s.planning(w, r, x, &body)
	if !ok {
		return
	}
	defer leave()
	n, err := action.ParseNewcomer(body)
	if err != nil {
		refuseChange(w, "", console.AsError(err))
		return
	}
	st := s.c.Status()
	p := n.Plan(s.c.Group(), st.Primary)
	switch {
	case !st.Quorum:
		p.Add(action.Problem, "the quorum does not answer: no token can be made, and nobody can join", "coterie status")
	case !st.WriteOpen:
		p.Add(action.Warning, "no primary takes writes now", "coterie status")
	}
	if k := len(st.Availability.Problems); k > 0 {
		p.Add(action.Warning, fmt.Sprintf("the group has %d problems, of which the first screen tells", k), "coterie status")
	}
	answer(w, http.StatusOK, p)
}

// planGroup answers what a group would be that is made of the nodes that have joined each other, and how an
// administrator makes it by hand. Nothing is changed.
func (s *Server) planGroup(w http.ResponseWriter, r *http.Request, x *session) {
	var body json.RawMessage
	leave, ok := s.planning(w, r, x, &body)
	if !ok {
		return
	}
	defer leave()
	f, err := action.ParseFounding(body)
	if err != nil {
		refuseChange(w, "", console.AsError(err))
		return
	}
	st := s.c.Status()
	p := f.Plan(s.c.Group(), st.Primary)
	g, ok := p.Made()
	if !ok {
		answer(w, http.StatusOK, p)
		return
	}
	if err := s.c.Holds(g.Profile); err != nil {
		e := console.AsError(err)
		p.Add(action.Problem, e.Message, e.Hint)
	}
	switch {
	case !st.Quorum:
		p.Add(action.Problem, "the quorum does not answer: nothing can be changed", "coterie status")
	case !st.WriteOpen:
		p.Add(action.Problem, fmt.Sprintf("%s does not take writes now", st.Primary), "coterie status")
	}
	for _, x := range st.Replicas {
		if m, ok := g.Replica(x.Name); ok && m.Part() && x.Connected != "CONNECTED" {
			p.Add(action.Warning, fmt.Sprintf("%s does not answer: it takes its part once it does", x.Name), "coterie status")
		}
	}
	s.planDatabases(r.Context(), &p, g)
	answer(w, http.StatusOK, p)
}

// planDatabases adds which databases of a group that is to be made exist. Those that do not are created with it.
func (s *Server) planDatabases(ctx context.Context, p *action.Plan, g ag.Group) {
	if len(g.Options.Databases) == 0 {
		return
	}
	t, err := s.views.get(ctx, "coterie.databases")
	if err != nil {
		p.Add(action.Warning, "the databases of this node cannot be read now", "coterie status")
		return
	}
	at := slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == "name" })
	var there, absent []string
	for _, name := range g.Options.Databases {
		quoted := ddl.Brackets(name)
		if at >= 0 && slices.ContainsFunc(t.Rows, func(row []any) bool { return row[at] == name }) {
			there = append(there, quoted)
		} else {
			absent = append(absent, quoted)
		}
	}
	if len(there) > 0 {
		p.Add(action.Fine, "these databases exist: "+strings.Join(there, ", "), "")
	}
	if len(absent) > 0 {
		p.Add(action.Fine, "these databases are created empty: "+strings.Join(absent, ", "), "")
	}
}

// token makes a join token: an administrator whose password was given lately gets it once.
func (s *Server) token(w http.ResponseWriter, r *http.Request, n *session) {
	key, body, ok := s.asked(w, r)
	if !ok {
		return
	}
	who, ok := s.nowMay(w, r, n)
	if !ok {
		return
	}
	var in struct {
		Role    string `json:"role"`
		Minutes int    `json:"minutes"`
	}
	err := decodeOne(body, &in)
	life := time.Duration(in.Minutes) * time.Minute
	if err != nil || in.Role != "replica" && in.Role != "witness" || in.Minutes < 1 || in.Minutes > int(tokenLife.Minutes()) {
		refuseChange(w, "", &console.Error{State: "22023", Message: fmt.Sprintf("a token has role, replica or witness, and minutes, from 1 to %.0f", tokenLife.Minutes())})
		return
	}
	what := fmt.Sprintf("token for a %s, for %v", in.Role, life)
	switch {
	case who.May < ddl.MayAdminister:
		err := &console.Error{State: "42501", Message: "permission denied: a join token needs the role coterie_admin"}
		s.c.Note(who, what, 0, err)
		refuseChange(w, "", err)
		return
	case !n.proved(s.sessions.now()):
		s.c.Note(who, what, 0, errProof)
		refuseChange(w, "", errProof)
		return
	}
	d, fresh, refused := s.deeds.begin(Deed{Change: "token", User: who.User, Statement: what}, key, sha256.Sum256(append([]byte("token\x00"), body...)), boottime.Now())
	if refused == nil && !fresh {
		refused = &console.Error{State: "55000", Message: "the token of this Idempotency-Key was told once, and is kept nowhere", Hint: "Make another one, with a new key."}
	}
	if refused != nil {
		refuseChange(w, "", refused)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), tokenTime)
	defer cancel()
	began := time.Now()
	var made api.TokenResult
	err = errBug
	s.caught("the making of a token", func() { made, err = s.c.Token(ctx, api.TokenRequest{Role: in.Role, TTL: life}) })
	s.c.Note(who, what, time.Since(began), err)
	d.end(console.Result{Tag: "token"}, err, nil)
	close(d.done)
	if err != nil {
		refuseChange(w, "", console.AsError(err))
		return
	}
	answer(w, http.StatusOK, Token{Role: made.Role, Expires: made.Expires, Command: made.Command})
}

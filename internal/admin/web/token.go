package web

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/coteriedb/coterie/internal/admin/action"
	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
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

// plan answers what would become of the group if a member joined it, and how an administrator does it by hand. Nothing
// is changed.
func (s *Server) plan(w http.ResponseWriter, r *http.Request, _ *session) {
	var body json.RawMessage
	if !readJSON(w, r, &body) {
		return
	}
	n, err := action.ParseNewcomer(body)
	if err != nil {
		refuseChange(w, "", console.AsError(err))
		return
	}
	st := s.c.Status()
	p := n.Plan(s.c.Group(), st.Primary)
	switch {
	case !st.Quorum:
		p.Findings = append(p.Findings, action.Finding{Level: action.Problem, What: "the quorum does not answer: no token can be made, and nobody can join", Run: "coterie status"})
	case !st.WriteOpen:
		p.Findings = append(p.Findings, action.Finding{Level: action.Warning, What: "no primary takes writes now", Run: "coterie status"})
	}
	if k := len(st.Availability.Problems); k > 0 {
		p.Findings = append(p.Findings, action.Finding{Level: action.Warning, What: fmt.Sprintf("the group has %d problems, of which the first screen tells", k), Run: "coterie status"})
	}
	answer(w, http.StatusOK, p)
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

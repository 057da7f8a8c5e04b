package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/action"
	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// How long a session counts as one whose user has given the password, how long the role may take to be looked up, and
// how often a change under way is looked at.
const (
	proofLife = 10 * time.Minute
	lookTime  = 7 * time.Second
	deedLook  = 100 * time.Millisecond
)

// errProof asks for the password once more: a cookie that was stolen is not enough for what may lose commits or a
// member, nor for a token by which a stranger could join.
var errProof = &console.Error{State: "28000", Message: "give your password once more for this change", Hint: "POST /api/v1/session/proof"}

// errLooksOnly refuses every change on a witness, which signs no configuration.
var errLooksOnly = &console.Error{State: "42501", Message: "this is a witness, on which nothing is changed", Hint: "Use the console of a replica."}

// change serves a change of that name.
func change(name string) func(s *Server, w http.ResponseWriter, r *http.Request, n *session) {
	return func(s *Server, w http.ResponseWriter, r *http.Request, n *session) { s.change(name, w, r, n) }
}

func (s *Server) change(name string, w http.ResponseWriter, r *http.Request, n *session) {
	key, body, ok := s.asked(w, r)
	if !ok {
		return
	}
	who, ok := s.nowMay(w, r, n)
	if !ok {
		return
	}
	q, err := action.Parse(name, s.c.Status().Group, body)
	if err != nil {
		refuseChange(w, "", console.AsError(err))
		return
	}
	run := console.NewSession(s.c.Backend(), who)
	text := q.Statement.String()
	switch err := run.Permit(q.Statement); {
	case err != nil:
		refuseChange(w, text, console.AsError(err))
	case q.DryRun:
		s.dryRun(w, r, who, q.Statement)
	case q.Risky && !n.proved(s.sessions.now()):
		s.c.Note(who, q.Statement.Redacted(), 0, errProof)
		refuseChange(w, text, errProof)
	default:
		c := newCourse(q.Statement, s.c.Status(), time.Now())
		doc := Deed{Change: name, User: who.User, Statement: q.Statement.Redacted(), Steps: c.all()}
		d, fresh, refused := s.deeds.begin(doc, key, sha256.Sum256(append([]byte(name+"\x00"), body...)), boottime.Now())
		if refused != nil {
			refuseChange(w, text, refused)
			return
		}
		if fresh {
			s.start(r.Context(), d, c, func(ctx context.Context) (console.Result, error) { return run.Execute(ctx, q.Statement) })
		}
		s.answerDeed(w, r, d)
	}
}

// asked reads what every request of a change has: a key of its own, in a header that neither a form nor a page of
// another origin can send, an Origin that is this port's, and a body of JSON.
func (s *Server) asked(w http.ResponseWriter, r *http.Request) (key string, body []byte, ok bool) {
	if s.c.LooksOnly {
		refuseChange(w, "", errLooksOnly)
		return "", nil, false
	}
	key = r.Header.Get("Idempotency-Key")
	if key == "" || len(key) > maxKey || strings.ContainsFunc(key, func(c rune) bool { return c < '!' || c > '~' }) {
		refuse(w, http.StatusBadRequest, &console.Error{State: "22023", Message: fmt.Sprintf("a change has an Idempotency-Key: a header with up to %d letters, digits and signs, new for each change", maxKey)})
		return "", nil, false
	}
	if !fromHere(r) {
		refuse(w, http.StatusForbidden, &console.Error{State: "42501", Message: "the request comes from a page of another origin"})
		return "", nil, false
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, &console.Error{State: "22023", Message: "the body must be application/json"})
		return "", nil, false
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		code := http.StatusBadRequest
		if errors.As(err, new(*http.MaxBytesError)) {
			code = http.StatusRequestEntityTooLarge
		}
		refuse(w, code, &console.Error{State: "22023", Message: "the body cannot be read: " + err.Error()})
		return "", nil, false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the rest takes as long as the change does
	return key, body, true
}

// fromHere reports whether a request comes from a page of this port, or from no page.
func fromHere(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	from := r.Header.Get("Origin")
	if from == "" {
		return true
	}
	u, err := url.Parse(from)
	return err == nil && u.Scheme == "https" && u.Host == r.Host
}

// nowMay returns the user of a session with the privilege that its role has at this moment. Where no replica can be
// asked the last answer counts, as long as the group has no primary: until there is one no role changes.
func (s *Server) nowMay(w http.ResponseWriter, r *http.Request, n *session) (console.Principal, bool) {
	if !spend(s.deeds.asks, n.who.User, n.may()) {
		refuseChange(w, "", errTooFast)
		return console.Principal{}, false
	}
	now, err := s.look(r.Context(), n.who.User)
	switch {
	case err != nil && s.c.Status().WriteOpen:
		s.c.Logger.Warn("a change in the browser was refused: its role could not be looked up", "user", n.who.User, "err", err)
		refuse(w, http.StatusServiceUnavailable, &console.Error{State: "57P03", Message: "the role cannot be looked up now, and without that nothing is changed", Hint: "Try again. coterie sql on a node needs no role."})
		return console.Principal{}, false
	case err == nil && !s.sessions.confirm(n, now):
		s.c.Logger.Info("console session in the browser ended: its role may not log in any more, or has another password", "user", n.who.User)
		s.sessions.close(n)
		refuse(w, http.StatusUnauthorized, &console.Error{State: "28000", Message: "the role may not log in any more, or its password has changed"})
		return console.Principal{}, false
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	return console.Principal{User: n.who.User, May: min(n.may(), ddl.MayAdminister), Via: console.ViaAPI, From: from}, true
}

// start runs a change beside the request, which may end before it does.
func (s *Server) start(ctx context.Context, d *deed, c *course, run func(context.Context) (console.Result, error)) {
	if !s.begin() { // the server ends
		s.deeds.drop(d)
		d.end(console.Result{}, context.Canceled, nil)
		close(d.done)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deedTime)
	s.tell(d)
	go func() {
		defer s.running.Done()
		defer cancel()
		ended := make(chan struct{})
		go func() { defer close(ended); s.follow(ctx, cancel, d, c) }()
		defer func() { cancel(); <-ended; s.tell(d); close(d.done) }()
		var r console.Result
		err := error(errBug)
		s.caught("a change", func() { r, err = run(ctx) })
		d.end(r, err, func() { s.caught("following a change", func() { c.see(s.c.Status(), time.Now()) }) })
	}()
}

// errBug is the end of a change that panicked.
var errBug = &console.Error{State: "XX000", Message: "the change failed by a bug; the node's log has the details"}

// newID returns the id of a change, which is no secret.
func newID() string { return strings.ToLower(rand.Text()[:16]) }

// end keeps how the change ended, after a last look at its steps; nil: there is none.
func (d *deed) end(r console.Result, err error, look func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if look != nil {
		look()
	}
	d.doc.Ended, d.doc.State, d.doc.Now = time.Now().UTC(), deedDone, ""
	d.doc.Notices, d.doc.Message = r.Notices, r.Tag+": done"
	if len(r.Notices) > 0 {
		d.doc.Message = r.Notices[0].Message
	}
	if err != nil {
		e := console.AsError(err)
		d.doc.State, d.doc.Error, d.doc.Message, d.doc.Number = deedFailed, e, e.Message, e.Number
	}
}

// follow sends the progress of a change to the streams until it has ended, and ends it with the server.
func (s *Server) follow(ctx context.Context, cancel func(), d *deed, c *course) {
	t := time.NewTicker(deedLook)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ending:
			cancel()
			return
		case <-t.C:
		}
		changed := false
		s.caught("following a change", func() { changed = d.look(c, s.c.Status()) })
		if changed {
			s.tell(d)
		}
	}
}

// look takes what is known now of a change under way, and reports whether that is news.
func (d *deed) look(c *course, st api.Status) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c == nil || d.doc.State != deedRunning {
		return false
	}
	now := c.doing(st)
	changed := c.see(st, time.Now()) || now != d.doc.Now
	d.doc.Now = now
	return changed
}

// tell sends a change to all streams.
func (s *Server) tell(d *deed) { s.hub.send(deedMessage(d.document())) }

func deedMessage(d Deed) []byte {
	b, err := json.Marshal(d)
	if err != nil {
		b = []byte("{}")
	}
	return message("operation", "", b)
}

// answerDeed answers with the change once it has ended, or with how far it is after a while.
func (s *Server) answerDeed(w http.ResponseWriter, r *http.Request, d *deed) {
	wait := deedWait
	if strings.Contains(r.Header.Get("Prefer"), "respond-async") { // RFC 7240: the events tell how it ends
		wait = 0
	}
	select {
	case <-d.done:
	case <-time.After(wait):
	case <-r.Context().Done():
		return
	}
	doc := d.document()
	switch {
	case doc.Error != nil:
		answer(w, codeOf(doc.Error), doc)
	case doc.State == deedRunning:
		w.Header().Set("Location", "/api/v1/operations/"+doc.ID)
		answer(w, http.StatusAccepted, doc)
	default:
		answer(w, http.StatusOK, doc)
	}
}

// refusal is the document of a change that was not begun.
type refusal struct {
	Statement string         `json:"statement"`
	Message   string         `json:"message"`
	Number    int            `json:"number"`
	Error     *console.Error `json:"error"`
}

func refuseChange(w http.ResponseWriter, statement string, err *console.Error) {
	if err.State == "53300" {
		w.Header().Set("Retry-After", "5")
	}
	answer(w, codeOf(err), refusal{statement, err.Message, err.Number, err})
}

// codes are the HTTP codes of errors, by their SQLSTATE. Every other state says that the group is not as the change
// needs it.
var codes = map[string]int{
	"42501": http.StatusForbidden, "28000": http.StatusForbidden, "42601": http.StatusBadRequest, "22023": http.StatusBadRequest, "0A000": http.StatusBadRequest, "54000": http.StatusBadRequest,
	"42704": http.StatusNotFound, "53300": http.StatusTooManyRequests, "57P03": http.StatusServiceUnavailable, "57014": http.StatusServiceUnavailable, "57P01": http.StatusServiceUnavailable,
	"XX000": http.StatusInternalServerError,
}

func codeOf(err *console.Error) int {
	if err == errOtherBody {
		return http.StatusUnprocessableEntity
	}
	if code, ok := codes[err.State]; ok {
		return code
	}
	return http.StatusConflict
}

// Trial is the document of a failover that is only tried.
type Trial struct {
	DryRun    bool             `json:"dry_run"`
	Statement string           `json:"statement"`
	Message   string           `json:"message"`
	Number    int              `json:"number"`
	From      ag.ReplicaID     `json:"from"`
	To        ag.ReplicaID     `json:"to"`
	Sessions  int              `json:"sessions"` // that would move
	Ending    []ag.SessionMove `json:"ending"`   // sessions that would end; not more than trialSessions
	Ends      int              `json:"ends"`     // how many those are
	Waits     int              `json:"waits"`    // sessions that are busy, and would be waited for
	// Synchronized: the target has every acknowledged commit. Otherwise BehindBytes, if it is known, is what it had not
	// received when it was heard last.
	Synchronized bool   `json:"synchronized"`
	BehindBytes  *int64 `json:"behind_bytes"`
}

// trialSessions is how many sessions that would end a Trial names.
const trialSessions = 100

// dryRun answers what a failover would do.
func (s *Server) dryRun(w http.ResponseWriter, r *http.Request, who console.Principal, st ddl.Statement) {
	leave, ok := s.trials.enter(who.User)
	if !ok {
		refuseChange(w, st.String(), errTooMany)
		return
	}
	defer leave()
	f, _ := st.Action.(ddl.Failover)
	ctx, cancel := context.WithTimeout(r.Context(), deedWait)
	defer cancel()
	found, err := s.c.Try(ctx, api.FailoverRequest{To: ddl.ReplicaID(f.To), AllowDataLoss: f.Force, Now: f.Now, DryRun: true})
	if err != nil {
		refuseChange(w, st.String(), console.AsError(err))
		return
	}
	t := Trial{DryRun: true, Statement: st.String(), From: found.From, To: found.To, Ending: []ag.SessionMove{}}
	for _, m := range found.Sessions {
		switch {
		case m.Why == "":
			t.Sessions++
			continue
		case m.Waits:
			t.Waits++
			continue
		case len(t.Ending) < trialSessions:
			t.Ending = append(t.Ending, m)
		}
		t.Ends++
	}
	for _, x := range s.c.Status().Replicas {
		if x.Name == found.To {
			t.Synchronized, t.BehindBytes = x.Sync == ag.Synchronized, x.LagBytes
		}
	}
	t.Message = fmt.Sprintf("%s would hand over to %s: %d sessions would move, %d are busy and would be waited for, %d would end; nothing acknowledged would be lost", t.From, t.To, t.Sessions, t.Waits, t.Ends)
	if f.Force {
		t.Message = fmt.Sprintf("%s would lead without asking %s: what %s has not received is lost, every session ends, and the other copies stay suspended", t.To, t.From, t.To)
	}
	answer(w, http.StatusOK, t)
}

// listDeeds answers with the changes that were asked for on this node lately.
func (s *Server) listDeeds(w http.ResponseWriter, _ *http.Request, _ *session) {
	answer(w, http.StatusOK, s.deeds.all())
}

// oneDeed answers with a change.
func (s *Server) oneDeed(w http.ResponseWriter, r *http.Request, _ *session) {
	for _, d := range s.deeds.all() {
		if d.ID == r.PathValue("id") {
			answer(w, http.StatusOK, d)
			return
		}
	}
	refuse(w, http.StatusNotFound, &console.Error{State: "42704", Message: "this node knows of no such change", Hint: "SELECT * FROM coterie.audit"})
}

// prove takes the password of a session's user once more.
func (s *Server) prove(w http.ResponseWriter, r *http.Request, n *session) {
	var in struct {
		Password string `json:"password"`
	}
	if !readJSON(w, r, &in) {
		return
	}
	who, ok := s.checkPassword(w, r, n.who.User, in.Password)
	if !ok {
		return
	}
	if !s.sessions.confirm(n, who) {
		s.sessions.close(n)
		refuse(w, http.StatusUnauthorized, &console.Error{State: "28000", Message: "the role may not log in any more, or its password has changed"})
		return
	}
	n.prove(s.sessions.now())
	answer(w, http.StatusOK, s.who(n))
}

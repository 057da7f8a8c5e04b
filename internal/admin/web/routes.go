package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// policy is the Content-Security-Policy of every answer but the page's beginning, see pagePolicy: scripts, styles and
// data of this port only, nothing inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// headers are those of every answer.
var headers = map[string]string{
	"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
	"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
	"Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

// route is a path of the port. Without public it needs a session.
type route struct {
	method, path string
	public       bool
	serve        func(s *Server, w http.ResponseWriter, r *http.Request, n *session)
}

// routes are all paths of the port but /here and the files of the page. Every other path is refused.
var routes = []route{
	{"POST", "/api/v1/session", true, (*Server).logIn},
	{"GET", "/api/v1/openapi.json", true, (*Server).openAPI},
	{"GET", "/api/v1/session", true, (*Server).whoAmI},
	{"DELETE", "/api/v1/session", false, (*Server).logOut},
	{"GET", "/api/v1/status", false, (*Server).status},
	{"GET", "/api/v1/history", false, (*Server).history},
	{"GET", "/api/v1/seedings", false, (*Server).listSeedings},
	{"GET", "/api/v1/views", false, (*Server).listViews},
	{"GET", "/api/v1/views/{name}", false, (*Server).view},
	{"GET", "/api/v1/events", false, (*Server).events},
	{"POST", "/api/v1/query", false, (*Server).query},
	{"POST", "/api/v1/plan", false, (*Server).plan},
	{"POST", "/api/v1/plan/create", false, (*Server).planGroup},
	{"POST", "/api/v1/session/proof", false, (*Server).prove},
	{"GET", "/api/v1/operations", false, (*Server).listDeeds},
	{"GET", "/api/v1/operations/{id}", false, (*Server).oneDeed},
	{"POST", "/api/v1/create", false, change("create")},
	{"POST", "/api/v1/join", false, change("join")},
	{"POST", "/api/v1/failover", false, change("failover")},
	{"POST", "/api/v1/suspend", false, change("suspend")},
	{"POST", "/api/v1/resume", false, change("resume")},
	{"POST", "/api/v1/maintenance", false, change("maintenance")},
	{"GET", "/api/v1/options", false, (*Server).listOptions},
	{"POST", "/api/v1/options", false, change("options")},
	{"POST", "/api/v1/routing", false, change("routing")},
	{"POST", "/api/v1/seed", false, change("seed")},
	{"POST", "/api/v1/cancel-seed", false, change("cancel-seed")},
	{"POST", "/api/v1/remove", false, change("remove")},
	{"POST", "/api/v1/token", false, (*Server).token},
}

// routed returns the handler of the port.
func (s *Server) routed() http.Handler {
	mux := http.NewServeMux()
	for _, x := range routes {
		h := s.private(x)
		if x.public {
			h = func(w http.ResponseWriter, r *http.Request) { x.serve(s, w, r, nil) }
		}
		mux.HandleFunc(x.method+" "+x.path, h)
	}
	mux.HandleFunc("GET /here", here)
	mux.HandleFunc("GET /", s.page)
	foreign := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer s.running.Done()
		for name, value := range headers {
			w.Header().Set(name, value)
		}
		if err := foreign.Check(r); err != nil || asksFromElsewhere(r) {
			refuse(w, http.StatusForbidden, &console.Error{State: "42501", Message: "the request comes from a page of another origin"})
			return
		}
		if s.sessionOf(r) == nil && !s.strangers.serves(r) {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, &console.Error{State: "53300", Message: "too many requests without a session", Hint: "Try again in a moment."})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if _, pattern := mux.Handler(r); pattern == "" {
			unserved(mux, w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// unserved answers a request that no path takes: with the methods of its path, or that there is no such path.
func unserved(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		other := *r
		other.Method = method
		_, pattern := mux.Handler(&other)
		if name := r.URL.Path; pattern == "GET /" && name != "/" && files()[name].kind == "" {
			continue // the page has no such file
		}
		if pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		refuse(w, http.StatusNotFound, &console.Error{State: "42704", Message: "there is nothing at this path", Hint: "/api/v1/openapi.json lists the paths of the API."})
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	refuse(w, http.StatusMethodNotAllowed, &console.Error{State: "42601", Message: "this path does not take " + r.Method, Hint: "It takes " + strings.Join(allowed, ", ") + "."})
}

// asksFromElsewhere reports whether a page of another origin, on another port of this host too, asks the API. Such a
// page could read no answer, but hold the requests and streams of the session whose cookie its browser sends.
func asksFromElsewhere(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return false
	}
	return strings.HasPrefix(r.URL.Path, "/api/")
}

// private wraps a path that needs a session: its request counts against the session's limits, and its role is looked up
// again when the last answer is old.
func (s *Server) private(x route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := s.sessionOf(r)
		if n == nil {
			refuse(w, http.StatusUnauthorized, &console.Error{State: "28000", Message: "log in first", Hint: "POST /api/v1/session"})
			return
		}
		leave, ok := s.sessions.enter(n)
		if !ok {
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusTooManyRequests, &console.Error{State: "53300", Message: fmt.Sprintf("this session has %d requests under way, or sends more than %.0f a second", maxAtOnce, eachRequests.PerSecond)})
			return
		}
		defer leave()
		if !s.mayStay(r.Context(), n) {
			refuse(w, http.StatusUnauthorized, &console.Error{State: "28000", Message: "the role may not log in any more, its password has changed, or its certificate is not good any more"})
			return
		}
		x.serve(s, w, r, n)
	}
}

// mayStay reports whether the role of a session may still log in, has the same password, and a good certificate if it
// began with one, by an answer that is not old. If not, the session is ended.
func (s *Server) mayStay(ctx context.Context, n *session) bool {
	if !s.sessions.due(n) {
		return true
	}
	if !s.certified(n.chains) {
		s.c.Logger.Info("console session in the browser ended: its certificate has expired, is revoked, or has no authority any more", "user", n.who.User)
		s.sessions.close(n)
		return false
	}
	who, err := s.look(ctx, n.who.User)
	if err != nil || s.sessions.confirm(n, who) {
		return true
	}
	s.c.Logger.Info("console session in the browser ended: its role may not log in any more, or has another password", "user", n.who.User)
	s.sessions.close(n)
	return false
}

// look asks what a role has now. It ends with the server, and not with the request, whose client could have it fail by
// that.
func (s *Server) look(ctx context.Context, user string) (Account, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTime)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		select {
		case <-s.ending:
			cancel()
		case <-ctx.Done():
		}
	})
	return s.c.Look(ctx, user)
}

// Login is the document about a session.
type Login struct {
	User    string    `json:"user"`
	Role    string    `json:"role"`
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
	// LooksOnly: this node changes nothing. It is a witness.
	LooksOnly bool `json:"looks_only,omitempty"`
	// ByCertificate: the session began with a certificate, and can be used only with it.
	ByCertificate bool `json:"by_certificate,omitempty"`
	// CertificateExpires is the end of the certificate of this port.
	CertificateExpires time.Time `json:"certificate_expires,omitzero"`
}

func (s *Server) who(n *session) Login {
	w := Login{User: n.who.User, Role: console.RoleFor(n.may()), Node: string(s.c.Self), Expires: n.began.Add(lifetime), ByCertificate: len(n.chains) > 0, LooksOnly: s.c.LooksOnly}
	if n.may() > ddl.MayAdminister {
		w.Role = "superuser"
	}
	if c := s.c.Certificate(); c != nil && c.Leaf != nil {
		w.CertificateExpires = c.Leaf.NotAfter
	}
	return w
}

func (s *Server) logIn(w http.ResponseWriter, r *http.Request, _ *session) {
	var in struct {
		User     string `json:"user"`
		Password string `json:"password"`
	}
	if !readJSON(w, r, &in) {
		return
	}
	who, ok := s.checkPassword(w, r, in.User, in.Password)
	if !ok {
		return
	}
	if who.May < ddl.MayLook {
		refuse(w, http.StatusForbidden, &console.Error{State: "42501", Message: "the console needs the role coterie_viewer", Hint: "GRANT coterie_viewer TO " + pgx.Identifier{in.User}.Sanitize()})
		return
	}
	if old := s.sessionOf(r); old != nil {
		s.sessions.close(old)
	}
	n, secret, ok := s.sessions.open(who, chainsOf(r))
	if !ok {
		refuse(w, http.StatusServiceUnavailable, &console.Error{State: "53300", Message: fmt.Sprintf("this node's console has %d sessions in browsers", maxSessions), Hint: "Log out elsewhere, or open the console of another member."})
		return
	}
	s.c.Logger.Info("console opened in a browser", "user", who.User, "client", r.RemoteAddr, "certificate", serialOf(n))
	s.strangers.loggedIn(r)
	s.setCookie(w, secret)
	answer(w, http.StatusOK, s.who(n))
}

// checkPassword checks a password, or the certificate of the connection, as the listener does, and answers a login that
// is refused.
func (s *Server) checkPassword(w http.ResponseWriter, r *http.Request, user, password string) (who Account, ok bool) {
	from, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	client, err := net.ResolveTCPAddr("tcp", r.RemoteAddr)
	if !ok || from == nil || err != nil || user == "" || len(user) > 63 || len(password) > 1024 {
		refuse(w, http.StatusBadRequest, &console.Error{State: "22023", Message: "a login has a user of at most 63 bytes and a password of at most 1024"})
		return Account{}, false
	}
	if !s.certified(chainsOf(r)) {
		w.Header().Set("Connection", "close") // the next one asks for the certificate anew
		refuse(w, http.StatusUnauthorized, &console.Error{State: "28000", Message: "the certificate of this connection has expired, is revoked, or has no authority any more"})
		return Account{}, false
	}
	select {
	case s.logins <- struct{}{}:
		defer func() { <-s.logins }()
	case <-r.Context().Done():
		return Account{}, false
	case <-time.After(readTime):
		refuse(w, http.StatusTooManyRequests, &console.Error{State: "53300", Message: "too many logins are under way", Hint: "Try again in a moment."})
		return Account{}, false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the rest takes as long as the check does
	ctx, cancel := context.WithTimeout(r.Context(), writeTime/2)
	defer cancel()
	if who, err = s.c.LogIn(ctx, Attempt{User: user, Password: password, Client: client, Certificate: certificateOf(r)}); err != nil {
		refuseLogin(w, err)
		return Account{}, false
	}
	return who, true
}

// refuseLogin answers a login that failed.
func refuseLogin(w http.ResponseWriter, err error) {
	bad, ok := pgwire.AsError(err)
	if !ok {
		refuse(w, http.StatusServiceUnavailable, &console.Error{State: "57P03", Message: "the login took too long", Hint: "Try again in a moment."})
		return
	}
	code := http.StatusUnauthorized
	switch bad.Code {
	case pgwire.StateTooMany:
		w.Header().Set("Retry-After", "2")
		code = http.StatusTooManyRequests
	case pgwire.StateCannotConnect:
		code = http.StatusServiceUnavailable
	}
	refuse(w, code, &console.Error{State: bad.Code, Message: bad.Message, Hint: bad.Hint})
}

// whoAmI answers with nothing where there is no session: a page that opens asks for it, and that is no error.
func (s *Server) whoAmI(w http.ResponseWriter, r *http.Request, _ *session) {
	n := s.sessionOf(r)
	if s.c.LooksOnly { // the page asks for no password: the thief of a witness would collect them
		w.Header().Set("Coterie-Login", "certificate")
	}
	if n == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, http.StatusOK, s.who(n))
}

func (s *Server) logOut(w http.ResponseWriter, _ *http.Request, n *session) {
	s.sessions.close(n)
	s.setCookie(w, "")
	w.WriteHeader(http.StatusNoContent)
}

// readJSON reads the body of a request, and answers one that is none. A form of another page cannot send JSON.
func readJSON(w http.ResponseWriter, r *http.Request, into any) bool {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, &console.Error{State: "22023", Message: "the body must be application/json"})
		return false
	}
	// The whole body is read here, within the time for it: a server reads the rest of one before it answers.
	text, err := io.ReadAll(r.Body)
	if err == nil {
		err = decodeOne(text, into)
	}
	if err != nil {
		code := http.StatusBadRequest
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			code = http.StatusRequestEntityTooLarge
		}
		refuse(w, code, &console.Error{State: "22023", Message: "the body is not the JSON that is expected: " + err.Error()})
		return false
	}
	return true
}

// decodeOne reads JSON that is one value with the fields of into.
func decodeOne(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows it")
	}
	return nil
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // it fails only if the client has gone
}

// problem is the document of an error.
type problem struct {
	Error *console.Error `json:"error"`
}

func refuse(w http.ResponseWriter, code int, err *console.Error) { answer(w, code, problem{err}) }

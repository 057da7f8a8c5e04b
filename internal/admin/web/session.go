package web

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Bounds of sessions.
const (
	maxSessions  = 64 // of all roles
	keptSessions = 8  // of these, kept for roles that may change something
	roleSessions = 8  // of one role
	lifetime     = 12 * time.Hour
	idleSession  = time.Hour
	lookEvery    = time.Minute // how old the answer may be that the role may still log in
	maxLogins    = 128         // at once; twice what one address has connections
	maxAtOnce    = 8           // requests of one session, its streams not counted
)

// Requests of one session, and of all.
var (
	eachRequests = admission.Rate{PerSecond: 20, Burst: 100}
	allRequests  = admission.Rate{PerSecond: 400, Burst: 2000}
	refusalLines = admission.Rate{PerSecond: 0.2, Burst: 10} // in the log
)

// key is the hash of the secret in a cookie.
type key [sha256.Size]byte

// session is a login of a browser. Its secret is in the browser's cookie only.
type session struct {
	id    key
	who   Account
	began time.Time
	ended chan struct{} // closed at its end
	// chains are those of the certificate that the client gave at its login; nil: it gave none.
	chains [][]*x509.Certificate

	mu      sync.Mutex // guards the fields below
	used    time.Time
	looked  time.Time     // when the role was last looked up
	allowed ddl.Privilege // of the role, by the last answer
	proof   time.Time     // when the user last gave the password
	running int
	streams int
}

// sessions are the logins of a node.
type sessions struct {
	now    func() time.Time
	budget *admission.Budget

	mu   sync.Mutex // guards live
	live map[key]*session

	full, busy, fast atomic.Uint64
}

func newSessions(now func() time.Time) *sessions {
	return &sessions{now: now, budget: admission.NewBudget(eachRequests, allRequests, 2*maxSessions), live: map[key]*session{}}
}

// open makes a session and returns it with its secret. The oldest session of a role that has its number of them ends.
// It reports false if all places are taken.
func (s *sessions) open(who Account, chains [][]*x509.Certificate) (n *session, secret string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	var oldest *session
	mine := 0
	for _, x := range s.live {
		if s.over(x, now) {
			s.end(x)
			continue
		}
		if x.who.User == who.User {
			if mine++; oldest == nil || x.began.Before(oldest.began) {
				oldest = x
			}
		}
	}
	if mine >= roleSessions {
		s.end(oldest)
	}
	if len(s.live) >= placesFor(who.May, maxSessions, keptSessions) {
		s.full.Add(1)
		return nil, "", false
	}
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	secret = base64.RawURLEncoding.EncodeToString(b[:])
	n = &session{id: sha256.Sum256([]byte(secret)), who: who, began: now, used: now, looked: now, proof: now, allowed: who.May, ended: make(chan struct{}), chains: chains}
	s.live[n.id] = n
	return n, secret, true
}

// find returns the session of a secret; nil if there is none any more.
func (s *sessions) find(secret string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.live[sha256.Sum256([]byte(secret))]
	if n != nil && s.over(n, s.now()) {
		s.end(n)
		return nil
	}
	return n
}

func (s *sessions) over(n *session, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return now.Sub(n.began) > lifetime || n.streams == 0 && now.Sub(n.used) > idleSession
}

// end ends a session; mu is held.
func (s *sessions) end(n *session) {
	if _, ok := s.live[n.id]; ok {
		delete(s.live, n.id)
		close(n.ended)
	}
}

// close ends a session.
func (s *sessions) close(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(n)
}

func (s *sessions) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.live)
}

// refused counts what was refused, by the limit.
func (s *sessions) refused() map[string]uint64 {
	return map[string]uint64{"sessions": s.full.Load(), "at_once": s.busy.Load(), "rate": s.fast.Load()}
}

// enter begins a request of the session. It reports false if too many are under way or come too fast. The caller calls
// leave at its end.
func (s *sessions) enter(n *session) (leave func(), ok bool) {
	if !spend(s.budget, string(n.id[:]), n.may()) {
		s.fast.Add(1)
		return nil, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running >= maxAtOnce {
		s.busy.Add(1)
		return nil, false
	}
	n.running++
	n.used = s.now()
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.running--
		n.used = s.now()
	}, true
}

// placesFor returns how many of all places may be taken when one is asked for by a role that may do that: those that
// are kept are not for roles that may only look, so that these never keep out one that may change something.
func placesFor(may ddl.Privilege, all, kept int) int {
	if may < ddl.MayOperate {
		return all - kept
	}
	return all
}

// spend takes a request from a budget, whose limit of all does not bind a role that may change something.
func spend(b *admission.Budget, key string, may ddl.Privilege) bool {
	if may < ddl.MayOperate {
		b.Forget(key)
	} else {
		b.Succeeded(key, 0)
	}
	return b.Spend(key, 1, boottime.Now())
}

// confirm takes an answer about a session's role. It reports false if the role may not log in, or has another password.
func (s *sessions) confirm(n *session, now Account) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.May < ddl.MayLook || now.Verifier != n.who.Verifier {
		return false
	}
	n.allowed = now.May
	return true
}

// may returns the privilege that the session's role had when it was last looked up.
func (n *session) may() ddl.Privilege {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.allowed
}

// prove keeps that the user has given the password.
func (n *session) prove(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.proof = now
}

// proved reports whether the user has given the password lately.
func (n *session) proved(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return now.Sub(n.proof) < proofLife
}

// due reports whether the session's role is to be looked up again, and has others not do the same.
func (s *sessions) due(n *session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := s.now()
	if now.Sub(n.looked) < lookEvery {
		return false
	}
	n.looked = now
	return true
}

// cookieName names the cookie of this node: a host may have several, and a cookie is sent to all ports of a host.
func (s *Server) cookieName() string { return "__Host-coterie-" + string(s.c.Self) }

// setCookie gives the browser a secret; "" takes it back.
func (s *Server) setCookie(w http.ResponseWriter, secret string) {
	c := &http.Cookie{Name: s.cookieName(), Value: secret, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: int(lifetime.Seconds())}
	if secret == "" {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// sessionOf returns the session of a request; nil if it has none.
func (s *Server) sessionOf(r *http.Request) *session {
	c, err := r.Cookie(s.cookieName())
	if err != nil {
		return nil
	}
	n := s.sessions.find(c.Value)
	if n == nil || !n.bound(r) {
		return nil
	}
	return n
}

// tlsConfig returns the port's. A client is asked for a certificate only while the node has authorities for them; one
// that may not be used ends the handshake, as at the client ports.
func (s *Server) tlsConfig() *tls.Config {
	base := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if c := s.c.Certificate(); c != nil {
				return c, nil
			}
			return nil, errors.New("this node has no certificate for clients yet")
		},
	}
	config := base.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !s.strangers.greets(hello.Conn.RemoteAddr()) {
			return nil, errors.New("too many handshakes")
		}
		authorities := s.c.ClientCAs()
		if authorities == nil {
			return nil, nil //nolint:nilnil // the configuration as it is
		}
		asking := base.Clone()
		asking.ClientAuth, asking.ClientCAs, asking.VerifyConnection = tls.VerifyClientCertIfGiven, authorities, s.verifyClient
		return asking, nil
	}
	return config
}

// verifyClient ends the handshake of a client whose certificate may not be used. Its chain is verified already.
func (s *Server) verifyClient(t tls.ConnectionState) error {
	if len(t.VerifiedChains) == 0 {
		return nil // it gave none
	}
	err := s.c.CheckClient(t.VerifiedChains)
	if err != nil && s.refusals.Spend("", 1, boottime.Now()) {
		s.c.Logger.Info("client certificate refused at the HTTPS port", "error", err)
	}
	return err
}

// chainsOf returns the verified chains of the client's certificate; nil if it gave none.
func chainsOf(r *http.Request) [][]*x509.Certificate {
	if r.TLS == nil {
		return nil
	}
	return r.TLS.VerifiedChains
}

// certificateOf returns the client's certificate; nil if it gave none.
func certificateOf(r *http.Request) *x509.Certificate {
	if chains := chainsOf(r); len(chains) > 0 {
		return chains[0][0]
	}
	return nil
}

// bound reports whether a request may use the session: one that began with a certificate is of no use without it.
func (n *session) bound(r *http.Request) bool {
	if len(n.chains) == 0 {
		return true
	}
	c := certificateOf(r)
	return c != nil && c.Equal(n.chains[0][0])
}

// certified reports whether a certificate with these chains, if there is one, is good now. A connection may be much
// older than the authorities and the lists of revoked certificates.
func (s *Server) certified(chains [][]*x509.Certificate) bool {
	if len(chains) == 0 {
		return true
	}
	authorities := s.c.ClientCAs()
	if authorities == nil {
		return false
	}
	between := x509.NewCertPool()
	for _, chain := range chains {
		for _, c := range chain[1:] {
			between.AddCert(c)
		}
	}
	now, err := chains[0][0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil && s.c.CheckClient(now) == nil
}

// serialOf returns the serial number of the session's certificate for the log; "" without one.
func serialOf(n *session) string {
	if len(n.chains) == 0 {
		return ""
	}
	return n.chains[0][0].SerialNumber.Text(16)
}

// Work for callers that have no session, of one address and of all. The agent is in this process, and on a witness
// a vote: a caller that reaches the port must not be able to take the processor from them.
var (
	eachHandshakes = admission.Rate{PerSecond: 64, Burst: 256}
	allHandshakes  = admission.Rate{PerSecond: 256, Burst: 1024}
	eachStrangers  = admission.Rate{PerSecond: 100, Burst: 1000}
	allStrangers   = admission.Rate{PerSecond: 1000, Burst: 5000}
)

// rememberedAddresses is how many addresses are told apart.
const rememberedAddresses = 1024

// strangers are the budgets of callers that have no session. An address from which somebody has logged in is not
// subject to the limits of all.
type strangers struct{ handshakes, requests *admission.Budget }

func newStrangers() strangers {
	return strangers{
		admission.NewBudget(eachHandshakes, allHandshakes, rememberedAddresses), admission.NewBudget(eachStrangers, allStrangers, rememberedAddresses),
	}
}

// greets reports whether a TLS handshake with this address may go on.
func (s strangers) greets(from net.Addr) bool {
	return s.handshakes.Spend(admission.Key(from), 1, boottime.Now())
}

// serves reports whether a request without a session may be answered.
func (s strangers) serves(r *http.Request) bool {
	return s.requests.Spend(addressOf(r), 1, boottime.Now())
}

// loggedIn notes that somebody has logged in from the address of the request.
func (s strangers) loggedIn(r *http.Request) {
	s.handshakes.Succeeded(addressOf(r), 1)
	s.requests.Succeeded(addressOf(r), 1)
}

// addressOf returns the key under which the client of a request is counted.
func addressOf(r *http.Request) string {
	a, err := net.ResolveTCPAddr("tcp", r.RemoteAddr) // a literal: nothing is asked
	if err != nil {
		return ""
	}
	return admission.Key(a)
}

package listener

import (
	"context"
	"crypto/md5" //nolint:gosec // the md5 method of PostgreSQL, only where a rule and a verifier ask for it
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

// Kinds of authentication request.
const (
	authOK        = 0
	authMD5       = 5
	authSASL      = 10
	authSASLMore  = 11
	authSASLFinal = 12
)

// passwordFailure returns the one answer to every login whose user or password is wrong. The log has which. A login
// that no rule admits is answered by noRule.
func passwordFailure(user string) *pgwire.Error {
	return pgwire.Fatal("password", pgwire.StateInvalidPassword, "password authentication failed for user %q", user)
}

// authenticate runs the rule's method with the client. role is what the node that will run the session knows; it may
// be empty for methods that need none. AuthenticationOk is not sent.
func (c *client) authenticate(rule hba.Rule, role Role) error {
	if bad := c.checkCertificate(rule); bad != nil {
		return bad
	}
	switch rule.Method {
	case hba.MethodTrust, hba.MethodCert:
		return nil
	case hba.MethodPeer:
		return c.checkPeer()
	case hba.MethodSCRAM, hba.MethodMD5:
		why := c.checkPassword(rule.Method, role)
		if why == nil {
			c.srv.guesses.Succeeded(c.guessKey())
			return nil
		}
		if _, ok := pgwire.AsError(why); ok {
			return why
		}
		if !errors.Is(why, scram.ErrBadProof) {
			return why
		}
		c.failedLogin(why.Error())
		return passwordFailure(c.start.User)
	default:
		return pgwire.Fatal("rule", pgwire.StateInvalidAuth, "authentication method %q is not available", string(rule.Method))
	}
}

// checkPassword has the client prove that it knows the password. A role without a usable verifier goes through the
// whole exchange, too.
func (c *client) checkPassword(method hba.Method, role Role) error {
	if method == hba.MethodMD5 && strings.HasPrefix(role.Password, "md5") && len(role.Password) == 35 {
		if c.tlsState == nil && !c.near() && !c.srv.cfg.AllowPlainMD5 {
			c.log.Warn("md5 login refused: it needs TLS", "user", c.start.User)
		} else {
			return c.checkMD5(role)
		}
	}
	verifier, ok := scram.ParseVerifier(role.Password)
	if !ok || !role.Found || !role.CanLogin {
		verifier = scram.MockVerifier(c.srv.cfg.MockSecret(), c.start.User, role.Rounds)
	}
	return c.exchangeSCRAM(verifier, role)
}

// checkValidUntil fails if the role's password has expired.
func checkValidUntil(role Role) error {
	if !role.ValidUntil.IsZero() && time.Now().After(role.ValidUntil) {
		return errExpired
	}
	return nil
}

// errExpired is a failed proof to the client, and a reason of its own in the log.
var errExpired = &expiredError{}

type expiredError struct{}

func (*expiredError) Error() string        { return "the password is no longer valid (VALID UNTIL)" }
func (*expiredError) Is(target error) bool { return target == scram.ErrBadProof }

// exchangeSCRAM runs a SCRAM exchange. The last message is kept for the next write.
func (c *client) exchangeSCRAM(verifier scram.Verifier, role Role) error {
	s := &scram.Exchange{Verifier: verifier, Binding: c.binding}
	mechanisms := pgwire.AppendCString(nil, scram.Mechanism)
	if s.Binding != nil {
		mechanisms = append(pgwire.AppendCString(nil, scram.MechanismPlus), mechanisms...)
	}
	if err := c.send(pgwire.AppendAuth(nil, authSASL, append(mechanisms, 0))); err != nil {
		return err
	}
	body, err := c.response()
	if err != nil {
		return err
	}
	mechanism, message, given, ok := splitInitial(body)
	switch {
	case ok && mechanism == scram.Mechanism:
	case ok && mechanism == scram.MechanismPlus && s.Binding != nil:
		s.Plus = true
	default:
		return pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "client selected an invalid SASL authentication mechanism")
	}
	if !given { // RFC 4422: the client speaks first, and has to be asked
		if err := c.send(pgwire.AppendAuth(nil, authSASLMore, nil)); err != nil {
			return err
		}
		if body, err = c.response(); err != nil {
			return err
		}
		message = string(body)
	}
	reply, err := s.First(message)
	if err != nil {
		return malformed(err)
	}
	if err := c.send(pgwire.AppendAuth(nil, authSASLMore, []byte(reply))); err != nil {
		return err
	}
	if body, err = c.response(); err != nil {
		return err
	}
	if reply, err = s.Final(string(body)); err != nil {
		if verifier.Mock && errors.Is(err, scram.ErrBadProof) {
			return &mockError{}
		}
		return malformed(err)
	}
	if err := checkValidUntil(role); err != nil {
		return err
	}
	c.withNext = pgwire.AppendAuth(c.withNext, authSASLFinal, []byte(reply))
	return nil
}

// mockError is a failed proof that is caused by the role, not by the password.
type mockError struct{}

func (*mockError) Error() string {
	return "the role is unknown, has no usable password or may not log in"
}
func (*mockError) Is(target error) bool { return target == scram.ErrBadProof }

// malformed turns a violation of the exchange into the client's error. A failed proof is returned as it is.
func malformed(err error) error {
	if errors.Is(err, scram.ErrMalformed) {
		return pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "%s", err.Error())
	}
	return err
}

// splitInitial reads a SASLInitialResponse: mechanism, length, message. given is false if the length is -1: the client
// sends no message yet.
func splitInitial(body []byte) (mechanism, message string, given, ok bool) {
	mechanism, rest, found := strings.Cut(string(body), "\x00")
	if !found || len(rest) < 4 {
		return "", "", false, false
	}
	switch n := int32(binary.BigEndian.Uint32([]byte(rest))); {
	case n == -1 && len(rest) == 4:
		return mechanism, "", false, true
	case n >= 0 && int(n) == len(rest)-4:
		return mechanism, rest[4:], true, true
	}
	return "", "", false, false
}

func (c *client) checkMD5(role Role) error {
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails
	if err := c.send(pgwire.AppendAuth(nil, authMD5, salt[:])); err != nil {
		return err
	}
	body, err := c.response()
	if err != nil {
		return err
	}
	sum := md5.Sum(append([]byte(role.Password[3:]), salt[:]...)) //nolint:gosec // as above
	want := "md5" + hex.EncodeToString(sum[:]) + "\x00"
	if subtle.ConstantTimeCompare([]byte(want), body) != 1 {
		return scram.ErrBadProof
	}
	if !role.CanLogin {
		return &mockError{}
	}
	return checkValidUntil(role)
}

// response reads the client's next authentication message. Any other message is refused, in particular a second
// startup packet.
func (c *client) response() ([]byte, error) {
	c.waits()
	typ, body, err := pgwire.ReadMessage(c.conn, pgwire.MaxResponse)
	c.heard()
	if errors.Is(err, pgwire.ErrProtocol) {
		return nil, pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "invalid authentication message")
	}
	if err != nil {
		return nil, err
	}
	if typ != 'p' {
		return nil, pgwire.Fatal("protocol", pgwire.StateProtocolViolation, "expected an authentication message, got message type %d", typ)
	}
	return body, nil
}

// checkCertificate checks what the rule demands of the client's certificate. The handshake has verified the chain.
func (c *client) checkCertificate(rule hba.Rule) *pgwire.Error {
	if rule.ClientCert == "" {
		return nil
	}
	if c.tlsState == nil || len(c.tlsState.VerifiedChains) == 0 {
		return pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "connection requires a valid client certificate")
	}
	if rule.ClientCert != "verify-full" {
		return nil
	}
	name, err := clientcert.Name(c.tlsState.PeerCertificates[0])
	if err != nil || name != c.start.User {
		reason := fmt.Sprintf("the certificate is for another name, %q", pgwire.Clip(name))
		if err != nil {
			reason = err.Error()
		}
		c.logFailure(reason)
		return pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", c.start.User)
	}
	return nil
}

// near reports whether the client's packets stay on this machine.
func (c *client) near() bool { return c.login.Local || c.login.Addr.IsLoopback() }

// siteFailures is how many logins of one address may fail, whatever their names, before further ones are delayed, and
// siteDelay the first delay then. A name that fails is delayed from its first failure on.
const (
	siteFailures = 20
	siteDelay    = 100 * time.Millisecond
	// mostDelay is the longest delay of an attempt. One that would have to wait longer is refused.
	mostDelay = 5 * time.Second
)

// awaitTurn delays an attempt to log in with a password, by what failed before from its address: with the same name, or
// with any. Failures of other names do not delay a name that has logged in from its address and has no failure of its
// own: the address may be that of a pooler or of a whole network. It delays the attempt and not the answer, so that a
// guesser who hangs up gains nothing. Another client may take the place of one that waits.
func (c *client) awaitTurn(ctx context.Context) error {
	wait, bad := c.srv.nextTry(c.guessKey(), c.siteKey)
	if bad != nil {
		return bad
	}
	if wait == 0 {
		return nil
	}
	c.until = c.until.Add(wait) // not the client's own time
	c.waits()
	defer c.heard()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.slot.taken:
		return tooManyEnter()
	case <-t.C:
		return nil
	}
}

// nextTry returns how long an attempt to log in has to wait, by the key of its name and address and by that of its
// site.
func (s *Server) nextTry(guess, site string) (time.Duration, *pgwire.Error) {
	now := boottime.Now()
	blameless := s.guesses.Blameless(guess, now)
	wait, ok := s.guesses.Begin(guess, now, s.cfg.Limits.FailureDelay, mostDelay)
	if ok && !blameless {
		var more time.Duration
		more, ok = s.sites.Begin(site, now, siteDelay, mostDelay)
		wait = max(wait, more)
	}
	if !ok {
		bad := pgwire.Fatal("guessing", pgwire.StateTooMany, "too many logins from this address have failed")
		bad.Hint = "Try again in a moment."
		return 0, bad
	}
	return wait, nil
}

// guessKey is the key under which failures of this name from this address are counted.
func (c *client) guessKey() string { return c.limitKey + "\x00" + c.start.User }

// failedLogin counts a failed proof of a name, and logs it.
func (c *client) failedLogin(why string) {
	s, now := c.srv, boottime.Now()
	s.guesses.Failed(c.guessKey(), now, s.cfg.Limits.FailureDelay)
	s.sites.Failed(c.siteKey, now, siteDelay)
	c.logFailure(why)
}

// Lines about failed logins in the log, of one address and of all.
var (
	eachFailureLines = admission.Rate{PerSecond: 1, Burst: 20}
	allFailureLines  = admission.Rate{PerSecond: 20, Burst: 200}
)

// logFailure logs why a login failed, and for whom: packaging/fail2ban reads the line. The address comes first, because
// a name is the client's choice. Lines beyond the limit are counted in the next one.
func (c *client) logFailure(why string) {
	s := c.srv
	if !s.failureLines.Spend(c.limitKey, 1, boottime.Now()) {
		s.unlogged.Add(1)
		return
	}
	c.log.Info("login failed", "client", c.host, "user", c.start.User, "database", c.start.Database, "reason", why, "not_logged", s.unlogged.Swap(0))
}

// limitKeysOf returns the keys under which a client is counted and limited. key is its address, or the /64 network of
// an IPv6 address, since one host has all of it. site is its address, or the /48 network, since one customer may have
// all of that.
func limitKeysOf(addr net.Addr, host string) (key, site string) {
	if t, ok := addr.(*net.TCPAddr); ok {
		return admission.Key(t), admission.Site(t)
	}
	return host, host
}

// hostOf returns the client's address without the port.
func hostOf(addr net.Addr) string {
	if t, ok := addr.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("").String()
	}
	return "local"
}

// checkPeer admits the operating system's user of the same name, on a Unix socket.
func (c *client) checkPeer() error {
	refused := pgwire.Fatal("peer", pgwire.StateInvalidAuth, "Peer authentication failed for user %q", c.start.User)
	u, ok := c.raw.(*net.UnixConn)
	if !ok {
		return refused
	}
	sys, err := u.SyscallConn()
	if err != nil {
		return refused
	}
	var cred *unix.Ucred
	var credErr error
	if err := sys.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return refused
	}
	who, err := user.LookupId(strconv.FormatUint(uint64(cred.Uid), 10))
	if err != nil || who.Username != c.start.User {
		c.logFailure(fmt.Sprintf("the peer is another user, uid %d", cred.Uid))
		return refused
	}
	return nil
}

package auth

import (
	"crypto/md5" //nolint:gosec // the md5 method of PostgreSQL, only where a rule and a verifier ask for it
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
)

// Role is what the node that will run a session knows about the role that wants to log in.
type Role struct {
	Found       bool
	Password    string        // pg_authid.rolpassword; empty if none is set
	CanLogin    bool          // rolcanlogin
	ValidUntil  time.Time     // rolvaliduntil; zero = no limit
	Super       bool          // rolsuper
	Replication bool          // rolreplication
	MemberOf    []string      // roles of which it is a member, directly or not
	Rounds      int           // of the verifier that stands in for a missing one; 0 = PostgreSQL's default
	Age         time.Duration // how old these facts may be: 0 on a primary, Server.Age on a secondary
}

// Memberships returns the roles of which rules count the role of that name as a member: itself and those that it was
// granted, or none if it does not exist.
func (r *Role) Memberships(name string) []string {
	if !r.Found {
		return nil
	}
	return append(slices.Clip(r.MemberOf), name)
}

// Kinds of authentication request.
const (
	OK        = 0
	MD5       = 5
	SASL      = 10
	SASLMore  = 11
	SASLFinal = 12
)

// Client is who is to prove who it is.
type Client struct {
	User       string
	TLS        *tls.ConnectionState // nil: none
	Binding    []byte               // for SCRAM-SHA-256-PLUS
	Near       bool                 // its packets stay on this machine
	Raw        net.Conn             // as accepted
	MockSecret func() []byte        // makes the salt of unknown users stable
	// AllowPlainMD5 permits the md5 method without TLS from other hosts.
	AllowPlainMD5 bool
	Send          func([]byte) error     // writes to the client
	Response      func() ([]byte, error) // reads its next authentication message
	Failed        func(why string)       // logs why it failed, where the error does not say so
	Log           *slog.Logger

	last []byte
}

// Prove runs the rule's method with the client. role may be empty for methods that need none. last goes to the client
// before AuthenticationOk. An error for which errors.Is reports scram.ErrBadProof is a wrong password; the client gets
// one that does not say why.
func (c *Client) Prove(rule hba.Rule, role Role) (last []byte, err error) {
	if bad := c.checkCertificate(rule); bad != nil {
		return nil, bad
	}
	switch rule.Method {
	case hba.MethodTrust, hba.MethodCert:
		return nil, nil
	case hba.MethodPeer:
		return nil, c.checkPeer()
	case hba.MethodSCRAM, hba.MethodMD5:
		err := c.checkPassword(rule.Method, role)
		return c.last, err
	default:
		return nil, pgwire.Fatal("rule", pgwire.StateInvalidAuth, "authentication method %q is not available", string(rule.Method))
	}
}

// checkPassword has the client prove that it knows the password. A role without a usable verifier goes through the
// whole exchange, too.
func (c *Client) checkPassword(method hba.Method, role Role) error {
	if method == hba.MethodMD5 && strings.HasPrefix(role.Password, "md5") && len(role.Password) == 35 {
		if c.TLS == nil && !c.Near && !c.AllowPlainMD5 {
			c.Log.Warn("md5 login refused: it needs TLS", "user", c.User)
		} else {
			return c.checkMD5(role)
		}
	}
	verifier, ok := scram.ParseVerifier(role.Password)
	if !ok || !role.Found || !role.CanLogin {
		verifier = scram.MockVerifier(c.MockSecret(), c.User, role.Rounds)
	}
	return c.exchangeSCRAM(verifier, role)
}

// CheckValidUntil fails if the role's password has expired.
func CheckValidUntil(role Role) error {
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

// exchangeSCRAM runs a SCRAM exchange. The last message is kept.
func (c *Client) exchangeSCRAM(verifier scram.Verifier, role Role) error {
	s := &scram.Exchange{Verifier: verifier, Binding: c.Binding}
	mechanisms := pgwire.AppendCString(nil, scram.Mechanism)
	if s.Binding != nil {
		mechanisms = append(pgwire.AppendCString(nil, scram.MechanismPlus), mechanisms...)
	}
	if err := c.Send(pgwire.AppendAuth(nil, SASL, append(mechanisms, 0))); err != nil {
		return err
	}
	body, err := c.Response()
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
		if err := c.Send(pgwire.AppendAuth(nil, SASLMore, nil)); err != nil {
			return err
		}
		if body, err = c.Response(); err != nil {
			return err
		}
		message = string(body)
	}
	reply, err := s.First(message)
	if err != nil {
		return malformed(err)
	}
	if err := c.Send(pgwire.AppendAuth(nil, SASLMore, []byte(reply))); err != nil {
		return err
	}
	if body, err = c.Response(); err != nil {
		return err
	}
	if reply, err = s.Final(string(body)); err != nil {
		if verifier.Mock && errors.Is(err, scram.ErrBadProof) {
			return &mockError{}
		}
		return malformed(err)
	}
	if err := CheckValidUntil(role); err != nil {
		return err
	}
	c.last = pgwire.AppendAuth(c.last, SASLFinal, []byte(reply))
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

func (c *Client) checkMD5(role Role) error {
	var salt [4]byte
	_, _ = rand.Read(salt[:]) // never fails
	if err := c.Send(pgwire.AppendAuth(nil, MD5, salt[:])); err != nil {
		return err
	}
	body, err := c.Response()
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
	return CheckValidUntil(role)
}

// checkCertificate checks what the rule demands of the client's certificate. The handshake has verified the chain.
func (c *Client) checkCertificate(rule hba.Rule) *pgwire.Error {
	if rule.ClientCert == "" {
		return nil
	}
	if c.TLS == nil || len(c.TLS.VerifiedChains) == 0 {
		return pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "connection requires a valid client certificate")
	}
	if rule.ClientCert != "verify-full" {
		return nil
	}
	name, err := clientcert.Name(c.TLS.PeerCertificates[0])
	if err != nil || name != c.User {
		reason := fmt.Sprintf("the certificate is for another name, %q", pgwire.Clip(name))
		if err != nil {
			reason = err.Error()
		}
		c.Failed(reason)
		return pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", c.User)
	}
	return nil
}

// checkPeer admits the operating system's user of the same name, on a Unix socket.
func (c *Client) checkPeer() error {
	refused := pgwire.Fatal("peer", pgwire.StateInvalidAuth, "Peer authentication failed for user %q", c.User)
	u, ok := c.Raw.(*net.UnixConn)
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
	if err != nil || who.Username != c.User {
		c.Failed(fmt.Sprintf("the peer is another user, uid %d", cred.Uid))
		return refused
	}
	return nil
}

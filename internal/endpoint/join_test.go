package endpoint

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// registry admits joiners as an agent would, with a map for a quorum store.
type registry struct {
	ca *certs.CA

	mu     sync.Mutex
	tokens map[string]StoredToken
}

func (r *registry) join(_ context.Context, id string, verify func([]byte) bool, req JoinRequest) (JoinGrant, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pin, err := req.KeyPin()
	if err != nil {
		return JoinGrant{}, err
	}
	tok := r.tokens[id]
	if err := tok.Check(verify, req.Kind, pin, time.Now()); err != nil {
		return JoinGrant{}, err
	}
	tok.UsedBy = pin
	r.tokens[id] = tok
	grant, err := Admit(r.ca, req)
	grant.Group = ag.Group{ID: r.ca.Group, Name: "sales"}
	grant.Extra = json.RawMessage(`{"n":1}`)
	return grant, err
}

func (r *registry) token(t *testing.T, role string, ttl time.Duration, addrs ...string) Token {
	t.Helper()
	text, stored, err := NewToken(r.ca, TokenOptions{Role: role, Addresses: addrs}, ttl)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tokens[stored.ID] = stored
	tok, err := ParseToken(text)
	if err != nil && !errors.Is(err, ErrTokenExpired) {
		t.Fatal(err)
	}
	return tok
}

func joinable(t *testing.T) (*Endpoint, *registry) {
	t.Helper()
	r := &registry{ca: newTestCA(t, groupA), tokens: make(map[string]StoredToken)}
	e := start(t, Config{Node: newTestNode(t, r.ca, "a"), Join: r.join, Handlers: map[Class]Handler{ClassWAL: echo}, MaxConns: map[Class]int{ClassJoin: 8}})
	return e, r
}

func request(id ag.ReplicaID, kind string) JoinRequest {
	return JoinRequest{ID: id, Kind: kind, Hosts: []string{"10.0.0.2"}, Endpoint: "10.0.0.2:5022", Major: 15}
}

func newTestKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var re *RemoteError
	if !errors.As(err, &re) || re.Code != code {
		t.Errorf("got %v, want code %s", err, code)
	}
}

func TestJoin(t *testing.T) {
	e, r := joinable(t)
	key, dir := newTestKey(t), t.TempDir()
	tok := r.token(t, certs.KindReplica, time.Hour, "127.0.0.1:1", e.Addr().String()) // the first address is dead
	grant, err := Join(within(t), tok, request("b", certs.KindReplica), key)
	if err != nil {
		t.Fatal(err)
	}
	if grant.Group.Name != "sales" || string(grant.Extra) != `{"n":1}` {
		t.Errorf("got %+v", grant)
	}
	n, err := certs.InstallNode(dir, grant.Grant, key)
	if err != nil {
		t.Fatal(err)
	}
	if n.Identity != (certs.Identity{Group: groupA, Kind: certs.KindReplica, ID: "b"}) {
		t.Errorf("installed %v", n.Identity)
	}
	if ca, err := certs.LoadCA(dir); err != nil || ca.Pin() != r.ca.Pin() {
		t.Errorf("the replica did not get the authority: %v", err)
	}
	roundTrip(t, mustDial(t, client(n), e, ClassWAL, "a"))

	// The answer may be lost: the same key may ask again, no other.
	if _, err := Join(within(t), tok, request("b", certs.KindReplica), key); err != nil {
		t.Errorf("asking again: %v", err)
	}
	_, err = Join(within(t), tok, request("c", certs.KindReplica), newTestKey(t))
	wantCode(t, err, CodeTokenUsed)

	grant, err = Join(within(t), r.token(t, certs.KindWitness, time.Hour, e.Addr().String()), request("w", certs.KindWitness), newTestKey(t))
	if err != nil || len(grant.CAKeyPEM) != 0 {
		t.Errorf("the witness got the authority's key, or nothing: %v", err)
	}
}

func TestJoinRefusals(t *testing.T) {
	e, r := joinable(t)
	addr := e.Addr().String()
	join := func(tok Token, req JoinRequest) error {
		_, err := Join(within(t), tok, req, newTestKey(t))
		return err
	}
	wrong := r.token(t, certs.KindReplica, time.Hour, addr)
	wrong.Secret[0] ^= 1
	wantCode(t, join(wrong, request("b", certs.KindReplica)), CodeTokenUnknown)
	unknown := r.token(t, certs.KindReplica, time.Hour, addr)
	unknown.ID = "0000000000000000"
	wantCode(t, join(unknown, request("b", certs.KindReplica)), CodeTokenUnknown)
	wantCode(t, join(r.token(t, certs.KindReplica, -time.Minute, addr), request("b", certs.KindReplica)), CodeTokenExpired)
	wantCode(t, join(r.token(t, certs.KindWitness, time.Hour, addr), request("b", certs.KindReplica)), CodeRefused)

	// The group's stored hash does not admit.
	tok := r.token(t, certs.KindReplica, time.Hour, addr)
	copy(tok.Secret[:], r.tokens[tok.ID].SecretHash)
	wantCode(t, join(tok, request("b", certs.KindReplica)), CodeTokenUnknown)

	for name, change := range map[string]func(*JoinRequest){
		"name": func(q *JoinRequest) { q.ID = "B b" }, "kind": func(q *JoinRequest) { q.Kind = "admin" },
		"endpoint": func(q *JoinRequest) { q.Endpoint = "nowhere" }, "host": func(q *JoinRequest) { q.Hosts = []string{"a b"} },
	} {
		req := request("b", certs.KindReplica)
		change(&req)
		if err := join(r.token(t, certs.KindReplica, time.Hour, addr), req); err == nil {
			t.Errorf("a bad %s was sent", name)
		}
		req.CSR = nil
		raw, _ := json.Marshal(req)
		if rep := rawJoin(t, r.token(t, certs.KindReplica, time.Hour, addr), raw, nil); rep.Error == nil || rep.Error.Code != CodeMalformed {
			t.Errorf("a bad %s was answered with %+v", name, rep)
		}
	}
}

// rawJoin sends a join message made by hand; without a proof it makes the right one.
func rawJoin(t *testing.T, tok Token, request, proof []byte) joinReply {
	t.Helper()
	conn, err := joinConn(within(t), tok.Addresses[0], tok)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if proof == nil {
		exporter, err := joinExporter(conn.ConnectionState())
		if err != nil {
			t.Fatal(err)
		}
		proof = proofOf(tok.Secret, exporter, request)
	}
	if err := writeFrame(conn, joinMessage{tok.ID, proof, request}, maxJoinRequest); err != nil {
		t.Fatal(err)
	}
	var rep joinReply
	if err := readFrame(conn, &rep, maxJoinReply); err != nil {
		t.Fatal(err)
	}
	return rep
}

// TestProofIsBound holds that a proof of one session or request is not accepted in another.
func TestProofIsBound(t *testing.T) {
	e, r := joinable(t)
	tok := r.token(t, certs.KindReplica, time.Hour, e.Addr().String())
	req := request("b", certs.KindReplica)
	key := newTestKey(t)
	conn, err := joinConn(within(t), tok.Addresses[0], tok)
	if err != nil {
		t.Fatal(err)
	}
	exporter, err := joinExporter(conn.ConnectionState())
	_ = conn.Close()
	if err != nil {
		t.Fatal(err)
	}
	fresh := r.token(t, certs.KindReplica, time.Hour, e.Addr().String())
	req.CSR = csrOf(t, key)
	raw, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	if rep := rawJoin(t, fresh, raw, proofOf(fresh.Secret, exporter, raw)); rep.Error == nil || rep.Error.Code != CodeTokenUnknown {
		t.Errorf("a proof of another session was taken: %+v", rep)
	}
	for _, proof := range [][]byte{{}, make([]byte, 31), make([]byte, 32), make([]byte, 33)} {
		if rep := rawJoin(t, fresh, raw, proof); rep.Error == nil || rep.Error.Code != CodeTokenUnknown {
			t.Errorf("proof %x was taken: %+v", proof, rep)
		}
	}
	hash := r.tokens[fresh.ID].SecretHash
	good := proofOf(fresh.Secret, exporter, raw)
	if !proofHolds(hash, good, exporter, raw) || proofHolds(hash, good, exporter, append(raw, ' ')) {
		t.Error("the proof is not bound to the request")
	}
	if rep := rawJoin(t, fresh, raw, nil); rep.Grant == nil {
		t.Errorf("the right proof was refused: %+v", rep.Error)
	}
}

func csrOf(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	csr, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func TestJoinPinsTheAuthority(t *testing.T) {
	e, r := joinable(t)
	other, otherR := joinable(t) // the same group id under another authority
	tok := r.token(t, certs.KindReplica, time.Hour, other.Addr().String())
	if _, err := Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t)); !errors.Is(err, ErrWrongGroup) {
		t.Errorf("got %v", err)
	}
	tok = otherR.token(t, certs.KindReplica, time.Hour, e.Addr().String(), other.Addr().String())
	if _, err := Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t)); err != nil {
		t.Errorf("the second address was not tried: %v", err)
	}
}

// TestSecretIsNotProvedToAWitness puts a stolen witness where a joiner looks for a replica. It has the verifier of the
// token from the quorum's store, with which a proof would tell it the secret.
func TestSecretIsNotProvedToAWitness(t *testing.T) {
	good, r := joinable(t)
	thief, err := certs.CreateNode(t.TempDir(), r.ca, certs.Identity{Group: groupA, Kind: certs.KindWitness, ID: "w"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	e := start(t, Config{Node: thief, Join: func(ctx context.Context, id string, verify func([]byte) bool, req JoinRequest) (JoinGrant, error) {
		asked.Add(1)
		return r.join(ctx, id, verify, req)
	}})
	tok := r.token(t, certs.KindReplica, time.Hour, e.Addr().String())
	if _, err := Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t)); !errors.Is(err, errNoReplica) || asked.Load() != 0 {
		t.Errorf("a witness was given %d proofs: %v", asked.Load(), err)
	}
	tok.Addresses = append(tok.Addresses, good.Addr().String())
	if _, err := Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t)); err != nil {
		t.Errorf("the next address was not tried: %v", err)
	}
}

// TestStrangersAreToldNothing holds that a joiner without a proof learns only that the token is unknown, whatever the
// callback answers.
func TestStrangersAreToldNothing(t *testing.T) {
	ca := newTestCA(t, groupA)
	var answer func() (JoinGrant, error)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Join: func(_ context.Context, _ string, _ func([]byte) bool, req JoinRequest) (JoinGrant, error) {
		if answer != nil {
			return answer()
		}
		return Admit(ca, req) // forgot to check
	}})
	text, _, err := NewToken(ca, TokenOptions{Role: certs.KindReplica, Addresses: []string{e.Addr().String()}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t))
	wantCode(t, err, CodeTokenUnknown)
	for code, want := range map[string]string{CodeNameTaken: CodeTokenUnknown, CodeUnavailable: CodeUnavailable} {
		answer = func() (JoinGrant, error) { return JoinGrant{}, &RemoteError{code, "replica b of sales"} }
		_, err = Join(within(t), tok, request("b", certs.KindReplica), newTestKey(t))
		wantCode(t, err, want)
		if strings.Contains(err.Error(), "replica b of sales") {
			t.Errorf("a stranger was told: %v", err)
		}
	}
}

// TestGrantIsChecked holds that a grant that differs from the request installs nothing.
func TestGrantIsChecked(t *testing.T) {
	ca, other := newTestCA(t, groupA), newTestCA(t, groupA)
	var spoil func(*JoinGrant, JoinRequest)
	r := &registry{ca: ca, tokens: make(map[string]StoredToken)}
	e := start(t, Config{
		Node: newTestNode(t, ca, "a"), MaxConns: map[Class]int{ClassJoin: 8},
		Join: func(ctx context.Context, id string, verify func([]byte) bool, req JoinRequest) (JoinGrant, error) {
			g, err := r.join(ctx, id, verify, req)
			spoil(&g, req)
			return g, err
		},
	})
	for name, f := range map[string]func(*JoinGrant, JoinRequest){
		"another name": func(g *JoinGrant, q JoinRequest) {
			q.ID = "c"
			*g, _ = Admit(ca, q)
		},
		"another authority": func(g *JoinGrant, q JoinRequest) { *g, _ = Admit(other, q) },
		"another key":       func(g *JoinGrant, _ JoinRequest) { g.CAKeyPEM = other.KeyPEM() },
		"no certificate":    func(g *JoinGrant, _ JoinRequest) { g.CertPEM = nil },
		"no authority":      func(g *JoinGrant, _ JoinRequest) { g.CACertPEM = []byte("x") },
	} {
		spoil = f
		if _, err := Join(within(t), r.token(t, certs.KindReplica, time.Hour, e.Addr().String()), request("b", certs.KindReplica), newTestKey(t)); err == nil ||
			!strings.Contains(err.Error(), "not usable") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFrameLimit(t *testing.T) {
	var v any
	if err := readFrame(strings.NewReader("\xff\xff\xff\xff{}"), &v, 100); err == nil || !strings.Contains(err.Error(), "announced") {
		t.Errorf("got %v", err)
	}
	if err := readFrame(strings.NewReader("\x00\x00\x00\x02{}"), &v, 2); err != nil {
		t.Error(err)
	}
	if err := writeFrame(io.Discard, strings.Repeat("x", 100), 100); err == nil {
		t.Error("a message above the limit was sent")
	}
}

func TestJoinLimits(t *testing.T) {
	ca := newTestCA(t, groupA)
	r := &registry{ca: ca, tokens: make(map[string]StoredToken)}
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Join: r.join, HandshakeTimeout: 300 * time.Millisecond})
	tok := r.token(t, certs.KindReplica, time.Hour, e.Addr().String())
	big, err := joinConn(within(t), tok.Addresses[0], tok)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = big.Close() }()
	if _, err := big.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	isCut(t, big)
	silent, err := joinConn(within(t), tok.Addresses[0], tok)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	isCut(t, silent)
}

// TestRefusedJoinsFillNoLog holds that a stranger who tries to join again and again, under a name of many bytes, writes
// few and short lines.
func TestRefusedJoinsFillNoLog(t *testing.T) {
	e, r := joinable(t)
	var log bytes.Buffer // read after the answers, before which the lines are written
	e.log = slog.New(slog.NewTextHandler(&log, nil))
	tok := r.token(t, certs.KindReplica, time.Hour, e.Addr().String())
	began := time.Now()
	for range 60 {
		conn, err := joinConn(within(t), tok.Addresses[0], tok)
		if err != nil {
			t.Fatal(err)
		}
		var rep joinReply
		if err := errors.Join(writeFrame(conn, joinMessage{TokenID: "x", Request: []byte(`{"id":"` + strings.Repeat("x", 30_000) + `"}`)}, 1<<20), readFrame(conn, &rep, 1<<20)); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	n, limit := strings.Count(log.String(), "join refused"), int(eachJoinLines.Burst)+int(time.Since(began).Seconds())+2
	if n == 0 || n > limit {
		t.Errorf("%d lines for 60 refused joins, want at most %d", n, limit)
	}
	if log.Len() > limit*1000 {
		t.Errorf("%d bytes in the log", log.Len())
	}
	if e.handshakes.unlogged.Load() == 0 && n < 60 {
		t.Error("what was not logged is not counted")
	}
}

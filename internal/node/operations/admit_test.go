package operations

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// withAuthority makes the node of the bed a replica that holds the group's authority.
func (b *bed) withAuthority(t *testing.T) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(groupID, "DemoAG")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(b.Layout.PKI()); err != nil {
		t.Fatal(err)
	}
	if b.pki.node, err = certs.CreateNode(b.Layout.PKI(), ca, certs.Identity{Group: groupID, Kind: certs.KindReplica, ID: "a"}, nil); err != nil {
		t.Fatal(err)
	}
	b.pki.ca = ca
	return ca
}

// token stores a join token, and returns its id.
func (b *bed) token(t *testing.T, role string, ttl time.Duration) string {
	t.Helper()
	return b.stored(t, endpoint.TokenOptions{Role: role, Addresses: []string{"a:5022"}}, ttl)
}

// tokenFor stores a join token for the replica that takes the place of a member, and returns its id.
func (b *bed) tokenFor(t *testing.T, member string) string {
	t.Helper()
	return b.stored(t, endpoint.TokenOptions{Role: certs.KindReplica, Member: member, Addresses: []string{"a:5022"}}, time.Hour)
}

func (b *bed) stored(t *testing.T, o endpoint.TokenOptions, ttl time.Duration) string {
	t.Helper()
	_, stored, err := endpoint.NewToken(b.pki.ca, o, ttl)
	if err != nil {
		t.Fatal(err)
	}
	value, err := json.Marshal(stored)
	if err != nil {
		t.Fatal(err)
	}
	b.store.tokens[stored.ID] = etcd.Token{ID: stored.ID, Value: value, Expires: stored.Expires}
	return stored.ID
}

// joiner returns the request of a node that wants to join under a name, with a new key.
func joiner(t *testing.T, id ag.ReplicaID, kind string) endpoint.JoinRequest {
	t.Helper()
	key, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return endpoint.JoinRequest{ID: id, Kind: kind, CSR: csrOf(t, key), Hosts: []string{"127.0.0.1"}, Endpoint: string(id) + ":5022", Major: 15}
}

func csrOf(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	csr, err := certs.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func proved([]byte) bool { return true }

// TestAdmit holds that a joiner is written into the configuration, that its token is spent, that the node is told, and
// that asking again with the same key after a lost answer is no second member.
func TestAdmit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.withAuthority(t)
	id, req := b.token(t, certs.KindReplica, time.Hour), joiner(t, "d", certs.KindReplica)
	pin, err := req.KeyPin()
	if err != nil {
		t.Fatal(err)
	}
	for _, round := range []string{"the first time", "after a lost answer"} {
		grant, err := b.Admit(t.Context(), id, proved, req)
		if err != nil {
			t.Fatalf("%s: %v", round, err)
		}
		r, ok := b.group().Replica("d")
		if !ok || r.KeyPin != pin || r.Endpoint != "d:5022" || len(b.group().Replicas) != 5 || !b.store.tokens[id].Used {
			t.Errorf("%s: %+v", round, b.group().Replicas)
		}
		if _, ok := grant.Group.Replica("d"); !ok || len(grant.CAKeyPEM) == 0 {
			t.Errorf("%s: the grant is %+v", round, grant)
		}
	}
	if len(b.changed) != 2 {
		t.Errorf("the node was told %d times", len(b.changed))
	}
	b.store.overtaken = 2
	witness := joiner(t, "x", certs.KindWitness)
	witness.Major, witness.Hosts = 0, []string{"x.example", "sales-clients"}
	g := b.group()
	g.Options.Listeners = []ag.Listener{{Name: "sales-clients"}}
	b.Members.Set(g)
	grant, err := b.Admit(t.Context(), b.token(t, certs.KindWitness, time.Hour), proved, witness)
	if r := b.replica("x"); err != nil || r.HasData() || len(grant.CAKeyPEM) > 0 {
		t.Errorf("a witness, against other writers: %+v, authority's key: %v, %v", r, len(grant.CAKeyPEM) > 0, err)
	}
	block, _ := pem.Decode(grant.CertPEM)
	if block == nil {
		t.Fatal("no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil || c.VerifyHostname("x.example") != nil || c.VerifyHostname("sales-clients") == nil {
		t.Errorf("the witness's certificate names %v, %v", c.DNSNames, err)
	}
}

// TestAdmitRefuses holds who is not admitted. The configuration does not change, and the token stays good, except where
// another node has spent it.
func TestAdmitRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		code   string
		text   string
		change func(b *bed, id *string, req *endpoint.JoinRequest)
		verify func([]byte) bool
		spent  bool
	}{
		"without the secret":     {code: endpoint.CodeTokenUnknown, verify: func([]byte) bool { return false }},
		"an unknown token":       {code: endpoint.CodeTokenUnknown, change: func(_ *bed, id *string, _ *endpoint.JoinRequest) { *id = "no" }},
		"the quorum is silent":   {code: endpoint.CodeUnavailable, change: func(b *bed, _ *string, _ *endpoint.JoinRequest) { b.store.tokenErr = etcd.ErrNoQuorum }},
		"it falls silent":        {text: etcd.ErrNoQuorum.Error(), change: func(b *bed, _ *string, _ *endpoint.JoinRequest) { b.store.readErr = etcd.ErrNoQuorum }},
		"an expired token":       {code: endpoint.CodeTokenExpired, change: func(b *bed, id *string, _ *endpoint.JoinRequest) { *id = b.expired() }},
		"the other kind's token": {code: endpoint.CodeRefused, text: "admits a replica", change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.Kind = certs.KindWitness }},
		"a used token": {code: endpoint.CodeTokenUsed, spent: true, change: func(b *bed, id *string, _ *endpoint.JoinRequest) {
			_, _ = b.store.ConsumeToken(context.Background(), *id)
		}},
		"a replacement's token under another name": {code: endpoint.CodeRefused, text: "takes the place of c", change: func(b *bed, id *string, _ *endpoint.JoinRequest) { *id = b.tokenFor(t, "c") }},
		"no certificate request":                   {text: "certificate", change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.CSR = []byte("x") }},
		"a name that exists":                       {code: endpoint.CodeNameTaken, change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.ID = "b" }},
		"a name that is no name":                   {text: "name", change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.ID = "con sole" }},
		"another major version":                    {code: endpoint.CodeVersionMismatch, change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.Major = 14 }},
		"a host that fences late":                  {code: endpoint.CodeRefused, text: "fence", change: func(_ *bed, _ *string, r *endpoint.JoinRequest) { r.Fence = time.Minute }},
	} {
		b := newBed(t)
		b.withAuthority(t)
		id, req, verify := b.token(t, certs.KindReplica, time.Hour), joiner(t, "d", certs.KindReplica), proved
		first := id
		if tt.change != nil {
			tt.change(b, &id, &req)
		}
		if tt.verify != nil {
			verify = tt.verify
		}
		_, err := b.Admit(t.Context(), id, verify, req)
		var refused *endpoint.RemoteError
		if err == nil || errors.As(err, &refused) && refused.Code != tt.code || tt.code != "" && refused == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %s %q", name, err, tt.code, tt.text)
		}
		if n := len(b.store.x.Group.Replicas); n != 4 || b.store.tokens[first].Used != tt.spent || len(b.changed) > 0 {
			t.Errorf("%s: %d members, token used: %v, told %d times", name, n, b.store.tokens[first].Used, len(b.changed))
		}
	}
}

// expired stores a token whose time is over, and returns its id.
func (b *bed) expired() string {
	stored := endpoint.StoredToken{ID: "old", SecretHash: make([]byte, 32), Role: certs.KindReplica, Expires: time.Now().Add(-time.Hour)}
	value, _ := json.Marshal(stored) //nolint:errchkjson // it has no fields that fail
	b.store.tokens["old"] = etcd.Token{ID: "old", Value: value, Expires: stored.Expires}
	return "old"
}

// TestTokenOfAWitness plays the thief of a witness, who writes a token of his own into the quorum's store, or makes one
// that was used as good as new for another kind of node. It admits nobody.
func TestTokenOfAWitness(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.withAuthority(t)
	id := b.token(t, certs.KindWitness, time.Hour)
	for name, change := range map[string]func(*endpoint.StoredToken){
		"a token without a signature":  func(s *endpoint.StoredToken) { s.Signature = nil; s.Role = certs.KindReplica },
		"a token for a replica":        func(s *endpoint.StoredToken) { s.Role = certs.KindReplica },
		"a verifier of the thief":      func(s *endpoint.StoredToken) { s.Role = certs.KindReplica; s.SecretHash = make([]byte, 32) },
		"a token that does not expire": func(s *endpoint.StoredToken) { s.Role = certs.KindReplica; s.Expires = s.Expires.Add(time.Hour) },
	} {
		var stored endpoint.StoredToken
		if err := json.Unmarshal(b.store.tokens[id].Value, &stored); err != nil {
			t.Fatal(err)
		}
		change(&stored)
		value, err := json.Marshal(stored)
		if err != nil {
			t.Fatal(err)
		}
		b.store.tokens["thief"] = etcd.Token{ID: "thief", Value: value, Expires: stored.Expires}
		_, err = b.Admit(t.Context(), "thief", proved, joiner(t, "d", certs.KindReplica))
		var refused *endpoint.RemoteError
		if !errors.As(err, &refused) || refused.Code != endpoint.CodeTokenUnknown || len(b.group().Replicas) != 4 {
			t.Errorf("%s: %v, %d members", name, err, len(b.group().Replicas))
		}
	}
	if _, err := b.CreateToken(t.Context(), api.TokenRequest{Role: "witness", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, forged := b.store.tokens["thief"]; forged || b.store.tokens[id].ID != id || len(b.store.tokens) != 2 {
		t.Errorf("after another one was made there are %+v", b.store.tokens)
	}
}

// TestAdmitWhileTheAuthorityChanges: a joiner gets no certificate of an authority that the group has left meanwhile.
func TestAdmitWhileTheAuthorityChanges(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.withAuthority(t)
	id, req := b.token(t, certs.KindReplica, time.Hour), joiner(t, "d", certs.KindReplica)
	b.store.overtaken, b.store.other = 1, func() { b.withAuthority(t) }
	_, err := b.Admit(t.Context(), id, proved, req)
	var refused *endpoint.RemoteError
	if !errors.As(err, &refused) || refused.Code != endpoint.CodeUnavailable || len(b.group().Replicas) != 4 || len(b.changed) > 0 {
		t.Errorf("%v, %d members", err, len(b.group().Replicas))
	}
}

// TestTwoJoinersOneToken holds that a token which another node of the group spends in this moment admits no joiner
// here.
func TestTwoJoinersOneToken(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.withAuthority(t)
	id := b.token(t, certs.KindReplica, time.Hour)
	if _, err := b.Admit(t.Context(), id, proved, joiner(t, "d", certs.KindReplica)); err != nil {
		t.Fatal(err)
	}
	stale := b.store.tokens[id]
	stale.Used = false
	b.Service.Store = staleTokens{b.store, stale}
	_, err := b.Admit(t.Context(), id, proved, joiner(t, "e", certs.KindReplica))
	var refused *endpoint.RemoteError
	if !errors.As(err, &refused) || refused.Code != endpoint.CodeTokenUsed || len(b.group().Replicas) != 5 {
		t.Errorf("%v, %d members", err, len(b.group().Replicas))
	}
}

// staleTokens returns a token as it was before it was spent.
type staleTokens struct {
	*fakeStore
	token etcd.Token
}

func (s staleTokens) Token(context.Context, string) (etcd.Token, error) { return s.token, nil }

// TestCreateToken holds that a token names the replicas that can admit, is stored without its secret, and is not made
// where it could not be.
func TestCreateToken(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if _, err := b.CreateToken(t.Context(), api.TokenRequest{Role: "replica", TTL: time.Hour}); err == nil || !strings.Contains(err.Error(), "nothing was changed. Run coterie member add-token on b or c") {
		t.Errorf("on a witness: %v", err)
	}
	b.withAuthority(t)
	for _, ttl := range []time.Duration{-time.Second, 0, time.Millisecond, 31 * 24 * time.Hour} {
		if _, err := b.CreateToken(t.Context(), api.TokenRequest{Role: "replica", TTL: ttl}); fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "nothing was made") {
			t.Errorf("a token for %v: %v", ttl, err)
		}
	}
	b.Service.Node.Quorum = &config.Quorum{Endpoints: []string{"q:2379"}, CA: "/ca", Cert: "/cert", Key: "/key"}
	for role, verb := range map[string]string{"replica": "join", "witness": "witness"} {
		r, err := b.CreateToken(t.Context(), api.TokenRequest{Role: role, TTL: time.Hour})
		if err != nil || r.Command != "coterie "+verb+" "+r.Token {
			t.Fatalf("%s: %+v, %v", role, r, err)
		}
		token, err := endpoint.ParseToken(r.Token)
		if err != nil || strings.Join(token.Addresses, " ") != "a:5022 b:5022 c:5022" || token.Quorum.Key != "/key" || token.CAPin != b.pki.ca.Pin() {
			t.Errorf("%s: %+v, %v", role, token, err)
		}
		stored := b.store.tokens[token.ID]
		if stored.ID == "" || strings.Contains(string(stored.Value), string(token.Secret[:])) || !stored.Expires.Equal(r.Expires) {
			t.Errorf("%s: stored is %+v", role, stored)
		}
	}
	if _, err := b.CreateToken(t.Context(), api.TokenRequest{Role: "king", TTL: time.Hour}); fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "Run coterie member add-token") {
		t.Error("a token for no kind of node")
	}
	b.store.tokenErr = etcd.ErrNoQuorum
	if _, err := b.CreateToken(t.Context(), api.TokenRequest{Role: "replica", TTL: time.Hour}); !errors.Is(err, etcd.ErrNoQuorum) {
		t.Errorf("without a quorum: %v", err)
	}
}

// TestSignsAs: a node whose program does not sign what the group's members sign is not admitted.
func TestSignsAs(t *testing.T) {
	t.Parallel()
	before, configuration, record := ag.Group{}, ag.Group{SignedOnly: true}, ag.Group{SignedOnly: true, SignedRecord: true}
	neither, signs, both := endpoint.JoinRequest{}, endpoint.JoinRequest{Signs: true}, endpoint.JoinRequest{Signs: true, SignsRecord: true}
	for i, tt := range []struct {
		g    ag.Group
		req  endpoint.JoinRequest
		want bool
	}{
		{before, neither, true},
		{before, both, true},
		{configuration, neither, false},
		{configuration, signs, true},
		{configuration, both, true},
		{record, neither, false},
		{record, signs, false},
		{record, both, true},
	} {
		if got := signsAs(tt.g, tt.req); got != tt.want {
			t.Errorf("%d: %t", i, got)
		}
	}
}

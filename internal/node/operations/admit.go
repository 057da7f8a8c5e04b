package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/fencetime"
)

// CreateToken makes a join token that any replica of the group honours once.
func (s *Service) CreateToken(ctx context.Context, req api.TokenRequest) (out api.TokenResult, err error) {
	return s.token(ctx, req, "", s.endorsed)
}

// maxTokenLife is the longest time for which a token works: until then its text is as good as a password.
const maxTokenLife = 30 * 24 * time.Hour

// checkTokenLife refuses a time for which no token works.
func checkTokenLife(ttl time.Duration) error {
	if ttl < time.Second || ttl > maxTokenLife {
		return fail.Usagef("a token works for 1s to %v, not for %v; nothing was made", maxTokenLife, ttl)
	}
	return nil
}

// token makes a join token, for a node of that name if one is given. Tokens that keep does not want are removed.
func (s *Service) token(ctx context.Context, req api.TokenRequest, member ag.ReplicaID, keep func(etcd.Token) bool) (out api.TokenResult, err error) {
	defer func() { err = s.noQuorum(err) }()
	ca := s.PKI.CA()
	if ca == nil {
		return api.TokenResult{}, s.notHere("coterie member add-token", "")
	}
	if err := checkTokenLife(req.TTL); err != nil {
		return api.TokenResult{}, err
	}
	if req.Role != certs.KindReplica && req.Role != certs.KindWitness {
		return api.TokenResult{}, fail.Usagef("a token is for a replica or a witness, not for %q; nothing was made. Run coterie member add-token, or with --role witness", req.Role)
	}
	var addresses []string
	for _, r := range s.Members.Group().Replicas {
		if r.HasData() {
			addresses = append(addresses, r.Endpoint)
		}
	}
	var quorum endpoint.TokenQuorum
	if q := s.Node.Quorum; q != nil {
		quorum = endpoint.TokenQuorum{Endpoints: q.Endpoints, CA: q.CA, Cert: q.Cert, Key: q.Key}
	}
	text, stored, err := endpoint.NewToken(ca, endpoint.TokenOptions{Role: req.Role, Member: string(member), Addresses: addresses, Quorum: quorum}, req.TTL)
	if err != nil {
		return api.TokenResult{}, fail.Usagef("%w; nothing was made. coterie status --json shows the members with their addresses", err)
	}
	value, err := json.Marshal(stored)
	if err != nil {
		return api.TokenResult{}, err
	}
	if err := s.Store.PutToken(ctx, etcd.Token{ID: stored.ID, Value: value, Expires: stored.Expires}, keep); err != nil {
		return api.TokenResult{}, fmt.Errorf("store the token: %w", err)
	}
	verb := "join"
	if req.Role == "witness" {
		verb = "witness"
	}
	return api.TokenResult{Token: text, Role: req.Role, Expires: stored.Expires, Command: "coterie " + verb + " " + text}, nil
}

// endorsed reports whether a replica has made a join token. Every member of the quorum's store can write some, until
// there is no place for another.
func (s *Service) endorsed(t etcd.Token) bool {
	var stored endpoint.StoredToken
	return json.Unmarshal(t.Value, &stored) == nil && stored.Endorsed(s.Layout.PKI()) == nil
}

// Admit is the group's side of coterie join: the token is checked and consumed, the member written into the
// configuration, its certificate issued. Repeating it with the same key after a lost answer gives the same answer.
func (s *Service) Admit(ctx context.Context, tokenID string, verify func([]byte) bool, req endpoint.JoinRequest) (endpoint.JoinGrant, error) {
	var none endpoint.JoinGrant
	stored, err := s.Store.Token(ctx, tokenID)
	known := err == nil || errors.Is(err, etcd.ErrTokenUsed) || errors.Is(err, etcd.ErrTokenExpired)
	if !known && !errors.Is(err, etcd.ErrTokenUnknown) {
		return none, &endpoint.RemoteError{Code: "unavailable", Message: "the quorum does not answer; try again"}
	}
	var t endpoint.StoredToken
	if known {
		if err := json.Unmarshal(stored.Value, &t); err != nil {
			return none, err
		}
	}
	pin, err := req.KeyPin()
	if err != nil {
		return none, err
	}
	if err := cmp.Or(t.Check(verify, req.Kind, pin, time.Now()), t.Names(req.ID)); err != nil {
		return none, err
	}
	if err := t.Endorsed(s.Layout.PKI()); err != nil {
		s.Logger.Error("a join token in the record was not made by a replica: a witness may be stolen; coterie member remove it", "token", tokenID, "err", err)
		return none, &endpoint.RemoteError{Code: endpoint.CodeTokenUnknown, Message: "the join token was not made by a replica of this group"}
	}
	ca := s.PKI.CA()
	grant, err := s.grant(ca, req)
	if err != nil {
		return none, err
	}
	x, err := s.Store.Read(ctx)
	if err != nil {
		return none, err
	}
	old, there := x.Group.Replica(req.ID)
	again := there && old.KeyPin == pin // its first answer got lost
	if stored.Used && !again {
		return none, &endpoint.RemoteError{Code: "token_used", Message: "this join token was used already; make another with coterie member add-token"}
	}
	if err := enlist(&x.Group, req, pin, t.Member); err != nil { // refused before the token is spent
		return none, err
	}
	if !signsAs(x.Group, req) {
		return none, &endpoint.RemoteError{Code: endpoint.CodeVersionMismatch, Message: "the group's configuration is signed, which the joining node's program does not know: " +
			"install the version of the other nodes there, and join again"}
	}
	if err := fencetime.Holds(x.Group.Profile, req.Fence); err != nil {
		return none, &endpoint.RemoteError{Code: endpoint.CodeRefused, Message: err.Error()}
	}
	if !stored.Used {
		if _, err := s.Store.ConsumeToken(ctx, tokenID); err != nil {
			return none, &endpoint.RemoteError{Code: "token_used", Message: err.Error()}
		}
	}
	fault.Point("admit.spent") // the token is spent; the configuration does not list the joiner
	err = s.Update(ctx, func(g *ag.Group) error {
		if s.PKI.CA() != ca { // the joiner would not know what the others have come to believe meanwhile
			return &endpoint.RemoteError{Code: endpoint.CodeUnavailable, Message: "the certificate authority is being rotated; try again"}
		}
		return enlist(g, req, pin, t.Member)
	})
	if err != nil {
		return none, err
	}
	fault.Point("admit.listed") // the configuration lists the joiner, which has no answer
	if x, err = s.Store.Read(ctx); err != nil {
		return none, err
	}
	grant.Group = x.Group
	s.GroupChanged(x.Group)
	s.Logger.Info("member admitted", "member", req.ID, "kind", req.Kind, "endpoint", req.Endpoint)
	return grant, nil
}

// grant returns the certificates of the joiner, and for a replica the secrets that replicas share.
func (s *Service) grant(ca *certs.CA, req endpoint.JoinRequest) (endpoint.JoinGrant, error) {
	if req.Kind == certs.KindWitness {
		req.Hosts = s.Members.Witnesses(req.Hosts)
	}
	grant, err := endpoint.Admit(ca, req)
	if err == nil && req.Kind == certs.KindReplica {
		grant.Salts, err = certs.Salts(s.Layout.PKI())
	}
	return grant, err
}

// enlist adds the joiner to the configuration. successor is the name for which its token was made; "": for any. Where
// the group does not await that member any more, the replacement was given up, or another node came first. A refusal
// is an *endpoint.RemoteError.
func enlist(g *ag.Group, req endpoint.JoinRequest, pin, successor string) error {
	old, _ := g.Replica(req.ID)
	if _, awaited := g.Awaiting(ag.ReplicaID(successor)); successor != "" && !awaited && old.KeyPin != pin { // else it asks again
		return &endpoint.RemoteError{Code: endpoint.CodeTokenUsed, Message: fmt.Sprintf(
			"this join token was made for a node in place of %s, whose replacement was given up or is done; make another with coterie member add-token", successor)}
	}
	if err := config.CheckName(string(req.ID)); err != nil {
		return &endpoint.RemoteError{Code: endpoint.CodeRefused, Message: err.Error()}
	}
	r := ag.Replica{
		ID: req.ID, Endpoint: req.Endpoint, Listener: req.Listener, ReadOnly: req.ReadOnly, HTTP: req.HTTP, KeyPin: pin, Major: req.Major,
	}
	if req.Kind == certs.KindWitness {
		r.AvailabilityMode = ag.ConfigurationOnly
	}
	var refused *ag.EnlistError
	if err := g.Enlist(r); errors.As(err, &refused) {
		return &endpoint.RemoteError{Code: string(refused.Reason), Message: refused.Message}
	} else if err != nil {
		return err
	}
	return nil
}

// signsAs reports whether the program of a joining node signs what the group uses with a signature only.
func signsAs(g ag.Group, req endpoint.JoinRequest) bool {
	return (req.Signs || !g.SignedOnly) && (req.SignsRecord || !g.SignedRecord)
}

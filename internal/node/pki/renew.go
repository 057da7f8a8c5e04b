package pki

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// callTimeout bounds a call to one replica.
const callTimeout = 10 * time.Second

// askForCertificate requests a certificate from the other replicas, each of which holds the authority's key.
func (s *Service) askForCertificate(ctx context.Context, csr []byte) ([]byte, error) {
	if s.Members.Group() == nil {
		return nil, errors.New("this node does not know its group yet")
	}
	chain, found, err := rpc.First(ctx, s.Members.Others(), callTimeout, func(ctx context.Context, r ag.Replica) ([]byte, error) {
		return s.AskCertificate(ctx, r, csr)
	})
	if !found && err == nil {
		err = errors.New("the group has no other replica to ask")
	}
	return chain, err
}

// RenewFor signs a member's request, for the key and the address that the group's configuration has of that member. Any
// other key is refused. A witness keeps the names of its certificate, by which its console is reached, but for those at
// which clients reach the group.
func (s *Service) RenewFor(ctx context.Context, peer certs.Identity, csr []byte) ([]byte, error) {
	ca := s.ca.Load()
	if ca == nil {
		return nil, errors.New("a witness does not hold the authority's key: ask a replica")
	}
	r, ok := s.Members.Replica(peer.ID)
	if !ok {
		return nil, fmt.Errorf("%s is not a member of the group", peer.ID)
	}
	host, _, err := net.SplitHostPort(r.Endpoint)
	if err != nil {
		return nil, err
	}
	hosts := []string{host}
	if peer.Kind == certs.KindWitness {
		hosts = s.Members.Witnesses(certs.JoinHosts(hosts, s.CallersHosts(ctx)))
	}
	chain, err := ca.RenewFor(peer, r.KeyPin, csr, hosts)
	if err != nil {
		return nil, err
	}
	s.Logger.Info("certificate issued", "member", peer.ID)
	return chain, nil
}

// loadIdentity reads this node's identity. A certificate that expired while the node was down is renewed first, if the
// authority's key is here.
func loadIdentity(pki string) (*certs.Node, error) {
	if _, err := certs.RenewOwn(pki); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return certs.LoadNode(pki)
}

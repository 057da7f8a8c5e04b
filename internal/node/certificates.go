package node

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

// certificateTry bounds how long one member is asked for a certificate.
const certificateTry = 10 * time.Second

// newRenewer keeps this node's certificates from expiring.
func (n *node) newRenewer() *certs.Renewer {
	return &certs.Renewer{
		Dir: n.layout.PKI(), Node: n.identity, Issue: n.askForCertificate, Logger: n.log.With("part", "certificates"),
		Renewed: func(string) error { return n.clients.CertificateRenewed() },
	}
}

// askForCertificate has any replica sign: each holds the authority's key.
func (n *node) askForCertificate(ctx context.Context, csr []byte) ([]byte, error) {
	if n.members.Group() == nil {
		return nil, errors.New("this node does not know its group yet")
	}
	chain, found, err := rpc.First(ctx, n.members.Others(), certificateTry, func(ctx context.Context, r ag.Replica) ([]byte, error) {
		return rpc.Call(ctx, n.control, r, rpc.Renew, csr)
	})
	if !found && err == nil {
		err = errors.New("the group has no other replica to ask")
	}
	return chain, err
}

// renewFor signs a member's request, for the key and under the address that the record has of it.
func (n *node) renewFor(_ context.Context, peer certs.Identity, csr []byte) ([]byte, error) {
	ca := n.ca.Load()
	if ca == nil {
		return nil, errors.New("a witness does not hold the authority's key: ask a replica")
	}
	r, ok := n.members.Replica(peer.ID)
	if !ok {
		return nil, fmt.Errorf("%s is not a member of the group", peer.ID)
	}
	host, _, err := net.SplitHostPort(r.Endpoint)
	if err != nil {
		return nil, err
	}
	chain, err := ca.RenewFor(peer, r.KeyPin, csr, []string{host})
	if err != nil {
		return nil, err
	}
	n.log.Info("certificate issued", "member", peer.ID)
	return chain, nil
}

// loadIdentity reads who this node is. What has expired while it was down is renewed first, where the authority's key is.
func loadIdentity(pki string) (*certs.Node, error) {
	if _, err := certs.RenewOwn(pki); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return certs.LoadNode(pki)
}

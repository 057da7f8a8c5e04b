package pki

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// Config is what a Service needs of its node. No function may be nil. Open calls none of them.
type Config struct {
	Self    ag.ReplicaID
	Group   ag.GroupID
	Dir     string // the pki directory
	Replica bool   // false on a witness, which does not hold the authority's key
	Logger  *slog.Logger
	Members *membership.Members

	// The calls at another replica.
	AskCertificate func(ctx context.Context, of ag.Replica, csr []byte) (chain []byte, err error)
	AskKey         func(ctx context.Context, of ag.Replica, pin string) (key []byte, err error)

	CallersHosts func(ctx context.Context) []string                  // the names in the certificate of the member whose call runs with ctx
	Renewed      func() error                                        // puts a renewed certificate of the listener into use
	Snapshot     func() *agent.Snapshot                              // nil before the agent's first read of the record
	Tell         func(ctx context.Context, step ag.MemberStep) error // as endorsement.Service.Tell
	MemberTrusts func() bool                                         // whether this node's member of the quorum trusts what the node trusts
}

// Service is this node's part in the group's certificates. Any goroutine may call its methods.
type Service struct {
	Config
	identity *certs.Node
	ca       atomic.Pointer[certs.CA] // nil on a witness
	renewer  *certs.Renewer
	mu       sync.Mutex // guards the authorities in the pki directory
}

// Open reads this node's identity and, on a replica, the authority's key. Expired certificates are renewed first, if
// the key is here.
func Open(c Config) (*Service, error) {
	id, err := loadIdentity(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("this node's identity: %w", err)
	}
	s := &Service{Config: c, identity: id}
	if c.Replica {
		if err := s.loadCA(); err != nil {
			return nil, err
		}
		if _, err := certs.Salts(c.Dir); err != nil { // made now, before a rotation changes the authority
			c.Logger.Error("the secret of invented salts cannot be used: this node tells names that exist from others", "err", err)
		}
	}
	s.renewer = &certs.Renewer{
		Dir: c.Dir, Node: id, Issue: s.askForCertificate, Logger: c.Logger.With("part", "certificates"),
		Renewed: func(string) error { return c.Renewed() },
	}
	return s, nil
}

// CA returns the authority that issues certificates now; nil on a witness. A rotation replaces it.
func (s *Service) CA() *certs.CA { return s.ca.Load() }

// Identity returns this node's certificate and what it trusts.
func (s *Service) Identity() *certs.Node { return s.identity }

// Lock keeps this node's part in a rotation from changing the authorities in the pki directory, until Unlock is called.
func (s *Service) Lock() { s.mu.Lock() }

// Unlock ends what Lock began.
func (s *Service) Unlock() { s.mu.Unlock() }

// TrustedCAs names the authorities that this node trusts, in an order that does not depend on which of them issues.
func (s *Service) TrustedCAs() string {
	pins := s.identity.TrustedPins()
	slices.Sort(pins)
	return strings.Join(pins, " ")
}

// RunRenewal keeps this node's certificates from expiring, until ctx is done.
func (s *Service) RunRenewal(ctx context.Context) error { return s.renewer.Run(ctx) }

func (s *Service) loadCA() error {
	ca, err := certs.LoadCA(s.Dir)
	if err != nil {
		return fmt.Errorf("the group's certificate authority: %w", err)
	}
	s.ca.Store(ca)
	return nil
}

package pki

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// bed is the service of replica n1, with everything around it faked, and a second authority to rotate to.
type bed struct {
	*Service
	group   ag.Group // in the record
	next    *certs.CA
	trusts  bool // the quorum's member trusts what the node trusts
	updates int
	keyErr  error
}

func newBed(t *testing.T) *bed {
	t.Helper()
	old, next := authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11"), authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11")
	dir := t.TempDir()
	if err := old.Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.CreateNode(dir, old, certs.Identity{Group: old.Group, Kind: certs.KindReplica, ID: "n1"}, nil); err != nil {
		t.Fatal(err)
	}
	signature, err := old.Endorse(certs.NextAuthority, next.CertPEM)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{next: next, trusts: true, group: ag.Group{
		ID: old.Group, Rotation: &ag.Rotation{Pin: next.Pin(), Certificate: string(next.CertPEM), Signature: signature, Phase: ag.RotationTrust},
		Replicas: []ag.Replica{
			{ID: "n1", AvailabilityMode: ag.SynchronousCommit},
			{ID: "n2", AvailabilityMode: ag.SynchronousCommit},
			{ID: "w1", AvailabilityMode: ag.ConfigurationOnly},
		},
	}}
	log := slog.New(slog.DiscardHandler)
	s, err := Open(Config{
		Self: "n1", Group: old.Group, Dir: dir, Replica: true, Logger: log, Members: membership.New("n1", config.Layout{}, log),
		AskKey:       func(context.Context, ag.Replica, string) ([]byte, error) { return next.KeyPEM(), b.keyErr },
		Renewed:      func() error { return nil },
		Snapshot:     func() *agent.Snapshot { return &agent.Snapshot{Group: b.group} },
		Tell:         func(_ context.Context, step ag.MemberStep) error { b.updates++; return step.Apply(&b.group, "n1") },
		MemberTrusts: func() bool { return b.trusts },
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Service = s
	s.Members.Set(b.group)
	return b
}

func (b *bed) pins() int { return len(b.identity.TrustedPins()) }

// othersDone has the other members complete the phase.
func (b *bed) othersDone() {
	for _, id := range []ag.ReplicaID{"n2", "w1"} {
		b.group.RotationStep(id, b.next.Pin(), b.group.Rotation.Phase)
	}
}

// TestRotationTurn carries a replica through every phase. It reports a phase once, and after its own part is on disk.
func TestRotationTurn(t *testing.T) {
	b := newBed(t)
	turn := func(updates, pins int) {
		t.Helper()
		if err := b.rotationTurn(t.Context()); err != nil || b.updates != updates || b.pins() != pins {
			t.Fatalf("%d updates, %d authorities, want %d and %d: %v", b.updates, b.pins(), updates, pins, err)
		}
	}
	b.trusts = false
	turn(0, 2) // the quorum's member must restart before the phase is reported
	b.trusts = true
	turn(1, 2)
	turn(1, 2) // done; the others are waited for
	b.othersDone()
	if b.group.Rotation.Phase != ag.RotationIssue || b.identity.Authority() == b.next.Pin() {
		t.Fatalf("phase %s", b.group.Rotation.Phase)
	}
	turn(2, 2)
	if b.identity.Authority() != b.next.Pin() || b.CA().Pin() != b.next.Pin() {
		t.Fatal("the node's certificate is not of the new authority")
	}
	b.othersDone()
	turn(3, 1)
	b.othersDone()
	if b.group.Rotation != nil || b.TrustedCAs() != b.next.Pin() {
		t.Errorf("%+v, trusted %q", b.group.Rotation, b.TrustedCAs())
	}
	turn(3, 1)
}

// TestRotationTurnRefuses: nothing is reported, and nothing trusted, where this node's part cannot be done or is not
// asked for.
func TestRotationTurnRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*bed)
		want   string
	}{
		"no group yet":         {func(b *bed) { b.group.ID = "" }, ""},
		"not a member":         {func(b *bed) { b.group.Replicas = b.group.Replicas[1:] }, ""},
		"held, and done here":  {func(b *bed) { b.group.Rotation.Hold = true; b.group.Rotation.Done = []ag.ReplicaID{"n1", "n2", "w1"} }, ""},
		"another pin":          {func(b *bed) { b.group.Rotation.Pin = "x" }, "not what its pin says"},
		"no certificate":       {func(b *bed) { b.group.Rotation.Certificate = "" }, "not what its pin says"},
		"written by a witness": {func(b *bed) { b.group.Rotation.Signature = nil }, "no replica of the group has signed it"},
		"signed by itself": {func(b *bed) {
			b.group.Rotation.Signature, _ = b.next.Endorse(certs.NextAuthority, b.next.CertPEM)
		}, "no replica of the group has signed it"},
		"no replica has the key":     {func(b *bed) { b.keyErr = errors.New("none here") }, "no replica that answers"},
		"a phase of a later version": {func(b *bed) { b.group.Rotation.Phase = "LATER" }, "install the version"},
	} {
		b := newBed(t)
		c.change(b)
		err := b.rotationTurn(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || b.updates > 0 || b.pins() != 1 {
			t.Errorf("%s: %d updates, %d authorities, %v", name, b.updates, b.pins(), err)
		}
	}
}

// TestRotationGivenUp: a node forgets an authority whose rotation was given up, and not the key of one that was begun
// right after.
func TestRotationGivenUp(t *testing.T) {
	b := newBed(t)
	if err := b.rotationTurn(t.Context()); err != nil || b.pins() != 2 {
		t.Fatalf("%d authorities, %v", b.pins(), err)
	}
	b.group.Rotation = nil
	if err := certs.SaveAuthorityKey(b.Dir, b.next.KeyPEM()); err != nil {
		t.Fatal(err)
	}
	// The next rotation was begun here, which the agent has not read yet.
	if err := b.rotationTurn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.AuthorityKey(b.Dir, b.next.Pin()); err != nil {
		t.Errorf("the key of the next rotation is gone: %v", err)
	}
	b.Members.Set(b.group)
	if err := b.rotationTurn(t.Context()); err != nil || b.pins() != 1 || slices.Contains(b.identity.TrustedPins(), b.next.Pin()) {
		t.Errorf("%d authorities, %v", b.pins(), err)
	}
}

// TestAuthorityKey: the new authority's key is for replicas of the group, during the rotation to it, and for no other
// peer.
func TestAuthorityKey(t *testing.T) {
	b := newBed(t)
	if err := certs.SaveAuthorityKey(b.Dir, b.next.KeyPEM()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		peer   certs.Identity
		pin    string
		change func(*ag.Group)
		want   string
	}{
		"a replica":                           {certs.Identity{Kind: certs.KindReplica, ID: "n2"}, b.next.Pin(), nil, ""},
		"a witness":                           {certs.Identity{Kind: certs.KindWitness, ID: "w1"}, b.next.Pin(), nil, "only replicas"},
		"a witness that says it is a replica": {certs.Identity{Kind: certs.KindReplica, ID: "w1"}, b.next.Pin(), nil, "only replicas"},
		"a witness that the configuration calls a replica": {certs.Identity{Kind: certs.KindWitness, ID: "n2"}, b.next.Pin(), nil, "only replicas"},
		"not a member":      {certs.Identity{Kind: certs.KindReplica, ID: "n9"}, b.next.Pin(), nil, "only replicas"},
		"the old authority": {certs.Identity{Kind: certs.KindReplica, ID: "n2"}, b.CA().Pin(), nil, "no rotation to that authority"},
		"no rotation":       {certs.Identity{Kind: certs.KindReplica, ID: "n2"}, b.next.Pin(), func(g *ag.Group) { g.Rotation = nil }, "no rotation to that authority"},
	} {
		g := b.group
		if c.change != nil {
			c.change(&g)
		}
		b.Members.Set(g)
		key, err := b.AuthorityKey(t.Context(), c.peer, c.pin)
		if (err == nil) != (c.want == "") || (len(key) > 0) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d bytes of key, %v", name, len(key), err)
		}
	}
}

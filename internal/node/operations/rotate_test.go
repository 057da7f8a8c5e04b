package operations

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestRotateAuthority begins a rotation, holds it, lets it go and gives it up. The record never names an authority
// whose key is not on this node's disk.
func TestRotateAuthority(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.withAuthority(t)
	b.store.overtaken, b.store.other = 1, func() {
		if g := b.group(); g.Rotation != nil {
			t.Error("the record names an authority before the last attempt")
		}
	}
	r, err := b.RotateAuthority(t.Context(), api.RotateRequest{Hold: true})
	rotation := b.group().Rotation
	if err != nil || rotation == nil || r.Pin != rotation.Pin || r.Pin == old.Pin() || r.Phase != ag.RotationTrust || !r.Held || len(r.WaitsFor) != 4 {
		t.Fatalf("begun: %+v, in the record %+v, %v", r, rotation, err)
	}
	if n := len(b.changed); n != 1 || b.changed[0].Rotation == nil {
		t.Errorf("the node was told %d times of a configuration", n)
	}
	if key, err := certs.AuthorityKey(b.Layout.PKI(), r.Pin); err != nil || len(key) == 0 {
		t.Errorf("the new key is not on disk: %v", err)
	}
	if pin, err := certs.PinOfAuthority([]byte(rotation.Certificate), groupID); err != nil || pin != r.Pin {
		t.Errorf("the record has the certificate of %s, %v", pin, err)
	}
	if _, err := certs.AuthorityKey(b.Layout.PKI(), old.Pin()); err != nil {
		t.Errorf("the old key is gone: %v", err)
	}
	for _, hold := range []bool{true, false, true} {
		again, err := b.RotateAuthority(t.Context(), api.RotateRequest{Hold: hold})
		if err != nil || again.Pin != r.Pin || again.Held != hold || b.group().Rotation.Hold != hold {
			t.Errorf("held %v: %+v, %v", hold, again, err)
		}
	}
	if _, err := b.RotateAuthority(t.Context(), api.RotateRequest{Abandon: true}); err != nil || b.group().Rotation != nil {
		t.Errorf("given up: %+v, %v", b.group().Rotation, err)
	}
	if !b.pki.TryLock() {
		t.Error("the authorities stay locked")
	}
}

// TestRotateAuthorityRefuses holds when nothing is changed.
func TestRotateAuthorityRefuses(t *testing.T) {
	t.Parallel()
	used := &ag.Rotation{Pin: "x", Phase: ag.RotationIssue}
	for name, tt := range map[string]struct {
		req    api.RotateRequest
		change func(b *bed)
		kind   fail.Kind
		text   string
	}{
		"on a witness":            {api.RotateRequest{}, func(b *bed) { b.pki.ca = nil }, fail.Refused, "Run coterie ca rotate on b or c"},
		"abandoned on a witness":  {api.RotateRequest{Abandon: true}, func(b *bed) { b.pki.ca = nil }, fail.Refused, "Run coterie ca rotate on b or c"},
		"nothing to abandon":      {api.RotateRequest{Abandon: true}, nil, fail.Refused, "no rotation"},
		"abandoned when in use":   {api.RotateRequest{Abandon: true}, func(b *bed) { b.store.x.Group.Rotation = used }, fail.Refused, "can only be completed"},
		"without a quorum":        {api.RotateRequest{}, func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, fail.Unhealthy, etcd.ErrNoQuorum.Error()},
		"a disk that is not here": {api.RotateRequest{}, func(b *bed) { b.Service.Layout.Dir = "/nowhere" }, fail.Ordinary, "no such file"},
		"it ends in this moment": {api.RotateRequest{Hold: true}, func(b *bed) {
			b.store.x.Group.Rotation = used
			b.store.overtaken, b.store.other = 1, func() { b.store.alter(func(x *etcd.Snapshot) { x.Group.Rotation = nil }) }
		}, fail.Unhealthy, "ended in this moment"},
	} {
		b := newBed(t)
		b.withAuthority(t)
		if tt.change != nil {
			tt.change(b)
		}
		was := b.store.x.Group.Rotation
		_, err := b.RotateAuthority(t.Context(), tt.req)
		if fail.KindOf(err) != tt.kind || err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
		if now := b.store.x.Group.Rotation; now != was && b.store.other == nil {
			t.Errorf("%s: the record has %+v", name, now)
		}
		if !b.pki.TryLock() {
			t.Errorf("%s: the authorities stay locked", name)
		}
	}
}

// TestTwoRotationsAtOnce: of two nodes that begin a rotation at the same moment, the later answers with the rotation of
// the other.
func TestTwoRotationsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.withAuthority(t)
	b.store.overtaken, b.store.other = 1, func() {
		b.store.alter(func(x *etcd.Snapshot) { x.Group.Rotation = &ag.Rotation{Pin: "other", Phase: ag.RotationTrust} })
	}
	r, err := b.RotateAuthority(t.Context(), api.RotateRequest{})
	if err != nil || r.Pin != "other" || b.group().Rotation.Pin != "other" || errors.Is(err, etcd.ErrConflict) {
		t.Errorf("%+v, %v", r, err)
	}
}

package operations

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// bereaved is a bed whose member is lost: it does not answer, and is not counted. Its settings are not the usual ones.
func bereaved(t *testing.T, id ag.ReplicaID) *bed {
	b := newBed(t)
	b.withAuthority(t)
	b.store.alter(func(x *etcd.Snapshot) {
		x.Record.State.V, x.Record.State.K = nil, 0
		for i := range x.Group.Replicas {
			if r := &x.Group.Replicas[i]; r.ID == id && r.HasData() {
				r.AvailabilityMode, r.FailoverMode, r.Options.SessionTimeout = ag.AsynchronousCommit, ag.Manual, time.Minute
			}
		}
	})
	return b
}

// TestReplace holds that a lost member is taken out and its successor takes its name, kind and settings, that another
// token can be had until then, and that the name can be given up.
func TestReplace(t *testing.T) {
	t.Parallel()
	for id, kind := range map[ag.ReplicaID]string{"b": certs.KindReplica, "c": certs.KindReplica, "w": certs.KindWitness} {
		synctest.Test(t, func(t *testing.T) {
			b := bereaved(t, id)
			was := b.replica(id)
			for range 2 { // the first token may get lost
				r, err := b.Replace(t.Context(), api.ReplaceRequest{Member: id, TTL: time.Hour})
				if err != nil {
					t.Fatalf("%s: %v", id, err)
				}
				token, err := endpoint.ParseToken(r.Token)
				if err != nil || token.Member != string(id) || token.Role != kind || r.Role != kind {
					t.Errorf("%s: %+v, %v", id, r, err)
				}
				if _, in := b.group().Replica(id); in {
					t.Errorf("%s is a member still", id)
				}
			}
			next := ag.Replica{ID: id, Endpoint: "new:5022", KeyPin: "new", Major: was.Major, AvailabilityMode: was.AvailabilityMode}
			if err := b.Update(t.Context(), func(g *ag.Group) error { return g.Enlist(next) }); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			got := b.replica(id)
			if got.AvailabilityMode != was.AvailabilityMode || got.FailoverMode != was.FailoverMode || got.Options.SessionTimeout != was.Options.SessionTimeout || got.KeyPin != "new" || got.EtcdID != 0 || got.Suspended {
				t.Errorf("%s: %+v, was %+v", id, got, was)
			}
			if len(b.group().Awaited) > 0 {
				t.Errorf("%s: awaited still", id)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := bereaved(t, "c")
		if _, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "c", TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		if err := b.Remove(t.Context(), "c"); err != nil || len(b.group().Awaited) > 0 {
			t.Errorf("given up: %v, %v", err, b.group().Awaited)
		}
		if _, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "c", TTL: time.Hour}); fail.KindOf(err) != fail.Usage {
			t.Errorf("of no member: %v", err)
		}
	})
}

// TestReplaceRefuses holds who is not replaced, and that nothing is changed then.
func TestReplaceRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		id     ag.ReplicaID
		change func(b *bed)
		kind   fail.Kind
		text   string
	}{
		"one that answers": {"b", func(b *bed) {
			b.calls["ping"] = func(context.Context, ag.ReplicaID, any) (any, error) { return marks.Seen{}, nil }
		}, fail.Refused, "b answers, and only a member that is lost is replaced; nothing was changed"},
		"itself":       {"a", nil, fail.Refused, "a answers"},
		"nobody":       {"z", nil, fail.Usage, "the group has no member z"},
		"on a witness": {"b", func(b *bed) { b.pki.ca = nil }, fail.Refused, "Run coterie member replace b on c"},
		"no quorum":    {"b", func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, fail.Unhealthy, "no majority"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := bereaved(t, "b")
			if tt.change != nil {
				tt.change(b)
			}
			_, err := b.Replace(t.Context(), api.ReplaceRequest{Member: tt.id, TTL: time.Hour})
			if err == nil || fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v", name, err)
			}
			b.store.readErr = nil
			if g := b.group(); len(g.Awaited) > 0 || len(g.Replicas) != 4 || len(b.store.tokens) > 0 {
				t.Errorf("%s: it was begun: %+v", name, g)
			}
		})
	}
}

// TestReplaceNeedsATokenThatWorks holds that a time for which no token works is refused while the member is still
// there.
func TestReplaceNeedsATokenThatWorks(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{-time.Second, 0, 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			b := bereaved(t, "b")
			_, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "b", TTL: ttl})
			if fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "nothing was made") {
				t.Errorf("%v: %v", ttl, err)
			}
			if g := b.group(); len(g.Awaited) > 0 || len(g.Replicas) != 4 {
				t.Errorf("%v: the member was taken out: %+v", ttl, g)
			}
		})
	}
}

// TestReplaceGoesOn holds that a member whose vote could not be taken is removed by the next attempt.
func TestReplaceGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bereaved(t, "b")
		b.store.removeErr = errTest
		if _, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "b", TTL: time.Hour}); err == nil || !strings.Contains(err.Error(), errTest.Error()) || len(b.group().Awaited) > 0 {
			t.Errorf("%v, awaited %v", err, b.group().Awaited)
		}
		b.store.removeErr = nil
		if _, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "b", TTL: time.Hour}); err != nil || len(b.group().Awaited) != 1 {
			t.Errorf("%v, awaited %v", err, b.group().Awaited)
		}
	})
}

// TestReplaceTwiceAtOnce holds that of two requests to replace a member neither makes the group forget it: the slower
// one finds it taken out already, after it has seen that it does not answer.
func TestReplaceTwiceAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bereaved(t, "b")
		b.calls["ping"] = func(ctx context.Context, _ ag.ReplicaID, _ any) (any, error) {
			if err := b.Update(ctx, func(g *ag.Group) error { g.Await("b"); return nil }); err != nil {
				t.Error(err)
			}
			return nil, errTest
		}
		if _, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "b", TTL: time.Hour}); err != nil || len(b.group().Awaited) != 1 {
			t.Errorf("%v, awaited %v", err, b.group().Awaited)
		}
	})
}

// TestTokenOfAReplacementGivenUp holds that a token for the successor of a member is refused once the replacement was
// given up, and stays refused when the name is replaced another time.
func TestTokenOfAReplacementGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := bereaved(t, "c")
		replace := func() string {
			r, err := b.Replace(t.Context(), api.ReplaceRequest{Member: "c", TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			token, err := endpoint.ParseToken(r.Token)
			if err != nil {
				t.Fatal(err)
			}
			return token.ID
		}
		refused := func(when, id, code string) {
			t.Helper()
			var why *endpoint.RemoteError
			_, err := b.Admit(t.Context(), id, proved, joiner(t, "c", certs.KindReplica))
			if _, in := b.group().Replica("c"); in || !errors.As(err, &why) || why.Code != code {
				t.Errorf("%s: %v", when, err)
			}
		}
		first := replace()
		if err := b.Remove(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		refused("given up", first, endpoint.CodeTokenUsed)
		b.store.alter(func(x *etcd.Snapshot) {
			x.Group.Replicas = append(slices.Clone(x.Group.Replicas), ag.Replica{ID: "c", Endpoint: "c:5022", KeyPin: "other", Major: 15, AvailabilityMode: ag.SynchronousCommit})
		})
		second := replace()
		refused("of the replacement before", first, endpoint.CodeTokenUnknown)
		if _, err := b.Admit(t.Context(), second, proved, joiner(t, "c", certs.KindReplica)); err != nil {
			t.Errorf("the new token: %v", err)
		}
	})
}

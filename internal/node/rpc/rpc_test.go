package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// wire carries calls to handlers in the same process, as JSON, and is called with whom it carries them to.
type wire map[string]func(context.Context, certs.Identity, json.RawMessage) (any, error)

func (w wire) Handle(method string, f func(context.Context, certs.Identity, json.RawMessage) (any, error)) {
	w[method] = f
}

func (w wire) Call(ctx context.Context, to ag.Replica, method string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	result, err := w[method](ctx, certs.Identity{ID: "n1"}, body)
	if err != nil {
		return err
	}
	answer, err := json.Marshal(result)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

type pair struct{ A, B int }

// TestTypedCall carries requests and answers of every kind of method.
func TestTypedCall(t *testing.T) {
	t.Parallel()
	w := wire{}
	sum, ask, tell := Method[pair, int]{"sum", members}, Method[Nothing, string]{"ask", members}, Method[string, Nothing]{"tell", members}
	told := ""
	Handle(w, sum, func(_ context.Context, _ certs.Identity, p pair) (int, error) { return p.A + p.B, nil })
	Handle(w, ask, func(_ context.Context, peer certs.Identity, _ Nothing) (string, error) {
		return string(peer.ID), nil
	})
	Handle(w, tell, func(_ context.Context, _ certs.Identity, s string) (Nothing, error) {
		told = s
		return Nothing{}, nil
	})
	if n, err := Call(t.Context(), w, ag.Replica{}, sum, pair{2, 3}); n != 5 || err != nil {
		t.Errorf("sum: %d, %v", n, err)
	}
	if s, err := Call(t.Context(), w, ag.Replica{}, ask, Nothing{}); s != "n1" || err != nil {
		t.Errorf("ask: %q, %v", s, err)
	}
	if _, err := Call(t.Context(), w, ag.Replica{}, tell, "x"); told != "x" || err != nil {
		t.Errorf("tell: %q, %v", told, err)
	}
}

// TestKindsTravel holds that an answer with a kind of failure is that failure at the caller, that an error without one
// has the text of the other node, and that any other error stays as it is.
func TestKindsTravel(t *testing.T) {
	t.Parallel()
	w, m := wire{}, Method[Nothing, Nothing]{"m", members}
	for code, want := range map[string]fail.Kind{"API_REFUSED": fail.Refused, "API_USAGE": fail.Usage, "token_used": fail.Ordinary, "error": fail.Ordinary} {
		answer := &endpoint.RemoteError{Code: code, Message: "text"}
		Handle(w, m, func(context.Context, certs.Identity, Nothing) (Nothing, error) {
			return Nothing{}, fmt.Errorf("call m: %w", answer)
		})
		_, err := Call(t.Context(), w, ag.Replica{}, m, Nothing{})
		var remote *endpoint.RemoteError
		if kind := fail.KindOf(err); kind != want || errors.As(err, &remote) != (want == fail.Ordinary) || (want != fail.Ordinary || code == "error") != (err.Error() == "text") {
			t.Errorf("%s arrives as %s: %v", code, kind, err)
		}
	}
}

// TestRequestThatIsNoneIsRefused holds that a method is not run with a request that cannot be decoded.
func TestRequestThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	w, ran := wire{}, false
	Handle(w, Method[pair, int]{"sum", members}, func(context.Context, certs.Identity, pair) (int, error) { ran = true; return 0, nil })
	for _, body := range []string{"", "{", `"x"`, `{"A":"x"}`, "[]"} {
		if _, err := w["sum"](t.Context(), certs.Identity{}, json.RawMessage(body)); err == nil || ran {
			t.Errorf("%q: ran %v, %v", body, ran, err)
		}
	}
}

// TestOnlyReplicasMayCall holds that a witness is refused, before its request is read, wherever a method takes a
// promise, changes something or serves clients.
func TestOnlyReplicasMayCall(t *testing.T) {
	t.Parallel()
	w, ran := wire{}, 0
	Handle(w, Method[pair, int]{"any", members}, func(context.Context, certs.Identity, pair) (int, error) { ran++; return 0, nil })
	Handle(w, Method[pair, int]{"some", replicas}, func(context.Context, certs.Identity, pair) (int, error) { ran++; return 0, nil })
	for i, kind := range []string{certs.KindWitness, "", certs.KindReplica} {
		if _, err := w["any"](t.Context(), certs.Identity{ID: "x", Kind: kind}, json.RawMessage("{}")); err != nil || ran != i+1 {
			t.Errorf("%q calls a method of every member: ran %d times, %v", kind, ran, err)
		}
		_, err := w["some"](t.Context(), certs.Identity{ID: "x", Kind: kind}, json.RawMessage("{}"))
		if (err == nil) != (kind == certs.KindReplica) || err != nil && (fail.KindOf(err) != fail.Refused || strings.Contains(err.Error(), "some")) {
			t.Errorf("%q calls a method of replicas: %v", kind, err)
		}
	}
	for name, from := range map[string]callers{
		Seal.name: Seal.from, PrepareTakeover.name: PrepareTakeover.from, ReleaseReaders.name: ReleaseReaders.from, Trust.name: Trust.from, AuthorityKey.name: AuthorityKey.from,
		CreateDatabase.name: CreateDatabase.from, RestartListener.name: RestartListener.from, Role.name: Role.from, Cancel.name: Cancel.from,
		Progress.name: Progress.from, Durable.name: Durable.from, Seed.name: Seed.from, CancelSeeding.name: CancelSeeding.from,
	} {
		if from != replicas {
			t.Errorf("a witness may call %s", name)
		}
	}
}

// TestGate holds that methods wait for the node, as long as the caller does and no longer.
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ready := wire{}, make(chan struct{})
		m := Method[Nothing, bool]{"m", members}
		Handle(Gate{w, ready}, m, func(context.Context, certs.Identity, Nothing) (bool, error) { return true, nil })
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Call(brief, w, ag.Replica{}, m, Nothing{}); err == nil || !strings.Contains(err.Error(), "still starting") {
			t.Errorf("before the node is complete: %v", err)
		}
		go func() { time.Sleep(time.Minute); close(ready) }()
		began := time.Now()
		if ok, err := Call(t.Context(), w, ag.Replica{}, m, Nothing{}); !ok || err != nil || time.Since(began) != time.Minute {
			t.Errorf("answered %v, %v after %v", ok, err, time.Since(began))
		}
	})
}

func TestEach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		answers, failed := Each(ctx, []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}, func(ctx context.Context, r ag.Replica) (string, error) {
			switch r.ID {
			case "n1":
				time.Sleep(time.Second)
				return "one", nil
			case "n2":
				return "", errors.New("no")
			}
			<-ctx.Done() // a member that does not answer
			return "", ctx.Err()
		})
		if len(answers) != 1 || answers["n1"] != "one" || len(failed) != 2 || !errors.Is(failed["n3"], context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("answers %v, failed %v after %v", answers, failed, time.Since(began))
		}
	})
}

// TestPanicOfOne holds that a panic in one of the goroutines is the caller's, after all of them have ended.
func TestPanicOfOne(t *testing.T) {
	t.Parallel()
	var ended atomic.Int32
	defer func() {
		if p := fmt.Sprint(recover()); !strings.HasPrefix(p, "a bug, in\n") || ended.Load() != 2 {
			t.Errorf("%d have ended, and the caller gets %s", ended.Load(), p)
		}
	}()
	Each(t.Context(), []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}, func(_ context.Context, r ag.Replica) (string, error) {
		if r.ID == "n2" {
			panic("a bug")
		}
		ended.Add(1)
		return "", nil
	})
}

func TestFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		ask := func(ctx context.Context, r ag.Replica) (ag.ReplicaID, error) {
			asked.Add(1)
			if r.ID == "silent" {
				<-ctx.Done()
				return "", ctx.Err()
			}
			if r.ID == "no" {
				return "", errors.New("it refuses")
			}
			return r.ID, nil
		}
		began := time.Now()
		got, found, err := First(t.Context(), []ag.Replica{{ID: "silent"}, {ID: "no"}, {ID: "n3"}, {ID: "n4"}}, time.Second, ask)
		if got != "n3" || !found || err != nil || asked.Load() != 3 || time.Since(began) != time.Second {
			t.Errorf("%s, %v, %v, %d asked in %v", got, found, err, asked.Load(), time.Since(began))
		}
		_, found, err = First(t.Context(), []ag.Replica{{ID: "silent"}, {ID: "no"}}, time.Second, ask)
		if found || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "it refuses") {
			t.Errorf("where none answers: %v, %v", found, err)
		}
		if _, found, err := First(t.Context(), nil, time.Second, ask); found || err != nil {
			t.Errorf("with none to ask: %v, %v", found, err)
		}
	})
}

func TestInOwnName(t *testing.T) {
	t.Parallel()
	if err := InOwnName(certs.Identity{ID: "n2"}, "n2"); err != nil {
		t.Error(err)
	}
	if err := InOwnName(certs.Identity{ID: "n2"}, "n1"); err == nil {
		t.Error("n2 asks in the name of n1")
	}
}

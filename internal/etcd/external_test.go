package etcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/etcd/standalone"
)

func external(s *standalone.Server) External {
	return External{Endpoints: []string{s.Endpoint()}, CAFile: s.CA, CertFile: s.Cert, KeyFile: s.Key}
}

func TestExternalSettings(t *testing.T) {
	for _, bad := range []External{
		{},
		{Endpoints: []string{"10.0.0.1:2379"}},
		{Endpoints: []string{"https://10.0.0.1"}},
		{Endpoints: []string{"https://10.0.0.1:2379/v3"}},
		{Endpoints: []string{"https://u:p@10.0.0.1:2379"}},
		{Endpoints: []string{"http://10.0.0.1:2379"}},
		{Endpoints: []string{"unix:///tmp/x"}},
		{Endpoints: []string{"https://a:2379", "https://a:2379"}},
		{Endpoints: make([]string, 10)},
		{Endpoints: []string{"https://a:2379"}, CertFile: "/x"},
		{Endpoints: []string{"https://a:2379"}, KeyFile: "/x"},
	} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	for _, good := range []External{
		{Endpoints: []string{"https://10.0.0.1:2379", "https://[fd00::1]:2379"}},
		{Endpoints: []string{"http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379"}},
		{Endpoints: []string{"https://a:2379"}, CertFile: "/x", KeyFile: "/y"},
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// TestExternalIsReached checks a probe's result for an etcd with mutual TLS, and for one that is reached wrongly.
func TestExternalIsReached(t *testing.T) {
	s := standalone.New(t, filepath.Join(shortDir(t), "etcd"))
	good := external(s)
	probe := func(x External) Reached { return x.Probe(testContext(t), testGroup)[0] }
	if r := probe(good); r.Err != nil || r.Known || r.Members != 1 || r.Took <= 0 {
		t.Errorf("an empty store: %+v", r)
	}
	store := openTest(t, StoreConfig{Group: testGroup, Dial: good.Dial, Endpoints: good.Endpoints, Attempt: "a", CallTimeout: 5 * time.Second})
	if err := store.Bootstrap(testContext(t), firstGroup(testGroup), firstEpoch, firstState); err != nil {
		t.Fatal(err)
	}
	if r := probe(good); r.Err != nil || !r.Known {
		t.Errorf("a store with the record: %+v", r)
	}
	first, err := store.Read(testContext(t))
	if err != nil || first.Store == 0 {
		t.Fatalf("%+v %v", first, err)
	}

	refused := func(x External, why string) {
		t.Helper()
		if r := probe(x); r.Err == nil || !strings.Contains(r.Err.Error(), why) {
			t.Errorf("want %q: %+v", why, r)
		}
	}
	loose := good
	loose.KeyFile = filepath.Join(t.TempDir(), "loose.key")
	key, err := os.ReadFile(good.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(loose.KeyFile, key, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(loose.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(loose, "may be read or changed by others")
	refused(External{Endpoints: good.Endpoints, CAFile: good.CAFile}, "certificate required")
	refused(External{Endpoints: good.Endpoints, CertFile: good.CertFile, KeyFile: good.KeyFile}, "certificate")
	refused(External{Endpoints: good.Endpoints, CAFile: loose.KeyFile}, "no certificate in PEM")

	// A stopped store answers no request; one made anew at the same address is another store.
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := store.Read(ctx); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("a stopped store: %v", err)
	}
	s.Start()
	eventually(t, "the store answers again", func() bool {
		now, err := store.Read(testContext(t))
		return err == nil && now.Store == first.Store && now.StoreRev >= first.StoreRev
	})
	s.Stop()
	s.Forget()
	s.Start()
	eventually(t, "the new store answers", func() bool {
		_, err := store.Read(testContext(t))
		return errors.Is(err, ErrNoRecord)
	})
}

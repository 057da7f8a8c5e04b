package endpoint

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// rotatingNode is a node with its directory, its endpoint and its renewer.
type rotatingNode struct {
	dir  string
	node *Node
	e    *Endpoint
	r    *Renewer
	told atomic.Int32
}

func newRotatingNode(t *testing.T, ca *CA, kind string, id ag.ReplicaID) *rotatingNode {
	t.Helper()
	n := &rotatingNode{dir: t.TempDir()}
	if kind == KindReplica {
		if err := ca.Save(n.dir); err != nil {
			t.Fatal(err)
		}
		cert, key, err := ca.IssueListener([]string{"db.example.org"})
		if err != nil {
			t.Fatal(err)
		}
		if err := SaveListener(n.dir, cert, key); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if n.node, err = CreateNode(n.dir, ca, Identity{ca.Group, kind, id}, nil); err != nil {
		t.Fatal(err)
	}
	n.e = startBeside(t, Config{Node: n.node, Handlers: map[Class]Handler{ClassWAL: echo}})
	n.r = &Renewer{Dir: n.dir, Node: n.node, Logger: slog.New(slog.DiscardHandler), Renewed: func(string) error {
		n.told.Add(1)
		return nil
	}}
	return n
}

// dialling keeps streams of both transports from one node to another busy, and dials new ones all the time.
type dialling struct {
	dialled [2]atomic.Int64 // by transport
	end     func()
}

// fewest is the number of streams that were dialled over the slower transport.
func (d *dialling) fewest() int64 { return min(d.dialled[0].Load(), d.dialled[1].Load()) }

// openly dials until the test ends, or end is called; the test fails if a stream was refused or broke.
func openly(t *testing.T, from, to *rotatingNode) *dialling {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	d := &dialling{end: func() { cancel(); wg.Wait() }}
	exchange := func(c *Conn) error {
		buf := []byte("ping")
		if _, err := c.Write(buf); err != nil {
			return err
		}
		_, err := c.Read(buf)
		return err
	}
	for i, kind := range []string{KindTCP, KindQUIC} {
		open := func() (*Conn, error) {
			return from.e.DialBy(context.Background(), kind, to.e.Addr().String(), ClassWAL, to.node.Identity.ID)
		}
		old, err := open()
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer old.Abort()
			for ctx.Err() == nil {
				c, err := open()
				if err == nil {
					err = exchange(c)
					c.Abort()
				}
				if err == nil {
					err = exchange(old)
				}
				if err != nil {
					t.Errorf("%s from %s to %s: %v", kind, from.node.Identity.ID, to.node.Identity.ID, err)
					return
				}
				d.dialled[i].Add(1)
				time.Sleep(20 * time.Millisecond) // fifty handshakes a second are load enough beside other tests
			}
		})
	}
	t.Cleanup(d.end)
	return d
}

// Two replicas and a witness go through a rotation, one after the other in each phase, while each of them dials the next one: no
// stream ends and none is refused. What the old authority signs is believed no more then.
func TestRotateAuthority(t *testing.T) {
	t.Parallel()
	ca, next := newTestCA(t, groupA), newTestCA(t, groupA)
	a, b, w := newRotatingNode(t, ca, KindReplica, "a"), newRotatingNode(t, ca, KindReplica, "b"), newRotatingNode(t, ca, KindWitness, "w")
	all := []*rotatingNode{a, b, w}
	w.r.Issue = func(_ context.Context, csr []byte) ([]byte, error) {
		now, err := LoadCA(a.dir)
		if err != nil {
			return nil, err
		}
		return now.RenewFor(w.node.Identity, w.node.Pin, csr, nil)
	}
	var busy []*dialling
	for i, from := range all {
		busy = append(busy, openly(t, from, all[(i+1)%3]))
	}
	phase := func(step func(*rotatingNode) error) {
		t.Helper()
		for _, n := range all {
			if err := step(n); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // for a few streams between nodes that are not equally far
		}
		for _, d := range busy { // the second from now began after this phase
			n := d.fewest()
			waitFor(t, "handshakes of this phase to end", func() bool { return d.fewest() > n+1 || t.Failed() })
		}
	}
	phase(func(n *rotatingNode) error {
		if n != w {
			if err := SaveAuthorityKey(n.dir, next.KeyPEM()); err != nil {
				return err
			}
		}
		if err := TrustAuthority(n.dir, next.CertPEM); err != nil {
			return err
		}
		return n.node.Reload(n.dir)
	})
	phase(func(n *rotatingNode) error {
		if err := PreferAuthority(n.dir, next.Pin()); err != nil {
			return err
		}
		return n.r.Renew(t.Context())
	})
	if pins := a.node.TrustedPins(); !slices.Equal(pins, []string{next.Pin(), ca.Pin()}) {
		t.Errorf("believed between: %v", pins)
	}
	phase(func(n *rotatingNode) error {
		if err := ForgetAuthorities(n.dir); err != nil {
			return err
		}
		return n.node.Reload(n.dir)
	})
	for _, d := range busy {
		d.end()
	}
	for _, n := range all {
		if n.node.Authority() != next.Pin() || !slices.Equal(n.node.TrustedPins(), []string{next.Pin()}) {
			t.Errorf("%s: certificate of %s, believed are %v", n.node.Identity.ID, n.node.Authority(), n.node.TrustedPins())
		}
	}
	if l := leafIn(t, a.dir, fileListenerCert); l.CheckSignatureFrom(next.Cert) != nil || l.VerifyHostname("db.example.org") != nil || a.told.Load() != 2 {
		t.Errorf("the listener's certificate was not issued anew, or not put into use: told %d times", a.told.Load())
	}
	if _, err := AuthorityKey(b.dir, ca.Pin()); err == nil {
		t.Error("the old authority's key is still there")
	}
	stranger := startBeside(t, Config{Node: newTestNode(t, ca, "b"), Handlers: map[Class]Handler{ClassWAL: echo}})
	if _, err := stranger.Dial(t.Context(), a.e.Addr().String(), ClassWAL, "a"); err == nil {
		t.Error("a certificate of the old authority opened a stream")
	}
	if _, err := a.e.Dial(t.Context(), stranger.Addr().String(), ClassWAL, "b"); err == nil {
		t.Error("a node with a certificate of the old authority was believed")
	}
}

// A crash leaves any of a step's files replaced and the others not: the node starts from that, and the step can be made again.
func TestRotationSurvivesCrashes(t *testing.T) {
	t.Parallel()
	ca, next := newTestCA(t, groupA), newTestCA(t, groupA)
	dir, _ := aNodeDir(t, ca, KindReplica)
	steps := []func(dir string) error{
		func(dir string) error { return SaveAuthorityKey(dir, next.KeyPEM()) },
		func(dir string) error { return TrustAuthority(dir, next.CertPEM) },
		func(dir string) error { return PreferAuthority(dir, next.Pin()) },
		func(dir string) error { _, err := RenewOwn(dir); return err },
		ForgetAuthorities,
	}
	for i, step := range steps {
		before := filesIn(t, dir)
		if err := step(dir); err != nil {
			t.Fatal(err)
		}
		after := filesIn(t, dir)
		var changed []string
		for name := range after {
			if before[name] != after[name] {
				changed = append(changed, name)
			}
		}
		if len(changed) == 0 {
			t.Errorf("step %d changes nothing", i)
		}
		for set := range 1 << len(changed) {
			crashed := t.TempDir()
			for name, data := range before {
				if at := slices.Index(changed, name); at >= 0 && set>>at&1 == 1 {
					data = after[name]
				}
				if err := os.WriteFile(filepath.Join(crashed, name), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := LoadNode(crashed); err != nil {
				t.Errorf("step %d, %b of %v: %v", i, set, changed, err)
			}
			if _, err := LoadCA(crashed); err != nil {
				t.Errorf("step %d, %b of %v: %v", i, set, changed, err)
			}
			for _, again := range steps[i:] {
				if err := again(crashed); err != nil {
					t.Errorf("step %d, %b of %v, then again: %v", i, set, changed, err)
				}
			}
			n, err := LoadNode(crashed)
			if err != nil || n.Authority() != next.Pin() || !slices.Equal(n.TrustedPins(), []string{next.Pin()}) {
				t.Errorf("step %d, %b of %v, at the end: %v", i, set, changed, err)
			}
		}
	}
}

func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

// What must not be believed or preferred; and a rotation that was given up makes room for another one.
func TestAuthorityRefusals(t *testing.T) {
	ca, next, other := newTestCA(t, groupA), newTestCA(t, groupA), newTestCA(t, groupB)
	dir, _ := aNodeDir(t, ca, KindReplica)
	if err := TrustAuthority(dir, other.CertPEM); err == nil {
		if _, err = LoadNode(dir); err == nil {
			t.Error("another group's authority was believed")
		}
	}
	dir, _ = aNodeDir(t, ca, KindReplica)
	if err := PreferAuthority(dir, next.Pin()); err == nil {
		t.Error("preferred what is not believed")
	}
	if err := TrustAuthority(dir, next.CertPEM); err != nil {
		t.Fatal(err)
	}
	if err := PreferAuthority(dir, next.Pin()); err == nil {
		t.Error("preferred an authority without its key")
	}
	again := newTestCA(t, groupA)
	if err := TrustAuthority(dir, again.CertPEM); err != nil {
		t.Fatal(err)
	}
	if n, err := LoadNode(dir); err != nil || !slices.Equal(n.TrustedPins(), []string{ca.Pin(), again.Pin()}) {
		t.Errorf("believed: %v, %v", n.TrustedPins(), err)
	}
	if _, err := PinOfAuthority(other.CertPEM, groupA); err == nil {
		t.Error("another group's authority was taken for one of this")
	}
}

// Certificates with a life of two minutes are renewed again and again under streams of both transports; nothing ends and nothing is refused.
func TestShortLivesUnderLoad(t *testing.T) {
	t.Parallel()
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("waits for certificates to grow old; make test-long runs it (COTERIE_LONG=1)")
	}
	const life, lives = 2 * time.Minute, 2
	ca := newTestCA(t, groupA)
	ca.life = life
	a, b := newRotatingNode(t, ca, KindReplica, "a"), newRotatingNode(t, ca, KindReplica, "b")
	busy := []*dialling{openly(t, a, b), openly(t, b, a)}
	ctx, cancel := context.WithTimeout(t.Context(), lives*life+life/10)
	defer cancel()
	serials := map[string]bool{}
	var running sync.WaitGroup
	for _, n := range []*rotatingNode{a, b} {
		n.r.life = life
		running.Go(func() { _ = n.r.Run(ctx) })
	}
	for ctx.Err() == nil {
		serials[a.node.cert.Load().Leaf.SerialNumber.String()] = true
		if left := time.Until(a.node.NotAfter()); left <= 0 {
			t.Fatal("a certificate has expired")
		}
		time.Sleep(time.Second)
	}
	running.Wait()
	for _, d := range busy {
		d.end()
		t.Logf("at least %d streams of either transport were dialled", d.fewest())
	}
	if len(serials) <= lives || int(a.told.Load()) < 2*lives {
		t.Errorf("%d certificates in %d lives, told %d times", len(serials), lives, a.told.Load())
	}
}

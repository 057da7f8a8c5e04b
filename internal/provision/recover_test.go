package provision

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// TestLockStopped checks that a node is locked only where its agent does not run, and that a refusal leaves no lock.
func TestLockStopped(t *testing.T) {
	t.Parallel()
	l := witnessNode(t)
	s, err := LockStopped(t.Context(), l.Dir)
	if err != nil || s.Self != "w" || s.Group.Name != "orders" {
		t.Fatalf("%+v, %v", s, err)
	}
	if _, err := config.Lock(l); err == nil {
		t.Error("an agent could start meanwhile")
	}
	if _, err := LockStopped(t.Context(), l.Dir); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "agent stopped") {
		t.Errorf("a second recovery: %v", err)
	}
	s.Release()
	for _, tt := range []struct {
		name, file, text string // an empty text removes the file
		says             string
	}{
		{"no configuration", filepath.Join(l.Dir, config.File), "", "is not a node directory"},
		{"a broken configuration", filepath.Join(l.Dir, config.File), "node: [", config.File},
		{"a configuration with an unknown key", filepath.Join(l.Dir, config.File), "node: w\nknd: witness\n", "knd"},
		{"no group", l.GroupFile(), "", "this node directory is incomplete"},
		{"half of the group", l.GroupFile(), `{"name": "ord`, "group.json"},
		{"a draft", l.GroupFile(), `{"Draft": true, "draft": true}`, "in no group yet"},
	} {
		was, err := os.ReadFile(tt.file)
		if err != nil {
			t.Fatal(err)
		}
		if tt.text == "" {
			err = os.Remove(tt.file)
		} else {
			err = os.WriteFile(tt.file, []byte(tt.text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := LockStopped(t.Context(), l.Dir); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
		put(t, tt.file, string(was))
		unlock, err := config.Lock(l)
		if err != nil {
			t.Fatalf("%s left a lock: %v", tt.name, err)
		}
		unlock()
	}
}

// TestAccountText checks that an account arrives as it was sent, and that nothing else is taken for one.
func TestAccountText(t *testing.T) {
	t.Parallel()
	a := recovery.Account{
		Group: testGroup, ID: "n2", Promised: 1 << 60, Epoch: 7, Seq: 1<<64 - 1, Position: ag.Position{Timeline: 3, LSN: 0x1_0000_0028},
		Copy: "c", MaxTLI: 9, Unfit: "größer; \"'\n",
	}
	text, err := EncodeAccount(a)
	if err != nil || strings.ContainsAny(text, " \n\t'\"+/") {
		t.Fatalf("%q does not survive a shell: %v", text, err)
	}
	for _, same := range []string{text, "  " + text + "\r\n"} {
		if got, err := decodeAccount(same); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	raw := func(s string) string { return accountPrefix + base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for name, wrong := range map[string]string{
		"nothing":             "",
		"the prefix alone":    accountPrefix,
		"no prefix":           strings.TrimPrefix(text, accountPrefix),
		"a later version":     strings.Replace(text, "account1", "account2", 1),
		"cut short":           text[:len(text)-7],
		"a line break within": text[:30] + "\n" + text[31:],
		"an unknown field":    raw(`{"group": "g", "member": "n2", "healthy": true}`),
		"no object":           raw(`[]`),
		"a negative epoch":    raw(`{"group": "g", "member": "n2", "promised": -1}`),
		"two accounts":        raw(`{"member": "n2"}{"member": "n3"}`),
		"JSON":                `{"member": "n2"}`,
	} {
		_, err := decodeAccount(wrong)
		if kindOf(err) != fail.Usage {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && len(err.Error()) > 200 {
			t.Errorf("%s: %d bytes are repeated", name, len(err.Error()))
		}
		// A later version may say what keeps the recovery from being made.
		if newer := name == "an unknown field"; err != nil && strings.Contains(err.Error(), "Install here the version that printed it") != newer {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAccountOfAWitness checks that a witness tells its promise and the record that it saw, and that marks which cannot
// be read are an error instead of an account without promises.
func TestAccountOfAWitness(t *testing.T) {
	t.Parallel()
	l := witnessNode(t)
	own := marks.Open(l.State())
	if err := errors.Join(own.SetPromised(12), own.SetSeen(marks.Seen{Epoch: 11, Seq: 40, Store: 5, Rev: 6})); err != nil {
		t.Fatal(err)
	}
	s, err := LockStopped(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	a, history, err := s.Account(t.Context())
	if err != nil || a.Promised != 12 || a.Epoch != 11 || a.Seq != 40 || a.Unfit == "" || a.Copy != "" || history != nil {
		t.Errorf("%+v, %v, %v", a, history, err)
	}
	if _, err := s.Plan(t.Context(), nil, []string{"n1", "n2"}); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "witness") {
		t.Errorf("a witness is to lead: %v", err)
	}
	for _, file := range []string{"promise.json", "seen.json"} {
		was, err := os.ReadFile(filepath.Join(l.State(), file))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(l.State(), file), string(was[:len(was)/2]))
		if a, _, err := s.Account(t.Context()); err == nil {
			t.Errorf("half of %s: account %+v", file, a)
		}
		put(t, filepath.Join(l.State(), file), string(was))
	}
}

// aside returns the directories of earlier quorum members.
func aside(t *testing.T, l config.Layout) []string {
	t.Helper()
	found, err := filepath.Glob(l.Etcd() + ".lost-*")
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestFollow checks that a member forgets the lost quorum and keeps its promises and its old directory. A run that
// failed half way can be repeated.
func TestFollow(t *testing.T) {
	t.Parallel()
	l := witnessNode(t)
	own := marks.Open(l.State())
	if err := errors.Join(own.SetPromised(12), own.SetSeen(marks.Seen{Epoch: 11, Seq: 40, Store: 5, Rev: 6}), os.Mkdir(l.ComebackFile(), 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(l.Etcd(), "member", "snap", "db"), "old quorum")
	put(t, l.MemberMark(), "{}")
	s, err := LockStopped(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	if err := s.Follow(false); err == nil { // a directory is in the way of the file that makes the member come back
		t.Fatal("the last step cannot have been done")
	}
	if err := os.Remove(l.ComebackFile()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Follow(false); err != nil {
			t.Fatal(err)
		}
	}
	old := aside(t, l)
	if len(old) != 1 || exists(t, l.Etcd()) || exists(t, l.MemberMark()) || !exists(t, l.ComebackFile()) {
		t.Fatalf("aside %v", old)
	}
	if b, err := os.ReadFile(filepath.Join(old[0], "member", "snap", "db")); err != nil || string(b) != "old quorum" {
		t.Errorf("%q, %v", b, err)
	}
	seen, err1 := own.Seen()
	promised, err2 := own.Promised()
	if seen.Epoch != 11 || seen.Seq != 40 || seen.Store != 0 || seen.Rev != 0 || promised != 12 || err1 != nil || err2 != nil {
		t.Errorf("%+v, promised %d, %v %v", seen, promised, err1, err2)
	}
	put(t, l.FoundingFile(), "{}")
	put(t, filepath.Join(l.Etcd(), "db"), "new")
	if err := s.Follow(false); kindOf(err) != fail.Refused || !exists(t, l.Etcd()) {
		t.Errorf("the member that founds the new quorum: %v", err)
	}
}

// TestRecoverLead checks a whole recovery on a member with data: the refusals before it, its files, and that it can be
// run again after a crash between any two of them.
// TestMemberAsideOfItsOwnDisk holds that a member whose directory is a file system of its own is put aside on it.
func TestMemberAsideOfItsOwnDisk(t *testing.T) {
	l := witnessNode(t)
	if err := os.MkdirAll(l.Etcd(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", l.Etcd(), "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(l.Etcd(), syscall.MNT_DETACH) })
	put(t, filepath.Join(l.Etcd(), "member", "snap", "db"), "old quorum")
	put(t, l.MemberMark(), "{}")
	s, err := LockStopped(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	for range 2 {
		if err := s.Follow(false); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := filepath.Glob(filepath.Join(l.Etcd(), "member.lost-*"))
	if len(kept) != 1 || err != nil || exists(t, filepath.Join(l.Etcd(), "member")) || exists(t, l.MemberMark()) {
		t.Errorf("kept %v, %v", kept, err)
	}
}

func TestRecoverLead(t *testing.T) {
	n := firstNode(t, stoppedServer(t))
	if err := FoundGroup(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	l := n.Layout
	runs, stolen, strangers := answers(t, l, "n2", certs.KindReplica), answers(t, l, "w", certs.KindWitness), answers(t, l, "n9", certs.KindReplica)
	g := members()
	g.Replicas[1].Endpoint, g.Replicas[2].Endpoint = runs, stolen
	own := marks.Open(l.State())
	if err := errors.Join(membership.SaveGroup(l, g), os.Remove(l.FoundingFile()), own.SetPromised(4), own.SetSeen(marks.Seen{Epoch: 3, Seq: 20, Store: 9, Rev: 9})); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(l.Etcd(), "db"), "lost quorum")
	put(t, l.MemberMark(), "{}")
	s, err := LockStopped(t.Context(), l.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	own1, _, err := s.Account(t.Context())
	if err != nil || own1.Unfit != "" || own1.Position.LSN == 0 || own1.Position.Timeline != 1 {
		t.Fatalf("%+v, %v", own1, err)
	}
	text := func(a recovery.Account) string {
		text, err := EncodeAccount(a)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	n2 := text(recovery.Account{Group: testGroup, ID: "n2", Promised: 6, Epoch: 3, Seq: 20, Position: ag.Position{Timeline: 1, LSN: 1}, Copy: "c2"})
	w := text(recovery.Account{Group: testGroup, ID: "w", Promised: 5, Epoch: 3, Seq: 20, Unfit: "a witness"})
	foreign := text(recovery.Account{Group: "other", ID: "n2"})
	for _, tt := range []struct {
		name        string
		texts, lost []string
		kind        fail.Kind
		says        string
	}{
		{"a member is missing", []string{n2}, nil, fail.Refused, "nothing is known of w"},
		{"another group's account", []string{foreign, w}, nil, fail.Refused, "another group"},
		{"one account twice", []string{n2, n2, w}, nil, fail.Refused, "two accounts of n2"},
		{"lost, and yet it told", []string{n2, w}, []string{"n2"}, fail.Refused, "given up for lost"},
		{"not an account", []string{n2, w[:20]}, nil, fail.Usage, "copy the whole line"},
		{"a member runs", []string{n2, w}, nil, fail.Refused, "the agent of n2 runs"},
		{"a member that is called lost runs", []string{w}, []string{"n2"}, fail.Refused, "the agent of n2 runs"},
	} {
		if _, err := s.Plan(t.Context(), tt.texts, tt.lost); kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if exists(t, l.FoundingFile()) || !exists(t, filepath.Join(l.Etcd(), "db")) {
		t.Fatal("a refusal changed the node")
	}
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stopped.Close() }()
	s.Group.Replicas[1].Endpoint = stopped.Addr().String()
	if _, err := s.Plan(t.Context(), []string{n2, w}, nil); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "says nothing") {
		t.Errorf("the agent of n2 is stopped by a signal: %v", err)
	}
	s.Group.Replicas[1].Endpoint = strangers // has the address of n2 by now, and bars nothing
	if err := membership.SaveGroup(l, s.Group); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Plan(t.Context(), []string{n2, w}, nil); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "the agent of w runs") {
		t.Errorf("the witness runs: %v", err)
	}
	founder := text(recovery.Account{Group: testGroup, ID: "n2", Promised: 6, Epoch: 3, Seq: 20, Founds: 7})
	if _, err := s.Plan(t.Context(), []string{founder}, []string{"w"}); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), "n2 is to found a new quorum itself, in epoch 7") {
		t.Errorf("recover lead was run on n2: %v", err)
	}
	refoundTwice(t, s, []string{n2, text(own1)}, []string{"w"}) // whose thief lets it run
	if a, _, err := s.Account(t.Context()); err != nil || a.Founds != 7 {
		t.Errorf("the account of a founder: %+v, %v", a, err)
	}
	if err := s.Follow(false); kindOf(err) != fail.Refused {
		t.Errorf("it leads and is to follow: %v", err)
	}
	if s.Group, err = membership.ReadGroup(l); err != nil { // as the next command does
		t.Fatal(err)
	}
	if err := s.Follow(true); err != nil || exists(t, l.FoundingFile()) || !exists(t, l.ComebackFile()) {
		t.Errorf("it gives up to lead: %v", err)
	}
	known, err := membership.ReadGroup(l)
	if _, in := known.Replica("w"); err != nil || !in {
		t.Errorf("it does not know whom it gave up for lost: %+v, %v", known.Replicas, err)
	}
}

// TestWhoAnswersANodeThatWasAway holds that a member that runs bars a recovery also on a node whose own certificate has
// expired, and on one that was away while the group's authority was rotated.
func TestWhoAnswersANodeThatWasAway(t *testing.T) {
	l, ca := newAuthority(t)
	runs := answers(t, l, "n2", certs.KindReplica)
	s := &StoppedNode{Layout: l, Self: "n1", Group: members()}
	s.Group.Replicas = s.Group.Replicas[:2]
	s.Group.Replicas[1].Endpoint = runs
	refused := func(what, says string) {
		t.Helper()
		for _, lost := range [][]ag.ReplicaID{nil, {"n2"}} {
			if err := s.noneAnswers(t.Context(), lost); kindOf(err) != fail.Refused || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	if _, err := certs.CreateNode(l.PKI(), ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: "n1"}, nil); err != nil {
		t.Fatal(err)
	}
	refused("n2 runs", "the agent of n2 runs")

	ca.Life = time.Second
	if _, err := certs.CreateNode(l.PKI(), ca, certs.Identity{Group: testGroup, Kind: certs.KindReplica, ID: "n1"}, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(ca.Life)
	if _, err := certs.LoadNode(l.PKI()); err == nil {
		t.Fatal("the certificate has not expired")
	}
	refused("the own certificate has expired", "the agent of n2 runs")

	other, _ := newAuthority(t)
	s.Group.Replicas[1].Endpoint = answers(t, other, "n2", certs.KindReplica)
	refused("the authority is another one", "of an authority that is not known here")
	s.Group.Replicas[1].Endpoint = answers(t, other, "n9", certs.KindReplica)
	if err := s.noneAnswers(t.Context(), nil); err != nil {
		t.Errorf("a stranger answers: %v", err)
	}
}

// newAuthority returns the layout of a node with an authority of its own of the group.
func newAuthority(t *testing.T) (config.Layout, *certs.CA) {
	t.Helper()
	l, err := FreshDir(filepath.Join(t.TempDir(), "n"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.Run) })
	ca, err := certs.NewCA(testGroup, "orders")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(l.PKI(), 0o700), ca.Save(l.PKI())); err != nil {
		t.Fatal(err)
	}
	return l, ca
}

// answers listens as the agent of that member does. Its certificate is of the authority of the node with layout l.
func answers(t *testing.T, l config.Layout, id ag.ReplicaID, kind string) string {
	t.Helper()
	ca, err := certs.LoadCA(l.PKI())
	if err != nil {
		t.Fatal(err)
	}
	node, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: testGroup, Kind: kind, ID: id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := endpoint.New(endpoint.Config{
		Node: node, Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		Authorize: func(certs.Identity, string, endpoint.Class) error { return nil },
		Handlers:  map[endpoint.Class]endpoint.Handler{endpoint.ClassControl: func(context.Context, certs.Identity, net.Conn) {}},
	})
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = e.Serve(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-served
	})
	return e.Addr().String()
}

// refoundTwice recovers, then again after the loss of each file that the recovery writes, as by a crash before it.
func refoundTwice(t *testing.T, s *StoppedNode, texts, lost []string) {
	t.Helper()
	l, before := s.Layout, s.Group
	var first membership.Founding
	for i, crash := range []func() error{
		func() error { return nil },
		func() error { return os.Remove(l.FoundingFile()) }, // the group is written, the record is not
		func() error { return errors.Join(os.Remove(l.FoundingFile()), membership.SaveGroup(l, before)) }, // neither is
	} {
		if err := crash(); err != nil {
			t.Fatal(err)
		}
		var err error
		if s.Group, err = membership.ReadGroup(l); err != nil {
			t.Fatal(err)
		}
		p, err := s.Plan(t.Context(), texts, lost)
		if err != nil {
			t.Fatalf("run %d: %v", i+1, err)
		}
		if err := s.Refound(p.Recovery); err != nil {
			t.Fatalf("run %d: %v", i+1, err)
		}
		var f membership.Founding
		readJSON(t, l.FoundingFile(), &f)
		if i == 0 {
			first = f
			if len(f.Gone) != 1 || f.Gone[0].ID != "w" {
				t.Errorf("gone are %+v", f.Gone)
			}
		}
		f.Gone = first.Gone // a group without them may have been written
		if f.Epoch.Epoch != 7 || f.Epoch.Leader != "n1" || !f.Epoch.Forced || f.Token != string(testGroup)+"-7" || f.State.Seq != 21 || len(f.State.V) != 0 {
			t.Errorf("run %d: %+v %+v token %s", i+1, f.Epoch, f.State, f.Token)
		}
		if len(f.Group.Replicas) != 2 || f.Group.Replicas[0].FailoverMode != ag.Manual || f.Group.Replicas[1].Voter {
			t.Errorf("run %d: %+v", i+1, f.Group.Replicas)
		}
		if f.Group.Serial < first.Group.Serial {
			t.Errorf("run %d: the configuration has the number %d, lower than %d", i+1, f.Group.Serial, first.Group.Serial)
		}
		f.Group.Serial = first.Group.Serial // a later run may give a greater one
		if !reflect.DeepEqual(f, first) {
			t.Errorf("run %d makes another record", i+1)
		}
	}
	if len(aside(t, l)) != 1 || exists(t, l.Etcd()) || exists(t, l.MemberMark()) {
		t.Errorf("aside %v", aside(t, l))
	}
	seen, err := marks.Open(l.State()).Seen()
	if err != nil || seen.Epoch != 3 || seen.Seq != 20 || seen.Store != 0 {
		t.Errorf("%+v, %v", seen, err)
	}
}

// TestUnfitCopies checks that an account names the reason for which a copy cannot lead.
func TestUnfitCopies(t *testing.T) {
	n := firstNode(t, stoppedServer(t))
	if err := FoundGroup(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	own := marks.Open(n.Layout.State())
	held, err := own.Copy()
	if err != nil {
		t.Fatal(err)
	}
	s, err := LockStopped(t.Context(), n.Layout.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	left := ag.Position{Timeline: 1, LSN: 1}
	if err := own.SetPromoting(marks.Promotion{Epoch: 2, TLI: 1, From: left}); err != nil {
		t.Fatal(err)
	}
	if a, _, err := s.Account(t.Context()); err != nil || a.Unled != left {
		t.Errorf("a promotion that did not come to lead: %+v, %v", a, err)
	}
	if err := own.ClearPromoting(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		says     string
		do, undo func() error
	}{
		{"quarantine: a write was lost", func() error { return own.SetQuarantine(marks.Quarantine{Copy: held.Copy, Why: "a write was lost"}) }, own.ClearQuarantine},
		{"", func() error { return own.SetQuarantine(marks.Quarantine{Copy: "an earlier one", Why: "x"}) }, own.ClearQuarantine},
		{"rewound or seeded", func() error { return own.SetRepairing("n2") }, own.ClearRepairing},
		{"not the copy that this node holds", func() error { return own.SetCopy(marks.Copy{Copy: "another"}) }, func() error { return own.SetCopy(held) }},
		{"end of WAL", func() error {
			return os.Rename(n.Config.PostgreSQL.Data+"/global/pg_control", n.Config.PostgreSQL.Data+"/global/x")
		}, func() error {
			return os.Rename(n.Config.PostgreSQL.Data+"/global/x", n.Config.PostgreSQL.Data+"/global/pg_control")
		}},
	} {
		if err := tt.do(); err != nil {
			t.Fatal(err)
		}
		a, _, err := s.Account(t.Context())
		if err != nil || (a.Unfit == "") != (tt.says == "") || !strings.Contains(a.Unfit, tt.says) {
			t.Errorf("%q: %+v, %v", tt.says, a, err)
		}
		quarantined := strings.HasPrefix(tt.says, "quarantine")
		if a.Unfit != "" && (a.Position.LSN != 0) != quarantined {
			t.Errorf("%q: its copy ends at %s", tt.says, a.Position)
		}
		if repaired := strings.HasPrefix(tt.says, "rewound"); (a.Copy == "") != repaired {
			t.Errorf("%q: copy %q", tt.says, a.Copy)
		}
		if err := tt.undo(); err != nil {
			t.Fatal(err)
		}
	}
}

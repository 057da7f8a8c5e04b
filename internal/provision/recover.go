package provision

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// StoppedNode is a node whose agent does not run. The agent cannot start until Release is called.
type StoppedNode struct {
	cfg     config.Config
	Layout  config.Layout
	Self    ag.ReplicaID
	Group   ag.Group // as this node last saw it
	Release func()
}

// LockStopped prevents the start of the node's agent until Release. It is refused if the agent or the server of the
// node runs.
func LockStopped(ctx context.Context, dir string) (*StoppedNode, error) {
	layout, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(layout.Dir)
	if err != nil {
		return nil, err
	}
	if err := layout.Make(); err != nil {
		return nil, err
	}
	unlock, err := config.Lock(layout)
	if err != nil {
		return nil, fail.Refusedf("%w (coterie recover needs this node with its agent stopped: what it knows must not change meanwhile)", err)
	}
	s := &StoppedNode{cfg: cfg, Layout: layout, Self: ag.ReplicaID(cfg.Node), Release: unlock}
	if err := s.check(ctx); err != nil {
		unlock()
		return nil, err
	}
	return s, nil
}

func (s *StoppedNode) check(ctx context.Context) (err error) {
	if s.Group, err = membership.ReadGroup(s.Layout); err != nil {
		return err
	}
	if s.Group.Draft {
		return fail.Refusedf("this node is in no group yet; there is nothing to recover")
	}
	if s.cfg.Kind != "replica" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	k, _, err := keeper.Dial(ctx, s.Layout.KeeperSock(), "")
	if err != nil {
		return nil //nolint:nilerr // without a keeper there is no server either, since it dies with its parent
	}
	defer func() { _ = k.Close() }()
	st, err := k.Status(ctx)
	if err != nil {
		return err
	}
	if st.Postmaster != 0 {
		return fail.Refusedf("PostgreSQL still runs here (process %d); start the agent and stop it in order: systemctl stop coterie", st.Postmaster)
	}
	return nil
}

// Account reads this member's account from its disk: its promises, the last record that it saw, and the end of its
// copy. history is that of the copy's timeline.
func (s *StoppedNode) Account(ctx context.Context) (a recovery.Account, history []ag.TimelineEntry, err error) {
	a = recovery.Account{Group: ag.GroupID(s.cfg.Group), ID: s.Self}
	own := marks.Open(s.Layout.State())
	seen, err1 := own.Seen()
	promised, err2 := own.Promised()
	if err := errors.Join(err1, err2); err != nil {
		return a, nil, err
	}
	a.Promised, a.Epoch, a.Seq = promised, seen.Epoch, seen.Seq
	if recovery.Recovered(s.Group) {
		a.Store = seen.Store
	}
	switch f, err := membership.ReadFounding(s.Layout); {
	case err == nil:
		a.Founds = f.Epoch.Epoch
	case !errors.Is(err, fs.ErrNotExist):
		return a, nil, err
	}
	if s.cfg.Kind != "replica" {
		a.Unfit = "it is a witness and holds no data"
		return a, nil, nil
	}
	began, err1 := own.Promoting()
	held, err2 := own.Copy()
	bad, err3 := own.Quarantine()
	pg, err4 := pgserver.NewInstance(s.cfg, s.Layout, slog.New(slog.DiscardHandler))
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return a, nil, err
	}
	defer func() { _ = pg.Close() }()
	inside, err := (&pgserver.Instance{Instance: pg, Layout: s.Layout}).InsideCopy()
	var known bool
	a.Copy, known = held.Is(inside)
	a.MaxTLI = began.TLI
	switch {
	case own.Repairing():
		a.Unfit, a.Copy = "its copy was being rewound or seeded", "" // there is no whole one
	case err != nil || !known:
		a.Unfit = "what is in its data directory is not the copy that this node holds"
	}
	if a.Unfit != "" {
		return a, nil, nil
	}
	if bad.Copy != "" && bad.Copy == a.Copy { // it may have what no other copy has: where it ends is told all the same
		a.Unfit = "its copy is under quarantine: " + bad.Why
	}
	if a.Position, err = pg.EndOfWAL(ctx); err != nil {
		a.Unfit = cmp.Or(a.Unfit, err.Error())
		return a, nil, nil
	}
	a.MaxTLI = max(a.MaxTLI, a.Position.Timeline)
	history, err = pg.History(ctx, a.Position.Timeline)
	a.Unled = began.UnledIn(history, a.Position)
	return a, history, err
}

// accountPrefix begins the output of coterie recover account. It has the version of the format.
const accountPrefix = "account1."

// EncodeAccount returns an account as one line of text, which Plan reads on another member.
func EncodeAccount(a recovery.Account) (string, error) {
	b, err := json.Marshal(a)
	return accountPrefix + base64.RawURLEncoding.EncodeToString(b), err
}

func decodeAccount(text string) (a recovery.Account, err error) {
	body, ok := strings.CutPrefix(strings.TrimSpace(text), accountPrefix)
	b, err := base64.RawURLEncoding.DecodeString(body)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(b)))
		d.DisallowUnknownFields()
		if err = d.Decode(&a); err == nil && d.More() {
			err = errors.New("more than one account")
		}
	}
	if ok && err != nil && strings.Contains(err.Error(), "unknown field") { // encoding/json has no type for it
		return a, fail.Usagef("%.40s… says what this version of coterie does not know: %w. Install here the version that printed it, and run this again", text, err)
	}
	if !ok || err != nil {
		return a, fail.Usagef("%.40s… is not what coterie recover account prints; copy the whole line", text)
	}
	return a, nil
}

// RecoveryPlan is the group that a recovery would make, and the accounts from which it was decided.
type RecoveryPlan struct {
	Recovery recovery.Recovery
	Accounts []recovery.Account
	Gone     []ag.ReplicaID
}

// Plan decides the recovery from this node's disk and the accounts of the others. It is refused while any other member
// answers.
func (s *StoppedNode) Plan(ctx context.Context, texts, lost []string) (p RecoveryPlan, err error) {
	own, history, err := s.Account(ctx)
	if err != nil {
		return p, err
	}
	p.Accounts = []recovery.Account{own}
	for _, t := range texts {
		a, err := decodeAccount(t)
		if err != nil {
			return p, err
		}
		if a.ID != s.Self { // this member's own account was read from its disk
			p.Accounts = append(p.Accounts, a)
		}
	}
	for _, l := range lost {
		p.Gone = append(p.Gone, ag.ReplicaID(l))
	}
	if p.Recovery, err = recovery.Recover(recovery.Request{Group: s.Group, Lead: s.Self, Accounts: p.Accounts, Lost: p.Gone, History: history}); err != nil {
		return p, fail.Refusedf("%w", err)
	}
	return p, s.noneAnswers(ctx, p.Gone)
}

// noneAnswers refuses while any other member answers. Its agent runs, so the quorum may not be lost at all. A program
// that does not prove to be that member only has its address; but of a member that is not given up for lost, its
// silence may be that of its agent. One that only names itself as the member may be it too, if the group has another
// authority than this node knows: a group goes on without a node that was away, and nobody is to lead beside it. A
// witness that is given up for lost may be stolen, and its thief would not stop it.
func (s *StoppedNode) noneAnswers(ctx context.Context, lost []ag.ReplicaID) error {
	node, err := certs.LoadAnyTime(s.Layout.PKI())
	if err != nil {
		return fmt.Errorf("ask whether another member runs: %w", err)
	}
	for _, r := range s.Group.Replicas {
		if r.ID == s.Self || !r.HasData() && slices.Contains(lost, r.ID) {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := endpoint.Answers(asking, node, r.Endpoint, r.ID)
		cancel()
		switch {
		case errors.Is(err, endpoint.ErrSilent) && !slices.Contains(lost, r.ID):
			return fail.Refusedf("something takes connections at %s, the address of %s, and says nothing, as an agent does that is stopped by a signal or overloaded. "+
				"End its agent, or whatever else is there, and run this again", r.Endpoint, r.ID)
		case errors.Is(err, endpoint.ErrNamesake):
			return fail.Refusedf("something answers at %s and names itself as %s of this group, by a certificate of an authority that is not known here. If the authority was rotated while this node was away, "+
				"the group lives without it: see coterie status there. Otherwise stop what answers there, or cut it off, and run this again", r.Endpoint, r.ID)
		case err != nil:
			continue
		}
		return fail.Refusedf("the agent of %s runs: it answers at %s. Stop it first: while it runs it may lead, or promise something. If the group is "+
			"well, nothing is to be recovered; see coterie status there", r.ID, r.Endpoint)
	}
	return nil
}

// Refound puts the old quorum member aside and writes the founding record, from which the next start founds the new
// quorum. After a crash at any point it can be run again.
func (s *StoppedNode) Refound(r recovery.Recovery) error {
	if err := errors.Join(s.putMemberAside(), s.forgetStore()); err != nil {
		return err
	}
	// Without a token of its own the new quorum would have the identity of the old one: the same member founds it at
	// the same address.
	f := membership.Founding{Group: r.Group, Epoch: r.Epoch, State: r.State, Token: fmt.Sprintf("%s-%d", s.cfg.Group, r.Epoch.Epoch)}
	if was, err := membership.ReadFounding(s.Layout); err == nil {
		f.Gone = was.Gone // the configuration may not have them any more
	}
	for _, old := range s.Group.Replicas {
		if _, stays := r.Group.Replica(old.ID); !stays {
			f.Gone = append(f.Gone, old)
		}
	}
	return errors.Join(membership.SaveGroup(s.Layout, f.Group), durable.ReplaceJSON(s.Layout.FoundingFile(), f))
}

// Follow makes this member forget the lost quorum, so that it joins the new one at its next start. A member that is to
// found a quorum itself does so only if it is to give that up: it has not led yet, so it has acknowledged nothing.
func (s *StoppedNode) Follow(giveUpLead bool) error {
	if _, err := os.Stat(s.Layout.FoundingFile()); err == nil {
		if !giveUpLead {
			return fail.Refusedf("this member is to found the new quorum at its next start (coterie recover lead was run here); it follows nobody. " +
				"If another member is to lead instead, add --give-up-lead")
		}
		if err := s.giveUpLead(); err != nil {
			return err
		}
	}
	// The configuration of the new quorum may have a lower number than one of the lost quorum that this member saw.
	g := s.Group
	g.Serial = 0
	return errors.Join(s.putMemberAside(), s.forgetStore(), membership.SaveGroup(s.Layout, g), durable.Replace(s.Layout.ComebackFile(), nil, 0o600))
}

// giveUpLead takes Refound back, as far as Follow does not. The configuration has the members again that were given up
// for lost: one of them may lead.
func (s *StoppedNode) giveUpLead() error {
	f, err := membership.ReadFounding(s.Layout)
	if err != nil {
		return err
	}
	for _, r := range f.Gone {
		if _, in := s.Group.Replica(r.ID); !in {
			s.Group.Replicas = append(s.Group.Replicas, r)
		}
	}
	if err := membership.SaveGroup(s.Layout, s.Group); err != nil { // nothing else knows them
		return err
	}
	return durable.Remove(s.Layout.FoundingFile())
}

// putMemberAside renames the directory of the old quorum member, so that a new one can be made. The old directory is
// kept. One that is a file system of its own keeps its name, and what is in it gets another.
func (s *StoppedNode) putMemberAside() error {
	aside := ".lost-" + time.Now().UTC().Format("20060102T150405Z")
	err := durable.Rename(s.Layout.Etcd(), s.Layout.Etcd()+aside)
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EXDEV) {
		err = durable.Rename(filepath.Join(s.Layout.Etcd(), "member"), filepath.Join(s.Layout.Etcd(), "member"+aside))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("put the old quorum member aside: %w", err)
	}
	return durable.Remove(s.Layout.MemberMark())
}

// forgetStore makes this member accept another store than the one that it knows. It keeps the epoch and
// number of the last record that it saw.
func (s *StoppedNode) forgetStore() error {
	own := marks.Open(s.Layout.State())
	seen, err := own.Seen()
	if err != nil {
		return err
	}
	seen.Store, seen.Rev = 0, 0
	seen.Chosen, seen.Led, seen.By = "", 0, "" // an operator has decided which story of an epoch is kept
	return own.SetSeen(seen)
}

package recovery

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

func lostGroup() ag.Group {
	r := func(id ag.ReplicaID) ag.Replica {
		return ag.Replica{ID: id, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true, EtcdID: 7}
	}
	w := ag.Replica{ID: "w", AvailabilityMode: ag.ConfigurationOnly, Voter: true, EtcdID: 9}
	return ag.Group{ID: "g", Name: "orders", Replicas: []ag.Replica{r("a"), r("b"), w}}
}

func account(id ag.ReplicaID, promised, seen ag.Epoch, seq uint64, lsn ag.LSN) Account {
	return Account{Group: "g", ID: id, Promised: promised, Epoch: seen, Seq: seq, Position: ag.Position{Timeline: 3, LSN: lsn}, Copy: ag.CopyID("c" + id), MaxTLI: 3}
}

func TestRecoveryTakesNothingBack(t *testing.T) {
	a, b := account("a", 4, 5, 17, 100), account("b", 8, 5, 16, 50)
	b.MaxTLI = 6 // it began a promotion that no other member knows of
	r, err := Recover(Request{Group: lostGroup(), Lead: "a", Accounts: []Account{a, b}, Lost: []ag.ReplicaID{"w"}, History: []ag.TimelineEntry{{TLI: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Epoch.Epoch != 9 || r.Epoch.Phase != ag.PhasePromote || r.Epoch.Leader != "a" || r.Epoch.Copy != "ca" || r.Epoch.From != a.Position {
		t.Errorf("%+v", r.Epoch)
	}
	if r.Epoch.TLI != 6+9 || r.Epoch.MaxTLI != r.Epoch.TLI {
		t.Errorf("timeline %d may have been used", r.Epoch.TLI)
	}
	if r.State.Seq != 18 || len(r.State.V) != 0 || r.State.K != 0 || r.State.Leader != "a" || r.State.Copy != "ca" {
		t.Errorf("%+v", r.State)
	}
	if len(r.Group.Replicas) != 2 || len(r.Ahead) != 0 {
		t.Errorf("%+v", r)
	}
	for _, m := range r.Group.Replicas {
		if m.FailoverMode != ag.Manual || m.EtcdID != 0 || m.Voter != (m.ID == "a") || m.Suspended {
			t.Errorf("%+v", m)
		}
	}
}

// TestRecoverySparesWhoIsAhead holds that the administrator may choose the shorter copy, and that the longer one is not
// discarded for it.
func TestRecoverySparesWhoIsAhead(t *testing.T) {
	forced := account("b", 1, 1, 17, 50)
	forced.Position.Timeline = 4
	for name, b := range map[string]Account{
		"longer log": account("b", 1, 1, 17, 101), "longer log, which an earlier record counts": account("b", 1, 1, 9, 101), "later timeline": forced,
	} {
		r, err := Recover(Request{Group: lostGroup(), Lead: "a", Accounts: []Account{account("a", 4, 5, 17, 100), b}, Lost: []ag.ReplicaID{"w"}})
		if err != nil {
			t.Fatal(err)
		}
		m, _ := r.Group.Replica("b")
		if !slices.Equal(r.Ahead, []ag.ReplicaID{"b"}) || !m.Suspended {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestRecordsAreNoCopies holds that what a member has seen of the record does not stand for its copy. The secondary b
// goes down first, and the primary writes into the record that it does without b. An asynchronous or suspended replica
// c sees that, and has hardly anything. Then the primary is lost, with the store.
func TestRecordsAreNoCopies(t *testing.T) {
	g := lostGroup()
	g.Replicas[2] = ag.Replica{ID: "c", AvailabilityMode: ag.AsynchronousCommit, FailoverMode: ag.Manual}
	b, c := account("b", 4, 4, 17, 100), account("c", 4, 4, 18, 10)
	for lead, ahead := range map[ag.ReplicaID][]ag.ReplicaID{"b": nil, "c": {"b"}} {
		r, err := Recover(Request{Group: g, Lead: lead, Accounts: []Account{b, c}, Lost: []ag.ReplicaID{"a"}})
		if err != nil || !slices.Equal(r.Ahead, ahead) {
			t.Errorf("%s leads: %v is ahead, %v", lead, r.Ahead, err)
		}
		if other, _ := r.Group.Replica("b"); other.Suspended != (lead == "c") {
			t.Errorf("%s leads, and the copy of b is to be kept: %t", lead, other.Suspended)
		}
	}
	if b.Newer(c) <= 0 {
		t.Error("c is said to be newer")
	}
	// Timeline 7 leaves timeline 3 at 90: the rest of timeline 3 was not acknowledged, or a forced failover gave it up.
	// A copy on another timeline may be of an epoch that was forced later.
	d := account("d", 7, 7, 18, 95)
	d.Position.Timeline = 7
	leaves := []ag.TimelineEntry{{TLI: 3}, {TLI: 7, Parent: 3, Switch: 90}}
	for _, tt := range []struct {
		seq   uint64
		tli   ag.Timeline
		lsn   ag.LSN
		ahead bool
	}{{17, 3, 80, false}, {17, 3, 99, false}, {19, 3, 80, false}, {19, 3, 99, false}, {17, 5, 80, false}, {19, 5, 80, true}, {17, 8, 80, true}} {
		q, c := Request{History: leaves}, account("c", 7, 8, tt.seq, tt.lsn)
		c.Position.Timeline = tt.tli
		if got := q.ahead(c, d); got != tt.ahead {
			t.Errorf("%+v: ahead: %t", tt, got)
		}
	}
	b.Unfit = "its copy is under quarantine" // a person may come to trust it
	unread := account("b", 4, 4, 19, 0)
	unread.Unfit = "its WAL cannot be read"
	if r, err := Recover(Request{Group: g, Lead: "c", Accounts: []Account{unread, c}, Lost: []ag.ReplicaID{"a"}}); err != nil || !slices.Equal(r.Ahead, []ag.ReplicaID{"b"}) {
		t.Errorf("its WAL cannot be read: %v is ahead, %v", r.Ahead, err)
	}
	if r, err := Recover(Request{Group: g, Lead: "c", Accounts: []Account{b, c}, Lost: []ag.ReplicaID{"a"}}); err != nil || !slices.Equal(r.Ahead, []ag.ReplicaID{"b"}) {
		t.Errorf("%v is ahead, %v", r.Ahead, err)
	}
}

// TestCopiesThatWentApart holds that two copies of which each may have what the other lacks are told as such. Here b
// led timeline 3 for a moment, c was promoted behind what both had, and only b saw what a third one wrote last. The
// same accounts come about where a third one was promoted by force from what b had.
func TestCopiesThatWentApart(t *testing.T) {
	b, c := account("b", 2, 4, 19, 12), account("c", 3, 3, 18, 124)
	b.Position.Timeline, c.Position.Timeline = 3, 4
	g := lostGroup()
	g.Replicas[2] = ag.Replica{ID: "c", AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true}
	left := func(tli ag.Timeline) []ag.TimelineEntry {
		return []ag.TimelineEntry{{TLI: 2}, {TLI: tli, Parent: 2, Switch: 11}}
	}
	for lead, want := range map[ag.ReplicaID]Recovery{"c": {Ahead: []ag.ReplicaID{"b"}, Apart: []ag.ReplicaID{"b"}}, "b": {Ahead: []ag.ReplicaID{"c"}}} {
		tli := map[ag.ReplicaID]ag.Timeline{"b": 3, "c": 4}[lead]
		r, err := Recover(Request{Group: g, Lead: lead, Accounts: []Account{b, c}, Lost: []ag.ReplicaID{"a"}, History: left(tli)})
		if err != nil || !slices.Equal(r.Ahead, want.Ahead) || !slices.Equal(r.Apart, want.Apart) {
			t.Errorf("%s leads: %v is ahead, %v went apart, %v", lead, r.Ahead, r.Apart, err)
		}
	}
}

// TestUnledPromotionIsNoLead holds that what a copy wrote in a promotion which did not come to lead does not make it
// further than one with more of what the group acknowledged.
func TestUnledPromotionIsNoLead(t *testing.T) {
	a, b := account("a", 5, 5, 17, 480), account("b", 5, 5, 17, 470)
	b.Position.Timeline, b.Unled = 5, ag.Position{Timeline: 3, LSN: 460} // an asynchronous copy that was forced, and died
	for lead, ahead := range map[ag.ReplicaID][]ag.ReplicaID{"a": nil, "b": {"a"}} {
		r, err := Recover(Request{Group: lostGroup(), Lead: lead, Accounts: []Account{a, b}, Lost: []ag.ReplicaID{"w"}})
		if err != nil || !slices.Equal(r.Ahead, ahead) {
			t.Errorf("%s leads: %v is ahead, %v", lead, r.Ahead, err)
		}
		if r.Epoch.TLI <= 5 {
			t.Errorf("%s leads: timeline %d was used", lead, r.Epoch.TLI)
		}
	}
}

// TestRecoveryAfterManyEpochs holds that the timeline of the new epoch is one that PostgreSQL can be made to take,
// however often candidates outbid each other before the loss.
func TestRecoveryAfterManyEpochs(t *testing.T) {
	a := account("a", 400_000, 400_000, 17, 100)
	r, err := Recover(Request{Group: lostGroup(), Lead: "a", Accounts: []Account{a}, Lost: []ag.ReplicaID{"b", "w"}})
	if err != nil {
		t.Fatal(err)
	}
	const most = 100_000 // of package postgres
	if r.Epoch.Epoch != 400_001 || r.Epoch.TLI <= 3 || r.Epoch.TLI-3 > most {
		t.Errorf("%+v", r.Epoch)
	}
}

func TestRecoveryIsRefused(t *testing.T) {
	a, b, w := account("a", 1, 1, 1, 10), account("b", 1, 1, 1, 10), Account{Group: "g", ID: "w", Unfit: "a witness"}
	foreign, ill, bare := b, a, a
	foreign.Group, ill.Unfit, bare.Copy = "other", "its copy is under quarantine", ""
	for why, c := range map[string]struct {
		accounts []Account
		lost     []ag.ReplicaID
	}{
		"nothing is known of b":  {[]Account{a, w}, nil},
		"another group":          {[]Account{a, foreign, w}, nil},
		"two accounts":           {[]Account{a, b, b, w}, nil},
		"given up for lost":      {[]Account{a, b, w}, []ag.ReplicaID{"b"}},
		"no account of a":        {[]Account{b, w}, []ag.ReplicaID{"a"}},
		"under quarantine":       {[]Account{ill, b, w}, nil},
		"holds no copy":          {[]Account{bare, b, w}, nil},
		"no member of group":     {[]Account{a, b, w, account("x", 1, 1, 1, 1)}, nil},
		"nothing is known of b ": {[]Account{a, w}, []ag.ReplicaID{"x"}},
	} {
		if _, err := Recover(Request{Group: lostGroup(), Lead: "a", Accounts: c.accounts, Lost: c.lost}); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), strings.TrimSpace(why)) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// TestTwoRecoveries holds what keeps two recoveries of one group apart, which an operator runs on two members: the
// account of the first bars the second; their histories have two timeline ids, so that neither is taken for the
// beginning of the other; and a later recovery says that each has what the other lacks.
func TestTwoRecoveries(t *testing.T) {
	accounts := []Account{account("a", 4, 5, 17, 100), account("b", 8, 5, 16, 100)}
	rank := map[ag.ReplicaID]int{"b": 1, "a": 2, "w": 3}
	request := func(lead ag.ReplicaID) Request {
		return Request{Group: lostGroup(), Lead: lead, Accounts: accounts, Lost: []ag.ReplicaID{"w"}}
	}
	byA, err1 := Recover(request("a"))
	byB, err2 := Recover(request("b"))
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if byA.Epoch.Epoch != byB.Epoch.Epoch || byA.Epoch.TLI == byB.Epoch.TLI {
		t.Errorf("one timeline for two histories: %+v and %+v", byA.Epoch, byB.Epoch)
	}
	other := request("b")
	other.Group.Replicas = slices.Clone(other.Group.Replicas)
	slices.SortFunc(other.Group.Replicas, func(x, y ag.Replica) int { return cmp.Compare(rank[x.ID], rank[y.ID]) })
	if r, err := Recover(other); err != nil || r.Epoch.TLI != byB.Epoch.TLI {
		t.Errorf("where b knows the members in another order: %+v, %v", r.Epoch, err)
	}
	if !Recovered(byA.Group) || Recovered(lostGroup()) {
		t.Error("a recovered group is not known by its number")
	}
	accounts[0].Founds = 9
	if _, err := Recover(request("a")); err != nil {
		t.Errorf("it cannot be repeated: %v", err)
	}
	if _, err := Recover(request("b")); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "a is to found a new quorum itself, in epoch 9") {
		t.Errorf("a second founder: %v", err)
	}
	for i := range accounts { // both have led since
		accounts[i].Founds, accounts[i].Epoch, accounts[i].Seq, accounts[i].Store = 0, 9, 18, uint64(7+i)
		accounts[i].Position.Timeline = []ag.Timeline{byA.Epoch.TLI, byB.Epoch.TLI}[i]
	}
	for lead, other := range map[ag.ReplicaID]ag.ReplicaID{"a": "b", "b": "a"} {
		q := request(lead)
		mine := accounts[slices.IndexFunc(accounts, func(a Account) bool { return a.ID == lead })]
		q.History = []ag.TimelineEntry{{TLI: 3}, {TLI: mine.Position.Timeline, Parent: 3, Switch: 100}}
		if r, err := Recover(q); err != nil || !slices.Equal(r.Ahead, []ag.ReplicaID{other}) || r.Epoch.Epoch != 10 {
			t.Errorf("%s leads: %v is ahead, %v", lead, r.Ahead, err)
		}
	}
}

// TestClaims holds which claims keep a member from founding.
func TestClaims(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    Claim
		bars bool
	}{
		{"nothing is known", Claim{}, false},
		{"the lost quorum's last leader", Claim{Epoch: 8, Leader: "b"}, false},
		{"a later epoch than any account knew", Claim{Epoch: 9, Leader: "b"}, true},
		{"another founder", Claim{Epoch: 9, Leader: "b", Founds: true}, true},
		{"one whose recovery knew less", Claim{Epoch: 6, Leader: "b", Founds: true}, true},
		{"the lost quorum answers", Claim{Epoch: 5, Leader: "b", Answers: true}, true},
		{"a member follows this one already", Claim{Epoch: 9, Leader: "a", Answers: true}, false},
		{"the quorum that this one led answers", Claim{Epoch: 8, Leader: "a", Answers: true}, true},
		{"another founder's, which this one came to lead", Claim{Epoch: 8, Leader: "a", Founds: true, Answers: true}, true},
		{"this one led the lost quorum", Claim{Epoch: 8, Leader: "a"}, false},
		{"a member that gave this one up", Claim{Disowns: true}, true},
	} {
		if why := tt.c.Bars("b", "a", 9); (why != "") != tt.bars {
			t.Errorf("%s: %q", tt.name, why)
		}
	}
}

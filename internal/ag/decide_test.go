package ag

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// three is a group of synchronous, automatic replicas a, b and c that all vote.
func three() Group {
	g := Group{SessionTimeout: 10 * time.Second, CommitRule: RuleQuorum}
	for _, id := range []ReplicaID{"a", "b", "c"} {
		g.Replicas = append(g.Replicas, Replica{ID: id, AvailabilityMode: SynchronousCommit, FailoverMode: Automatic, Voter: true})
	}
	return g
}

// leading is what a sees in the third epoch, which it leads without anything left to do.
func leading() View {
	return View{
		Self: "a", Group: three(), Profile: Profiles["default"], Quorum: true, Reach: []ReplicaID{"b", "c"},
		Record: Record{
			Epoch: EpochRecord{Epoch: 3, Phase: PhaseLead, Leader: "a", TLI: 4, MaxTLI: 4},
			State: State{
				Epoch: 3, Leader: "a", Copy: "A", V: []Member{{"b", "B"}, {"c", "C"}}, K: 1, Setting: Setting{[]ReplicaID{"b", "c"}, 1}, Seq: 7,
				Timelines: []TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 100, Epoch: 3}},
			},
			Lead: Lead{Epoch: 3, Holder: "a"},
			Revs: Revisions{Epoch: 10, State: 20, Lead: 30},
		},
		Lease: Lease{Epoch: 3, Valid: true},
		Local: Local{
			Data: DataPresent, Server: ServerWritable, Copy: "A", Position: Position{4, 200}, Promised: 3, Armed: 3, Opened: 3,
			EndOfRec: 110, Sync: Sync{P: []ReplicaID{"b", "c"}, N: 1, Proven: true, Barrier: 150},
		},
		Streams: []Stream{{Member: "b", Copy: "B", Open: true, Close: true, Flush: 200}, {Member: "c", Copy: "C", Open: true, Close: true, Flush: 190}},
	}
}

// following is what b sees of the same epoch.
func following() View {
	v := leading()
	v.Self, v.Reach, v.Lease, v.Streams = "b", []ReplicaID{"a", "c"}, Lease{}, nil
	v.Local = Local{Data: DataPresent, Server: ServerRecovery, Copy: "B", Position: Position{4, 200}, Promised: 3, Source: "a", SourceEp: 3}
	return v
}

// sealing is what b sees as the candidate of the fourth epoch, with the seals of b and c.
func sealing() View {
	v := following()
	v.Record.Epoch = EpochRecord{Epoch: 4, Phase: PhaseSeal, Leader: "b", MaxTLI: 4}
	v.Local.Promised, v.Local.Source, v.Local.SourceEp = 4, "", 0
	v.Reach = []ReplicaID{"c"}
	v.Seals = []SealReport{
		{Member: "b", Copy: "B", Epoch: 4, Position: Position{4, 200}, Promotable: true},
		{Member: "c", Copy: "C", Epoch: 4, Position: Position{4, 190}, Promotable: true},
	}
	v.Sealed = SealGrace
	return v
}

// promoting is what b sees once it was chosen.
func promoting() View {
	v := sealing()
	v.Record.Epoch = EpochRecord{Epoch: 4, Phase: PhasePromote, Leader: "b", TLI: 5, MaxTLI: 5, From: Position{4, 200}, Copy: "B"}
	return v
}

// TestOutbidWaitsLonger: where none of many promotions came to LEAD, each more is left more time, but for the last
// leader, which can lead at once.
func TestOutbidWaitsLonger(t *testing.T) {
	for tries, want := range map[Epoch]time.Duration{
		1: ProgressTimeout, patientTries: ProgressTimeout, patientTries + 1: 2 * ProgressTimeout, patientTries + 3: 8 * ProgressTimeout, 10_000: mostTries * ProgressTimeout,
	} {
		v := sealing()
		v.Record.Epoch.Epoch, v.Record.Epoch.Leader, v.Seals = v.Record.State.Epoch+tries, "c", nil
		for silence, rule := range map[time.Duration]Rule{want - time.Millisecond: RuleStandBy, want: RuleOutbid} {
			v.Silence = silence
			if p := Decide(v); p.Rule != rule {
				t.Errorf("%d epochs after the last LEAD, %v without progress: %s (%s)", tries, silence, p.Rule, p.Because)
			}
		}
		v.Silence, v.Record.State.Leader, v.Record.State.Copy = ProgressTimeout, "b", "B"
		if p := Decide(v); p.Rule != RuleOutbid {
			t.Errorf("%d epochs after its own, the last leader: %s (%s)", tries, p.Rule, p.Because)
		}
	}
}

// TestCandidateThatWaitsStartsItsServer: with its server down who led last cannot outbid itself, and would go by the
// seals of this epoch for ever.
func TestCandidateThatWaitsStartsItsServer(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*View)
		want bool
	}{
		{"no progress", func(*View) {}, true},
		{"others may still answer", func(v *View) { v.Silence = ProgressTimeout - 1 }, false},
		{"its server runs", func(v *View) { v.Local.Server = ServerRecovery }, false},
		{"its copy is to be made anew", func(v *View) { v.Local.Renew = "it was under quarantine" }, false},
	} {
		v := sealing()
		v.Local.Server, v.Silence, v.Seals = ServerDown, ProgressTimeout, v.Seals[:1]
		tt.edit(&v)
		p := Decide(v)
		if got := slices.Contains(p.Actions, Action(Start{})); p.Rule != RuleSeal || got != tt.want {
			t.Errorf("%s: %s, starts its server: %v", tt.name, p.Rule, got)
		}
	}
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name string
		view View
		edit func(*View)
		want Rule
	}{
		{"a leader with nothing to do serves", leading(), func(*View) {}, RuleServe},
		{"writable while another leads", leading(), func(v *View) { v.Record.Epoch.Leader = "b" }, RuleFenceDeposed},
		{"writable while a seal of its own is gathered", leading(), func(v *View) { v.Record.Epoch.Phase = PhaseSeal }, RuleFenceDeposed},
		{"writable and armed for an older epoch", leading(), func(v *View) { v.Local.Armed = 2 }, RuleFenceDeposed},
		{"deposed is fenced without quorum as well", leading(), func(v *View) { v.Quorum, v.Record.Epoch.Leader = false, "b" }, RuleFenceDeposed},
		{"deposed is fenced while busy as well", leading(), func(v *View) { v.Busy, v.Local.Armed = "sync", 0 }, RuleFenceDeposed},
		{"writable, lease run out", leading(), func(v *View) { v.Lease.Valid = false }, RuleFenceExpired},
		{"writable, lease of another epoch", leading(), func(v *View) { v.Lease.Epoch = 2 }, RuleFenceExpired},
		{"lease run out without quorum", leading(), func(v *View) { v.Quorum, v.Lease.Valid = false, false }, RuleFenceExpired},
		{"a foreign setting", leading(), func(v *View) { v.Local.Foreign = "synchronous_standby_names" }, RuleFenceForeign},
		{"waits for nobody while k is 1", leading(), func(v *View) { v.Local.Sync = Sync{} }, RuleFenceForeign},
		{"waits for one outside V", leading(), func(v *View) { v.Local.Sync.P = []ReplicaID{"b", "d"} }, RuleFenceForeign},
		{"leader without quorum within its lease", leading(), func(v *View) { v.Quorum = false }, RuleAwaitQuorum},
		{"standby without quorum starts", following(), func(v *View) { v.Quorum, v.Local.Server = false, ServerDown }, RuleAwaitQuorum},
		{"a witness", following(), func(v *View) { v.Group.Replicas[1].AvailabilityMode = ConfigurationOnly }, RuleWitness},
		{"streams from an epoch that is being replaced", following(), func(v *View) { v.Record.Epoch.Epoch, v.Record.Epoch.Phase = 4, PhaseSeal }, RuleHoldSealed},
		{"holds even while busy", following(), func(v *View) { v.Busy, v.Record.Epoch.Epoch, v.Record.Epoch.Phase = "rewind", 4, PhaseSeal }, RuleHoldSealed},
		{"busy", following(), func(v *View) { v.Busy = "rewind" }, RuleBusy},
		{"forced by an operator", following(), func(v *View) { v.Op = Op{Kind: OpForced, To: "b", Epoch: 3} }, RuleForce},
		{"forced in an older epoch is void", following(), func(v *View) { v.Op = Op{Kind: OpForced, To: "b", Epoch: 2} }, RuleStandBy},
		{"a member acknowledges twice", leading(), func(v *View) { v.Local.Doubled = []ReplicaID{"b"} }, RuleDoubled},
		{"a member acknowledges twice, without quorum", leading(), func(v *View) { v.Quorum, v.Local.Doubled = false, []ReplicaID{"b"} }, RuleDoubled},
		{"the leader is seen to be dead", suspicious(), func(*View) {}, RuleVote},
		{"this agent has just begun", following(), func(v *View) { v.Voting.Fresh = true }, RuleAcknowledge},
		{"the leader is silent", following(), func(v *View) { v.Silence = v.Profile.Observer }, RuleClaim},
		{"the leader released", following(), func(v *View) { v.Record.Lead.Released = true }, RuleClaim},
		{"a release of an older epoch says nothing", following(), func(v *View) { v.Record.Lead = Lead{Epoch: 2, Released: true} }, RuleStandBy},
		{"silent for what the configured profile says, not for what the leader declared", following(), func(v *View) {
			v.Silence, v.Record.Lead.Observer = v.Profile.Observer, 17*time.Second
		}, RuleStandBy},
		{"silent for what the leader declared", following(), func(v *View) {
			v.Silence, v.Record.Lead.Observer = 3*time.Second, 3*time.Second
		}, RuleClaim},
		{"silent for long, whatever was declared", following(), func(v *View) {
			v.Silence, v.Record.Lead.Observer = time.Minute, 1000*time.Hour
		}, RuleClaim},
		{"almost silent", following(), func(v *View) { v.Silence = v.Profile.Observer - 1 }, RuleStandBy},
		{"silent, but k is 0", following(), func(v *View) { v.Silence, v.Record.State.K = time.Hour, 0 }, RuleStandBy},
		{"silent, but this copy is another", following(), func(v *View) { v.Silence, v.Local.Copy = time.Hour, "B2" }, RuleStandBy},
		{"silent, but not in V", following(), func(v *View) { v.Silence, v.Record.State.V = time.Hour, []Member{{"c", "C"}} }, RuleStandBy},
		{"silent, but suspended", following(), func(v *View) { v.Silence, v.Group.Replicas[1].Suspended = time.Hour, true }, RuleSuspended},
		{"silent, but manual", following(), func(v *View) { v.Silence, v.Group.Replicas[1].FailoverMode = time.Hour, Manual }, RuleStandBy},
		{"silent, but too few answer", following(), func(v *View) { v.Silence, v.Reach = time.Hour, nil }, RuleStandBy},
		{"the leader of the record was restarted", leading(), func(v *View) { v.Local.Server, v.Lease.Valid = ServerRecovery, false }, RuleRetake},
		{"the leader of the record has another copy", leading(), func(v *View) { v.Local.Server, v.Local.Copy, v.Lease.Valid = ServerRecovery, "A2", false }, RuleStandBy},
		{"having released it waits", leading(), func(v *View) { v.Local.Server, v.Lease.Valid, v.Record.Lead.Released = ServerRecovery, false, true }, RuleStandBy},
		{"having released it waits no longer", leading(), func(v *View) {
			v.Local.Server, v.Lease.Valid, v.Record.Lead.Released, v.Silence = ServerRecovery, false, true, ReleaseGrace
		}, RuleRetake},
		{"a candidate makes no progress", sealing(), func(v *View) { v.Record.Epoch.Leader, v.Silence = "c", ProgressTimeout }, RuleOutbid},
		{"a candidate of a slow profile renews seldom", sealing(), func(v *View) {
			v.Profile, v.Record.Epoch.Leader, v.Silence = Profiles["wan"], "c", ProgressTimeout
		}, RuleStandBy},
		{"a candidate makes progress", sealing(), func(v *View) { v.Record.Epoch.Leader = "c" }, RuleStandBy},
		{"the last leader outbids with k of 0", sealing(), func(v *View) {
			v.Record.Epoch.Leader, v.Silence, v.Record.State = "c", ProgressTimeout, State{Leader: "b", Copy: "B", V: []Member{}}
		}, RuleOutbid},
		{"seals are missing", sealing(), func(v *View) { v.Seals = v.Seals[:1] }, RuleSeal},
		{"a seal of another copy does not count", sealing(), func(v *View) { v.Seals[1].Copy = "C2" }, RuleSeal},
		{"a seal of another epoch does not count", sealing(), func(v *View) { v.Seals[1].Epoch = 3 }, RuleSeal},
		{"a seal of a stranger does not count", sealing(), func(v *View) { v.Seals[1].Member = "d" }, RuleSeal},
		{"enough seals, and the last leader may still answer", sealing(), func(v *View) { v.Sealed, v.Reach = 0, []ReplicaID{"a", "c"} }, RuleSeal},
		{"enough seals, and everybody asked has answered", sealing(), func(v *View) { v.Sealed = 0 }, RuleChoose},
		{"enough seals", sealing(), func(*View) {}, RuleChoose},
		{"the last leader's own seal suffices", sealing(), func(v *View) { v.Seals[1] = SealReport{"a", "A", 4, Position{4, 220}, true, false} }, RuleChoose},
		{"with k of 0 members cannot suffice", sealing(), func(v *View) { v.Record.State.K = 0 }, RuleSeal},
		{"the longest log may not be promoted", manual(), func(*View) {}, RuleFetch}, // more of these in TestFetchTail
		{"chosen", promoting(), func(*View) {}, RulePromote},
		{"chosen and down", promoting(), func(v *View) { v.Local.Server = ServerDown }, RuleStart},
		{"chosen, and restored since", promoting(), func(v *View) { v.Local.Copy = "B2" }, RuleRelease},
		{"chosen, and its data are gone", promoting(), func(v *View) { v.Local.Server, v.Local.Data = ServerDown, DataEmpty }, RuleRelease},
		{"chosen, its data are gone, and released", promoting(), func(v *View) {
			v.Local.Server, v.Local.Data, v.Record.Lead = ServerDown, DataEmpty, Lead{Epoch: 4, Holder: "b", Released: true}
		}, RuleStandBy},
		{"chosen, and stopped in order before it was promoted", promoting(), func(v *View) {
			v.Record.Lead = Lead{Epoch: 4, Holder: "b", Released: true}
		}, RulePromoteAgain},
		{"chosen by a candidate that had released", promoting(), func(v *View) { v.Record.Lead = Lead{Epoch: 4, Holder: "c", Released: true} }, RulePromote},
		{"chosen, restored since, and forced", promoting(), func(v *View) { v.Local.Copy, v.Op = "B2", Op{Kind: OpForced, To: "b", Epoch: 4} }, RuleForce},
		{"chosen, released, and to be made anew", promoting(), forsake, RuleStandBy},
		{"chosen, released, promoted before, and to be made anew", promoting(), func(v *View) { forsake(v); v.Local.Position.Timeline = 5 }, RuleStandBy},
		{"chosen, released, to be made anew, and forced", promoting(), func(v *View) { forsake(v); v.Op = Op{Kind: OpForced, To: "b", Epoch: 4} }, RuleForce},
		{"chosen, and forced", promoting(), func(v *View) { v.Op = Op{Kind: OpForced, To: "b", Epoch: 4} }, RulePromote},
		{"the leader of the record has another copy and is forced", leading(), func(v *View) {
			v.Local.Server, v.Local.Copy, v.Lease.Valid, v.Op = ServerRecovery, "A2", false, Op{Kind: OpForced, To: "a", Epoch: 3}
		}, RuleForce},
		{"a leader that serves is not forced", leading(), func(v *View) { v.Op = Op{Kind: OpForced, To: "a", Epoch: 3} }, RuleServe},
		{"promoted, and down before it led", promoting(), func(v *View) { v.Local.Position.Timeline = 5 }, RulePromoteAgain},
		{"promoted", promoting(), func(v *View) { promoted(v) }, RuleLead},
		{"the server crashed", leading(), func(v *View) { v.Local.Server = ServerDown }, RuleRelease},
		{"the server crashed and nobody could take over", leading(), func(v *View) { v.Local.Server, v.Record.State.K = ServerDown, 0 }, RuleStart},
		{"the leader's data is gone", leading(), func(v *View) { v.Local.Server, v.Local.Data, v.Lease.Valid = ServerDown, DataEmpty, false }, RuleStandBy},
		{"planned failover", leading(), func(v *View) { v.Op = Op{Kind: OpPlanned, To: "b", Epoch: 3} }, RuleHandOver},
		{"planned failover to itself", leading(), func(v *View) { v.Op = Op{Kind: OpPlanned, To: "a", Epoch: 3} }, RuleServe},
		{"a member is lost", leading(), func(v *View) { v.Streams[0] = Stream{Member: "b", Copy: "B", Silent: 10 * time.Second} }, RuleSync},
		{"suspended and down", following(), func(v *View) { v.Group.Replicas[1].Suspended, v.Local.Server = true, ServerDown }, RuleSuspended},
		{"empty and not counted", following(), func(v *View) { v.Local.Data, v.Local.Copy = DataEmpty, ""; v.Record.State.V = nil }, RuleSeed},
		{"empty and counted: nothing is left to protect", following(), func(v *View) { v.Local.Data = DataEmpty }, RuleSeed},
		{"a copy that is not its own", following(), func(v *View) { v.Local.Data = DataForeign }, RuleStandBy},
		{"diverged and not to be rewound", following(), func(v *View) { diverge(v); v.Local.NoRewind = true }, RuleReseed},
		{"diverged", following(), diverge, RuleRewind},
		{"refused by the source", following(), func(v *View) { diverge(v); v.Local.Position, v.Local.Refused = Position{4, 200}, true }, RuleRewind},
		{"refused by a source that leads no more", following(), func(v *View) {
			diverge(v)
			v.Local.Position, v.Local.Refused, v.Local.Source = Position{4, 200}, true, "c"
		}, RuleFollow},
		{"diverged, the leader does not answer", following(), func(v *View) { diverge(v); v.Reach = nil }, RuleStandBy},
		{"diverged and counted", following(), func(v *View) { v.Local.Position = Position{2, 90} }, RuleAwaitDrop},
		{"a secondary is down", following(), func(v *View) { v.Local.Server = ServerDown }, RuleStart},
		{"what it received cannot be read", following(), func(v *View) { v.Local.Stuck = "it stands still" }, RuleReread},
		{"the same while nobody leads yet", following(), func(v *View) { v.Local.Stuck, v.Record.Epoch.Phase = "it stands still", PhasePromote }, RuleStandBy},
		{"a new leader", following(), func(v *View) { v.Local.Source = "c" }, RuleFollow},
		{"a new epoch of the same leader", following(), func(v *View) { v.Local.SourceEp = 2 }, RuleFollow},
		{"streaming", following(), func(*View) {}, RuleStandBy},
		{"ill", leading(), sick, RuleStepDown}, // more of these in TestDecideOnHealth
		{"ill and alone", leading(), func(v *View) { sick(v); v.Record.State.K = 0 }, RuleRestart},
		{"not trusted", following(), func(v *View) { v.Local.Quarantine = "fsync" }, RuleQuarantined},
	}
	seen := map[Rule]bool{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := tt.view
			tt.edit(&v)
			p := Decide(v)
			seen[p.Rule] = true
			if p.Rule != tt.want {
				t.Fatalf("Decide = %s (%s), want %s", p.Rule, p.Because, tt.want)
			}
			if p.Because == "" {
				t.Errorf("%s gives no reason", p.Rule)
			}
			if slices.ContainsFunc(p.Actions, func(a Action) bool { _, ok := a.(Fence); return ok }) && (p.Commit != nil || p.Open) {
				t.Errorf("a fence must need no record and open nothing: %+v", p)
			}
			if c := p.Commit; c != nil && (c.Guard.Epoch < 0 || c.Guard.Epoch == 0) {
				t.Errorf("every change of the record is guarded by /epoch: %+v", c.Guard)
			}
		})
	}
	for _, r := range Rules {
		if !seen[r] {
			t.Errorf("no case fires rule %s", r)
		}
	}
}

func promoted(v *View) {
	v.Local.Server, v.Local.Armed, v.Local.EndOfRec, v.Lease = ServerWritable, 4, 210, Lease{Epoch: 4, Valid: true}
	v.Local.History = []TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 100}, {TLI: 5, Parent: 4, Switch: 200}}
}

// forsake makes b one that released the epoch under quarantine, and that an operator has resumed.
func forsake(v *View) {
	v.Record.Lead, v.Local.Renew = Lead{Epoch: 4, Holder: "b", Released: true}, "it was under quarantine and has been resumed"
}

// diverge puts b on a timeline the leader never passed through, with a copy that V does not count.
func diverge(v *View) {
	v.Local.Position, v.Local.Copy = Position{2, 90}, "B2"
	v.Record.State.V = []Member{{"c", "C"}}
}

func TestClaimComparesAllThreeKeys(t *testing.T) {
	v := following()
	v.Silence = time.Hour
	c := Decide(v).Commit
	if c.Guard != v.Record.Revs {
		t.Errorf("guard %+v, want %+v: else the leader may change (V, k) under the candidate", c.Guard, v.Record.Revs)
	}
	if e := c.Epoch; e.Epoch != 4 || e.Phase != PhaseSeal || e.Leader != "b" || e.MaxTLI != 4 || c.State != nil {
		t.Errorf("claim = %+v", e)
	}
}

func TestChooseTakesTheLongestLog(t *testing.T) {
	v := sealing()
	v.Seals[1].Position.LSN = 210
	e := Decide(v).Commit.Epoch
	if e.Leader != "c" || e.Phase != PhasePromote || e.TLI != 5 || e.MaxTLI != 5 || e.From != (Position{4, 210}) || e.Copy != "C" || e.Epoch != 4 {
		t.Errorf("choose = %+v", e)
	}
	v.Group.Replicas[2].FailoverMode = Manual
	v.Seals[1].Position.LSN = 200
	if e := Decide(v).Commit.Epoch; e.Leader != "b" {
		t.Errorf("of two equal logs %s was chosen, want the one that may be promoted", e.Leader)
	}
}

func TestLeadStartsWithNothingItDoesNotKnow(t *testing.T) {
	v := promoting()
	promoted(&v)
	c := Decide(v).Commit
	s := c.State
	if c.Epoch.Phase != PhaseLead || s.Epoch != 4 || s.Leader != "b" || s.Copy != "B" || len(s.V) != 0 || s.K != 0 || s.Seq != 8 {
		t.Errorf("lead = %+v", s)
	}
	want := []TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 100, Epoch: 3}, {TLI: 5, Parent: 4, Switch: 200, Epoch: 4, Leader: "b"}}
	if !slices.Equal(s.Timelines, want) {
		t.Errorf("timelines = %v, want %v", s.Timelines, want)
	}
	v.Local.History[2].Switch = 195 // the bytes between are the beginning of a record
	st := *Decide(v).Commit.State
	if got := st.Timelines[2]; got != (TimelineEntry{TLI: 5, Parent: 4, Switch: 195, Epoch: 4, Leader: "b", Until: 200}) {
		t.Errorf("timeline = %+v", got)
	}
	for lsn, want := range map[LSN]bool{195: false, 198: false, 200: false, 201: true} {
		x := View{Record: Record{State: st}, Local: Local{Position: Position{4, lsn}}}
		if got := x.Diverged(); got != want {
			t.Errorf("at %s diverged = %t", lsn, got)
		}
	}
	if c.Guard.State != v.Record.Revs.State || c.Guard.Epoch != v.Record.Revs.Epoch {
		t.Errorf("guard %+v", c.Guard)
	}
}

func TestPromoteIsProtectedFromTheFirstCommit(t *testing.T) {
	p := Decide(promoting()).Actions[0].(Promote)
	if p.TLI != 5 || p.Epoch != 4 || p.Sync.N != 1 || !slices.Equal(p.Sync.P, []ReplicaID{"c"}) {
		t.Errorf("promote = %+v", p)
	}
	v := promoting()
	v.Reach, v.Seals = nil, nil
	if p := Decide(v).Actions[0].(Promote); p.Sync.N != 1 || len(p.Sync.P) != 2 {
		t.Errorf("with nobody in reach and one required: %+v, want to wait for anybody", p.Sync)
	}
}

func TestForceNeedsNobody(t *testing.T) {
	v := following()
	v.Op = Op{Kind: OpForced, To: "b", Epoch: 3}
	c := Decide(v).Commit
	if e := c.Epoch; !e.Forced || e.Epoch != 4 || e.Phase != PhasePromote || e.TLI != 5 || e.MaxTLI != 5 || c.Guard != v.Record.Revs {
		t.Errorf("force = %+v guarded by %+v", e, c.Guard)
	}
}

// TestRemovedMemberForcesNothing: a request for a member is void once the configuration does not list it.
func TestRemovedMemberForcesNothing(t *testing.T) {
	v := following()
	v.Op = Op{Kind: OpForced, To: "b", Epoch: 3}
	v.Group.Replicas = slices.DeleteFunc(slices.Clone(v.Group.Replicas), func(r Replica) bool { return r.ID == "b" })
	if p := Decide(v); p.Rule == RuleForce {
		t.Errorf("a removed member: %s", p.Because)
	}
}

// TestUnforceable: a node that cannot carry out a forced failover now says why. One of another node or epoch is none of
// its own.
func TestUnforceable(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*View)
		why  string
	}{
		"it can":                  {func(*View) {}, ""},
		"empty":                   {func(v *View) { v.Local.Data = DataEmpty }, "EMPTY"},
		"being copied":            {func(v *View) { v.Local.Data, v.Busy = DataPartial, "seed" }, "PARTIAL"},
		"foreign":                 {func(v *View) { v.Local.Data = DataForeign }, "FOREIGN"},
		"quarantined":             {func(v *View) { v.Local.Quarantine, v.Local.Server = "checksums", ServerDown }, "quarantine"},
		"empty, without a quorum": {func(v *View) { v.Local.Data, v.Quorum = DataEmpty, false }, ""},
		"empty, of another epoch": {func(v *View) { v.Local.Data, v.Op.Epoch = DataEmpty, 2 }, ""},
		"empty, of another node":  {func(v *View) { v.Local.Data, v.Op.To = DataEmpty, "c" }, ""},
		"empty, a planned one":    {func(v *View) { v.Local.Data, v.Op.Kind = DataEmpty, OpPlanned }, ""},
		"chosen already":          {func(v *View) { v.Record.Epoch = promoting().Record.Epoch; v.Op.Epoch = 4 }, "promotion is under way"},
		"chosen, restored since":  {func(v *View) { v.Record.Epoch, v.Local.Copy, v.Op.Epoch = promoting().Record.Epoch, "B2", 4 }, ""},
		"the primary":             {func(v *View) { *v = leading(); v.Op = Op{Kind: OpForced, To: "a", Epoch: 3} }, "is the primary already"},
		"the primary, restored": {func(v *View) {
			*v = leading()
			v.Local.Server, v.Local.Copy, v.Op = ServerRecovery, "A2", Op{Kind: OpForced, To: "a", Epoch: 3}
		}, ""},
	} {
		v := following()
		v.Op = Op{Kind: OpForced, To: "b", Epoch: 3}
		tt.edit(&v)
		why := v.Unforceable()
		if (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %q", name, why)
		}
		if forces := Decide(v).Rule == RuleForce; forces && why != "" {
			t.Errorf("%s: it forces, and says %q", name, why)
		}
	}
}

// TestInterruptedForceIsNotChosen: a copy that a forced failover promoted may lack commits. If that failover does not
// come to lead, no later epoch chooses the copy, until one has led. The last leader's own copy has everything.
func TestInterruptedForceIsNotChosen(t *testing.T) {
	v := following()
	v.Op = Op{Kind: OpForced, To: "b", Epoch: 3}
	first := *Decide(v).Commit.Epoch
	if len(first.Unled) != 0 {
		t.Errorf("the first one: %v", first.Unled)
	}
	v.Record.Epoch, v.Op.Epoch = first, 4
	v.Record.Epoch.Leader, v.Local.Source = "c", ""
	if second := *Decide(v).Commit.Epoch; !slices.Equal(second.Unled, []Timeline{5}) {
		t.Errorf("one after the other: %v", second.Unled)
	}
	v.Op, v.Silence = Op{}, time.Minute
	claim := Decide(v)
	if claim.Rule != RuleOutbid || !slices.Equal(claim.Commit.Epoch.Unled, []Timeline{5}) {
		t.Errorf("outbid: %s, %+v", claim.Rule, claim.Commit)
	}
	v = sealing()
	v.Record.Epoch.Unled, v.Seals[1].Position = []Timeline{5}, Position{5, 190}
	if p := Decide(v); p.Rule != RuleSeal || !strings.Contains(p.Because, "c does not count") {
		t.Errorf("of two that are needed, one was forced: %s: %s", p.Rule, p.Because)
	}
	v.Record.State.K = 2 // one is enough
	if e := Decide(v).Commit.Epoch; e.Leader != "b" || !slices.Equal(e.Unled, []Timeline{5}) || slices.ContainsFunc(e.V, func(m Member) bool { return m.ID == "c" }) {
		t.Errorf("chosen: %+v", e)
	}
	v.Record.State.Leader, v.Record.State.Copy = "c", "C"
	if e := Decide(v).Commit.Epoch; e == nil {
		t.Error("the last leader's own copy does not count")
	}
	v = promoting()
	v.Record.Epoch.Unled = []Timeline{4}
	promoted(&v)
	if e := Decide(v).Commit.Epoch; e.Phase != PhaseLead || len(e.Unled) != 0 {
		t.Errorf("led: %+v", e)
	}
}

func TestOpen(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*View)
		want bool
	}{
		{"opened before", func(v *View) { v.Record.State.K = 0 }, true},
		{"first time with k of 1", func(v *View) { v.Local.Opened = 0 }, true},
		{"first time, not proven", func(v *View) { v.Local.Opened, v.Local.Sync.Proven = 0, false }, false},
		{"first time, nobody of V has come", func(v *View) { v.Local.Opened, v.Streams = 0, nil }, false},
		{"first time, who came has not flushed the end of recovery", func(v *View) { v.Local.Opened, v.Local.EndOfRec = 0, 201 }, false},
		{"first time with k of 0", func(v *View) { v.Local.Opened, v.Record.State.K = 0, 0 }, false},
		{"first time, recorded as degraded", func(v *View) {
			v.Local.Opened, v.Record.State.K, v.Local.Sync = 0, 0, Sync{Proven: true}
		}, true},
		{"no quorum, but within the lease", func(v *View) { v.Quorum = false }, true},
		{"lease run out", func(v *View) { v.Lease.Valid = false }, false},
		{"keeper not armed", func(v *View) { v.Local.Armed = 0 }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := leading()
			tt.edit(&v)
			if got := Decide(v).Open; got != tt.want {
				t.Errorf("open = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestDivergedAndForkPoint(t *testing.T) {
	// The leader's history: 1 until 100, 4 until 150, then 5.
	tls := []TimelineEntry{{TLI: 1}, {TLI: 4, Parent: 1, Switch: 100}, {TLI: 5, Parent: 4, Switch: 150}}
	for _, tt := range []struct {
		at   Position
		want bool
		fork Position
	}{
		{Position{1, 100}, false, Position{1, 100}},
		{Position{1, 101}, true, Position{1, 100}},
		{Position{4, 150}, false, Position{4, 150}},
		{Position{4, 170}, true, Position{4, 150}},
		{Position{5, 999}, false, Position{5, 999}},
		{Position{3, 90}, true, Position{3, 0}},
		{Position{}, false, Position{}},
	} {
		v := View{Record: Record{State: State{Timelines: tls}}, Local: Local{Position: tt.at}}
		if got := v.Diverged(); got != tt.want {
			t.Errorf("%s diverged = %v, want %v", tt.at, got, tt.want)
		}
		if got := v.ForkPoint(); got != tt.fork {
			t.Errorf("%s forks at %s, want %s", tt.at, got, tt.fork)
		}
	}
	for began, want := range map[Timeline]bool{0: false, 4: false, 5: false, 3: true, 6: true} {
		v := View{Record: Record{State: State{Timelines: tls}}, Local: Local{Position: Position{1, 100}, Began: began}}
		if got := v.Diverged(); got != want {
			t.Errorf("a promotion to timeline %d was begun: diverged = %v, want %v", began, got, want)
		}
	}
	nowhere := View{Local: Local{Position: Position{3, 9}}}
	if nowhere.Diverged() {
		t.Error("diverged from a history nobody has written yet")
	}
}

// TestOutgoing: which leader a forced failover has to wait for, and for how long the next one does not open.
func TestOutgoing(t *testing.T) {
	forced := func(edit func(*View)) Outgoing {
		v := following()
		v.Op = Op{Kind: OpForced, To: "b", Epoch: 3}
		v.Record.Lead.Answer = Answer{Voters: []ReplicaID{"a", "b", "c"}, Lease: 400 * time.Millisecond}
		edit(&v)
		p := Decide(v)
		if p.Rule != RuleForce {
			t.Fatalf("%+v", p)
		}
		return p.Commit.Epoch.Outgoing
	}
	if o := forced(func(v *View) { v.Silence = time.Second }); o.Leader != "a" || o.Epoch != 3 || o.Wait != 5500*time.Millisecond || o.Now || len(o.Answer.Voters) != 3 {
		t.Errorf("%+v", o)
	}
	if o := forced(func(v *View) { v.Op.Now = true }); !o.Now || o.Wait == 0 {
		t.Errorf("%+v", o)
	}
	for name, edit := range map[string]func(*View){
		"silent for long": func(v *View) { v.Silence = 7 * time.Second },
		"released":        func(v *View) { v.Record.Lead.Released = true },
	} {
		if o := forced(edit); o.Leader != "" {
			t.Errorf("%s: %+v", name, o)
		}
	}
	earlier := Outgoing{Leader: "c", Epoch: 2, Wait: 17 * time.Second}
	if o := forced(func(v *View) { v.Record.Epoch.Outgoing = earlier }); o.Leader != "a" || o.Wait != earlier.Wait || len(o.Answer.Voters) != 0 {
		t.Errorf("the leader deposed before it is forgotten: %+v", o)
	}
	if o := forced(func(v *View) { v.Record.Epoch.Outgoing, v.Silence = earlier, 7*time.Second }); o.Leader != "c" {
		t.Errorf("the leader deposed before it is forgotten: %+v", o)
	}
	opens := func(edit func(*View)) bool {
		v := leading()
		v.Record.Epoch.Outgoing = Outgoing{Leader: "c", Epoch: 2, Wait: 6 * time.Second, Answer: Answer{Voters: []ReplicaID{"a", "b", "c"}, Lease: 400 * time.Millisecond}}
		v.Local.Opened = 0
		edit(&v)
		return Decide(v).Open
	}
	for name, tt := range map[string]struct {
		edit func(*View)
		want bool
	}{
		"it may answer":          {func(*View) {}, false},
		"silent for long":        {func(v *View) { v.Since = 6 * time.Second }, true},
		"superseded":             {func(v *View) { v.Superseded = 450 * time.Millisecond }, true},
		"not superseded so long": {func(v *View) { v.Superseded = 400 * time.Millisecond }, false},
		"an operator accepts it": {func(v *View) { v.Record.Epoch.Outgoing.Now = true }, true},
		"it was settled":         {func(v *View) { v.Record.Lead = Lead{Epoch: v.epoch(), Holder: v.Self, Settled: true} }, true},
		"settled of an earlier":  {func(v *View) { v.Record.Lead = Lead{Epoch: v.epoch() - 1, Holder: v.Self, Settled: true} }, false},
	} {
		if opens(tt.edit) != tt.want {
			t.Errorf("%s: opens = %v", name, !tt.want)
		}
	}
}

// A release says that the wait for an outgoing leader is over only if that was said in its own epoch.
func TestReleaseSettlesNoOtherEpoch(t *testing.T) {
	v := promoting()
	v.Record.Epoch.Outgoing = Outgoing{Leader: "a", Epoch: 3, Wait: 6 * time.Second}
	v.Record.Lead, v.Local.Copy = Lead{Epoch: 3, Holder: "a", Settled: true}, "another"
	if p := Decide(v); p.Rule != RuleRelease || p.Commit.Lead.Settled {
		t.Errorf("of an earlier epoch: %+v", p)
	}
	v.Record.Lead.Epoch = 4
	if p := Decide(v); p.Rule != RuleRelease || !p.Commit.Lead.Settled {
		t.Errorf("of this epoch: %+v", p)
	}
}

func TestReadable(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*View)
		want bool
	}{
		{"it follows", func(*View) {}, true},
		{"no leader", func(v *View) { v.Record.Epoch.Phase = PhaseSeal }, true},
		{"no quorum", func(v *View) { v.Quorum = false }, true},
		{"the server is down", func(v *View) { v.Local.Server = ServerDown }, false},
		{"the server is a primary", func(v *View) { v.Local.Server = ServerWritable }, false},
		{"a long action is under way", func(v *View) { v.Busy = "rewind" }, false},
		{"another copy", func(v *View) { v.Local.Data = DataForeign }, false},
		{"diverged", func(v *View) { v.Local.Position = Position{1, 101} }, false},
		{"diverged, and no leader", func(v *View) { v.Local.Position, v.Record.Epoch.Phase = Position{1, 101}, PhaseSeal }, false},
		{"diverged, and no quorum", func(v *View) { v.Local.Position, v.Quorum = Position{1, 101}, false }, false},
		{"a promotion began and did not lead", func(v *View) { v.Local.Began = 7 }, false},
		{"refused by its leader", func(v *View) { v.Local.Refused = true }, false},
		{"quarantined", func(v *View) { v.Local.Quarantine = "an fsync failed" }, false},
		{"to be made anew", func(v *View) { v.Local.Renew = "resumed" }, false},
		{"its server answers no new connection", func(v *View) { v.Local.Health = Health{Level: 2, Because: "no answer"} }, false},
		{"its disk is full", func(v *View) { v.Local.Health = Health{Level: 4, Because: "full"} }, true},
	} {
		v := following()
		if tt.edit(&v); v.Readable() != tt.want {
			t.Errorf("%s: readable = %v", tt.name, v.Readable())
		}
	}
}

func TestRole(t *testing.T) {
	down := leading()
	down.Local.Server = ServerDown
	for _, tt := range []struct {
		view View
		want Role
	}{{leading(), RolePrimary}, {following(), RoleSecondary}, {sealing(), RoleResolving}, {down, RoleResolving}} {
		if got := tt.view.Role(); got != tt.want {
			t.Errorf("role of %s in %s = %s, want %s", tt.view.Self, tt.view.Record.Epoch.Phase, got, tt.want)
		}
	}
}

// TestWitnessSaysWhetherItVotes holds that a witness of an even number of members, which has no vote, does not say that
// it votes.
func TestWitnessSaysWhetherItVotes(t *testing.T) {
	t.Parallel()
	v := following()
	m := &v.Group.Replicas[1]
	m.AvailabilityMode, m.Voter, m.EtcdID = ConfigurationOnly, true, 9
	if p := Decide(v); p.Because != "this member votes and holds no data" {
		t.Errorf("with a vote: %s", p.Because)
	}
	m.Voter = false
	if p := Decide(v); p.Because != "this member holds no data, and has no vote now" {
		t.Errorf("without: %s", p.Because)
	}
}

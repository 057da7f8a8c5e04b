package availability

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestTroubleOfStorage holds that a mirror that has lost a side is a problem with what to do, beside whatever else is
// wrong with its member, and that the group is degraded by it and not down.
func TestTroubleOfStorage(t *testing.T) {
	t.Parallel()
	v := ag.View{Self: "a", Quorum: true, Reach: []ag.ReplicaID{"b"}}
	v.Group.Replicas = []ag.Replica{{ID: "a", AvailabilityMode: ag.SynchronousCommit}, {ID: "b", AvailabilityMode: ag.SynchronousCommit}}
	v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
	f := Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{
		"a": {Data: ag.DataPresent, Server: ag.ServerWritable, Streams: []ag.ReplicaID{"b"}, Storage: []Trouble{{"the mirror is degraded", "replace it"}}},
		"b": {Data: ag.DataPresent, Server: ag.ServerRecovery, Quarantine: "a write was lost", Storage: []Trouble{{"the mirror is degraded", "replace it"}}},
	}}
	r := Assess(f)
	var found []string
	for _, p := range r.Problems {
		if strings.Contains(p.Finding, "mirror") || strings.Contains(p.Finding, "quarantine") {
			found = append(found, string(p.Severity)+" "+p.Target+" "+p.Finding)
		}
		if strings.Contains(p.Finding, "mirror") && p.Run != "replace it" {
			t.Errorf("%+v says nothing of what to do", p)
		}
	}
	want := "Warning a a: the mirror is degraded; Warning b b: the mirror is degraded; Warning b the copy of b is under quarantine: a write was lost"
	if got := strings.Join(found, "; "); got != want || r.Level != Degraded || !r.Writable {
		t.Errorf("%s %q, want degraded %q", r.Level, got, want)
	}
}

// TestRefusedClientsOfAnotherMember holds that a member which refuses clients, or does not serve the listener, is a
// problem on every node, the witness included, and that the node itself says it once.
func TestRefusedClientsOfAnotherMember(t *testing.T) {
	t.Parallel()
	why, idle := "nobody is admitted: listener rules in /x", "*:1433 of the listener is not served here: taken"
	for _, self := range []ag.ReplicaID{"a", "b", "w"} {
		v := ag.View{Self: self, Quorum: true, Reach: []ag.ReplicaID{"a", "b", "w"}}
		v.Group.Replicas = []ag.Replica{{ID: "a", AvailabilityMode: ag.SynchronousCommit}, {ID: "b", AvailabilityMode: ag.SynchronousCommit}, {ID: "w", AvailabilityMode: ag.ConfigurationOnly}}
		v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
		f := Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{
			"a": {Data: ag.DataPresent, Server: ag.ServerWritable, Streams: []ag.ReplicaID{"b"}}, "b": {Data: ag.DataPresent, Server: ag.ServerRecovery, NoLogins: []string{why}, Unserved: []string{idle}}, "w": {},
		}}
		want := "clients of b: " + why + "; clients of b: " + idle
		if self == "b" {
			f.Logins, f.Unserved, want = []string{why}, []string{idle}, why+"; "+idle
		}
		var found []string
		for _, p := range Assess(f).Problems {
			if strings.Contains(p.Finding, why) || strings.Contains(p.Finding, idle) {
				found = append(found, p.Finding)
				if p.Target != "b" || self != "b" && !strings.Contains(p.Run, "on b: ") {
					t.Errorf("on %s: %+v", self, p)
				}
			}
		}
		if got := strings.Join(found, "; "); got != want || Assess(f).Level != Degraded {
			t.Errorf("on %s: %s %q, want %q", self, Assess(f).Level, got, want)
		}
	}
}

// TestNoReplicaTakesReaders holds that a routing list that names no usable replica is a problem, and that the default
// list is none, whose last entry is the primary.
func TestNoReplicaTakesReaders(t *testing.T) {
	t.Parallel()
	refused, onPrimary := "no replica takes readers", "readers go to the primary"
	for name, c := range map[string]struct {
		list     [][]ag.ReplicaID // of the primary a; nil: the default
		none     bool             // the list is NONE
		only     ag.PrimaryAllow
		readable bool
		since    time.Duration
		want     string
	}{
		"b takes them":                      {list: [][]ag.ReplicaID{{"b"}}, readable: true},
		"b does not":                        {list: [][]ag.ReplicaID{{"b"}}, want: refused},
		"b does not, and a is listed":       {list: [][]ag.ReplicaID{{"b"}, {"a"}}, want: onPrimary},
		"only a is listed":                  {list: [][]ag.ReplicaID{{"a"}}},
		"NONE, and a takes none":            {none: true, only: ag.PrimaryAllowReadWrite, want: refused},
		"by default":                        {},
		"by default, and a takes none":      {only: ag.PrimaryAllowReadWrite, want: refused},
		"a has led for a second":            {list: [][]ag.ReplicaID{{"b"}}, since: time.Second},
		"a has led for a minute":            {list: [][]ag.ReplicaID{{"b"}}, since: time.Minute, want: refused},
		"a is listed beside b, in one set":  {list: [][]ag.ReplicaID{{"b", "a"}}, want: onPrimary},
		"a replica that the group has not":  {list: [][]ag.ReplicaID{{"x"}}, readable: true, want: refused},
		"b takes them, behind one without":  {list: [][]ag.ReplicaID{{"x"}, {"b"}}, readable: true},
		"b takes them, and a is in the set": {list: [][]ag.ReplicaID{{"a", "b"}}, readable: true},
	} {
		v := ag.View{Self: "a", Quorum: true, Reach: []ag.ReplicaID{"b"}, Since: c.since}
		v.Group.Replicas = []ag.Replica{{ID: "a", AvailabilityMode: ag.SynchronousCommit}, {ID: "b", AvailabilityMode: ag.SynchronousCommit}}
		v.Group.Replicas[0].Options.RoutingList, v.Group.Replicas[0].Options.PrimaryAllow = c.list, c.only
		v.Group.Replicas[0].Options.RoutingNone = c.none
		v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
		f := Facts{View: v, Open: true, Members: map[ag.ReplicaID]Member{
			"a": {Data: ag.DataPresent, Server: ag.ServerWritable, Streams: []ag.ReplicaID{"b"}}, "b": {Data: ag.DataPresent, Server: ag.ServerRecovery},
		}, Routes: &ag.Routes{Primary: "a", WriteOpen: true, ReadList: v.Group.ReadList("a"), Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Healthy: true, Readable: c.readable}}}}
		found := ""
		for _, p := range Assess(f).Problems {
			if strings.Contains(p.Finding, "readers") {
				found += p.Finding
			}
		}
		if (c.want == "") != (found == "") || !strings.HasPrefix(found, c.want) {
			t.Errorf("%s: %q, want %q", name, found, c.want)
		}
	}
}

// TestReceiversOfEvents holds that a receiver which takes nothing is a warning on the node that sends.
func TestReceiversOfEvents(t *testing.T) {
	t.Parallel()
	f := Facts{View: ag.View{Self: "a"}, Untold: []string{"the webhook pager has taken no event for 6m0s"}}
	for _, p := range Assess(f).Problems {
		if p.Finding == f.Untold[0] && p.Severity == Warning && p.Target == "a" && strings.Contains(p.Run, "coterie check security on a") {
			return
		}
	}
	t.Errorf("%+v", Assess(f).Problems)
}

// TestTroubleOfAVote holds that a primary which does not vote is named as the reason why the death of any secondary
// would end writes, and that no failover is recommended for it; and that nobody is sent to start members that answer.
func TestTroubleOfAVote(t *testing.T) {
	t.Parallel()
	f := edit(threeReplicas(), "a", func(m *Member) { m.NoVote = "3 MB are free in etcd" })
	want := Problem{Warning, "g", "while a does not vote, the death of b or c would end writes", "mend what keeps a from voting"}
	r := Assess(f)
	if !slices.Contains(r.Problems, want) {
		t.Errorf("%+v, want %+v", r.Problems, want)
	}
	for _, p := range r.Problems {
		if strings.Contains(p.Run, "failover") || strings.Contains(p.Run, "add a witness") {
			t.Errorf("%+v", p)
		}
	}
	f = threeReplicas()
	f.View.Quorum, f.Open = false, false
	if next := f.nextWithoutPrimary(); !strings.Contains(next, "coterie restart there") || strings.Contains(next, "do not answer") {
		t.Errorf("all answer: %s", next)
	}
	f.View.Reach = []ag.ReplicaID{"b"}
	if next := f.nextWithoutPrimary(); !strings.HasPrefix(next, "start the members that do not answer") {
		t.Errorf("one is silent: %s", next)
	}
}

// TestACopyWithoutADatabase: a copy whose databases are not all online is a problem that a new copy mends; where it
// leads, a failover comes first.
func TestACopyWithoutADatabase(t *testing.T) {
	t.Parallel()
	for id, want := range map[ag.ReplicaID]string{
		"b": "coterie replica seed b --full (in SQL: SEED REPLICA ON N'b')", "a": "coterie failover to a secondary that has it, then coterie replica seed a --full (in SQL: SEED REPLICA ON N'a')",
	} {
		f := edit(threeReplicas(), id, func(m *Member) {
			m.Ill, m.Offline = "database shop is not online: its directory is gone", []string{"shop"}
		})
		r := Assess(f)
		if r.Level != Degraded || len(r.Problems) == 0 || r.Problems[0].Target != string(id) || !strings.Contains(r.Problems[0].Finding, "is ill: database shop is not online") || !strings.HasPrefix(r.Problems[0].Run, want) {
			t.Errorf("%s: %s, %+v", id, r.Level, r.Problems)
		}
	}
}

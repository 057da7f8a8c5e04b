package metrics

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/lib/storage"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/replication"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// everything is what a primary a with the secondaries b and c and the witness w could know at most.
func everything() Facts {
	lease, pending, lag, age := 4*time.Second, 2, int64(70), time.Hour
	behind, full := time.Minute, 90*time.Second
	replica := func(id ag.ReplicaID, role ag.Role, sync ag.SyncState) api.Replica {
		return api.Replica{Name: id, Role: role, Sync: sync, Mode: ag.SynchronousCommit, Connected: connected, Voter: true}
	}
	w := replica("w", ag.RoleSecondary, ag.NotSynchronizing)
	w.Mode = ag.ConfigurationOnly
	c := replica("c", ag.RoleResolving, ag.NotSynchronizing)
	c.Connected, c.LagBytes, c.Suspended, c.Quarantine, c.Ill, c.Maintenance, c.Voter = "DISCONNECTED", &lag, true, "lost", "ill", &ag.Maintenance{}, false
	transitions := map[ag.Rule]uint64{}
	for i, r := range ag.Rules {
		transitions[r] = uint64(i)
	}
	return Facts{
		Uptime: time.Minute, Build: Build{"1.2.3", "abc", "16.4"}, Known: true, Transitions: transitions, Lease: &lease, HTTP: 3,
		Status: api.Status{
			Configuration: api.Configuration{Serial: 4, SignedOnly: true, Refused: 2}, Requests: api.Refusals{Refused: 4}, Record: api.Refusals{Refused: 5},
			Node: "a", Epoch: 7, Quorum: true, Voters: 3, SyncMembers: []ag.Member{{ID: "b"}}, SyncCount: 1,
			Replicas: []api.Replica{replica("a", ag.RolePrimary, ag.Synchronized), replica("b", ag.RoleSecondary, ag.Synchronized), c, w},
			Availability: availability.Report{
				Writable: true, Blocked: true, BlockedSeconds: 1.5, Automatic: availability.Ready,
				Failures: []availability.Failure{{Member: "a", Outcome: availability.Survived}, {Member: "b", Outcome: availability.Blocked}, {Member: "c", Outcome: availability.Gone}},
				Problems: []availability.Problem{{Severity: availability.Warning}, {Severity: availability.Warning}, {Severity: availability.Critical}},
			},
			Rotation: &api.Rotation{}, Maintenance: &ag.Maintenance{},
			Links: []api.Link{
				{Peer: "b", Sent: 100, SentEncoded: 40, RTT: 3, Packets: 60, Lost: 1, Codec: "lz4", EncodeSeconds: 0.5},
				{Peer: "b", Sent: 20, SentEncoded: 20, RTT: 2, Packets: 40, Lost: 4, Codec: "zstd", Carried: 9, EncodeSeconds: 0.25},
			},
		},
		Failovers: decisions.Failovers{
			Count: map[decisions.FailoverKey]uint64{{Kind: decisions.Automatic, Cause: ag.CauseDied}: 2}, Last: time.Unix(1700, 500e6), Outage: 900 * time.Millisecond,
		},
		Storage: []storage.Volume{{
			Dir: "/srv", Kind: storage.MD, Name: "/dev/md0", Mirrored: true, State: storage.Degraded, Filling: &storage.Filling{What: "recover", Done: 0.25, Rate: 1000},
			Devices: []storage.Device{{Name: "/dev/sda", State: "ok", Reads: 2}, {Name: "/dev/sdb", State: "behind"}},
		}},
		Space:  []agent.Space{{Place: "data", Free: 10, Total: 20}, {Place: "data", Free: 11, Total: 20}},
		Expiry: map[string]time.Time{"node": time.Unix(99, 0)}, Logs: Logs{Replaced: 2, Failed: 1},
		BackupRuns: map[ag.ReplicaID]BackupRun{"n2": {UnderWay: true, Done: 0.5}, "n3": {Interrupted: 1}},
		Backup:     &Backup{Age: &age, Node: "n2", Primary: true, Failing: true, Waiting: 3, Failed: 4, Kept: 48, Behind: &behind, FullIn: &full},
		Server: &Server{
			Commits:  replication.PenaltyTotals{Blocks: 4, Waited: 2 * time.Second, Max: time.Second, P50: 100 * time.Millisecond},
			Seedings: []seeding.Operation{{State: seeding.Failed}, {State: seeding.Seeding, Progress: progress.Progress{Done: 5, Total: 50, Rate: 2}}},
			Streams:  []Stream{{"b", 1, 2, 3, 4 * time.Second, 5 * time.Second}}, Answers: true, Waiting: 6, Flushed: 1000, Replayed: 900, Replay: 12,
			Slots: []Slot{{"coterie_b", true, 300}}, Pending: &pending, Fences: 1, LastFence: time.Unix(7, 0), Ends: 2, Log: &ServerLog{Confirmed: 8, Sound: true},
		},
		Clients: &Clients{
			Stats: listener.Stats{
				Accepted: 5, Rejected: map[string]uint64{"gone": 1}, Refused: map[string]uint64{"53300": 2, "3D000": 4}, Cut: map[string]uint64{"gate": 1},
				Routed:     map[listener.RoutedKey]uint64{{Intent: ag.ReadOnly, Replica: "b"}: 2, {Intent: ag.ReadWrite, Replica: "a"}: 3},
				LastMinute: []listener.Second{{Readers: 2, Routed: 2}, {Readers: 2, Routed: 1}}, KernelPath: map[string]uint64{"cold": 1}, Carried: map[string]uint64{"kernel": 2}, Unmoved: map[string]uint64{"cursor": 1}, Unreplayed: map[string]uint64{"too long": 1}, Doubts: map[string]uint64{"committed": 1}, Unknown: map[string]uint64{"state": 1},
				Pool: listener.PoolStats{Dropped: map[string]uint64{"old": 1}, Ahead: 1}, Gated: 9, GatedTime: 1500 * time.Millisecond, Open: 4,
			},
			Sessions: map[Sessions]int{{ag.ReadWrite, listener.PathKernel, "active"}: 3}, Others: 1,
		},
		Console:  console.Counts{Sessions: 2, Limits: map[string]uint64{"sessions": 1}},
		Browsers: &web.Counts{Refused: 1, Sessions: 2, Limits: map[string]uint64{"sessions": 3}, Streams: 4, Dropped: 5},
		Hooks:    &Hooks{Done: 3, Failed: 1, Dropped: 2},
		Webhooks: map[string]Webhook{"pager": {Sent: 4, Failed: 3, Dropped: 2, Refused: 1, Abandoned: 5, Waiting: 6, Failing: time.Minute}},
		Endpoint: Endpoint{Refused: 1, Relayed: endpoint.RelayStatus{Open: 1, Total: 2, Bytes: 3}},
	}
}

package agsim

import (
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/planguard"
)

// worldMutants are mistakes towards clients, operators and the network. Those with an F are the rules as an audit found
// them.
var worldMutants = []mutant{
	{name: "a cancelled wait is looked for in what the session is sent, which it hides (F1)", group: trio, bounds: Bounds{Epochs: 1, Asks: 2, States: 400_000}, because: "lack", flaw: flawHidden, decide: ag.Decide},
	{name: "readers outlive a promotion, through a gate that opens with it (F2)", group: pair, bounds: Bounds{Epochs: 2, Asks: 1, States: 400_000}, because: "NoAnswerBetweenChosenAndOpen", flaw: flawEarlyGate, decide: ag.Decide},
	{name: "a reader that wrote after a promotion is told that nothing was under way (F2)", group: pair, bounds: Bounds{Epochs: 2, Asks: 1, States: 400_000}, because: "OutcomesAreTrue", flaw: flawToldNothing, decide: ag.Decide},
	{name: "a session has the role of its login, also where it is opened late (F2)", group: pair, first: 187, seeds: 3000, because: "RoleOfThePresent", flaw: flawLateReader, decide: ag.Decide},
	{name: "readers stay on a copy that has diverged (F3)", group: trio, seeds: 3000, because: "ReadableImpliesNotDiverged", flaw: flawReadersStay, decide: ag.Decide},
	{name: "a copy that ends before a record that began is another copy (F4)", group: trio, bounds: Bounds{Epochs: 1, Writes: 1, Faults: 1, Tears: 1, States: 400_000}, because: "NoCopyDisowned", flaw: flawTornCopy, decide: ag.Decide},
	{name: "a seal names the beginning of a record as well (F4)", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Tears: 1, States: 600_000}, because: "S1", flaw: flawTornSeal, decide: ag.Decide},
	{name: "clients may change the settings that the agents rely on (F6)", group: trio, bounds: Bounds{Epochs: 1, Asks: 2, States: 400_000}, because: "lack", flaw: flawAlter, decide: ag.Decide},
	{name: "a stray walsender in a member's name counts, and is not noticed (F7)", group: trio, bounds: Bounds{Epochs: 1, Writes: 1, Ills: 1, Faults: 1, States: 600_000}, because: "lack", flaw: flawStray, decide: see(func(v *ag.View) { v.Local.Doubled = nil })},
	{name: "a change of the configuration is taken into the record before it is in force", group: trio, seeds: 400, only: odds{alter: 200, crash: 40, cutPeer: 40}, because: "lack", decide: edit(func(v ag.View, p *ag.Plan) {
		if c := p.Commit; c != nil && p.Rule == ag.RuleSync {
			n, _ := v.Group.CommitTarget(v.Group.SynchronousBeside(v.Self))
			c.State.K = min(max(n, c.State.K), len(c.State.V))
		}
	})},
	{name: "a copy that waits to be dropped is not made anew once it is", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, because: "NothingIsStuck", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if p.Rule == ag.RuleRewind || p.Rule == ag.RuleReseed {
			return ag.Plan{Rule: ag.RuleAwaitDrop, Because: "still", Actions: []ag.Action{ag.Hold{}}}
		}
		return p
	}},
	{name: "the word that an outgoing leader has ended counts in later epochs", group: strict, seeds: 400, only: odds{forced: 200, cutStore: 100}, because: "S3", flaw: flawSettled, decide: ag.Decide},
	{name: "the second look at a plan does not know that an outgoing leader has ended", group: strict, seeds: 400, only: odds{forced: 200, restart: 200}, because: "may still answer", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		v.Record.Lead.Settled = false
		if err := planguard.Check(v, p); err != nil {
			fail("%v", err)
		}
		return p
	}},
	{name: "what a stream said counts after its end", group: trio, first: 64, seeds: 400, only: odds{forced: 100, planned: 100, crash: 60, delay: 9000}, because: "lack", flaw: flawOldReport, decide: ag.Decide},
	{name: "an answer lease is counted from the arrival of the acknowledgements", group: trio, seeds: 400, only: odds{reject: 60, pause: 40, delay: 9000}, because: "S3", flaw: flawLateAck, decide: ag.Decide},
}

// operatorMutants are mistakes about a configuration that operators change while nodes act on an older one.
var operatorMutants = []mutant{
	{name: "who leads is looked at when a removal begins, and not when it ends", group: trio, bounds: Bounds{Epochs: 2, Changes: 1, Ops: 1, Forced: true, States: 400_000}, because: "RemovedNeverLeads", flaw: flawRemoval, decide: ag.Decide},
	{name: "a member is removed that the record counts", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, Writes: 1, States: 400_000}, because: "RemovedCountsForNothing", flaw: flawCounted, decide: ag.Decide},
	{name: "the record is written by a configuration that is not the present one", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, Born: true, States: 400_000}, because: "RemovedCountsForNothing", flaw: flawStale, decide: ag.Decide},
	{name: "a removed member carries out a failover that was asked for before", group: five, seeds: 4000, only: odds{remove: 200, forced: 100, crash: 60}, because: "RemovedNeverLeads", decide: see(func(v *ag.View) {
		if _, member := v.Group.Replica(v.Self); !member {
			v.Group.Replicas = append(slices.Clone(v.Group.Replicas), ag.Replica{ID: v.Self, AvailabilityMode: ag.SynchronousCommit})
		}
	})},
	{name: "votes are counted by the voters of the configuration, and not by those whom the leader declared", group: five, first: 112, seeds: 6000, only: odds{remove: 300, suspicion: 600, cutStore: 100}, because: "S3", decide: see(func(v *ag.View) {
		if a := v.Group.Answers(v.Profile); len(a.Voters) > 0 && v.Record.Epoch.Leader != v.Self {
			v.Record.Lead.Answer.Voters = a.Voters
		}
	})},
	{name: "a declaration of other voters is not obeyed while it is not known to be written", group: five, first: 90, seeds: 6000, only: odds{remove: 200, reject: 100, cutPeer: 60, unsure: 9000}, because: "S3", flaw: flawUnsure, decide: ag.Decide},
	{name: "silence is measured by the observer's own lease profile", group: strict, seeds: 4000, only: odds{profile: 200, cutStore: 60, crash: 20}, because: "still writable", decide: see(func(v *ag.View) { v.Record.Lead.Observer = 0 })},
	{name: "a shorter silence is declared before longer leases have run out", group: strict, seeds: 4000, only: odds{profile: 200, cutStore: 60, crash: 20}, because: "still writable", flaw: flawShort, decide: ag.Decide},
	{name: "commits wait for a suspended member", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, States: 400_000}, because: "ConfigurationIsFollowed", decide: see(func(v *ag.View) {
		v.Group.Replicas = slices.Clone(v.Group.Replicas)
		for i := range v.Group.Replicas {
			v.Group.Replicas[i].Suspended = false
		}
	})},
	{name: "a suspension lowers the REQUIRED that was set", group: trio, bounds: Bounds{Epochs: 1, Changes: 2, States: 400_000}, because: "ConfigurationIsFollowed", decide: see(func(v *ag.View) {
		v.Group.Replicas = slices.Clone(v.Group.Replicas)
		for i := range v.Group.Replicas {
			v.Group.Replicas[i].SuspendedBy = ag.SuspendRemoval // such a one is not waited for
		}
	})},
	{name: "commits wait for an asynchronous member", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, States: 400_000}, because: "ConfigurationIsFollowed", decide: see(func(v *ag.View) {
		v.Group.Replicas = slices.Clone(v.Group.Replicas)
		for i := range v.Group.Replicas {
			v.Group.Replicas[i].AvailabilityMode = ag.SynchronousCommit
		}
	})},
	{name: "REQUIRED is what it was when the group was founded", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, States: 400_000}, because: "ConfigurationIsFollowed", decide: see(func(v *ag.View) { v.Group.Required = nil })},
	{name: "the commit rule is what it was when the group was founded", group: trio, bounds: Bounds{Epochs: 1, Changes: 1, States: 400_000}, because: "ConfigurationIsFollowed", decide: see(func(v *ag.View) { v.Group.CommitRule = ag.RuleQuorum })},
	{name: "a replica that has become MANUAL is promoted by the agents", group: trio, bounds: Bounds{Epochs: 2, Changes: 1, States: 400_000}, because: "MANUAL", decide: see(func(v *ag.View) {
		v.Group.Replicas = slices.Clone(v.Group.Replicas)
		for i := range v.Group.Replicas {
			v.Group.Replicas[i].FailoverMode = ag.Automatic
		}
	})},
	{name: "a takeover begins under maintenance", group: trio, bounds: Bounds{Epochs: 2, Changes: 1, States: 400_000}, because: "maintenance", decide: see(func(v *ag.View) { v.Group.Maintenance = nil })},
	{name: "a copy counts that a forced failover promoted which did not come to lead", group: five, first: 104, seeds: 6000, only: odds{forced: 300, crash: 60, serverCrash: 60, hang: 3000, cutPeer: 40}, because: "(S1)", decide: see(func(v *ag.View) { v.Record.Epoch.Unled = nil })},
	{name: "a lost member is replaced while the record counts it", group: trio, seeds: 400, only: odds{replace: 300, suspicion: 600, lostAnswer: 3000}, because: "RemovedCountsForNothing", flaw: flawHastyReplace, decide: ag.Decide},
	{name: "a machine that was lost votes in the name of its successor", group: trio, first: 60, seeds: 6000, only: odds{replace: 300, suspicion: 600, lostAnswer: 3000}, because: "S3", flaw: flawHeirVotes, decide: ag.Decide},
	{name: "the successor of a lost member acknowledges at once, whatever that one has voted", group: trio, seeds: 400, only: odds{replace: 300, suspicion: 600, lostAnswer: 3000}, because: "S3", flaw: flawHeirAcks, decide: ag.Decide},
}

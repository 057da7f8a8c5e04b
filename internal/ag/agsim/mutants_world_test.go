package agsim

import (
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/planguard"
)

// worldMutants are mistakes towards clients, operators and the network. Those with an F are the rules as an audit found
// them.
var worldMutants = []mutant{
	{name: "a cancelled wait is looked for in what the session is sent, which it hides (F1)", group: trio, bounds: Bounds{Epochs: 1, Asks: 2, States: 400_000}, because: "lack", flaw: flawHidden, decide: ag.Decide},
	{name: "readers outlive a promotion, through a gate that opens with it (F2)", group: pair, bounds: Bounds{Epochs: 2, Asks: 1, States: 400_000}, because: "NoAnswerBetweenChosenAndOpen", flaw: flawEarlyGate, decide: ag.Decide},
	{name: "a reader that wrote after a promotion is told that nothing was under way (F2)", group: pair, bounds: Bounds{Epochs: 2, Asks: 1, States: 400_000}, because: "OutcomesAreTrue", flaw: flawToldNothing, decide: ag.Decide},
	{name: "a session has the role of its login, also where it is opened late (F2)", group: pair, seeds: 3000, because: "RoleOfThePresent", flaw: flawLateReader, decide: ag.Decide},
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
	{name: "what a stream said counts after its end", group: trio, seeds: 400, only: odds{forced: 100, planned: 100, crash: 60, delay: 9000}, because: "lack", flaw: flawOldReport, decide: ag.Decide},
	{name: "an answer lease is counted from the arrival of the acknowledgements", group: trio, seeds: 400, only: odds{reject: 60, pause: 40, delay: 9000}, because: "S3", flaw: flawLateAck, decide: ag.Decide},
}

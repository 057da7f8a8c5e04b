package ag

// Rule names the case of Decide that fired. It is logged with its reason, counted, and shown by EXPLAIN FAILOVER.
type Rule string

// The rules, most dangerous case first, in the order Decide tries them.
const (
	RuleFenceDeposed Rule = "fence-deposed" // writable without a right to be
	RuleFenceExpired Rule = "fence-expired" // writable, and the lease ran out
	RuleFenceForeign Rule = "fence-foreign" // acknowledgements no longer keep the record true
	RuleStepDown     Rule = "step-down"     // the primary is ill and another can take over: release
	RuleRestart      Rule = "restart"       // the primary is ill, nobody can take over, and a new start may help
	RuleDoubled      Rule = "two-streams"   // one member acknowledges twice: hold answers, end both
	RuleAwaitQuorum  Rule = "await-quorum"  // no majority of the quorum answers: nothing may be decided (S8)
	RuleVote         Rule = "vote"          // the leader's death was seen: acknowledge it no longer, then say so
	RuleAcknowledge  Rule = "acknowledge"   // it lives, or this agent has just begun: take the vote back, then acknowledge
	RuleBusy         Rule = "busy"          // a long action is under way
	RuleWitness      Rule = "witness"       // a vote without data
	RuleHoldSealed   Rule = "hold-sealed"   // a later epoch is being formed: take no WAL of an older one (S4)
	RuleForce        Rule = "force"         // an operator accepted the loss
	RuleClaim        Rule = "claim"         // the leader fell silent or released: raise the epoch
	RuleRetake       Rule = "retake"        // the leader of the record comes back before anybody else led
	RuleOutbid       Rule = "outbid"        // a candidate or promotion makes no progress
	RuleSeal         Rule = "seal"          // ask the members for promise and position
	RuleFetch        Rule = "fetch-tail"    // the longest log may not be promoted: take what this copy lacks of it
	RuleChoose       Rule = "choose"        // enough seals: the best copy is to be promoted
	RulePromote      Rule = "promote"       // this copy was chosen
	RulePromoteAgain Rule = "promote-again" // its promotion was interrupted before it led
	RuleLead         Rule = "lead"          // promoted: take the rights (the point of no return)
	RuleRelease      Rule = "release"       // the server crashed, or the chosen copy is gone: let others take over
	RuleHandOver     Rule = "hand-over"     // planned failover
	RuleSync         Rule = "sync"          // bring setting and record to what the group wants
	RuleServe        Rule = "serve"         // lead, nothing to change
	RuleQuarantined  Rule = "quarantined"   // the storage lost a write of this copy: not started until a person has decided
	RuleSuspended    Rule = "suspended"     // data movement suspended until RESUME
	RuleSeed         Rule = "seed"          // empty or unusable: make a copy
	RuleReseed       Rule = "reseed"        // diverged and not to be rewound
	RuleRewind       Rule = "rewind"        // diverged: back to the group's history
	RuleAwaitDrop    Rule = "await-drop"    // this copy is still counted in V: the record must drop it first
	RuleStart        Rule = "start"         // start as standby
	RuleReread       Rule = "reread"        // it cannot read what it received: started again, it draws that once more
	RuleFollow       Rule = "follow"        // stream from the leader of this epoch
	RuleStandBy      Rule = "stand-by"      // streaming, or waiting for somebody to lead
)

// Rules lists every rule, for tests that each is exercised and for metrics that start at zero.
var Rules = []Rule{
	RuleFenceDeposed, RuleFenceExpired, RuleFenceForeign, RuleStepDown, RuleRestart, RuleDoubled, RuleAwaitQuorum, RuleVote, RuleAcknowledge, RuleBusy, RuleWitness, RuleHoldSealed, RuleForce,
	RuleClaim, RuleRetake, RuleOutbid, RuleSeal, RuleFetch, RuleChoose, RulePromote, RulePromoteAgain, RuleLead, RuleRelease, RuleHandOver, RuleSync, RuleServe,
	RuleQuarantined, RuleSuspended, RuleSeed, RuleReseed, RuleRewind, RuleAwaitDrop, RuleStart, RuleReread, RuleFollow, RuleStandBy,
}

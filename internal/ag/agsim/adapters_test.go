package agsim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// slip is a deliberate mistake in an adapter: a rule that no model of the decisions can hold. The test that it names
// must fail with it.
type slip struct {
	name string
	file string   // below internal/
	edit []string // the present text and its replacement, in turn
	test string   // in that package, or "folder:test"
}

// hunter returns the folder and the name of the test that must fail.
func (s slip) hunter() (dir, test string) {
	if dir, test, other := strings.Cut(s.test, ":"); other {
		return dir, test
	}
	return filepath.Dir(s.file), s.test
}

var slips = []slip{
	{"DETACH is honoured beyond its time", "postgres/keeper/loop.go", []string{"		return min(k.until, k.deadline)\n", "		return k.deadline\n"}, "TestDetach"},
	{"DETACH may reach beyond the lease", "postgres/keeper/session.go", []string{"r.Deadline <= now || r.Deadline > k.deadline", "r.Deadline <= now"}, "TestDeadlineBounds"},
	{"a lease is counted from the answer to its renewal", "agent/lease/lease.go", []string{"max(t0+p.Lease, held)", "max(boottime.Now()+p.Lease+0*t0, held)"}, "TestLeaseCountsFromBeforeTheRenewal"},
	{"a lease that was given up comes back with a late renewal", "agent/lease/lease.go", []string{"	if !l.wants(h) {\n		return false, false\n	}\n", ""}, "TestVoidedLeaseStaysVoid"},
	{"a store that has gone back is believed", "agent/recordguard/guard.go", []string{"case now.OlderThan(was):", "case asked < 0:"}, "agent:TestStoreThatGoesBackInTime"},
	{"what others have seen of the record is not asked for", "agent/recordguard/guard.go", []string{"now.OlderThan(h.mark) && asked >= h.at", "now.OlderThan(h.mark) && asked < 0"}, "agent:TestStoreThatGoesBackBehindAMembersBack"},
	{"another store is believed", "agent/recordguard/guard.go", []string{"was.Store != 0 && now.Store != was.Store", "false"}, "TestAnotherStoreIsNotBelieved"},
	{"a store whose revision went back is believed", "agent/recordguard/guard.go", []string{"now.Rev < was.Rev", "false"}, "TestAnotherStoreIsNotBelieved"},
	{"a store that names another leader of an epoch is believed (agent)", "agent/recordguard/guard.go", []string{"errors.Join(g.rival(now), oneLeader(was, now, history))", "errors.Join(g.rival(now), oneLeader(now, now, nil))"}, "agent:TestFollowerOfAnEpochFollowsNoOtherLeader"},
	{"a history that names another leader of an epoch is believed", "agent/recordguard/guard.go", []string{"was.Led == t.Epoch && was.By != t.Leader", "false"}, "TestEpochHasOneLeader"},
	{"a replica that is pinned does not count as the leader of its epoch", "agent/recordguard/guard.go", []string{`was.Chosen != "" && was.Epoch == t.Epoch && was.Chosen != t.Leader`, "false"}, "TestEpochHasOneLeader"},
	{"a leader is followed before the disk has who leads", "agent/seal.go", []string{"s.guard.Pin(e, leader.ID, s.marks.SetSeen); err != nil", "s.guard.Pin(e, leader.ID, s.marks.SetSeen); err != nil && e == 0"}, "TestNobodyIsFollowedBeforeTheDiskHasWhoLeads"},
	{"a quorum's key that others may read is used", "etcd/external.go", []string{"extra != 0", "extra == 1"}, "TestExternalIsReached"},
	{"a promise is not on disk when it is given", "agent/marks/marks.go", []string{`return m.write("promise.json", p)`, "return nil"}, "agent:TestPromiseHoldsAndSurvives"},
	{"the seal of an epoch is given to two candidates", "agent/seal.go", []string{`to != "" && to != req.Candidate`, `to != "" && to == "nobody"`}, "agent:TestEpochIsPromisedToOneCandidate"},
	{"a primary leads on beside another leader of its epoch", "agent/loop.go", []string{`other != "" && e.Leader == a.cfg.Self`, `other != "" && e.Leader == ""`}, "agent:TestStolenWitnessTellsTwoLeadersOfAnEpoch"},
	{"the block of a query that is executed again is not ended", "listener/lone/log.go", []string{`pgwire.AppendMessage(nil, 'Q', []byte("COMMIT\x00"))`, "nil"}, "listener:TestWhatWasUnderWayWhenTheNodeDied"},
	{"a state that was read ahead holds whatever the kernel passes on", "listener/offload.go", []string{"		x.Forwarded()\n", ""}, "listener:TestKernelPathChangesStates"},
	{"a state that was read ahead holds whatever is forwarded", "listener/inquiry/session.go", []string{"	s.State, s.ahead = nil, 0\n", ""}, "TestReadAhead"},
	{"an answer is the state of a session that was asked again since", "listener/inquiry/session.go", []string{"answered && s.last == q", "answered && s.last != nil"}, "TestKeepOfAnOldAnswer"},
	{"the kernel does not look at the text of a Parse", "listener/offload/program.go", []string{"	p.text()\n	p.parsed(1)\n", "	p.parsed(1)\n"}, "listener:TestKernelPassesNoTextThatMatters"},
	{"the kernel does not look for what matters within a text", "listener/offload/text.go", []string{"	p.textWords(highWords)\n", ""}, "listener:TestKernelPassesNoTextThatMatters"},
	{"a session whose state is known goes to the kernel at once", "listener/offload.go", []string{"return x.mayOffload() && !x.followed()", "return x.mayOffload()"}, "listener:TestSessionsInTheKernelAreAskedOnceIdle"},
	{"an unnamed statement that waits is forgotten when the kernel has relayed", "listener/offload.go", []string{"ForgetUnnamed(s.Parsed != 0)", "ForgetUnnamed(false)"}, "listener:TestMoveFromTheKernelOfAnUnnamedStatement"},
	{"readers stay on a copy that has diverged", "agent/publish.go", []string{"		a.cfg.Sessions.CloseReaders(why)\n", ""}, "TestDivergedCopyServesNoReader"},
	{"a reader is opened on a copy that takes none any more", "listener/routing/routing.go", []string{"return onPrimary || t.Readable", "return onPrimary || t.Readable || true"}, "listener:TestReaderOfAnUnreadableCopy"},
	{"a reader is opened on a primary that is not open", "listener/routing/routing.go", []string{"case p.OnPrimary && !routes.WriteOpen:", "case p.OnPrimary && intent == ag.ReadWrite && !routes.WriteOpen:"}, "listener:TestReaderOfAPrimaryThatIsNotOpen"},
	{"a reader is opened on a primary whose list does not name it", "listener/routing/routing.go", []string{"p.OnPrimary && !routes.Listed(routes.Self):", "p.OnPrimary && false:"}, "TestPlace"},
	{"a seal that was refused is asked for again at once", "agent/seal.go", []string{"u.epoch == act.Epoch && boottime.Now() < u.until", "u.epoch == act.Epoch && boottime.Now() < 0"}, "TestRefusedSealIsAskedAgainAfterAPause"},
	{"a member whose stream is open is waited for, however long it is silent", "ag/quorum.go", []string{"if !v.lost(id) && (streams || was && (", "if streams || was && !v.lost(id) && (true && ("}, "TestNextSync"},
	{"a leader takes its own standing still for the silence of its members", "agent/observe.go", []string{"			if own {\n", "			if own && false {\n"}, "TestOwnPauseIsNoSilence"},
	{"a copy that ends before a record that began is another copy", "agent/copy.go", []string{"	if was.held {\n", "	if was.held && false {\n"}, "TestTornTailIsNoOlderCopy"},
	{"a seal names what was received, the beginning of a record included", "postgres/wal.go", []string{"LSN: said.replayed}); running", "LSN: said.at.LSN}); running"}, "TestFailover"},
	{"a forced failover opens at once (agent)", "ag/decide.go", []string{"if _, waits := v.awaits(); waits {", "if _, waits := v.awaits(); waits && false {"}, "agent:TestForcedFailoverOpensWhenNobodyElseAnswers"},
	{"a voter acknowledges an earlier epoch after a later one", "agent/liveness/voter.go", []string{"	v.known = max(v.known, e) // no", "	v.known = max(v.known, 0) // no"}, "TestLaterEpochEndsEarlierOnes"},
	{"a voter that was late itself takes the silence for the leader's", "ag/silence/silence.go", []string{" && j.Late*share < j.Silence\n", "\n"}, "TestStoppedObserver"},
	{"the time in which a member did not lead is a pause of it", "agent/liveness/doubts.go", []string{"h.epoch, h.rhythm = e, silence.Detector{}", "h.epoch = e"}, "TestNewLeadershipIsANewRhythm"},
	{"a copy that has long to replay is chosen before one with the same log", "ag/promotion.go", []string{"		return t.Late\n", "		return s.Late\n"}, "TestACopyThatHasLongToReplay"},
	{"a copy that has long to replay is never promoted", "ag/promotion.go", []string{" && v.Sealed < tailPatience", ""}, "TestACopyThatHasLongToReplay"},
	{"a copy that has long to replay is promoted by itself first", "ag/health.go", []string{"v.Local.Late && v.othersReady()", "false"}, "TestOneThatHasLongToReplayYields"},
	{"silence is evidence in a group of two copies", "ag/takeover.go", []string{"copies >= 3 && g.External == 0", "copies >= 2 && g.External == 0"}, "TestVote"},
	{"the votes of too few end an answer lease", "agent/lease/answers.go", []string{"if need <= 0 || len(at) < need {", "if need <= 0 || len(at) < need-1 {", "return boottime.Now() - at[need-1]", "return boottime.Now() - at[0]"}, "TestSuperseded"},
	{"a seal does not wait for the walreceiver", "agent/seal.go", []string{"gone := err == nil && !obs.Receiving", "gone := true"}, "TestSealWaitsForTheWalreceiver"},
	{"a seal leaves an older primary running (agent)", "agent/seal.go", []string{"armed != 0 && armed < req.Epoch", "armed > req.Epoch"}, "TestSealFencesAnOlderPrimary"},
	{"a hand-over given up leads again without asking the record", "agent/handover.go", []string{"	if err := h.stillLeads(ctx); err != nil {\n		return 0, err\n	}\n", ""}, "TestPlannedFailoverThatCannotBeUndone"},
	{"a hand-over of unknown outcome is given up", "agent/handover.go", []string{"if errors.Is(err, ErrUnknown) {", "if false {"}, "TestPlannedFailoverOfUnknownOutcome"},
	{"a hand-over does not wait for the answer to its own write", "agent/handover.go", []string{"ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitBudget)", "ctx, cancel := context.WithTimeout(ctx, commitBudget)"}, "TestPlannedFailoverIsKnownToHaveHappened"},
	{"a setting whose outcome is unknown is taken for unchanged", "agent/act.go", []string{"return func() { a.sync.Proven, a.tried = false, &s }, err", "return nil, err"}, "TestSettingOfUnknownOutcome"},
	{"an answer passes a gate that nobody looks at when it has come", "listener/loopsession.go", []string{"		open, err := x.gate.Look()\n", "		open, err := true, error(nil)\n"}, "TestGateHoldsBytes"},
	{"an answer passes a gate that was looked at before it came, on goroutines", "listener/gate/reader.go", []string{
		"	n, err := g.Conn.Read(p)\n	if n > 0 {\n		if gate := g.Pass(); gate != nil {\n			return 0, gate\n		}\n	}\n	return n, err\n",
		"	if gate := g.Pass(); gate != nil {\n		return 0, gate\n	}\n	return g.Conn.Read(p)\n",
	}, "listener:TestBothPaths/goroutines/gate"},
	{"what a primary produced is passed on when it is none any more", "listener/gate/reader.go", []string{"	g.sticky = true\n", ""}, "listener:TestGateHoldsBytes"},
	{"a read is confirmed by a word given before it", "lib/sharedquery/sharedquery.go", []string{"		q.next = nil\n		if a == nil {", "		if a == nil {", "		close(a.there)\n", "		q.mu.Lock()\n		q.next = nil\n		q.mu.Unlock()\n		close(a.there)\n"}, "TestAnAnswerIsNoOlderThanItsQuestion"},
	{"a commit that was not confirmed in time is passed on", "listener/relay.go", []string{"		return gate.ErrUnconfirmed\n", "		return nil\n"}, "TestUnconfirmedIsUnknown"},
	{"only the end of a pipeline is confirmed", "listener/gate/answers.go", []string{"typ != 'C' && typ != 'Z'", "typ != 'Z'"}, "listener:TestCancelledCommitWithinABatch"},
	{"a session of which a cancel request was forwarded has every answer confirmed from then on", "listener/gate/answers.go", []string{"func (a *Answers) Clear() { a.cleared = a.forwarded }", "func (a *Answers) Clear() {}"}, "listener:TestSuspicionEnds"},
	{"STRICT confirms what was suspicious only", "listener/gate/answers.go", []string{" || a.Rules.Strict != nil && a.Rules.Strict()", ""}, "listener:TestStrictBarrier"},
	{"durable reads are not confirmed", "listener/gate/answers.go", []string{"a.Reads == startup.ReadsDurable || ", ""}, "listener:TestDurableReads"},
	{"a request that may have committed counts as lost", "listener/stmt/requests.go", []string{"		if at, commits = at.after(c, true); commits {\n			return Unknown\n", "		if at, commits = at.after(c, true); commits {\n			return Aborted\n"}, "listener:TestVerdicts"},
	{"a number that was given again proves a commit", "listener/indoubt/outcome.go", []string{" || slices.ContainsFunc(since, func(t ag.TimelineEntry) bool { return c.Xid >= t.Xids.Kept })", ""}, "TestOutcomeIsTrue"},
	{"a reader goes on at a copy that is behind", "listener/continue.go", []string{"	return err\n}\n\n// openAgain opens", "	return nil\n}\n\n// openAgain opens"}, "TestMovedReaderSeesNothingGoBack"},
	{"a forced failover does not say that it was", "ag/takeover.go", []string{"Copy: v.Local.Copy, Forced: true,", "Copy: v.Local.Copy,"}, "TestForceNeedsNobody"},
	{"a server may lead without the deadline of its epoch", "postgres/keeper/start.go", []string{"case req.Epoch != k.epoch:", "case req.Epoch < k.epoch:"}, "TestPrimaryKeepsStandbySignal"},
	{"an ill replica takes a free leadership like a well one", "ag/health.go", []string{"	if v.illness() == \"\" && !(v.Local.Late", "	if !(v.Local.Late"}, "TestDecideOnHealth"},
	{"a member of the quorum answers reads by itself", "etcd/wire.go", []string{"&pb.RangeRequest{Key: []byte(o.key)}}", "&pb.RangeRequest{Key: []byte(o.key), Serializable: true}}", "Limit: o.limit}}", "Limit: o.limit, Serializable: true}}"}, "TestQuorumOfThree"},
	{"a wait that was cut short counts as done", "listener/gate/answers.go", []string{"func (a *Answers) needsConfirmation() bool {\n", "func (a *Answers) needsConfirmation() bool {\n	if true {\n		return false\n	}\n"}, "listener:TestUnconfirmedIsUnknown"},
	{"the server's log is looked at before the answer has come", "listener/gate/answers.go", []string{"sound = log.Look()", "sound = log.Count(), log.Sound()"}, "listener:TestHiddenCancelledWait"},
	{"a warning counts from the answer on, and not from the request", "listener/gate/answers.go", []string{"	a.weak = !sound\n", "	a.weak = !sound\n	a.before.Store(a.logged)\n"}, "listener:TestHiddenCancelledWait"},
	{"a log that cannot be relied on is believed", "listener/gate/answers.go", []string{"	a.weak = !sound\n", "	a.weak = !sound && false\n"}, "listener:TestWeakLogConfirmsAll"},
	{"the kernel passes answers whatever the server has logged", "listener/offload/serverlog.go", []string{"asm.JNE.Reg(asm.R1, asm.R3, p.back(WhyLog))", "asm.JEq.Imm(asm.R1, -1, p.back(WhyLog))"}, "listener:TestHiddenCancelledWait"},
	{"the kernel's mark moves over a warning before the sessions are taken back", "listener/serverlog/reader.go", []string{"	r.count.Add(1)\n	r.suspected()\n", "	r.count.Add(1)\n	r.publish()\n	r.suspected()\n"}, "TestMarksMoveLast"},
	{"a warning that arrives in two pieces is not found", "listener/serverlog/reader.go", []string{"	r.kept = copy(r.buf, b[max(0, len(b)-overlap):])\n", "	r.kept = 0\n"}, "TestWarningIsFound"},
	{"settings that were asked for before they changed are relied on", "listener/serverlog/reader.go", []string{"r.reloads != asked.reloads || ", ""}, "TestSettingsAreReadAgain"},
	{"a second walsender of a member is admitted", "postgres/replication/downstream.go", []string{"st.hello.Kind != KindWAL || d.cfg.OldRowGone == nil", "true"}, "TestOneWalsender"},
	{"a stream of logical replication goes by a member's name", "listener/passage/answers.go", []string{"return w.Replicates && ", "return false && "}, "listener:TestLogicalStreamIsNoMember"},
	{"a stream of logical replication begins by a name that nobody has seen yet", "listener/passage/requests.go", []string{"typ == 'Q' && w.Owed.Load() > 0", "typ == 'Q' && w.Owed.Load() < 0"}, "listener:TestReplication"},
	{"what a standby's files held before counts as received", "postgres/pgfiles/walrecord.go", []string{" || err == nil && rec.next > limit", ""}, "TestWALEnd"},
	{"a secondary with less than its primary stays paused", "agent/observe.go", []string{"o.InRecovery && o.Short != \"\"", "!o.InRecovery && o.Short != \"\""}, "TestStuck"},
	{"a server gets its deadline while it has WAL to replay", "agent/act.go", []string{"if err := a.replayRest(ctx, from, act.TLI); err != nil {", "if err := error(nil); err != nil {"}, "TestLongReplayEndsNoServer"},
	{"the session of observation is kept until a server has left recovery", "postgres/promote.go", []string{"		return nil\n	})\n	for recovery := true;", "		for c.QueryRow(ctx, \"SELECT pg_is_in_recovery()\").Scan(&sent) == nil && sent {\n			_ = retry.Sleep(ctx, pollInterval)\n		}\n		return nil\n	})\n	for recovery := true;"}, "TestSlowReplay"},
	{"a promotion that follows one that was given up marks all skipped timelines again", "postgres/promote.go", []string{"i.removeTrailingSkips(tli)", "i.removeTrailingSkips(0)"}, "TestSkippedTimelinesStay"},
	{"a promotion that none of many came through is outbid as soon as the first", "ag/takeover.go", []string{"v.Silence < v.outbidAfter()", "v.Silence < v.outbidAfter()/1000"}, "TestOutbidWaitsLonger"},
	{"a candidate that waits leaves its server down", "ag/promotion.go", []string{"v.Silence >= v.Profile.Progress() && v.sound()", "v.Silence < 0 && v.sound()"}, "TestCandidateThatWaitsStartsItsServer"},
	{"a member that is no candidate may stream from a node that does not lead", "postgres/replication/downstream.go", []string{"d.only != \"\" && h.Member == d.only &&", "d.only != \"\" &&"}, "TestFeed"},
	{"a log that still moves is streamed to a candidate", "ag/promotion.go", []string{"l.Promised == e.Epoch && l.Source == \"\" && l", "l"}, "TestFeeds"},
	{"the end of a log is put behind a copy that is no beginning of it", "ag/promotion.go", []string{" && p.LSN <= s.Timelines[i+1].Switch", ""}, "TestFetchTail"},
	{"a log stays open for the candidate of an epoch that is over", "agent/loop.go", []string{"		a.cfg.Downstream.Lead(a.feeding.epoch, false)\n		a.feeding = nil\n", "		a.feeding = nil\n"}, "TestTailIsFetchedFromAManualReplica"},
	{"what a member said of its last copy counts for the next", "agent/observe.go", []string{"s.Copy == m.Copy && (", "m.Copy != \"\" && ("}, "TestSaysGone"},
	{"streams of an older epoch stay open", "postgres/replication/downstream.go", []string{"return st.admitted && (!leading || st.hello.Epoch < e)", "return false"}, "TestSetEpochCloses"},
	{"a member that was removed is let in", "endpoint/endpoint.go", []string{"if err := e.cfg.Authorize(c.peer, c.pin, c.class); err != nil {", "if err := e.cfg.Authorize(c.peer, c.pin, c.class); err != nil && false {"}, "TestRefusedByTheRecord"},
	{"the diverged tail is not kept", "agent/copy.go", []string{"	if err := a.keepFork(ctx, v); err != nil {\n		return nil, err\n	}\n	a.showProgress(\"rewinding\")", "	a.showProgress(\"rewinding\")"}, "TestDivergedCopyIsRewound"},
	{"a change whose answer was lost is made again", "etcd/attempt.go", []string{"case string(found.value) == id: // an", "case false: // an", "out, err := s.readBack(ctx, id, expected, w, err)\n		return out, false, err", "return outcome{}, false, err"}, "TestLostAnswerIsReadBack"},
	{"a server that was promoted without a lease is left running", "postgres/keeper/loop.go", []string{"if ready && !k.armed && k.end == nil {", "if false {"}, "TestPromotedUnarmed"},
	{"backends of a killed server are left running", "postgres/keeper/loop.go", []string{"		e.killAt = now\n		proc.KillDescendants()\n", ""}, "TestPostmasterKilled"},
	{"a new primary gives up on all of its members as soon as on one of several", "ag/quorum.go", []string{"	return FirstMemberTimeout\n", "	return FirstStreamTimeout\n"}, "TestNextSync"},
	{"a new primary waits for its first member without end", "ag/quorum.go", []string{"(v.came(id) || s.Silent < v.firstStream())", "(v.came(id) || v.firstStream() > 0)"}, "TestNextSync"},
	{"a member that V counts is left out for what it says of its copy", "ag/quorum.go", []string{"s.Bare && !in", "s.Bare && (!in || in)"}, "TestNextSync"},
	{"a member of another cluster is waited for as one that may stream", "ag/quorum.go", []string{" && !v.bare(id)", ""}, "TestNextSync"},
	{"what a member said of its data in an earlier epoch counts", "agent/observe.go", []string{"s.Epoch == v.Record.Epoch.Epoch && s.Data", "s.Data"}, "TestSaysBare"},
	{"whom an epoch starts with counts as having come", "ag/quorum.go", []string{"v.copyKnown(id) && !initial", "v.copyKnown(id) || initial"}, "TestNextSync"},
	{"an epoch starts with a member that went on elsewhere", "ag/promotion.go", []string{" || !v.Record.State.begins(s.Position, chosen.Position)", ""}, "TestInitialSyncSet"},
	{"an epoch promises as many as have everything, whatever its commits wait for", "ag/promotion.go", []string{"st.K = k; st.Holds(set)", "st.K = k; st.Holds(set) || true"}, "TestFirstSyncSet"},
	{"a first setting is not proven when clients are let in", "ag/decide.go", []string{"return v.Local.Sync.Proven && v.replicated", "return v.replicated"}, "TestOpen"},
	{"a primary that had to be killed in a planned failover is one of whom the next epoch starts with", "agent/handover.go", []string{"	if clean {\n		e.V", "	if clean || true {\n		e.V"}, "TestPlannedFailoverWithAHardStop"},
	{"an agent that took a primary over takes its setting for proven", "agent/restart.go", []string{"	a.sync, a.tried = now, nil\n", "	now.Proven, a.attached = true, false\n	a.sync, a.tried = now, nil\n"}, "TestRestartProvesTheSettingFirst"},
	{"an agent that took a primary over leaves the setting as it finds it", "agent/restart.go", []string{"!r.State.Holds(now) || slices.Contains(o.P, \"\")", "slices.Contains(o.P, \"\") && r.State.Holds(now)"}, "TestRestartRewritesTheSetting"},
	{"an agent that made room lets answers leave", "agent/act.go", []string{"	if r.name == restartTask && r.err == nil {\n		return true\n	}\n	a.task.Store(nil)\n", "	a.task.Store(nil)\n	if r.name == restartTask && r.err == nil {\n		return true\n	}\n"}, "TestNoAnswerAfterMakingRoom"},
	{"an agent makes room while transactions run", "agent/restart.go", []string{"	if err := h.drain(ctx); err != nil {\n		return err\n	}\n", "	_ = h.drain\n"}, "TestRestartIsRefusedOrUndone"},
	{"clients are let in before others have what a primary wrote that was started again", "agent/handover.go", []string{"		a.restart = end // BEFORE the gate", "		a.restart = 0 * end // BEFORE the gate"}, "TestPrimaryStartedAgainWaitsForReplicas"},
	{"silence is measured by the observer's own profile", "ag/takeover.go", []string{"l.Epoch == v.epoch() && l.Observer > 0", "l.Epoch == v.epoch() && l.Observer < 0"}, "TestDecide"},
	{"a new profile's silence is declared before the leases of the old one have run out", "ag/record.go", []string{"	return max(p.Observer, time.Duration(need)+1)\n", "	return max(p.Observer, 0*time.Duration(need))\n"}, "TestDeclared"},
	{"an agent changes the record by whatever configuration it knew", "agent/loop.go", []string{"		c.Group = s.GroupRev // of the view: this loop alone reads\n", "		_ = s\n"}, "TestCommitComparesTheConfiguration"},
	{"a vote is written by whatever configuration the agent knew", "agent/loop.go", []string{" || c.Vote != nil || c.Unvote != \"\") {", ") {"}, "TestCommitComparesTheConfiguration"},
	{"a store does not compare the configuration", "etcd/record.go", []string{"if c.Group > 0 {", "if c.Group < 0 {"}, "TestContract"},
	{"a member is removed while none leads", "node/operations/members.go", []string{"		if _, in := x.Record.State.InV(id); !in && x.Record.Epoch.Phase == ag.PhaseLead {", "		if _, in := x.Record.State.InV(id); !in {"}, "TestRemoveRefuses"},
	{"a recovery enters an epoch that somebody has promised", "ag/recovery/recovery.go", []string{"max(epoch, a.Promised, a.Epoch)", "max(epoch, a.Epoch)"}, "TestRecoveryTakesNothingBack"},
	{"a recovery allots a timeline id that a lost member may have used", "ag/recovery/recovery.go", []string{"	tli += ag.Timeline(min(epoch, mostSkipped))\n", "	tli++\n"}, "TestRecoveryTakesNothingBack"},
	{"a recovery is begun on a second member", "ag/recovery/recovery.go", []string{"case a.Founds != 0 && a.ID != q.Lead:", "case a.Founds != 0 && a.ID == \"\":"}, "TestTwoRecoveries"},
	{"two recoveries begin two histories with one timeline id", "ag/recovery/recovery.go", []string{"			tli += distance\n", "			tli += 0 * distance\n"}, "ag/agsim:TestSim"},
	{"a recovery takes a founder of the same epoch for one that follows", "ag/recovery/recovery.go", []string{"	case a.rivals(mine):\n		return true\n", ""}, "TestTwoRecoveries"},
	{"a member founds a quorum without asking the others", "node/quorum/quorum.go", []string{"	if f.Token != \"\" {\n		if err := s.mayFound", "	if f.Token == \"-\" {\n		if err := s.mayFound"}, "TestFounderAsksTheOthers"},
	{"a member asks whether others found before it tells that it does", "node/quorum/rival.go", []string{"	if err != nil || f.Token == \"\" {", "	if err != nil || f.Token != \"\" {", "	s.founds.Store(&own)\n", "	defer s.founds.Store(&own)\n"}, "TestFounderAsksTheOthers"},
	{"a primary goes on beside one of another quorum of the group", "agent/loop.go", []string{"	if err := a.guard.HeardRival(); err != nil {", "	if err := a.guard.HeardRival(); err != nil && e.Leader == \"\" {"}, "TestTwoFoundersOfAnEpoch"},
	{"a recovery counts somebody in V", "ag/recovery/recovery.go", []string{"V: []ag.Member{}, Timelines: q.History", "V: []ag.Member{{ID: q.Lead, Copy: mine.Copy}}, Timelines: q.History"}, "TestRecoveryTakesNothingBack"},
	{"a recovery leaves automatic failover on", "ag/recovery/recovery.go", []string{"			old.FailoverMode = ag.Manual\n", "			_ = ag.Manual\n"}, "TestRecoveryTakesNothingBack"},
	{"a recovery throws a copy away that is ahead of the chosen one", "ag/recovery/recovery.go", []string{"(old.Suspended || slices.Contains(r.Ahead, old.ID))", "old.Suspended"}, "TestRecoverySparesWhoIsAhead"},
	{"a follower of an epoch's leader seals that epoch for another", "agent/seal.go", []string{"marks.Promise{Epoch: e, To: leader.ID}", "marks.Promise{Epoch: e}"}, "TestFollowerSealsNoSecondLeader"},
	{"a recovery takes the record that a member has seen for its copy", "ag/recovery/recovery.go", []string{"	switch {\n	case a.ID == mine.ID || a.Copy == \"\":", "	switch {\n	case a.Seq != mine.Seq:\n		return a.Copy != \"\" && a.Seq > mine.Seq\n	case a.ID == mine.ID || a.Copy == \"\":"}, "TestRecordsAreNoCopies"},
	{"a recovery takes the record that a member has seen for its copy, in a history", "ag/recovery/recovery.go", []string{"	switch {\n	case a.ID == mine.ID || a.Copy == \"\":", "	switch {\n	case a.Seq != mine.Seq:\n		return a.Copy != \"\" && a.Seq > mine.Seq\n	case a.ID == mine.ID || a.Copy == \"\":"}, "ag/agsim:TestSim"},
	{"a promotion that was marked and had not begun makes a log count behind earlier ones", "agent/marks/marks.go", []string{"	if at.Timeline < cmp.Or(p.First, p.TLI) || at.Timeline > p.TLI {", "	if at.Timeline != p.TLI {"}, "TestPromotionBegins"},
	{"a recovery goes on without a member's word", "ag/recovery/recovery.go", []string{"	case len(missing) > 0:\n", "	case len(missing) > len(q.Group.Replicas):\n"}, "TestRecoveryIsRefused"},
	{"the mark of a quarantine that the disk did not take is not tried again", "agent/health.go", []string{"(w == nil || *w != c.mark) && ", "w == nil && "}, "agent:TestMarkOfAQuarantineIsTriedAgain"},
	{"a primary's disk that hangs while its counters move counts as dead", "postgres/health/judge.go", []string{"lasts < limit || p.progress(now, limit/2)", "lasts < limit"}, "TestUnusualHangOfAPlace"},
	{"a hang counts as unusual before it is known what is usual", "postgres/health/probe.go", []string{"	if !known {\n\t\treturn wait, longest\n\t}\n", "	_ = known\n"}, "TestUnusualHangOfAPlace"},
}

// apply returns the file with the mistake in it.
func (s slip) apply() (path string, text []byte, err error) {
	if path, err = filepath.Abs(filepath.Join("..", "..", s.file)); err != nil {
		return "", nil, err
	}
	if text, err = os.ReadFile(path); err != nil {
		return "", nil, err
	}
	for i := 0; i < len(s.edit); i += 2 {
		if n := bytes.Count(text, []byte(s.edit[i])); n != 1 {
			return "", nil, fmt.Errorf("internal/%s has %d times what the mistake %q replaces: %q", s.file, n, s.name, s.edit[i])
		}
		text = bytes.Replace(text, []byte(s.edit[i]), []byte(s.edit[i+1]), 1)
	}
	return path, text, nil
}

// hunt runs the test with the mistake built in, and reports whether it fails.
func (s slip) hunt(t *testing.T) bool {
	t.Helper()
	path, text, err := s.apply()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	wrong, overlay := filepath.Join(dir, "wrong.go"), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]map[string]string{"Replace": {path: wrong}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(wrong, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, b, 0o600); err != nil {
		t.Fatal(err)
	}
	folder, test := s.hunter()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-count=1", "-timeout=90s", "-run", "^"+test+"$", "./"+folder)
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	if !strings.Contains(string(out), "--- FAIL: ") && !strings.Contains(string(out), "panic: test timed out") {
		t.Fatalf("%s does not build, or its test did not run:\n%s", s.name, out)
	}
	return true
}

// TestSlipsApply fails when an adapter has changed so that a recorded mistake no longer applies to it. The author of
// such a change updates the mistake; otherwise the table of make mutants would not be repeatable.
func TestSlipsApply(t *testing.T) {
	for _, s := range slips {
		if _, _, err := s.apply(); err != nil {
			t.Errorf("%v; write the mistake anew", err)
		}
	}
}

// TestSlips hunts each, one after the other. With -update it writes the second table of the page (make mutants).
func TestSlips(t *testing.T) {
	if os.Getenv("COTERIE_EXPLORE") == "" {
		t.Skip("builds the program anew for each; make mutants does it")
	}
	var rows strings.Builder
	for _, s := range slips {
		folder, test := s.hunter()
		t.Run(strings.ReplaceAll(s.name, "/", ""), func(t *testing.T) {
			if !s.hunt(t) {
				t.Errorf("%s in package %s does not find this mistake", test, folder)
			}
		})
		fmt.Fprintf(&rows, "| %s | `%s` in package `%s` | it fails |\n", s.name, test, folder)
	}
	if *update && !t.Failed() {
		writeMutants(t, slipsHead, rows.String())
	}
}

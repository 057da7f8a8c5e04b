package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
)

const (
	verifyTimeout  = 10 * time.Second // for Verify to compare histories and WAL
	rowTimeout     = 10 * time.Second // for the walsender of a member's old stream to vanish
	connectTimeout = 5 * time.Second  // for the server to accept a connection
	maxOthers      = 8                // streams of a member that are not WAL streams
)

// PrimaryFacts is what a primary tells about itself in an Answer.
type PrimaryFacts struct {
	Leading   bool
	Epoch     ag.Epoch
	TLI       ag.Timeline
	Switch    ag.LSN // where TLI leaves its parent
	Timelines []ag.TimelineEntry
}

// DownstreamConfig is what a Downstream needs to run.
type DownstreamConfig struct {
	SocketDir string              // PostgreSQL's private socket directory
	Superuser func() string       // the role that connects to it
	Self      func() PrimaryFacts // for the Answer; a stream is refused while Leading is false or the epoch is another
	// Verify compares the copy, the history and the WAL of a Hello of kind wal with this node's, and answers; only OK,
	// Code and Message of the answer are used. A nil Verify accepts. It may take 10 s.
	Verify func(context.Context, Hello) Answer
	// OldRowGone returns when pg_stat_replication has no row left for any epoch's name of the member, or with an error
	// when ctx is done first. It is called before each WAL stream of the member is joined to the server. If it is nil,
	// nothing is waited for.
	OldRowGone func(context.Context, ag.ReplicaID) error
	Penalty    *Penalty     // measures the waits of commits; nil: they are not measured
	Logger     *slog.Logger // nil: none

	// ProbeAfter is the silence, in either direction, after which a WAL stream in streaming mode gets a keepalive that
	// wants a reply; default 3 s, and SetProbeAfter changes it. DeadAfter is the silence of the peer after that which
	// ends the stream; default 10 s.
	ProbeAfter, DeadAfter time.Duration
}

// Stream is one stream as Downstream.Streams reports it.
type Stream struct {
	Member       ag.ReplicaID
	Copy         ag.CopyID
	Incarnation  string
	Epoch        ag.Epoch
	Session      uint64 // unique in the life of the Downstream, growing
	Kind         string
	Streaming    bool          // the walsender is in streaming mode; WAL streams only
	Sent         ag.LSN        // end of the WAL that the server sent for the member
	LastSent     time.Duration // boottime of that; 0: none yet
	Write        ag.LSN        // the positions that the secondary reported last; those of held feedback count
	Flush        ag.LSN        //
	Apply        ag.LSN        //
	LastFeedback time.Duration // boottime of the last status update; 0: none yet
	Since        time.Duration // boottime of the connection's start
	Proven       uint64        // proofs given to Prove
}

// Downstream joins the streams of other replicas to this node's PostgreSQL. There is at most one WAL stream of a
// member, and none of an epoch other than the one SetEpoch named last.
type Downstream struct {
	cfg     DownstreamConfig
	probe   atomic.Int64 // the ProbeAfter in force, in nanoseconds
	log     *slog.Logger
	holding atomic.Bool
	changed chan struct{}
	moved   atomic.Pointer[chan struct{}] // closed at the next move; nil while no caller waits

	mu      sync.Mutex
	epoch   ag.Epoch
	leading bool
	only    ag.ReplicaID // whose WAL stream alone is admitted, from a server that does not lead; "": see leading
	closed  bool
	session uint64
	streams map[*stream]struct{} // from the first byte of a connection to its end
	wal     map[ag.ReplicaID]*stream
	past    map[int]time.Duration // processes of streams that have ended, and the boottime of that
}

// NewDownstream returns a Downstream that refuses every stream until SetEpoch reports that this node leads.
func NewDownstream(cfg DownstreamConfig) *Downstream {
	cfg.ProbeAfter = cmp.Or(cfg.ProbeAfter, 3*time.Second)
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Downstream{
		cfg: cfg, log: cfg.Logger, changed: make(chan struct{}, 1),
		streams: make(map[*stream]struct{}), wal: make(map[ag.ReplicaID]*stream), past: make(map[int]time.Duration),
	}
	d.SetProbeAfter(cfg.ProbeAfter)
	return d
}

// SetProbeAfter changes DownstreamConfig.ProbeAfter, of open streams too. A member that is alive is silent for twice as
// long at most, and the time that its answer takes.
func (d *Downstream) SetProbeAfter(after time.Duration) { d.probe.Store(int64(after)) }

func (d *Downstream) probeAfter() time.Duration { return time.Duration(d.probe.Load()) }

func (d *Downstream) signal() {
	if moved := d.moved.Swap(nil); moved != nil {
		close(*moved)
	}
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Handle serves one stream of peer, whose identity the endpoint has authenticated, on a connection it owns from now on.
// It returns when the stream has ended, which it does at the latest when ctx is done.
func (d *Downstream) Handle(ctx context.Context, peer ag.ReplicaID, conn net.Conn) {
	st := newStream(conn, &d.holding, d.signal, d.cfg.Penalty)
	if !d.enter(st) {
		_ = conn.Close()
		return
	}
	defer d.leave(st)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	helpers.Go(func() { // either end ends the other
		select {
		case <-ctx.Done():
			st.close(context.Cause(ctx))
		case <-st.closing:
			cancel()
		}
	})
	if answer := d.prepare(ctx, peer, st); !answer.OK {
		d.log.Info("stream refused", "peer", peer, "kind", st.hello.Kind, "code", answer.Code, "reason", answer.Message)
		_ = d.answer(st, answer) // the reason is in the log, too
		st.close(errors.New(answer.Message))
		return
	}
	log := d.log.With("peer", peer, "kind", st.hello.Kind, "epoch", st.hello.Epoch, "session", st.session)
	log.Info("stream joined", "position", st.hello.Position.String())
	st.run(d.probeAfter, d.cfg.DeadAfter)
	log.Info("stream ended", "cause", st.ended())
}

// enter registers the stream from its first byte on, so that Close can end it.
func (d *Downstream) enter(st *stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.streams[st] = struct{}{}
	return true
}

// leave removes a stream of which nothing runs any more.
func (d *Downstream) leave(st *stream) {
	st.close(errEnded)
	d.mu.Lock()
	delete(d.streams, st)
	d.notePast(st)
	if d.wal[st.hello.Member] == st {
		delete(d.wal, st.hello.Member)
	}
	d.mu.Unlock()
	close(st.done)
	d.signal()
}

// prepare reads and judges the Hello, and joins the stream to the server. If its answer is OK it has been sent.
func (d *Downstream) prepare(ctx context.Context, peer ag.ReplicaID, st *stream) Answer {
	refuse := func(code, format string, args ...any) Answer {
		return Answer{Code: code, Message: fmt.Sprintf(format, args...)}
	}
	var h Hello
	_ = st.peer.SetReadDeadline(time.Now().Add(helloTimeout))
	if err := readFrame(st.peer, &h); err != nil {
		return refuse(CodeUnauthorised, "no valid hello: %v", err)
	}
	_ = st.peer.SetReadDeadline(time.Time{})
	if h.Member != peer || !memberName.MatchString(string(h.Member)) {
		return refuse(CodeUnauthorised, "the stream says it is of %q, the certificate is of %q", h.Member, peer)
	}
	if h.Kind != KindWAL && h.Kind != KindQuery && h.Kind != KindBackup {
		return refuse(CodeUnauthorised, "unknown kind of stream %q", h.Kind)
	}
	if a := d.judge(h); !a.OK {
		return a
	}
	if h.Kind == KindWAL && d.cfg.Verify != nil {
		vctx, cancel := context.WithTimeout(ctx, verifyTimeout)
		a := d.cfg.Verify(vctx, h)
		cancel()
		if !a.OK {
			return refuse(cmp.Or(a.Code, CodeBusy), "%s", a.Message)
		}
	}
	old, a := d.admit(st, h)
	if !a.OK {
		return a
	}
	if err := d.succeed(ctx, st, old); err != nil {
		return refuse(CodeBusy, "%v", err)
	}
	if err := d.connect(ctx, st); err != nil {
		return refuse(CodeBusy, "%v", err)
	}
	// The answer is sent before the stream counts as running: a stream whose peer does not know of it is neither
	// reported nor proved.
	facts := d.cfg.Self()
	a = Answer{OK: true, Epoch: h.Epoch, TLI: facts.TLI, Switch: facts.Switch}
	if err := d.answer(st, a); err != nil {
		return refuse(CodeBusy, "send answer: %v", err)
	}
	d.mu.Lock()
	st.running = true
	d.mu.Unlock()
	d.signal()
	return a
}

// memberName is the form of a ReplicaID, which becomes part of an application name in synchronous_standby_names.
var memberName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)

// judge refuses a Hello of another epoch, or any while this node does not lead.
func (d *Downstream) judge(h Hello) Answer {
	facts := d.cfg.Self()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.judgeLocked(h, facts)
}

func (d *Downstream) judgeLocked(h Hello, facts PrimaryFacts) Answer {
	a := Answer{Epoch: d.epoch, TLI: facts.TLI, Switch: facts.Switch}
	switch {
	case d.only != "" && h.Member == d.only && h.Kind == KindWAL && h.Epoch == d.epoch:
		a.OK = true
	case !d.leading || !facts.Leading:
		a.Code, a.Message = CodeNotPrimary, fmt.Sprintf("this node does not lead (epoch %d)", d.epoch)
	case h.Epoch != d.epoch || facts.Epoch != d.epoch:
		a.Code, a.Message = CodeEpoch, fmt.Sprintf("the stream is of epoch %d, this node leads epoch %d", h.Epoch, d.epoch)
	default:
		a.OK = true
	}
	return a
}

// admit makes st a stream of its member, and its only WAL stream. It returns the stream that st replaces, if any. From
// here on SetEpoch and Drop see it.
func (d *Downstream) admit(st *stream, h Hello) (old *stream, a Answer) {
	facts := d.cfg.Self()
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.judgeLocked(h, facts); !a.OK { // the epoch may have moved during Verify
		return nil, a
	}
	others := 0
	for s := range d.streams {
		if s.admitted && s.hello.Member == h.Member && s.hello.Kind != KindWAL {
			others++
		}
	}
	if h.Kind != KindWAL && others >= maxOthers {
		return nil, Answer{Code: CodeBusy, Message: fmt.Sprintf("%s has %d streams already", h.Member, others)}
	}
	d.session++
	st.hello, st.session, st.admitted = h, d.session, true
	if h.Kind == KindWAL {
		old = d.wal[h.Member]
		d.wal[h.Member] = st
	}
	return old, Answer{OK: true}
}

// succeed ends the member's old WAL stream and returns when its walsender's row has vanished: two rows of one name
// could make one copy count twice (docs/internals/safety.md, "Streams").
func (d *Downstream) succeed(ctx context.Context, st, old *stream) error {
	if old != nil {
		old.close(fmt.Errorf("replaced by session %d of the same member", st.session))
		select {
		case <-old.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if st.hello.Kind != KindWAL || d.cfg.OldRowGone == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rowTimeout)
	defer cancel()
	if err := d.cfg.OldRowGone(ctx, st.hello.Member); err != nil {
		return fmt.Errorf("wait for the old walsender of %s to vanish: %w", st.hello.Member, err)
	}
	return nil
}

// connect opens the server's connection for the stream and starts it up.
func (d *Downstream) connect(ctx context.Context, st *stream) error {
	dialer := net.Dialer{Timeout: connectTimeout}
	server, err := dialer.DialContext(ctx, "unix", filepath.Join(d.cfg.SocketDir, socketName))
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	if st.hello.Kind == KindWAL {
		n, err := rawconn.Take(server)
		if err != nil {
			_ = server.Close()
			return fmt.Errorf("connect to the server: %w", err)
		}
		server = n
	}
	if err := st.join(server); err != nil {
		return err
	}
	_ = server.SetWriteDeadline(time.Now().Add(connectTimeout))
	if _, err := server.Write(startupPacket(st.hello, d.cfg.Superuser())); err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	return server.SetWriteDeadline(time.Time{})
}

func (d *Downstream) answer(st *stream, a Answer) error {
	_ = st.peer.SetWriteDeadline(time.Now().Add(helloTimeout))
	if err := writeFrame(st.peer, a); err != nil {
		return err
	}
	return st.peer.SetWriteDeadline(time.Time{})
}

// SetEpoch sets the epoch and whether this node leads it. It closes every stream of an older epoch, or all of them if
// it does not lead, and returns when nothing of them runs any more. An epoch lower than an earlier one is ignored.
func (d *Downstream) SetEpoch(e ag.Epoch, leading bool) {
	if d.enterEpoch(e, leading, "") {
		d.end(fmt.Errorf("epoch %d began", e), func(st *stream) bool {
			return st.admitted && (!leading || st.hello.Epoch < e)
		})
	}
}

// Feed admits the WAL stream of one member in epoch e although this node does not lead it: its server is in recovery
// and takes no WAL itself. Feed closes every other stream and returns when nothing of them runs any more. SetEpoch ends
// it. An epoch lower than an earlier one is ignored.
func (d *Downstream) Feed(e ag.Epoch, only ag.ReplicaID) {
	if d.enterEpoch(e, false, only) {
		d.end(fmt.Errorf("epoch %d is being sealed", e), func(st *stream) bool {
			return st.admitted && (st.hello.Member != only || st.hello.Epoch < e)
		})
	}
}

// enterEpoch sets whose streams are admitted from now on. It returns false if the epoch is over.
func (d *Downstream) enterEpoch(e ag.Epoch, leading bool, only ag.ReplicaID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e < d.epoch {
		d.log.Warn("epoch would go back", "epoch", e)
		return false
	}
	if e != d.epoch {
		d.cfg.Penalty.forget()
	}
	d.epoch, d.leading, d.only = e, leading, only
	return true
}

// end closes the chosen streams and waits for them.
func (d *Downstream) end(cause error, chosen func(*stream) bool) {
	list := d.choose(chosen)
	for _, st := range list {
		st.close(cause)
	}
	for _, st := range list {
		<-st.done
	}
}

// choose returns the streams for which chosen holds, oldest first.
func (d *Downstream) choose(chosen func(*stream) bool) []*stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []*stream
	for st := range d.streams {
		if chosen(st) {
			list = append(list, st)
		}
	}
	slices.SortFunc(list, func(a, b *stream) int { return cmp.Compare(a.session, b.session) })
	return list
}

// Streams returns the streams that are joined to the server, oldest first.
func (d *Downstream) Streams() []Stream {
	var list []Stream
	for _, st := range d.choose(func(st *stream) bool { return st.running }) {
		list = append(list, st.report())
	}
	return list
}

// Changed returns a channel with room for one signal. It receives one when a flush position has moved, or a stream has
// begun, begun to stream, or ended. It is for one reader.
func (d *Downstream) Changed() <-chan struct{} { return d.changed }

// Moved returns a channel that is closed at the next of those moves. It is for any number of readers. To wait for a
// position, take the channel first and look at Streams then.
func (d *Downstream) Moved() <-chan struct{} {
	next := make(chan struct{})
	for {
		if d.moved.CompareAndSwap(nil, &next) {
			return next
		}
		if now := d.moved.Load(); now != nil {
			return *now
		}
	}
}

// Prove returns when the walsender of each member has shown that it works with every setting whose reload was signalled
// to the server's processes before the call (docs/internals/safety.md, "Proof of a setting"; see stream.prove). It
// works while feedback is held. It fails if a member has no WAL stream in streaming mode, or if its stream ends
// meanwhile.
func (d *Downstream) Prove(ctx context.Context, members []ag.ReplicaID) error {
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		d.mu.Lock()
		st := d.wal[m]
		running := st != nil && st.running
		d.mu.Unlock()
		if !running {
			errs[i] = fmt.Errorf("prove the walsender of %s: it has no stream", m)
			continue
		}
		wg.Go(func() {
			if err := st.prove(ctx); err != nil {
				errs[i] = fmt.Errorf("prove the walsender of %s: %w", m, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// HoldFeedback withholds status updates and hot standby feedback of WAL streams from PostgreSQL while hold is true. The
// newest of each kind is kept per stream and forwarded when hold ends. When HoldFeedback(true) returns, no later
// feedback reaches PostgreSQL. If it lasts longer than wal_sender_timeout (60 s by default), PostgreSQL ends the
// streams.
func (d *Downstream) HoldFeedback(hold bool) {
	d.holding.Store(hold)
	for _, st := range d.choose(func(st *stream) bool { return st.running && st.hello.Kind == KindWAL }) {
		st.settle()
	}
}

// Drop closes the streams of member without waiting for their end. The member may return.
func (d *Downstream) Drop(member ag.ReplicaID, why string) {
	for _, st := range d.choose(func(st *stream) bool { return st.admitted && st.hello.Member == member }) {
		st.close(fmt.Errorf("dropped: %s", why))
	}
}

// Close ends every stream, waits for them, and refuses new ones.
func (d *Downstream) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end(errors.New("the agent is stopping"), func(*stream) bool { return true })
}

package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
)

// Errors of a member. Test with errors.Is; the text around them names the member or the directory.
var (
	// ErrLost: the member's directory is empty although the member was started before. Under its old id it could vote
	// again, and differently.
	ErrLost = errors.New("the quorum member has lost its directory")
	// ErrRemoved: the quorum has removed this member.
	ErrRemoved = errors.New("the quorum member was removed from the group")
	// ErrNotLeader: MoveLeader was called on a member that does not lead the quorum.
	ErrNotLeader = errors.New("this member does not lead the quorum")
	// ErrNoSpace: the member failed because its disk is full; it comes with ErrFailed.
	ErrNoSpace = errors.New("the quorum store is out of space")
	// ErrClosed: the member was closed.
	ErrClosed = errors.New("the quorum store is closed")
)

var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Config describes the embedded member of one node.
type Config struct {
	// Name is the member's name, unique in the group: the replica's id.
	Name string
	// Dir is etcd's directory. It may be on a device of its own.
	Dir string
	// ClientSocket is the unix socket that etcd listens on; other users should not be able to open it. The node itself
	// uses ServePeer, ServeClient and DialClient.
	ClientSocket string
	// AdvertisePeer is the address at which the other members reach this one, as in https://host:5022. etcd dials it
	// itself, with CertFile, verifies the server by CAFile and ServerName, and sends no ALPN.
	AdvertisePeer string
	// Initial maps the names of the first members (New) or of the present ones (join) to their peer URLs. Needed for
	// the first start only. The member adds itself.
	Initial map[string]string
	// New means that the members of Initial found the quorum together; otherwise this member joins one that has added
	// it.
	New bool
	// Token keeps quorums apart that were founded with the same names and addresses: the group's id.
	Token string
	// CertFile, KeyFile and CAFile are read again for each new connection (CAFile at start only).
	CertFile, KeyFile, CAFile string
	// ServerName is the DNS name that every member's certificate carries. Empty: the host of its peer URL must be in
	// it.
	ServerName string
	// IdentityFile remembers, outside Dir, that this member was started.
	IdentityFile string
	// Logger gets etcd's warnings. Default: discard.
	Logger *slog.Logger
	// HeartbeatMS and ElectionMS are raft's timing. Default 100 and 1000.
	HeartbeatMS, ElectionMS int
}

// Sizes of the embedded member. A group's record is a few kilobytes and changes a few times per second: etcd's defaults
// are for a store a thousand times as large.
const (
	walSegmentBytes  = 4 << 20   // preallocated, two of them at any time
	quotaBytes       = 256 << 20 // reaching it stops the group, so it is far above what a minute's history takes
	snapshotEntries  = 2000
	catchUpEntries   = 500
	maxRequestBytes  = 1 << 20
	maxClientStreams = 256
	compactionPeriod = "1m"
	defragMegabytes  = 16 // at start, if at least that much comes free
	maxSocketPath    = 107
	closeTimeout     = 10 * time.Second

	// windowBytes is the fixed flow-control window. It has to be as on the client's side (package etcd, wire.go), which
	// says why.
	windowBytes = 1 << 20

	// applyEvery is how often applied changes are written to etcd's database file. Nothing depends on it: the log is
	// synced before any answer, and the next start applies the missing changes from the log again.
	applyEvery = time.Second
)

// Member is the embedded etcd member of this node.
type Member struct {
	etcd     *embed.Etcd
	server   *etcdserver.EtcdServer
	removed  *atomic.Bool
	failure  *failure
	grpc     atomic.Pointer[grpc.Server] // set once it serves clients
	services *services
	founded  atomic.Pointer[time.Time] // of the first start of this member; nil: it was started before

	closeOnce sync.Once
	closeErr  error
}

// Start starts the embedded member and returns when it runs, which is before it has found a quorum (see Ready). It
// refuses with ErrLost when the directory is empty though the member was started before.
func Start(ctx context.Context, c Config) (*Member, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	m := &Member{removed: &atomic.Bool{}, failure: newFailure(), services: newServices()}
	cfg, err := m.config(c)
	if err != nil {
		return nil, fmt.Errorf("start the quorum member: %w", err)
	}
	was, err := checkIdentity(c)
	if err != nil {
		return nil, fmt.Errorf("start the quorum member: %w", err)
	}
	for _, dir := range []string{c.Dir, filepath.Dir(c.IdentityFile)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("start the quorum member: %w", err)
		}
	}
	if !was.Started {
		m.founded.Store(new(time.Now()))
	}
	if err := m.start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("start the quorum member: %w", err)
	}
	if was.MemberID != 0 && was.MemberID != m.ID() {
		err = fmt.Errorf("%w: %s holds member %x, %s says that this node is member %x; %s",
			ErrLost, c.Dir, m.ID(), c.IdentityFile, was.MemberID, lostFix)
	} else if was != (identity{MemberID: m.ID(), Started: true}) {
		// After the start, so that a start that failed can be repeated. A crash in between loses the identity file, not
		// the directory. A loss of both at once cannot be detected.
		fault.Point("vote.unnamed") // the member runs for the first time; no file names it
		err = durable.ReplaceJSON(c.IdentityFile, identity{MemberID: m.ID(), Started: true})
	}
	if err != nil {
		return nil, fmt.Errorf("start the quorum member: %w", errors.Join(err, m.Close()))
	}
	return m, nil
}

const lostFix = "put the directory back if it still exists elsewhere (an unmounted device?); if it is gone for good, remove " +
	"this node from the group and add it again, so that it gets a new quorum id (the copy of the data stays)"

// checkIdentity refuses to start without the log of the member's votes.
func checkIdentity(c Config) (identity, error) {
	was, err := readIdentity(c.IdentityFile)
	if err != nil {
		return identity{}, err
	}
	if was.Started && !wal.Exist(filepath.Join(c.Dir, "member", "wal")) {
		return identity{}, fmt.Errorf("%w: %s is empty, and %s says that member %x was started from it. Its votes are lost with it, "+
			"so it must not come back under the same id: %s", ErrLost, c.Dir, c.IdentityFile, was.MemberID, lostFix)
	}
	return was, nil
}

func (m *Member) config(c Config) (*embed.Config, error) {
	if !namePattern.MatchString(c.Name) || c.Name == embed.DefaultName {
		return nil, fmt.Errorf("name %q is not usable", c.Name)
	}
	if c.Dir == "" || c.IdentityFile == "" {
		return nil, errors.New("a directory and a mark file are needed")
	}
	if p := c.ClientSocket; p == "" || len(p) > maxSocketPath {
		return nil, fmt.Errorf("socket path %q must have 1 to %d bytes", p, maxSocketPath)
	}
	if err := checkPeerURL(c.AdvertisePeer); err != nil {
		return nil, err
	}
	advertise, err := url.Parse(c.AdvertisePeer)
	if err != nil {
		return nil, err
	}
	prepareProcess()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, c.Dir
	cfg.ListenPeerUrls = nil // see ServePeer
	cfg.ListenClientUrls = []url.URL{unixURL(c.ClientSocket)}
	cfg.AdvertisePeerUrls = []url.URL{*advertise}
	cfg.AdvertiseClientUrls = []url.URL{*advertise} // required by etcd; not used
	cfg.PeerTLSInfo = transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile, ServerName: c.ServerName}
	cfg.TlsMinVersion = "TLS1.3"
	cfg.InitialClusterToken = "coterie-" + c.Token
	cfg.InitialCluster = initialCluster(c)
	cfg.ClusterState = embed.ClusterStateFlagExisting
	if c.New {
		cfg.ClusterState = embed.ClusterStateFlagNew
	}
	if c.HeartbeatMS > 0 {
		cfg.TickMs = uint(c.HeartbeatMS)
	}
	if c.ElectionMS > 0 {
		cfg.ElectionMs = uint(c.ElectionMS)
	}
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	cfg.QuotaBackendBytes, cfg.MaxRequestBytes, cfg.MaxConcurrentStreams = quotaBytes, maxRequestBytes, maxClientStreams
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, compactionPeriod
	cfg.BootstrapDefragThresholdMegabytes = defragMegabytes
	cfg.BackendBatchInterval = applyEvery
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.StaticStreamWindowSize(windowBytes), grpc.StaticConnWindowSize(windowBytes)}
	cfg.EnableGRPCGateway = false
	cfg.ServiceRegister = m.serveClients
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZap(zapToSlog{log: c.Logger, removed: m.removed, young: m.young}, m.failure))
	return cfg, nil
}

// prepareProcess makes the two settings that etcd takes from the process: a variable of its package, and the proxy from
// the environment. Nothing between nodes goes through a web proxy.
var prepareProcess = sync.OnceFunc(func() {
	wal.SegmentSizeBytes = walSegmentBytes
	for _, name := range []string{"HTTPS_PROXY", "https_proxy"} {
		_ = os.Unsetenv(name) // fails for names that no system accepts only
	}
})

// unixURL puts the whole path into the host, where etcd looks for it.
func unixURL(path string) url.URL { return url.URL{Scheme: "unix", Host: path} }

func checkPeerURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" {
		return fmt.Errorf("peer address %q must be of the form https://host:port", s)
	}
	return nil
}

func initialCluster(c Config) string {
	out := c.Name + "=" + c.AdvertisePeer
	for name, peerURL := range c.Initial {
		if name != c.Name {
			out += "," + name + "=" + peerURL
		}
	}
	return out
}

// start runs etcd's own start, which takes no context and can wait for ever, for example for a lock on its file.
func (m *Member) start(ctx context.Context, cfg *embed.Config) error {
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	done := make(chan result, 1)
	go func() {
		if err := checkFiles(cfg.Dir); err != nil {
			done <- result{nil, err}
			return
		}
		e, err := startEtcd(cfg)
		done <- result{e, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.err
		}
		m.etcd, m.server = r.etcd, r.etcd.Server
		m.servePeers()
		go m.seclude()
		return nil
	case <-m.failure.done:
		return m.failure.err()
	case <-ctx.Done():
		// It cannot be stopped, so it is closed once it has started.
		go func() {
			if r := <-done; r.err == nil {
				m.etcd, m.server = r.etcd, r.etcd.Server
				_ = m.Close()
			}
		}()
		return fmt.Errorf("etcd did not start in time: %w", ctx.Err())
	}
}

// startEtcd turns a panic of a failed start into an error.
func startEtcd(cfg *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrFailed, p)
		}
	}()
	return embed.StartEtcd(cfg)
}

// young reports whether the member was started for the first time, less than foundingTime ago.
func (m *Member) young() bool {
	t := m.founded.Load()
	return t != nil && time.Since(*t) < foundingTime
}

// ID returns the member's id in the quorum.
func (m *Member) ID() uint64 { return uint64(m.server.MemberID()) }

// LeaderID returns the id of the quorum's leader as far as this member knows, 0 if it knows none.
func (m *Member) LeaderID() uint64 { return m.server.Lead() }

// IsLeader reports whether this member leads the quorum, as far as it knows.
func (m *Member) IsLeader() bool { return m.LeaderID() == m.ID() }

// MoveLeader hands the lead of the quorum, which this member must have, to another voter.
func (m *Member) MoveLeader(ctx context.Context, to uint64) error {
	if to == m.ID() {
		return nil
	}
	if !m.IsLeader() {
		return fmt.Errorf("move the quorum's lead to %x: %w", to, ErrNotLeader)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := m.server.MoveLeader(ctx, m.ID(), to); err != nil {
		return fmt.Errorf("move the quorum's lead to %x: %w", to, err)
	}
	return nil
}

// Yield hands the lead of the quorum, if this member has it, to the voter that has been connected longest. It fails if
// none is connected. It takes milliseconds, and at most 5 seconds and two elections.
func (m *Member) Yield() error {
	if err := m.server.TryTransferLeadershipOnShutdown(); err != nil {
		return fmt.Errorf("move the quorum's lead: %w", err)
	}
	return nil
}

// Ready waits until the member has found a quorum and serves clients.
func (m *Member) Ready(ctx context.Context) error {
	select {
	case <-m.server.ReadyNotify():
		return nil
	case <-m.server.StopNotify():
		return fmt.Errorf("the quorum member has stopped: %w", m.Err())
	case <-m.failure.done:
		return m.failure.err()
	case <-ctx.Done():
		return fmt.Errorf("the quorum member waits for the others: %w", ctx.Err())
	}
}

// Done is closed when the member has stopped, by Close or because the quorum removed it. A failed member does not stop.
func (m *Member) Done() <-chan struct{} { return m.server.StopNotify() }

// Err returns why the member does not serve any more, and nil while it runs. The error is ErrFailed (also ErrNoSpace if
// the disk was full), ErrRemoved if the quorum removed the member, or else ErrClosed.
func (m *Member) Err() error {
	if err := m.failure.err(); err != nil {
		return err
	}
	select {
	case <-m.server.StopNotify():
	default:
		return nil
	}
	if m.removed.Load() {
		return ErrRemoved
	}
	return ErrClosed
}

// Close stops the member, handing the lead of the quorum to another voter first if it has it. It returns after 10
// seconds at the latest. A member that failed, or fails meanwhile, cannot be stopped: then Close returns ErrFailed.
func (m *Member) Close() error {
	m.closeOnce.Do(func() {
		if m.closeErr = m.failure.err(); m.closeErr != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.stop()
		}()
		select {
		case <-done:
		case <-m.failure.done:
			m.closeErr = m.failure.err()
		case <-time.After(closeTimeout):
			m.closeErr = errors.New("close the quorum member: etcd did not stop in time")
		}
	})
	return m.closeErr
}

// Kill stops the member as a crash would: it does not hand the lead over. Close must follow. Tests of a crash use it.
func (m *Member) Kill() {
	if g := m.grpc.Load(); g != nil {
		g.Stop()
	}
	m.server.HardStop()
}

// stop avoids two endless waits of etcd's own Close: for clients' watches to end, and, in a member that was never
// ready, for its serving goroutines, which wait until it is ready.
func (m *Member) stop() {
	if g := m.grpc.Load(); g != nil {
		g.Stop()
	}
	select {
	case <-m.server.ReadyNotify():
	default:
		m.server.HardStop()
	}
	m.etcd.Close()
	m.services.close()
}

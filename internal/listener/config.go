package listener

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/fingerprint"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/lag"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
)

// BackendHello describes for whom a connection to a replica's PostgreSQL is opened.
type BackendHello = opening.Hello

// Progress is a position in the history of an epoch.
type Progress = lag.Progress

// UnknownAge is the age of a copy that was never compared.
const UnknownAge = lag.Unknown

// LoginFingerprint is the server's description of a role and a database.
type LoginFingerprint = fingerprint.Login

// FingerprintStatement is the prepared statement of the session that Config.FingerprintSession opens.
const FingerprintStatement = fingerprint.Statement

// ConsoleDatabase is the name of the administrators' console, a database without a PostgreSQL.
const ConsoleDatabase = login.ConsoleDatabase

// ConsoleHello describes an authenticated client of the console.
type ConsoleHello = login.ConsoleHello

// ConsoleFunc serves a console session on an authenticated connection. It returns when the session has ended.
type ConsoleFunc = login.ConsoleFunc

// PasswordLogin is an attempt to log in to the console by what came over TLS on another port.
type PasswordLogin = auth.PasswordLogin

// Role is what the node that will run a session knows about the role that wants to log in.
type Role = auth.Role

// SessionInfo is one session as status and views show it.
type SessionInfo = counters.Session

// The carriers of a session's bytes, as SessionInfo has them.
const (
	PathKernel     = counters.PathKernel
	PathLoop       = counters.PathLoop
	PathGoroutines = counters.PathGoroutines
)

// RoutedKey counts sessions by replica and intent.
type RoutedKey = counters.RoutedKey

// PoolStats are counters of the pool of backends.
type PoolStats = pool.Stats

// Stats are counters since the start, and what is open now.
type Stats = counters.Stats

// Second counts the readers that logged in within one second of the clock.
type Second = counters.Second

// Limits bound what a client may use before and after it is authenticated. A zero field means its default.
type Limits struct {
	PreAuthTime      time.Duration // the client's own time until it is authenticated; default 10 s
	StartupPacket    int           // bytes; default 10,000, as PostgreSQL
	Connections      int           // sessions in total; default 2,000
	PerAddress       int           // sessions per client address, of IPv6 per /64; default no limit of its own
	PreAuth          int           // connections that are not authenticated yet and not waiting for a primary; default 200
	Waiting          int           // connections that are not authenticated and wait for a primary; default as Connections, which they do not count among
	WrongCancels     int           // wrong cancel requests per second and address; default 10
	FailureDelay     time.Duration // between a failed login of a name from an address and the next one; doubled by each failure, up to 32 times; default 50 ms
	BackendHandshake time.Duration // from dialling a replica's PostgreSQL to its ReadyForQuery; default 15 s
	Starting         int           // sessions that the local server starts at once, for clients of all nodes; default 4 per processor, at least 8
	PoolSize         int           // pooled backends; default 32
	PoolAhead        int           // backends of one kind that are opened ahead; default 2, negative = none
	ShutdownMessage  time.Duration // for writing the final error to a client that does not read; default 1 s
}

// Config is what a Server needs. Functions are called from many goroutines at once.
type Config struct {
	// ReadWrite and ReadOnly are the listen addresses, separated by commas. An address that begins with "/" is the
	// path of a Unix socket. Empty = off.
	ReadWrite, ReadOnly string
	// Certificate returns the certificate in use, nil for none; a nil function means no TLS. Its signature decides
	// whether SCRAM-SHA-256-PLUS can be offered (ECDSA or RSA with SHA-2, not Ed25519).
	Certificate func() *tls.Certificate
	// ClientCAs returns the authorities of client certificates; nil means that the cert method matches no client.
	ClientCAs func() *x509.CertPool
	// CheckClient returns an error if none of a client certificate's verified chains may be believed, as after its
	// revocation; the TLS handshake fails then. Nil = all may.
	CheckClient func(chains [][]*x509.Certificate) error
	// Routes returns the current immutable snapshot; nil while there is none.
	Routes func() *ag.Routes
	// Changed returns a channel that is closed at the next change of Routes. It is read before Routes. Nil = Routes is
	// polled.
	Changed func() <-chan struct{}
	// Backend opens a raw connection to the private socket of that replica's PostgreSQL. The context bounds the
	// opening only: the connection outlives it. The connection must honour SetDeadline.
	Backend func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error)
	// Verifier returns role facts from the node that will run the session. An unknown role is Found false, not an
	// error.
	Verifier func(ctx context.Context, id ag.ReplicaID, user string) (Role, error)
	// Position returns how far that replica has flushed or replayed. Nil = coterie.max_lag is not available.
	Position func(ctx context.Context, id ag.ReplicaID) (Progress, error)
	// Defaults returns the settings of the role in the database that matter here: coterie.intent, coterie.max_lag,
	// default_transaction_read_only. They are cached for a second. Nil = there are none.
	Defaults func(ctx context.Context, user, database string) (map[string]string, error)
	// Console serves the database ConsoleDatabase; nil = this listener has none. ConsoleRole returns the facts of a
	// role that logs in there, from any node that knows them; an unknown role is Found false, not an error.
	Console     ConsoleFunc
	ConsoleRole func(ctx context.Context, user string) (Role, error)
	// Node is this node's number in minted cancel keys, 0 to 15, different on each node of the group.
	Node uint8
	// ForwardCancel hands a cancel request minted by another node to that node, which calls Server.Cancel. Nil =
	// dropped.
	ForwardCancel func(ctx context.Context, node uint8, key CancelKey) error
	// Gate returns the instant of CLOCK_BOOTTIME until which bytes of the local PostgreSQL as primary may be passed;
	// 0 = no limit (it is a secondary). Nil = never a limit.
	Gate func() time.Duration
	// GateHold is how long an answer is held, by a closed gate or until it is confirmed, before it is discarded and
	// its session closed; default 8 s.
	GateHold time.Duration
	// HoldMax is how long a request waits while a planned failover drains the server; default 8 s.
	HoldMax time.Duration
	// FlushLSN asks the local PostgreSQL how far it has flushed its WAL, or replayed it on a secondary. Every commit
	// that a session can see lies before that position, except commits that waited for nothing. Durable returns when as
	// many members of the synchronous setting in force as it demands have flushed up to there, at once if it demands
	// none. It also waits while that cannot be known, as on a node that does not lead. Nil = commits are never
	// confirmed here.
	FlushLSN func(context.Context) (ag.LSN, error)
	Durable  func(context.Context, ag.LSN) error
	// Log tells from the local server's log whether a commit's wait was cancelled. The listener sets its OnSuspicion.
	// Nil = each answer that may have ended a commit is confirmed.
	Log *serverlog.Reader
	// Confirm returns nil if this node leads according to a majority that was asked after the call (reads = confirmed).
	// Nil = such sessions are refused.
	Confirm func(context.Context) error
	// Removed reports whether the group does not have this node any more. Logins do not wait then for a replica that
	// serves them. Nil = it has.
	Removed func() bool
	// Fingerprint asks the local server for the fingerprint of a login of the role to the database. Pooled backends are
	// given to clients only as long as it is the same. Nil = no pool.
	Fingerprint func(ctx context.Context, user, database string) (LoginFingerprint, error)
	// FingerprintSession opens a session of the local server on which FingerprintStatement is prepared. Executed with
	// the names of a role and of a database as text, it returns the columns of LoginFingerprint, or no row if only
	// Exclusive is known. With it, event loops complete logins on pooled backends themselves. Nil = goroutines do.
	FingerprintSession func(context.Context) (net.Conn, error)
	// Reuse reports whether a backend may serve another client after its own has left (BACKEND_REUSE = ON). Nil = it
	// may not.
	Reuse func() bool
	// Continuity reports whether sessions are moved to the new primary in a failover (CONTINUITY = SESSION or REPLAY).
	// Nil = they end.
	Continuity func() bool
	// Replay reports whether a transaction that was open on a lost server is executed again on the new primary
	// (CONTINUITY = REPLAY). Nil = it fails.
	Replay func() bool
	// Strict reports whether every commit is confirmed here before it is answered (COMMIT_BARRIER = STRICT). Nil = it
	// is not.
	Strict func() bool
	// Reserved reports whether a setting belongs to the group, and what to use instead. ALTER SYSTEM of it is refused.
	// Nil = no change of a setting is refused.
	Reserved func(setting string) (instead string, reserved bool)
	// RelaxedCommit reports whether sessions may set defaults of synchronous_commit below on (ALLOW_RELAXED_COMMIT =
	// ON). Nil = they may not.
	RelaxedCommit func() bool
	// ConnectWait is how long a client waits at login while nothing serves its intent; default 30 s, negative = not at
	// all.
	ConnectWait time.Duration
	// Rules decide who may log in and how; nil = DefaultRules(false). Server.SetRules replaces them.
	Rules []hba.Rule
	// MockSecret returns the secret that makes the salt of unknown users stable. It is the same 32 bytes on every node
	// for the life of the group, and secret to all others. Nil = random per process.
	MockSecret func() []byte
	// KeySecret returns the secret by which a node knows the cancel keys of the others. It is the same 32 bytes on
	// every node, and secret to all others. It may change. Nil = random per process.
	KeySecret func() []byte
	// AuthStaleness is how old a replica's role facts may be to decide a reader's login while the primary does not
	// answer; default 60 s.
	AuthStaleness time.Duration
	// AllowPlainMD5 permits the md5 method without TLS from other hosts.
	AllowPlainMD5 bool
	// NameClient puts the client's address into the session's application_name, after the client's own text.
	NameClient bool
	// Loops is how many event loops carry plain sessions of the local server; 0 = Loops(), negative = none, goroutines
	// carry all.
	Loops int
	// NoKernelPath keeps every request on the loops, even where the kernel could relay it.
	NoKernelPath bool
	offloadAfter int           // for tests: answers before a session is offloaded; 0 = offload.AfterDefault
	singleWrites bool          // for tests: as if the kernel did not allow io_uring
	keepTick     time.Duration // for tests: how often sessions are asked for their state; 0 = keepTick and keepPauseMin
	Limits       Limits
	Logger       *slog.Logger // nil = discard
}

// setSecret sets a secret that nobody has set to random bytes.
func setSecret(get *func() []byte) {
	if *get == nil {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		*get = func() []byte { return secret }
	}
}

func (c *Config) withDefaults() (Config, error) {
	d := *c
	if d.Routes == nil || d.Backend == nil || d.Verifier == nil {
		return d, errors.New("listener: Routes, Backend and Verifier are required")
	}
	if (d.FlushLSN == nil) != (d.Durable == nil) {
		return d, errors.New("listener: FlushLSN and Durable belong together")
	}
	if d.Node > 15 {
		return d, errors.New("listener: Node is a number from 0 to 15")
	}
	if d.Rules == nil {
		d.Rules = hba.DefaultRules(false)
	}
	setSecret(&d.MockSecret)
	setSecret(&d.KeySecret)
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&d.GateHold, 8*time.Second)
	setDefault(&d.HoldMax, 8*time.Second)
	setDefault(&d.ConnectWait, 30*time.Second)
	setDefault(&d.AuthStaleness, time.Minute)
	setDefault(&d.Limits.PreAuthTime, 10*time.Second)
	setDefault(&d.Limits.StartupPacket, 10_000)
	setDefault(&d.Limits.Connections, 2_000)
	setDefault(&d.Limits.PreAuth, 200)
	setDefault(&d.Limits.Waiting, d.Limits.Connections)
	setDefault(&d.Limits.Starting, max(8, 4*runtime.NumCPU()))
	setDefault(&d.Limits.PoolSize, 32)
	setDefault(&d.Limits.PoolAhead, 2)
	setDefault(&d.Limits.WrongCancels, 10)
	setDefault(&d.Limits.FailureDelay, 50*time.Millisecond)
	setDefault(&d.Limits.BackendHandshake, 15*time.Second)
	setDefault(&d.Limits.ShutdownMessage, time.Second)
	return d, nil
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

package guessing

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

const (
	// SiteFailures is how many logins of one address may fail, whatever their names, before further ones are delayed.
	// A name that fails is delayed from its first failure on.
	SiteFailures = 20
	// SiteDelay is the first delay of such an address.
	SiteDelay = 100 * time.Millisecond
	// MostDelay is the longest delay of an attempt. One that would have to wait longer is refused.
	MostDelay = 5 * time.Second
	// maxAddresses is how many addresses are known at once; beyond that, the one that was not seen for longest is
	// forgotten.
	maxAddresses = 4096
)

// EachLines and allLines bound the lines about failed logins in the log, of one address and of all.
var (
	EachLines = admission.Rate{PerSecond: 1, Burst: 20}
	allLines  = admission.Rate{PerSecond: 20, Burst: 200}
)

// Client is where an attempt comes from.
type Client struct {
	Host string // its address without the port
	// Key is the address under which it is counted and limited, or the /64 network of an IPv6 address, since one host
	// has all of it. Site is its address, or the /48 network, since one customer may have all of that.
	Key, Site string
}

// From returns the client that is connected from an address.
func From(addr net.Addr) Client {
	if t, ok := addr.(*net.TCPAddr); ok {
		return Client{Host: t.AddrPort().Addr().Unmap().WithZone("").String(), Key: admission.Key(t), Site: admission.Site(t)}
	}
	return Client{Host: "local", Key: "local", Site: "local"}
}

// guess is the key under which failures of this name from the client's address are counted.
func (c Client) guess(user string) string { return c.Key + "\x00" + user }

// Failures are the logins that have failed.
type Failures struct {
	delay    time.Duration // between a failed login of a name from an address and the next one
	log      *slog.Logger
	guesses  *admission.Backoff // by address and name
	sites    *admission.Backoff // by site
	lines    *admission.Budget  // about them in the log
	unlogged atomic.Uint64      // since the last line about one
}

// New returns the failures of a listener that has seen none. delay is the first delay of a name, doubled by each
// failure.
func New(delay time.Duration, log *slog.Logger) *Failures {
	return &Failures{
		delay: delay, log: log, guesses: admission.NewBackoff(0, maxAddresses), sites: admission.NewBackoff(SiteFailures, maxAddresses),
		lines: admission.NewBudget(EachLines, allLines, maxAddresses),
	}
}

// Begin begins an attempt to log in, and returns how long it has to wait. Failures of other names do not delay a name
// that has logged in from its address and has no failure of its own: the address may be that of a pooler or of a whole
// network.
func (f *Failures) Begin(c Client, user string) (time.Duration, *pgwire.Error) {
	now := boottime.Now()
	blameless := f.guesses.Blameless(c.guess(user), now)
	wait, ok := f.guesses.Begin(c.guess(user), now, f.delay, MostDelay)
	if ok && !blameless {
		var more time.Duration
		more, ok = f.sites.Begin(c.Site, now, SiteDelay, MostDelay)
		wait = max(wait, more)
	}
	if !ok {
		bad := pgwire.Fatal("guessing", pgwire.StateTooMany, "too many logins from this address have failed")
		bad.Hint = "Try again in a moment."
		return 0, bad
	}
	return wait, nil
}

// Succeeded counts an attempt that has proved its name.
func (f *Failures) Succeeded(c Client, user string) { f.guesses.Succeeded(c.guess(user)) }

// Failed counts an attempt that has not.
func (f *Failures) Failed(c Client, user string) {
	now := boottime.Now()
	f.guesses.Failed(c.guess(user), now, f.delay)
	f.sites.Failed(c.Site, now, SiteDelay)
}

// Log logs why a login failed, and for whom: packaging/fail2ban reads the line. The address comes first, because a name
// is the client's choice. Lines beyond the limit are counted in the next one.
func (f *Failures) Log(c Client, user, database, why string) {
	if !f.MayLog(c) {
		f.unlogged.Add(1)
		return
	}
	f.log.Info("login failed", "client", c.Host, "user", user, "database", database, "reason", why, "not_logged", f.unlogged.Swap(0))
}

// MayLog reports whether the log takes one more line about a client that has proved nothing.
func (f *Failures) MayLog(c Client) bool { return f.lines.Spend(c.Key, 1, boottime.Now()) }

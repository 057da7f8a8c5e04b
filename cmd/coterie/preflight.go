package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/postgres"
)

// Bounds of a preflight.
const (
	preflightDial    = 2 * time.Second
	preflightLimit   = time.Minute
	preflightPings   = 20
	preflightFlushes = 50
	answerLimit      = 10 * time.Minute
	maxAnswer        = 64 << 10
)

// hostFacts is what a host says of itself before there is a group.
type hostFacts struct {
	Host  string        `json:"host"`
	Now   time.Time     `json:"now"`
	Flush time.Duration `json:"flush_ns"`
	Free  uint64        `json:"free_bytes"`
	Back  []string      `json:"back,omitempty"` // the asker's ports that could not be reached from there
	software
}

// describeMachine looks at this host; dir is where a node would be, or its nearest parent that exists.
func describeMachine(ctx context.Context, dir string) (hostFacts, error) {
	m := hostFacts{Now: time.Now()}
	m.Host, _ = os.Hostname()
	found, err := postgres.Find(ctx)
	if err != nil {
		return m, err
	}
	m.software = describeSoftware(ctx, found)
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err == nil {
		m.Free = st.Bavail * uint64(st.Bsize)
	}
	m.Flush, err = flushLatency(dir)
	m.Now = time.Now()
	return m, err
}

// flushLatency is the median time that a write of a page and its flush take in dir.
func flushLatency(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".coterie-preflight")
	if err != nil {
		return 0, fmt.Errorf("write to %s: %w", dir, err)
	}
	defer func() { _ = os.Remove(f.Name()); _ = f.Close() }()
	page := make([]byte, 8192)
	var all []time.Duration
	for range preflightFlushes {
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// portNumbers are those of a node's four ports, the one between nodes first.
func (f *nodeFlags) portNumbers() ([]string, error) {
	var out []string
	for _, a := range []string{f.endpoint, f.readWrite, f.readOnly, f.http} {
		if a == "" {
			continue
		}
		_, p, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fail.Usagef("%q: %w", a, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// answerer opens a node's ports and tells a preflight of another machine what it asks. It holds no secret, and changes nothing.
type answerer struct {
	dir   string
	ports []string
	open  []net.Listener
	udp   net.PacketConn
	srv   *http.Server
	wg    sync.WaitGroup
}

// listen opens the ports that are free, of all addresses. Those that are taken answer by themselves.
func (a *answerer) listen(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/preflight", a.tell)
	a.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
	for i, p := range a.ports {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+p)
		if err != nil && i == 0 {
			return fmt.Errorf("port %s: %w; stop what uses it, or choose another with --endpoint", p, err)
		}
		if err != nil {
			continue
		}
		a.open = append(a.open, l)
		if i == 0 {
			a.wg.Go(func() { _ = a.srv.Serve(l) })
			continue
		}
		a.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		})
	}
	u, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", ":"+a.ports[0])
	if err != nil {
		return err
	}
	a.udp = u
	a.wg.Go(func() {
		b := make([]byte, 64)
		for {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(b[:n], from) // not more than was sent
		}
	})
	return nil
}

func (a *answerer) close() {
	for _, l := range a.open {
		_ = l.Close()
	}
	if a.udp != nil {
		_ = a.udp.Close()
	}
	_ = a.srv.Close()
	a.wg.Wait()
}

// tell describes this machine, having dialled the asker's ports.
func (a *answerer) tell(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 25*time.Second)
	defer cancel()
	m, err := describeMachine(ctx, a.dir)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	back := strings.Split(r.URL.Query().Get("back"), ",")
	for _, p := range back[:min(len(back), 4)] {
		if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
			continue
		}
		if reach(ctx, host, p) == filtered {
			m.Back = append(m.Back, p)
		}
	}
	m.Now = time.Now()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m)
}

// What becomes of a connection to a port.
const (
	opened   = "open"
	refusing = "refused" // the host was reached, and nothing listens there
	filtered = "no answer"
)

func reach(ctx context.Context, host, port string) string {
	ctx, cancel := context.WithTimeout(ctx, preflightDial)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	switch {
	case err == nil:
		_ = c.Close()
		return opened
	case errors.Is(err, syscall.ECONNREFUSED):
		return refusing
	}
	return filtered
}

// preflight looks at this machine and at the others that are to be nodes of a group.
func runPreflight(c *cobra.Command, dir string, f *nodeFlags, hosts []string, asJSON bool) error {
	ports, err := f.portNumbers()
	if err != nil {
		return err
	}
	a := &answerer{dir: dir, ports: ports}
	if err := a.listen(c.Context()); err != nil {
		return err
	}
	defer a.close()
	own, err := describeMachine(c.Context(), dir)
	if err != nil {
		return err
	}
	r := &check.Registry{}
	r.Add("this host", 0, func(context.Context) ([]check.Finding, error) { return judgeMachine(own, dir), nil })
	for _, h := range hosts {
		r.Add(h, preflightLimit, func(ctx context.Context) ([]check.Finding, error) { return other(ctx, own, h, ports) })
	}
	found := r.Run(c.Context())
	if err := printFindings(c, found, asJSON); err != nil {
		return err
	}
	if check.Worst(found).Worse(check.Warning) {
		return errUnhealthy
	}
	return nil
}

func judgeMachine(m hostFacts, dir string) []check.Finding {
	find := func(level check.Level, why, run, format string, args ...any) check.Finding {
		return check.Finding{Level: level, What: fmt.Sprintf(format, args...), Why: why, Run: run}
	}
	var out []check.Finding
	if len(m.Majors) == 0 {
		out = append(out, find(check.Problem, "a replica needs it; a witness does not", "apt-get install postgresql", "no PostgreSQL server (14 to 18)"))
	} else {
		out = append(out, find(check.OK, "", "", "PostgreSQL %v", m.Majors))
	}
	switch {
	case m.Flush < 30*time.Microsecond:
		out = append(out, find(check.Warning, "a disk does not flush so fast: a cache that loses power loses acknowledged commits, unless it has a battery", "use a disk that keeps what it has flushed",
			"a flush takes %v in %s", m.Flush.Round(time.Microsecond), dir))
	case m.Flush > 20*time.Millisecond:
		out = append(out, find(check.Warning, "every commit waits for a flush here and on a secondary", "use a faster disk for the node directory", "a flush takes %v in %s", m.Flush.Round(time.Microsecond), dir))
	default:
		out = append(out, find(check.OK, "", "", "a flush takes %v in %s", m.Flush.Round(time.Microsecond), dir))
	}
	switch free := byteCount(int64(min(m.Free, math.MaxInt64))); {
	case m.Free < 1<<30:
		out = append(out, find(check.Problem, "a new cluster and its log need more", "make room, or choose another --node directory", "%s are free for %s", free, dir))
	case m.Free < 10<<30:
		out = append(out, find(check.Warning, "the log of the primary grows while a secondary is away", "make room", "%s are free for %s", free, dir))
	default:
		out = append(out, find(check.OK, "", "", "%s are free for %s", free, dir))
	}
	return out
}

// other looks at another host from here, and has it look back.
func other(ctx context.Context, own hostFacts, host string, ports []string) ([]check.Finding, error) {
	var out []check.Finding
	find := func(level check.Level, why, run, format string, args ...any) {
		out = append(out, check.Finding{Level: level, What: fmt.Sprintf(format, args...), Why: why, Run: run})
	}
	addresses, err := (&net.Resolver{}).LookupHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("the name: %w", err)
	}
	find(check.OK, "", "", "is %s", strings.Join(addresses, ", "))
	answers := false
	for i, p := range ports {
		switch state := reach(ctx, host, p); state {
		case opened:
			answers = answers || i == 0
			find(check.OK, "", "", "port %s answers", p)
		case refusing:
			find(check.OK, "", "", "port %s is reached, and nothing listens there", p)
		default:
			find(check.Problem, "nodes must reach each other's, clients those of every replica", "open it in the firewall between", "port %s does not answer", p)
		}
	}
	if !answers {
		find(check.Warning, "the way back, loss, the clock and what is installed there were not looked at", "there, at the same time: coterie check --answer", "nobody answers the preflight")
		return out, nil
	}
	rtt, lost := ping(ctx, host, ports[0])
	switch {
	case lost == preflightPings:
		find(check.Warning, "streams between nodes can use TCP only", "open UDP port "+ports[0], "UDP port %s does not answer", ports[0])
	case lost > 0:
		find(check.Warning, "TRANSPORT = AUTO will choose QUIC for it", "see docs/replication-links.md", "round trip %v, %d of %d datagrams lost", rtt, lost, preflightPings)
	default:
		find(check.OK, "", "", "round trip %v, nothing lost", rtt)
	}
	start := time.Now()
	m, err := fetchMachine(ctx, host, ports)
	if err != nil {
		return append(out, check.Finding{Level: check.Failed, What: "does not say what it is: " + err.Error(), Run: "there: coterie check --answer"}), nil
	}
	middle := time.Now()
	if offset := m.Now.Sub(middle).Round(time.Millisecond); offset < -2*time.Second-middle.Sub(start) || offset > 2*time.Second {
		find(check.Warning, "nothing that is safe depends on it, but logs and certificates do", "run a time service on both", "its clock differs by %v", offset)
	}
	for _, p := range m.Back {
		find(check.Problem, "every node dials every other", "open it in the firewall of this host", "does not reach port %s of this host", p)
	}
	out = append(out, own.compare(m.software)...)
	return append(out, judgeMachine(m, host)...), nil
}

func fetchMachine(ctx context.Context, host string, ports []string) (hostFacts, error) {
	var m hostFacts
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, ports[0])+"/preflight?back="+strings.Join(ports, ","), nil)
	if err != nil {
		return m, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return m, err
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return m, err
	}
	if r.StatusCode != http.StatusOK {
		return m, fmt.Errorf("%s: %s", r.Status, strings.TrimSpace(string(b)))
	}
	return m, json.Unmarshal(b, &m)
}

// ping sends datagrams one by one and returns the median round trip and how many did not come back.
func ping(ctx context.Context, host, port string) (rtt time.Duration, lost int) {
	c, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(host, port))
	if err != nil {
		return 0, preflightPings
	}
	defer func() { _ = c.Close() }()
	var all []time.Duration
	b := make([]byte, 64)
	for i := range preflightPings {
		start := time.Now()
		_ = c.SetDeadline(start.Add(500 * time.Millisecond))
		_, err := c.Write([]byte{byte(i)})
		for n := 0; err == nil; { // an answer that comes late is not this one's
			if n, err = c.Read(b); err == nil && n == 1 && b[0] == byte(i) {
				break
			}
		}
		if err != nil {
			lost++
			if lost == 3 && len(all) == 0 {
				return 0, preflightPings
			}
			continue
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2].Round(10 * time.Microsecond), lost
}

// answerPreflights answers other machines for a while.
func answerPreflights(c *cobra.Command, dir string, f *nodeFlags) error {
	ports, err := f.portNumbers()
	if err != nil {
		return err
	}
	a := &answerer{dir: dir, ports: ports}
	if err := a.listen(c.Context()); err != nil {
		return err
	}
	defer a.close()
	say(c, "answering preflights on port %s for %v; Ctrl-C ends it", ports[0], answerLimit)
	select {
	case <-c.Context().Done():
	case <-time.After(answerLimit):
	}
	return nil
}

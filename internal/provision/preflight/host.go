package preflight

import (
	"context"
	"encoding/json"
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
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/lib/units"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// Bounds of a preflight.
const (
	preflightDial    = 2 * time.Second
	Limit            = time.Minute
	preflightPings   = 20
	preflightFlushes = 50
	AnswerLimit      = 10 * time.Minute
	maxAnswer        = 64 << 10
)

// HostFacts describes a host for a preflight.
type HostFacts struct {
	Host  string        `json:"host"`
	Now   time.Time     `json:"now"`
	Flush time.Duration `json:"flush_ns"`
	Free  uint64        `json:"free_bytes"`
	Back  []string      `json:"back,omitempty"` // ports of the asking host that this host could not reach
	software
}

// DescribeMachine describes this host. Flushes and space are measured in dir, the planned node directory, or in its
// nearest existing parent.
func DescribeMachine(ctx context.Context, dir string) (HostFacts, error) {
	m := HostFacts{Now: time.Now()}
	m.Host, _ = os.Hostname()
	found, err := programs.Find(ctx)
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

// flushLatency returns the median time of a write of a page and its flush in dir.
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

// Listen opens the free ports on all addresses. A port in use is skipped, because its program answers, but the first
// port must be free.
func (a *Answerer) Listen(ctx context.Context) error {
	a.turn = make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/preflight", a.tell)
	a.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, MaxHeaderBytes: 8 << 10}
	for i, p := range a.Ports {
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
	u, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", ":"+a.Ports[0])
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
			_, _ = u.WriteTo(b[:n], from) // never more bytes than were received
		}
	})
	return nil
}

// Close closes the ports and waits until the goroutines of Listen have ended.
func (a *Answerer) Close() {
	for _, l := range a.open {
		_ = l.Close()
	}
	if a.udp != nil {
		_ = a.udp.Close()
	}
	_ = a.srv.Close()
	a.wg.Wait()
}

// describe describes this host, to one caller after the other: anybody may ask, and a description runs programs and
// flushes the disk.
func (a *Answerer) describe(ctx context.Context) (HostFacts, error) {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return HostFacts{}, fmt.Errorf("others ask: %w", context.Cause(ctx))
	}
	defer func() { <-a.turn }()
	return DescribeMachine(ctx, a.Dir)
}

// tell serves the description of this host. It also dials the ports of the asking host.
func (a *Answerer) tell(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 25*time.Second)
	defer cancel()
	m, err := a.describe(ctx)
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

// JudgeMachine returns findings for the software, the flush latency and the free space of a host. The findings name
// dir.
func JudgeMachine(m HostFacts, dir string) []check.Finding {
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
	switch free := units.Bytes(int64(min(m.Free, math.MaxInt64))); {
	case m.Free < 1<<30:
		out = append(out, find(check.Problem, "a new cluster and its log need more", "make room, or choose another --node directory", "%s are free for %s", free, dir))
	case m.Free < 10<<30:
		out = append(out, find(check.Warning, "the log of the primary grows while a secondary is away", "make room", "%s are free for %s", free, dir))
	default:
		out = append(out, find(check.OK, "", "", "%s are free for %s", free, dir))
	}
	return out
}

// fetchMachine asks the Answerer on host for its description, and to dial ports in return.
func fetchMachine(ctx context.Context, host string, ports []string) (HostFacts, error) {
	var m HostFacts
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

// ping sends datagrams one after another. It returns the median round trip and the number of lost datagrams.
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
		for n := 0; err == nil; { // skips late answers to earlier datagrams
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

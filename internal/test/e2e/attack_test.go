package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

const (
	// attackMinutes is how long the attack of the long proof lasts; make attack MINUTES=n takes its time.
	attackMinutes = 3
	// failoverEvery is the time between two failovers that are asked for.
	failoverEvery = 2 * time.Minute
	// calmAfter is how long after the attack everything must be as before.
	calmAfter = 10 * time.Second
	// loginP99 is how long 99 of 100 logins may take, outside of failovers.
	loginP99 = 2 * time.Second
	// ownProcessors is from how many processors on the attackers leave the group as much as it needs to be judged by.
	ownProcessors = 4
	// foreignShare is the part of the processors from which on other programs on this host decide what is measured.
	foreignShare = 0.25
	// attackMemory is what an agent may have grown by, in bytes: the console's engines, and buffers of all places.
	attackMemory = 512 << 20
)

// TestEndToEndAttack runs every abuse that needs no credentials, and that of a viewer, as fast as this host can send,
// beside pgbench and planned failovers. Honest clients must hardly notice.
func TestEndToEndAttack(t *testing.T) {
	long(t)
	minutes := setting(t, "COTERIE_ATTACK_MINUTES", attackMinutes)
	told, harm := suffer(t, exe, time.Duration(minutes)*time.Minute, failoverEvery)
	for _, h := range harm {
		t.Error(h)
	}
	record(t, "make attack MINUTES="+strconv.Itoa(minutes), "COTERIE_ATTACK_RECORD", told)
}

// TestEndToEndAttackUnbounded runs the same attack against a program whose bounds are switched off. It shows something
// only on a host whose attackers get processors enough to send: on two that group and attackers share, they do not.
func TestEndToEndAttackUnbounded(t *testing.T) {
	long(t)
	if setting(t, "COTERIE_ATTACK_UNBOUNDED", 0) == 0 {
		t.Skip("needs a host with processors to spare for the attackers (COTERIE_ATTACK_UNBOUNDED=1)")
	}
	unbounded := filepath.Join(t.TempDir(), "coterie")
	for dir := unbounded; dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		_ = exec.CommandContext(t.Context(), "chmod", "a+rx", filepath.Dir(dir)).Run() // for the nodes' user
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "coterie_unbounded", "-o", unbounded, "../../../cmd/coterie").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, harm := suffer(t, unbounded, time.Minute, time.Hour)
	if len(harm) == 0 {
		t.Error("the attack did no harm although the bounds were switched off: it proves nothing")
	}
	t.Log("without the bounds:", strings.Join(harm, "; "))
}

// suffer attacks a group of its own, and returns what was measured and which promises were broken.
func suffer(t *testing.T, program string, during, every time.Duration) (told string, harm []string) {
	t.Helper()
	was := exe
	exe = program
	defer func() { exe = was }()
	g := raise(t, lab.Options{})
	h := newHonest(t, g)
	s := g.ready(t)
	a := g.target(t, s)
	foreign := busy(t, 3*time.Second)
	h.run(30 * time.Second)
	before, memory := h.take(), g.agentMemory(t)

	end := a.start(t)
	defer end()
	asked, most := 0, maps.Clone(memory)
	for began, last := time.Now(), time.Now(); time.Since(began) < during; {
		h.run(10 * time.Second)
		for n, m := range g.agentMemory(t) {
			most[n] = max(most[n], m)
		}
		if left := during - time.Since(began); time.Since(last) > every && left > 15*time.Second {
			last = time.Now()
			asked += h.failover(g, t)
		}
	}
	attacked := h.take()
	tries := end()
	calm := h.calm(g)
	h.run(20 * time.Second)
	after := h.take()
	now := g.ready(t)
	foreign = max(foreign, busy(t, 3*time.Second))

	add := func(broken bool, format string, args ...any) {
		if broken {
			harm = append(harm, fmt.Sprintf(format, args...))
		}
	}
	quiet := min(before.tps, after.tps) // other work on this host changes both
	if runtime.NumCPU() < ownProcessors {
		t.Logf("NOT JUDGED: throughput, as the attackers take their part of %d processors; %d are needed", runtime.NumCPU(), ownProcessors)
	}
	add(runtime.NumCPU() >= ownProcessors && attacked.tps < quiet/2, "%.0f transactions/s under attack, %.0f before and %.0f after", attacked.tps, before.tps, after.tps)
	alone := foreign < foreignShare
	if !alone {
		t.Logf("NOT JUDGED: logins, failovers and the time to calm, as other programs take %.0f %% of the processors; run make attack on a host of its own", 100*foreign)
	}
	add(alone && attacked.p99 > loginP99, "p99 of logins is %v", attacked.p99)
	add(alone && attacked.failed > 0, "%d honest logins failed, outside of failovers: %s", attacked.failed, attacked.why)
	add(alone && int(now.Epoch-s.Epoch) != asked, "%d failovers, %d were asked for", now.Epoch-s.Epoch, asked)
	add(alone && calm > calmAfter, "as before only %v after the attack", calm)
	var grown []string
	for _, n := range slices.Sorted(maps.Keys(memory)) {
		grown = append(grown, fmt.Sprintf("%s %d to %d MiB", n, memory[n]>>20, most[n]>>20))
		add(most[n]-memory[n] > attackMemory, "memory of the agent of %s", grown[len(grown)-1])
	}
	told = fmt.Sprintf(`%v of attack from %d addresses beside pgbench (4 clients), three replicas, %d processors that attackers and group share
transactions/s   %.0f before, %.0f under attack, %.0f after
logins           p99 %v before, %v under attack (%d logins, %d failed outside of failovers)
failovers        %d asked for, %d happened
memory           %s
as before        %v after the end
attempts:
%s`, during, attackSources, runtime.NumCPU(), before.tps, attacked.tps, after.tps, before.p99.Round(time.Millisecond), attacked.p99.Round(time.Millisecond),
		attacked.logins, attacked.failed, asked, now.Epoch-s.Epoch, strings.Join(grown, ", "), calm.Round(100*time.Millisecond), tries)
	t.Log("\n" + told)
	return told, harm
}

// busy returns which part of the processors is busy during d, while the group has nothing to do.
func busy(t *testing.T, d time.Duration) float64 {
	t.Helper()
	used, all := processorTime(t)
	time.Sleep(d)
	laterUsed, laterAll := processorTime(t)
	return float64(laterUsed-used) / float64(max(1, laterAll-all))
}

// processorTime returns the time that the processors were busy and in all, in the kernel's ticks. The fields of
// /proc/stat are user, nice, system, idle, iowait and others that are busy.
func processorTime(t *testing.T) (used, all uint64) {
	t.Helper()
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, field := range strings.Fields(line)[1:9] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if all += n; i != 3 && i != 4 {
			used += n
		}
	}
	return used, all
}

// target is the group as its attackers see it. It makes their one role, which may read the views.
func (g *group) target(t *testing.T, s lab.Status) attack {
	t.Helper()
	sql(t, g.ReadWrite(), "CREATE ROLE watcher LOGIN PASSWORD 'watcher' IN ROLE coterie_viewer")
	var a attack
	for _, r := range s.Replicas {
		for _, dsn := range []string{r.Listener.ReadWrite, r.Listener.ReadOnly} {
			u, err := url.Parse(dsn)
			if err != nil {
				t.Fatal(err)
			}
			a.Clients = append(a.Clients, u.Host)
		}
		u := g.console(t, r.Name)
		u.User = url.UserPassword("watcher", "watcher")
		a.Viewer = append(a.Viewer, u.String())
		a.Endpoints = append(a.Endpoints, r.Endpoint)
		a.HTTP = append(a.HTTP, strings.TrimPrefix(r.HTTP, "http://"))
	}
	return a
}

// agentMemory returns the anonymous memory of each agent, in bytes.
func (g *group) agentMemory(t *testing.T) map[string]int64 {
	t.Helper()
	s, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	for _, r := range s.Replicas {
		if r.PIDs.Agent == nil {
			continue
		}
		if m := anonLine.FindStringSubmatch(read(fmt.Sprintf("/proc/%d/status", *r.PIDs.Agent))); m != nil {
			kb, _ := strconv.ParseInt(m[1], 10, 64)
			out[r.Name] = kb << 10
		}
	}
	return out
}

var (
	anonLine = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)
	tpsLine  = regexp.MustCompile(`tps = ([0-9.]+)`)
)

// honest are the clients that an attack must not hurt: pgbench, and one login after the other.
type honest struct {
	t       *testing.T
	dsn     string
	pgbench string

	mu       sync.Mutex
	tps      []float64
	logins   []time.Duration
	failed   int
	why      string
	excluded bool // during a failover that was asked for
}

// clients is what honest clients saw.
type clients struct {
	tps            float64 // the median of all runs
	p99            time.Duration
	logins, failed int
	why            string
}

func newHonest(t *testing.T, g *group) *honest {
	t.Helper()
	h := &honest{t: t, dsn: g.ReadWrite(), pgbench: filepath.Join(server(t).BinDir, "pgbench")}
	if out, err := exec.CommandContext(t.Context(), h.pgbench, "-i", "-q", "-s", "4", h.dsn).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: pgbench: %v\n%s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			h.login(ctx)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return h
}

// login logs in once and asks something.
func (h *honest) login(ctx context.Context) {
	began, failing := time.Now(), h.inFailover()
	err := h.try(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case failing || h.excluded || ctx.Err() != nil:
	case err != nil:
		h.failed++
		h.why = err.Error()
	default:
		h.logins = append(h.logins, time.Since(began))
	}
}

func (h *honest) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, h.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	_, err = c.Exec(ctx, "SELECT 1")
	return err
}

func (h *honest) inFailover() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.excluded
}

// run runs pgbench for that long. A run that breaks off counts with what it reports, or as one of nothing.
func (h *honest) run(d time.Duration) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), d+patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, h.pgbench, "-n", "-c", "4", "-j", "2", "-T", strconv.Itoa(int(d.Seconds())), h.dsn).CombinedOutput()
	tps := 0.0
	if m := tpsLine.FindSubmatch(out); m != nil {
		tps, _ = strconv.ParseFloat(string(m[1]), 64)
	}
	if err != nil {
		h.t.Logf("pgbench: %v\n%s", err, out)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tps = append(h.tps, tps)
}

// take returns what was seen since the last call.
func (h *honest) take() clients {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := clients{logins: len(h.logins), failed: h.failed, why: h.why}
	if slices.Sort(h.logins); len(h.logins) > 0 {
		c.p99 = h.logins[len(h.logins)*99/100]
	}
	if slices.Sort(h.tps); len(h.tps) > 0 {
		c.tps = h.tps[len(h.tps)/2]
	}
	h.tps, h.logins, h.failed, h.why = nil, nil, 0, ""
	return c
}

// failover moves the primary, and leaves the time until the group is whole out of the measurement of logins. It returns
// 1 if it moved: a host that is too busy may refuse to say.
func (h *honest) failover(g *group, t *testing.T) int {
	t.Helper()
	exclude := func(is bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.excluded = is
	}
	exclude(true)
	defer exclude(false)
	was := g.ready(t)
	to := secondaries(was)[0]
	a := coterie(t, "failover", "--to", to, "--node", g.node(to))
	if a.code != 0 {
		t.Logf("failover: exit code %d: %s", a.code, a.err)
	}
	return min(1, int(g.ready(t).Epoch-was.Epoch))
}

// calm returns how long it takes until a login, and a health check of each node, take less than a second again.
func (h *honest) calm(g *group) time.Duration {
	began := time.Now()
	for ; time.Since(began) < patience; time.Sleep(100 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		err := h.try(ctx)
		s, serr := g.Status(ctx)
		fine := err == nil && serr == nil && s.Ready()
		for _, r := range s.Replicas {
			fine = fine && responds(ctx, r.HTTP+"/health")
		}
		cancel()
		if fine {
			break
		}
	}
	return time.Since(began)
}

// responds reports whether an address answers an HTTP request, whatever it says.
func responds(ctx context.Context, address string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return true
}

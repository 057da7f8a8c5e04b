package linkem

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab/linkem/probe"
)

// ownerEnv makes the test binary a process that owns the network of the lab it names, to be killed.
const ownerEnv = "COTERIE_LINKEM_OWNER"

// labName is this test process's own, so that test runs at the same time do not meet.
func labName(suffix string) string {
	return fmt.Sprintf("t%05s", strconv.FormatInt(int64(os.Getpid()), 36)) + suffix
}

func TestMain(m *testing.M) {
	if lab := os.Getenv(ownerEnv); lab != "" {
		os.Exit(own(lab))
	}
	code := m.Run()
	if left := remains(labName("")); len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left behind:", left)
		code = 1
	}
	os.Exit(code)
}

// remains lists namespaces and devices whose names begin like those of the lab.
func remains(lab string) (left []string) {
	left, _ = filepath.Glob(filepath.Join(namespaces, "cot-"+lab+"*"))
	links, _ := netlink.LinkList()
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, device(lab)) {
			left = append(left, l.Attrs().Name)
		}
	}
	routes, _ := allRoutes()
	for _, r := range routes {
		if isGuard(r, lab) {
			left = append(left, r.String())
		}
	}
	return left
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: this test makes network namespaces and TUN devices, and needs root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("NOT RUN: no TUN devices here: %v", err)
	}
}

func start(t *testing.T, s Shape, nodes ...string) *Network {
	t.Helper()
	needRoot(t)
	lab := labName("x")
	n, err := Start(Options{Lab: lab, Nodes: nodes, Shape: s, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if left := remains(lab); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return n
}

func in(n *Network, node string) probe.In {
	return func(f func() error) error { return n.Do(node, f) }
}

func mustSet(t *testing.T, n *Network, from, to string, s Shape) {
	t.Helper()
	if err := n.Set(from, to, s); err != nil {
		t.Fatal(err)
	}
}

func stats(n *Network, from, to string) Stats {
	for _, s := range n.Stats() {
		if s.From == from && s.To == to {
			return s
		}
	}
	return Stats{}
}

// roundTrip fails unless the fastest of some pings is within tolerance of want. The fastest: a link is never faster
// than its shape, and on a busy machine the others are those of the machine.
func roundTrip(t *testing.T, n *Network, from, to string, want, tolerance time.Duration) {
	t.Helper()
	var got time.Duration
	for range 5 {
		p, err := probe.Ping(in(n, from), n.Addr(to), probe.Echoes{Count: 20, Interval: 10 * time.Millisecond, Wait: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.RoundTrips) > 0 {
			if got = slices.Min(p.RoundTrips); (got - want).Abs() <= tolerance {
				return
			}
		}
	}
	t.Errorf("%s to %s: fastest round trip %v, want %v ± %v", from, to, got, want, tolerance)
}

func TestRoundTrip(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	for _, delay := range []time.Duration{0, 2500 * time.Microsecond, 30 * time.Millisecond} {
		mustSet(t, n, Any, Any, Shape{Delay: delay})
		roundTrip(t, n, "n1", "n2", 2*delay, 500*time.Microsecond)
		roundTrip(t, n, Client, "n1", 2*delay, 500*time.Microsecond)
	}
	mustSet(t, n, "n1", "n2", Shape{Delay: 5 * time.Millisecond}) // one way, while it runs
	roundTrip(t, n, "n1", "n2", 35*time.Millisecond, 500*time.Microsecond)
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, n, "n1", "n2", 0, 500*time.Microsecond)
}

// datagrams sends 10,000 a second from n1 to n2.
func datagrams(t *testing.T, n *Network, b probe.Burst) probe.Heard {
	t.Helper()
	b.Size, b.PerSecond = 100, 10_000
	b.Wait = 300 * time.Millisecond
	h, err := probe.Datagrams(in(n, "n1"), in(n, "n2"), n.Addr("n2"), b)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestLossIsCounted(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	const count = 5000
	mustSet(t, n, "n1", "n2", Shape{Delay: time.Millisecond, Loss: 0.1})
	h := datagrams(t, n, probe.Burst{Count: count})
	s := stats(n, "n1", "n2")
	if got := h.Received(); uint64(got)+s.Lost != count || s.Packets != uint64(got) {
		t.Errorf("%d received, %d delivered, %d lost of %d", got, s.Packets, s.Lost, count)
	}
	if s.Lost < count/10-100 || s.Lost > count/10+100 {
		t.Errorf("%d lost of %d at 10 %%", s.Lost, count)
	}
	mustSet(t, n, "n1", "n2", Shape{Delay: time.Millisecond, Loss: 0.2, Burst: 10})
	if lost, err := n.Overruns("n1"); err != nil || lost != 0 {
		t.Errorf("%d packets overran the device, %v", lost, err)
	}
	h = datagrams(t, n, probe.Burst{Count: count})
	bursts, lost := 0, 0
	for i, c := range h.Copies {
		if c == 0 {
			lost++
			if i == 0 || h.Copies[i-1] > 0 {
				bursts++
			}
		}
	}
	if mean := float64(lost) / float64(bursts); mean < 7 || mean > 13 {
		t.Errorf("%d lost in %d bursts: %.1f each, want 10", lost, bursts, mean)
	}
}

func TestDuplicateReorderCorrupt(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	const count = 3000
	mustSet(t, n, "n1", "n2", Shape{Duplicate: 0.1})
	h := datagrams(t, n, probe.Burst{Count: count})
	twice := uint64(0)
	for _, c := range h.Copies {
		if c == 2 {
			twice++
		}
	}
	if s := stats(n, "n1", "n2"); twice != s.Duplicated || twice < 200 || twice > 400 {
		t.Errorf("%d arrived twice, %d counted, of %d at 10 %%", twice, s.Duplicated, count)
	}
	mustSet(t, n, "n1", "n2", Shape{Delay: 4 * time.Millisecond, Reorder: 0.1})
	h = datagrams(t, n, probe.Burst{Count: count})
	overtaken, high := 0, uint32(0)
	for _, i := range h.Order {
		if i < high {
			overtaken++
		}
		high = max(high, i)
	}
	if s := stats(n, "n1", "n2"); h.Received() != count || overtaken < 100 || uint64(overtaken) > s.Reordered {
		t.Errorf("%d received, %d overtaken, %d held back, of %d at 10 %%", h.Received(), overtaken, s.Reordered, count)
	}
	mustSet(t, n, "n1", "n2", Shape{Delay: time.Millisecond, Corrupt: 0.1})
	h = datagrams(t, n, probe.Burst{Count: count, Unchecked: true})
	s := stats(n, "n1", "n2")
	if missing := count - h.Received(); uint64(missing) > s.Corrupted || h.Corrupted < 100 || h.Corrupted > missing {
		t.Errorf("%d corrupted of %d: %d arrived changed, %d not at all", s.Corrupted, count, h.Corrupted, missing-h.Corrupted)
	}
}

func TestRate(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	const rate = 50_000_000
	mustSet(t, n, Any, Any, Shape{Delay: time.Millisecond, RateBits: rate})
	rates, err := probe.Rates(t.Context(), in(n, "n1"), in(n, "n2"), n.Addr("n2"), probe.TCP{
		Flows: 2, Warmup: 500 * time.Millisecond, Duration: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := rates[0] + rates[1]; got < 0.9*rate || got > rate {
		t.Errorf("%.1f Mbit/s of payload over a link of 50", got/1e6)
	}
	s := stats(n, "n1", "n2")
	if s.Bytes == 0 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// dial connects from n1 to an address in n2.
func dial(n *Network, network, addr string, timeout time.Duration) (c net.Conn, err error) {
	err = n.Do("n1", func() (err error) {
		d := net.Dialer{Timeout: timeout}
		c, err = d.Dial(network, addr)
		return err
	})
	return c, err
}

func listen(t *testing.T, n *Network, node string) net.Listener {
	t.Helper()
	var l net.Listener
	err := n.Do(node, func() (err error) {
		l, err = net.Listen("tcp4", n.Addr(node).String()+":0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func TestCutAndReject(t *testing.T) {
	n := start(t, Shape{Delay: 2 * time.Millisecond}, "n1", "n2", "n3")
	l := listen(t, n, "n2")
	addr := l.Addr().String()
	open, err := dial(n, "tcp4", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()

	mustSet(t, n, "n1", "n2", Shape{Cut: true})
	if c, err := dial(n, "tcp4", addr, 300*time.Millisecond); !timedOut(err) {
		t.Errorf("cut: %v, %v, want a timeout", c, err)
	}
	roundTrip(t, n, "n1", "n3", 4*time.Millisecond, time.Millisecond) // other links live
	if s := stats(n, "n1", "n2"); s.Blocked == 0 || stats(n, "n2", "n1").Blocked != 0 {
		t.Errorf("counters of the cut: %+v", s)
	}

	mustSet(t, n, "n1", "n2", Shape{Delay: 2 * time.Millisecond, Reject: true})
	began := time.Now()
	if c, err := dial(n, "tcp4", addr, 20*time.Second); !errors.Is(err, unix.ECONNREFUSED) || time.Since(began) > 10*time.Second {
		t.Errorf("reject: %v, %v after %v, want refused at once", c, err, time.Since(began))
	}
	_, _ = open.Write([]byte("x"))
	_ = open.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := open.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("reject, open connection: %v, want reset", err)
	}
	udp, err := dial(n, "udp4", addr, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	_, _ = udp.Write([]byte("x"))
	_ = udp.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := udp.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("reject, UDP: %v, want refused", err)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	healed, err := dial(n, "tcp4", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_ = healed.Close()
}

// TestForget: connections that began before are dropped in silence, both ways, at every loss of the table; new ones,
// datagrams and other links live.
func TestForget(t *testing.T) {
	n := start(t, Shape{Delay: time.Millisecond}, "n1", "n2", "n3")
	l := listen(t, n, "n2")
	echo(l)
	connect := func() net.Conn {
		t.Helper()
		c, err := dial(n, "tcp4", l.Addr().String(), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	echoes := func(c net.Conn, patience time.Duration) error {
		_ = c.SetDeadline(time.Now().Add(patience))
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		return err
	}
	first := connect()
	if err := echoes(first, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	old := first
	for loss := 1; loss <= 2; loss++ {
		mustSet(t, n, "n1", "n2", Shape{Delay: time.Millisecond, Forgot: loss})
		mustSet(t, n, "n2", "n1", Shape{Delay: time.Millisecond, Forgot: loss})
		if err := echoes(old, 300*time.Millisecond); !timedOut(err) {
			t.Errorf("loss %d: a connection from before: %v, want silence", loss, err)
		}
		young := connect()
		if err := echoes(young, 5*time.Second); err != nil {
			t.Errorf("loss %d: a new connection: %v", loss, err)
		}
		old = young
	}
	if s := stats(n, "n1", "n2"); s.Blocked == 0 || s.Rejected != 0 {
		t.Errorf("counters: %+v", s)
	}
	if h := datagrams(t, n, probe.Burst{Count: 100}); h.Received() != 100 {
		t.Errorf("%d of 100 datagrams arrived", h.Received())
	}
	roundTrip(t, n, "n1", "n3", 2*time.Millisecond, time.Millisecond)
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := echoes(first, 20*time.Second); err != nil { // TCP repeats what was lost
		t.Errorf("the first connection, healed: %v", err)
	}
}

// echo sends back what the listener's connections bring, until both have ended.
func echo(l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestCutOneWay holds that the packets of n2 arrive and those of n1 do not.
func TestCutOneWay(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	mustSet(t, n, "n2", "n1", Shape{Cut: true})
	if h := datagrams(t, n, probe.Burst{Count: 100}); h.Received() != 100 {
		t.Errorf("%d of 100 arrived against the direction that is cut", h.Received())
	}
	mustSet(t, n, "n2", "n1", Shape{})
	mustSet(t, n, "n1", Any, Shape{Cut: true})
	if h := datagrams(t, n, probe.Burst{Count: 100}); h.Received() != 0 {
		t.Errorf("%d of 100 arrived in the direction that is cut", h.Received())
	}
	if s, err := n.Shape("n1", Client); err != nil || !s.Cut {
		t.Errorf("n1 to the client: %v, %v", s, err)
	}
}

func TestAddWhileRunning(t *testing.T) {
	n := start(t, Shape{Delay: time.Millisecond}, "n1")
	if err := n.Add("n1"); err == nil {
		t.Error("added n1 twice")
	}
	if err := n.Add("n2"); err != nil {
		t.Fatal(err)
	}
	roundTrip(t, n, "n2", "n1", 2*time.Millisecond, 500*time.Microsecond)
	roundTrip(t, n, Client, "n2", 2*time.Millisecond, 500*time.Microsecond)
	for _, bad := range [][2]string{{"n1", "n3"}, {"n3", Any}, {"n1", "n1"}} {
		if err := n.Set(bad[0], bad[1], Shape{}); err == nil {
			t.Errorf("set a link from %s to %s", bad[0], bad[1])
		}
	}
	if err := n.Set("n1", "n2", Shape{Loss: 2}); err == nil {
		t.Error("set a loss of 200 %")
	}
	out := t.TempDir() + "/addr" // as ip netns exec would: a program inside
	if err := n.Do("n2", func() error {
		return exec.Command("/bin/sh", "-c", "cat /proc/net/fib_trie > "+out).Run()
	}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(out); err != nil || !strings.Contains(string(text), n.Addr("n2").String()) || strings.Contains(string(text), n.Addr("n1").String()) {
		t.Errorf("a process of n2 does not see n2's address alone: %v\n%s", err, text)
	}
}

func TestStartRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		if _, err := Start(Options{Lab: "x"}); !errors.Is(err, ErrNotRoot) {
			t.Errorf("without root: %v", err)
		}
		if err := Sweep("x"); !errors.Is(err, ErrNotRoot) {
			t.Errorf("sweep without root: %v", err)
		}
	}
	for name, o := range map[string]Options{
		"no name":      {},
		"a dash":       {Lab: "a-b"},
		"too long":     {Lab: "abcdefghijk"},
		"client":       {Lab: "a", Nodes: []string{Client}},
		"twice":        {Lab: "a", Nodes: []string{"n1", "n1"}},
		"a path":       {Lab: "a", Nodes: []string{"../n1"}},
		"tiny packets": {Lab: "a", MTU: 68},
		"bad shape":    {Lab: "a", Shape: Shape{Loss: 2}},
	} {
		if n, err := Start(o); err == nil || errors.Is(err, ErrNotRoot) {
			t.Errorf("%s: %v, %v", name, n, err)
		}
	}
}

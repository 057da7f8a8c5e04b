package labcmd

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// both returns the two directions of a link, each with its own shape.
func both(a, b string, there, back linkem.Shape) []linkem.Stats {
	one := linkem.Stats{From: a, To: b, Shape: there}
	one.Packets, one.Bytes, one.Lost, one.Blocked = 1, 10, 1, 2
	two := linkem.Stats{From: b, To: a, Shape: back}
	two.Packets, two.Bytes, two.QueueDrops, two.Rejected = 1, 10, 1, 3
	return []linkem.Stats{one, two}
}

// TestHeadLine holds what the first line says of the group, for people: also where commits wait for nobody.
func TestHeadLine(t *testing.T) {
	t.Parallel()
	n1 := "n1"
	s := lab.Status{Group: "lab", Primary: &n1, Epoch: 3, Voters: 3, WaitsFor: "no secondary", Failover: "ready"}
	if got := headLine(s); got != "primary n1   epoch 3   3 votes   commits wait for no secondary   automatic failover: ready" {
		t.Error(got)
	}
	s.WaitsFor, s.Primary = "1 of n2, n3", nil
	if got := headLine(s); !strings.Contains(got, "primary none takes writes") || !strings.Contains(got, "wait for 1 of n2, n3 ") {
		t.Error(got)
	}
	if got := headLine(lab.Status{}); got != "no node answers" {
		t.Error(got)
	}
}

// TestLinkLines checks that two directions are one line only if they are alike: a link that is cut one way must not
// look as if it was cut both ways.
func TestLinkLines(t *testing.T) {
	t.Parallel()
	slow := linkem.Shape{Delay: 30 * time.Millisecond, Loss: 0.01}
	all := append(both("n1", "n2", slow, slow), both("n1", "n3", linkem.Shape{Cut: true}, linkem.Shape{})...)
	all = append(all, linkem.Stats{From: "n2", To: "n3"}) // the other direction is not told
	var out bytes.Buffer
	if err := printLines(&out, slices.Collect(linkLines(all)), true); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"LINK IS PACKETS BYTES LOST QUEUE FULL CUT OFF UNDER WAY",
		"n1 <-> n2 rtt 60ms, loss 1% 2 20 1 1 5 0",
		"n1 -> n3 CUT 1 10 1 0 2 0",
		"n3 -> n1 perfect 1 10 0 1 3 0",
		"n2 -> n3 perfect 0 0 0 0 0 0",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestShapeWords(t *testing.T) {
	t.Parallel()
	delay := 30 * time.Millisecond
	for _, tt := range []struct {
		s    linkem.Shape
		both bool
		want string
	}{
		{linkem.Shape{}, true, "perfect"},
		{linkem.Shape{Delay: delay}, false, "delay 30ms"},
		{linkem.Shape{Delay: delay}, true, "rtt 60ms"},
		{linkem.Shape{Cut: true}, false, "CUT"},
		{linkem.Shape{Cut: true, Reject: true}, false, "CUT, rejects"},
		{linkem.Shape{Cut: true, Delay: delay}, true, "CUT (else rtt 60ms)"},
		{linkem.Shape{Forgot: 2}, true, "CUT for what was connected (forgot 2 times)"},
	} {
		if got := shapeWords(tt.s, tt.both); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.s, got, tt.want)
		}
	}
}

func TestPrintLinks(t *testing.T) {
	t.Parallel()
	perfect := append(both("n1", "n2", linkem.Shape{}, linkem.Shape{}), both("n1", "n3", linkem.Shape{}, linkem.Shape{})...)
	for _, tt := range []struct {
		name   string
		now    []linkem.Stats
		asJSON bool
		want   string
	}{
		{"many that are perfect", perfect, false, "2 links, all perfect\n"},
		{"the one that was asked for", perfect[:2], false, "n1 <-> n2   perfect\n"},
		{"json", perfect[:1], true, `"from": "n1"`},
	} {
		var out bytes.Buffer
		c := &cobra.Command{}
		c.SetOut(&out)
		if err := printLinks(c, tt.now, tt.asJSON, nil); err != nil || !strings.Contains(out.String(), tt.want) {
			t.Errorf("%s: %v, %q; want %q", tt.name, err, out.String(), tt.want)
		}
		out.Reset()
		if err := printLinks(c, tt.now, tt.asJSON, errors.New("no such node")); err == nil || out.Len() > 0 {
			t.Errorf("%s: after an error %q was printed", tt.name, out.String())
		}
	}
}

func TestPrintNetwork(t *testing.T) {
	t.Parallel()
	pid := 42
	net := lab.Network{Kind: lab.NetNamespaces, Subnet: "10.0.0.0/24", Client: "10.0.0.1", PID: &pid}
	dead := net
	dead.PID, dead.Finding = nil, "the network is gone; coterie lab heal starts it"
	cut := append(both("n1", "n2", linkem.Shape{Cut: true}, linkem.Shape{Cut: true}), both("n1", "n3", linkem.Shape{}, linkem.Shape{})...)
	for name, tt := range map[string]struct {
		s    lab.Status
		want string
	}{
		"loopback": {lab.Status{Net: lab.Network{Kind: lab.NetLoopback}, Links: cut}, ""},
		"perfect":  {lab.Status{Net: net, Links: cut[2:]}, "network 10.0.0.0/24 (process 42); this host is 10.0.0.1 links all perfect"},
		"cut": {lab.Status{Net: net, Links: cut}, "network 10.0.0.0/24 (process 42); this host is 10.0.0.1 LINK IS PACKETS BYTES LOST QUEUE FULL CUT OFF UNDER WAY " +
			"n1 <-> n2 CUT 2 20 1 1 5 0 the other links are perfect"},
		"dead": {lab.Status{Net: dead}, "network 10.0.0.0/24 (not running); this host is 10.0.0.1 ! the network is gone; coterie lab heal starts it links all perfect"},
	} {
		var out bytes.Buffer
		if err := printNetwork(&out, tt.s); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(strings.Fields(out.String()), " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestNodeFaults(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]lab.Replica{
		"":             {},
		" [disk dead]": {Disk: &lab.DiskStatus{}},
		" [disk full]": {Disk: &lab.DiskStatus{Served: true, State: faultfs.State{Fault: faultfs.Fault{Kind: faultfs.Full}}}},
		" [disk slow by 50ms, clock -1h0m0s]": {
			Disk:  &lab.DiskStatus{Served: true, State: faultfs.State{Fault: faultfs.Fault{Kind: faultfs.Slow, Delay: 50 * time.Millisecond}}},
			Clock: &lab.ClockStatus{Offset: -time.Hour},
		},
	} {
		if got := nodeFaults(r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	healthy := lab.Replica{Disk: &lab.DiskStatus{Served: true}, Clock: &lab.ClockStatus{}}
	if got := nodeFaults(healthy); got != "" {
		t.Errorf("a healthy disk and the true time: %q", got)
	}
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
)

// TestEndToEndKernelPath holds that nodes of two labs on the loopback interface, beside one another, have sessions
// carried by the kernel as real nodes do, that they change nothing of this host's network, and that nothing of theirs
// stays in the kernel: neither after an agent was killed nor after the lab is down.
func TestEndToEndKernelPath(t *testing.T) {
	offloadtest.Need(t)
	g := newGroup(t, lab.Options{})
	other := newGroup(t, lab.Options{Replicas: 1})
	for _, x := range []*group{g, other} {
		x.carriesByKernel(t)
	}
	g.keepsOffAddresses(t)

	was := g.ready(t)
	old := *was.Primary
	killed := heldInKernel(t, agentOf(t, was, old))
	if err := g.Kill(old, lab.WhatAgent); err != nil {
		t.Fatal(err)
	}
	gone(t, "the agent was killed", killed)
	g.newPrimary(t, was)
	other.carriesByKernel(t) // it has noticed nothing
	if err := g.Start(old); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
	g.carriesByKernel(t)

	for _, x := range []*group{g, other} {
		var all []inKernel
		now := x.ready(t)
		for _, r := range now.Replicas {
			all = append(all, heldInKernel(t, agentOf(t, now, r.Name))...)
		}
		x.down(t)
		gone(t, "the lab is down", all)
	}
}

// carriesByKernel has a session without TLS work at the primary until the kernel carries it, and judges its rows.
func (g *group) carriesByKernel(t *testing.T) {
	t.Helper()
	s := g.ready(t)
	conn, err := pgx.Connect(t.Context(), plain(g.DSN(*s.Primary), valuesInText))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "create table if not exists offloaded (id bigint)"); err != nil {
		t.Fatal(err)
	}
	before := sql(t, g.ReadWrite(), "select count(*) from offloaded")
	rows := 0
	g.await(t, "the kernel carries a session", func(lab.Status) bool {
		for range 20 {
			if _, err := conn.Exec(t.Context(), "insert into offloaded values ($1)", rows); err != nil {
				t.Fatal(err)
			}
			rows++
		}
		return strings.Contains(g.metrics(t, *s.Primary), `coterie_sessions{intent="READ_WRITE",path="kernel",state="idle"} 1`)
	})
	had, _ := strconv.Atoi(before)
	if got, want := sql(t, g.ReadWrite(), "select count(*) from offloaded"), strconv.Itoa(had+rows); got != want {
		t.Errorf("%s rows, want %s", got, want)
	}
}

// keepsOffAddresses checks that an agent has the right to change addresses of this host, for the kernel's path, and
// does not use it.
func (g *group) keepsOffAddresses(t *testing.T) {
	t.Helper()
	const address = "192.0.2.77"
	s := g.ready(t)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", agentOf(t, s, *s.Primary)))
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(status), "CapEff:\t")
	caps, err := strconv.ParseUint(text[:16], 16, 64)
	if err != nil || caps&(1<<unix.CAP_NET_ADMIN) == 0 || caps&(1<<unix.CAP_NET_RAW) != 0 {
		t.Errorf("the agent has the capabilities %x, %v", caps, err)
	}
	g.says(t, *s.Primary, fmt.Sprintf("ALTER AVAILABILITY GROUP [lab] ADD LISTENER N'lab-l' (WITH IP ((N'%s', N'255.255.255.0')), PORT = %d)", address, freePorts(t)))
	g.await(t, "the node says why it does not put up the address", func(lab.Status) bool {
		a, err := g.answered(t, *s.Primary, "SELECT state, problem FROM coterie.addresses WHERE node = '"+*s.Primary+"' AND address = '"+address+"/24'")
		return err == nil && strings.Contains(fmt.Sprint(a.Rows), "FAILED no_virtual_addresses in coterie.yaml")
	})
	addresses, err := net.InterfaceAddrs()
	if err != nil || strings.Contains(fmt.Sprint(addresses), address) {
		t.Errorf("this host has the addresses %v, %v", addresses, err)
	}
	g.says(t, *s.Primary, "ALTER AVAILABILITY GROUP [lab] REMOVE LISTENER N'lab-l'")
}

func agentOf(t *testing.T, s lab.Status, node string) int {
	t.Helper()
	r, ok := s.Replica(node)
	if !ok || r.PIDs.Agent == nil {
		t.Fatalf("%s has no agent", node)
	}
	return *r.PIDs.Agent
}

// inKernel is a program or a map of the kernel.
type inKernel struct {
	kind string // as in a process's fdinfo
	id   uint32
}

// heldInKernel lists the programs and maps that a process has open.
func heldInKernel(t *testing.T, pid int) (held []inKernel) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, _ := os.ReadFile(f) // it may be closed by now
		for line := range strings.Lines(string(b)) {
			kind, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if id, err := strconv.ParseUint(value, 10, 32); err == nil && (kind == "prog_id" || kind == "map_id") {
				held = append(held, inKernel{kind, uint32(id)})
			}
		}
	}
	if len(held) < 6 { // a program and five maps, for each loop
		t.Fatalf("the agent %d holds only %v in the kernel", pid, held)
	}
	return held
}

// gone waits until none of them exists. The kernel removes them a moment after their last user.
func gone(t *testing.T, when string, list []inKernel) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = nil
		for _, x := range list {
			if name, there := x.exists(t); there {
				left = append(left, fmt.Sprintf("%s %d %s", x.kind, x.id, name))
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("when %s these are left in the kernel: %v", when, left)
}

// exists looks for it. A number is not given again before all others were.
func (x inKernel) exists(t *testing.T) (name string, there bool) {
	t.Helper()
	var err error
	if x.kind == "prog_id" {
		var p *ebpf.Program
		if p, err = ebpf.NewProgramFromID(ebpf.ProgramID(x.id)); err == nil {
			defer func() { _ = p.Close() }()
			name = p.String()
		}
	} else {
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(ebpf.MapID(x.id)); err == nil {
			defer func() { _ = m.Close() }()
			name = m.String()
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return name, err == nil
}

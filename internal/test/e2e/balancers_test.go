package e2e

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
)

const balancerPage = "../../../docs/how-to/haproxy.md"

// balancers are the programs that ask the health checks of a group, with the configurations of balancerPage.
type balancers struct {
	*group
	haproxy string   // its statistics socket
	writes  string   // its address for writes
	script  []string // of keepalived, as the page has it
}

// TestEndToEndBalancers holds that a real HAProxy, keepalived's check script and a program that asks /leader as
// vip-manager does follow a planned failover and the death of the primary's node.
func TestEndToEndBalancers(t *testing.T) {
	long(t)
	haproxy, err := findTool("haproxy")
	if err != nil {
		t.Skip("NOT RUN: haproxy is not installed (Debian's package haproxy)")
	}
	page, err := os.ReadFile(balancerPage)
	if err != nil {
		t.Fatal(err)
	}
	script := regexp.MustCompile(`(?m)^\s+script "(.*)"$`).FindSubmatch(page)
	if script == nil {
		t.Fatalf("%s has no script for keepalived", balancerPage)
	}
	b := &balancers{group: newGroup(t, lab.Options{}), script: strings.Fields(string(script[1]))}
	if _, err := exec.LookPath(b.script[0]); err != nil {
		t.Skipf("NOT RUN: %s, which keepalived's script calls, is not installed", b.script[0])
	}
	b.startHAProxy(t, haproxy, string(page))
	s := b.ready(t)
	b.follow(t, "the start", *s.Primary, secondaries(s))

	to := secondaries(s)[0]
	began := time.Now()
	b.failover(t, to)
	s = b.ready(t)
	b.follow(t, "a planned failover", to, secondaries(s))
	t.Logf("all follow a planned failover %v after it began", time.Since(began).Round(time.Millisecond))

	began = time.Now()
	b.kill(t, to)
	now := b.newPrimary(t, s)
	var live []string
	for _, n := range secondaries(now) {
		if n != to {
			live = append(live, n)
		}
	}
	b.follow(t, "the death of the primary's node", *now.Primary, live)
	t.Logf("all follow the death of the primary's node after %v", time.Since(began).Round(time.Millisecond))
	b.start(t, to)
	s = b.ready(t)
	b.follow(t, "its return", *s.Primary, secondaries(s))
	b.down(t)
}

func findTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}

// startHAProxy runs HAProxy with the page's configuration, in which only addresses are replaced: those of the three
// nodes and its own. The end of the test ends it.
func (b *balancers) startHAProxy(t *testing.T, program, page string) {
	t.Helper()
	m := regexp.MustCompile("(?s)```\n(defaults\n.*?)```").FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("%s has no configuration of HAProxy", balancerPage)
	}
	s := b.ready(t)
	text := m[1]
	for i, r := range s.Replicas {
		_, check, err := net.SplitHostPort(strings.TrimPrefix(r.HTTP, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		for port, dsn := range map[string]string{"5432": r.Listener.ReadWrite, "5433": r.Listener.ReadOnly} {
			c, err := pgx.ParseConfig(dsn)
			if err != nil {
				t.Fatal(err)
			}
			text = strings.ReplaceAll(text, fmt.Sprintf("db%d:%s check port 8008", i+1, port), fmt.Sprintf("%s check port %s", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))), check))
		}
		text = strings.ReplaceAll(text, fmt.Sprintf("server db%d ", i+1), "server "+r.Name+" ")
	}
	free := freePorts(t)
	b.writes = fmt.Sprintf("127.0.0.1:%d", free)
	text = strings.NewReplacer("*:5000", b.writes, "*:5001", fmt.Sprintf("127.0.0.1:%d", free+1)).Replace(text)
	dir := t.TempDir()
	b.haproxy = filepath.Join(dir, "s")
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte("global\n    stats socket "+b.haproxy+"\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "-db", "-f", file)
	cmd.Dir = dir
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("haproxy:\n%s", out)
		}
	})
}

// follow waits until every program is of the opinion that this is the primary, and HAProxy that these are the readers.
func (b *balancers) follow(t *testing.T, after, primary string, readers []string) {
	t.Helper()
	b.await(t, after+": HAProxy, keepalived and vip-manager follow", func(s lab.Status) bool {
		up := b.servers(t)
		for _, r := range s.Replicas {
			leads, reads := r.Name == primary, false
			for _, n := range readers {
				reads = reads || n == r.Name
			}
			if up["writes "+r.Name] != leads || up["reads "+r.Name] != reads || b.keepalived(t, r) != leads || b.vipManager(t, r) != leads {
				return false
			}
		}
		return true
	})
	c, err := pgx.ParseConfig(b.DSN(primary))
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(b.writes)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	c.Host, c.Port, c.Fallbacks = host, uint16(n), nil
	conn, err := pgx.ConnectConfig(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: through HAProxy: %v", after, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), "CREATE TEMP TABLE written (n int)"); err != nil {
		t.Errorf("%s: through HAProxy: %v", after, err)
	}
}

// servers returns which servers HAProxy finds up, by its section and the server's name.
func (b *balancers) servers(t *testing.T) map[string]bool {
	t.Helper()
	up := map[string]bool{}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "unix", b.haproxy)
	if err != nil {
		return up // it begins
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "show stat\n"); err != nil {
		return up
	}
	r := csv.NewReader(c)
	r.FieldsPerRecord = -1
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	const status = 17 // its column
	for _, row := range rows {
		if len(row) > status {
			up[row[0]+" "+row[1]] = strings.HasPrefix(row[status], "UP")
		}
	}
	return up
}

// keepalived reports whether the page's script succeeds on the node.
func (b *balancers) keepalived(t *testing.T, r lab.Replica) bool {
	t.Helper()
	args := strings.Fields(strings.ReplaceAll(strings.Join(b.script[1:], " "), "http://127.0.0.1:8008", r.HTTP))
	return exec.CommandContext(t.Context(), b.script[0], args...).Run() == nil
}

// vipManager reports whether the node's /leader answers 200, which is all that vip-manager asks.
func (b *balancers) vipManager(t *testing.T, r lab.Replica) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, r.HTTP+"/leader", nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		return false
	}
	defer func() { _ = a.Body.Close() }()
	return a.StatusCode == http.StatusOK
}

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func groupName(t *testing.T, g *group) string {
	t.Helper()
	r, err := g.answered(t, "n1", "SELECT name FROM sys.availability_groups")
	if err != nil || len(r.Rows) != 1 {
		t.Fatalf("the group's name: %v %v", r.Rows, err)
	}
	return fmt.Sprint(r.Rows[0][0])
}

// shown checks what the views show of the addresses.
func (s *subnets) shown(t *testing.T, g *group) {
	t.Helper()
	var last string
	s.await(t, "the views show the addresses", func() bool {
		a, err := g.answered(t, "n2", "SELECT ip_address, state_desc FROM sys.availability_group_listener_ip_addresses ORDER BY ip_address")
		if err != nil {
			return false
		}
		b, err := g.answered(t, "n2", "SELECT address, state, device, problem FROM coterie.addresses WHERE node = 'n1' ORDER BY address")
		last = fmt.Sprint(a.Rows, b.Rows, err)
		return strings.Contains(last, "["+near1+" ONLINE]") && strings.Contains(last, "["+near2+" OFFLINE]") && strings.Contains(last, "["+near6+" ONLINE]") &&
			strings.Contains(last, "["+near1+"/24 ONLINE eth1 <nil>]") && strings.Contains(last, "no device of this node is in 10.91.2.0/24")
	})
	t.Log(last)
	a := coterie(t, "check", "group", "--node", g.node("n1"))
	if !strings.Contains(a.out, "shop-l") {
		t.Errorf("check says nothing of a name that is not in DNS: %s %s", a.out, a.err)
	}
}

// leafOf returns the certificate that a listener presents.
func leafOf(ctx context.Context, dsn string) (leaf *x509.Certificate, err error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.Fallbacks = nil
	cfg.TLSConfig = &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(c tls.ConnectionState) error {
		leaf = c.PeerCertificates[0]
		return nil
	}}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		err = conn.Close(ctx)
	}
	return leaf, err
}

// certified connects with sslmode=verify-full by the name and by the address.
func (s *subnets) certified(t *testing.T, g *group) {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(must(t, "ca", "--node", g.node("n1")).out)) {
		t.Fatal("coterie ca printed no certificate")
	}
	for _, name := range []string{"shop-l", near1} {
		conn, err := s.dial(t.Context(), g, near1, onPort, &tls.Config{RootCAs: pool, ServerName: name})
		if err != nil {
			t.Errorf("sslmode=verify-full as %s: %v", name, err)
			continue
		}
		_ = conn.Close(t.Context())
	}
}

// bare checks that neither keeper nor server has the agent's capabilities.
func (g *group) bare(t *testing.T, node string) {
	t.Helper()
	with := 0
	for _, pid := range g.processes(node) {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(status), "CapPrm:")
		permitted := strings.Fields(rest)[0]
		if strings.Contains(string(command), "\x00agent\x00") {
			with++
			continue
		}
		if strings.Trim(permitted, "0") != "" {
			t.Errorf("%q has the capabilities %s", command, permitted)
		}
	}
	if with == 0 {
		t.Errorf("no agent among the processes of %s", node)
	}
}

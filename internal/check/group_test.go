package check

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	found, err := FindCertificates(dir, time.Now())
	if err != nil || len(found) != 1 || found[0].Level != OK {
		t.Errorf("where no node is: %+v, %v", found, err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	ca, err := certs.NewCA("0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", "g")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(l.PKI()); err != nil {
		t.Fatal(err)
	}
	id := certs.Identity{Group: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", Kind: "replica", ID: ag.ReplicaID("n1")}
	if _, err := certs.CreateNode(l.PKI(), ca, id, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	found, err = FindCertificates(dir, time.Now())
	if err != nil || len(found) < 2 || Worst(found) != OK {
		t.Errorf("new ones: %+v, %v", found, err)
	}
	found, err = FindCertificates(dir, time.Now().AddDate(200, 0, 0))
	if err != nil || Worst(found) != Problem || found[0].Run == "" {
		t.Errorf("in two hundred years: %+v, %v", found, err)
	}
	for left, want := range map[time.Duration]Level{-1: Problem, time.Hour: Problem, 10 * 24 * time.Hour: Warning, 40 * 24 * time.Hour: OK} {
		if f := judgeCertificate("x", left); f.Level != want {
			t.Errorf("%v left: %+v", left, f)
		}
	}
	if found, err := FindGroup(t.Context(), dir); err != nil || found[0].Level != OK {
		t.Errorf("a directory without a configuration: %+v, %v", found, err)
	}
}

func TestJudgeNames(t *testing.T) {
	lookup := func(_ context.Context, host string) ([]string, error) {
		if host == "db1.contoso.com" || host == "fd00::1" {
			return []string{"10.0.0.1"}, nil
		}
		return nil, errors.New("no such host")
	}
	found := judgeNames(t.Context(), [][]any{
		{"n1", "READ_ONLY_ROUTING_URL", "TCP://db1.contoso.com:1433"},
		{"n2", "ENDPOINT_URL", "TCP://[fd00::1]:5022"},
		{"n3", "READ_WRITE_ROUTING_URL", "TCP://nowhere:1433"},
		{"n3", "ENDPOINT_URL", "TCP://%zz"},
	}, lookup)
	if len(found) != 2 || Worst(found) != Warning || !strings.Contains(found[0].What, "READ_WRITE_ROUTING_URL of n3 is TCP://nowhere:1433") || !strings.Contains(found[0].Run, "N'n3' WITH (PRIMARY_ROLE (READ_WRITE_ROUTING_URL = N'TCP://HOST:PORT'))") || !strings.Contains(found[1].Run, "WITH (ENDPOINT_URL = ") {
		t.Errorf("%+v", found)
	}
}

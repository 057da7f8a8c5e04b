package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

func TestCAPrintsCertificate(t *testing.T) {
	run := func(dir string) (string, error) {
		root, out := newRoot(), &bytes.Buffer{}
		root.SetArgs([]string{"--node", dir, "ca"})
		root.SetOut(out)
		err := root.Execute()
		return out.String(), err
	}
	dir := t.TempDir()
	if _, err := run(dir); err == nil || !strings.Contains(err.Error(), "there is no node in") {
		t.Errorf("where no node is: %v", err)
	}
	l, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.PKI(), 0o700); err != nil {
		t.Fatal(err)
	}
	ca, err := certs.NewCA("0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", "g")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(l.PKI()); err != nil {
		t.Fatal(err)
	}
	if out, err := run(dir); err != nil || out != string(ca.CertPEM) {
		t.Errorf("printed %q, %v", out, err)
	}
}

package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSign signs the checksums with a key made for the test, and holds that a command which signs nothing is an error.
func TestSign(t *testing.T) {
	r := &release{root: ".", dist: t.TempDir(), out: io.Discard}
	sums := filepath.Join(r.dist, "SHA256SUMS")
	if err := put(sums, "0  file\n"); err != nil {
		t.Fatal(err)
	}
	t.Setenv(signs, "")
	if err := r.sign(t.Context()); err != nil {
		t.Errorf("without a command: %v", err)
	}
	for command, says := range map[string]string{"true": "nothing is signed", "false": signs} {
		t.Setenv(signs, command)
		if err := r.sign(t.Context()); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", command, err)
		}
	}
	if _, err := exec.LookPath("gpg"); err != nil {
		t.Skip("NOT RUN: gpg is not installed")
	}
	home, err := os.MkdirTemp("/tmp", "coterie-gpg") // the path of its agent's socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	t.Setenv("GNUPGHOME", home)
	t.Cleanup(func() { _ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run() })
	gpg := func(args ...string) error {
		out, err := exec.CommandContext(t.Context(), "gpg", append([]string{"--batch", "--pinentry-mode", "loopback", "--passphrase", ""}, args...)...).CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	if err := gpg("--quick-generate-key", "stand-in@example.org", "ed25519", "sign"); err != nil {
		t.Skipf("NOT RUN: gpg makes no key here: %v", err)
	}
	t.Setenv(signs, "gpg --batch --armor --detach-sign")
	if err := r.sign(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := gpg("--verify", sums+".asc", sums); err != nil {
		t.Errorf("the signature: %v", err)
	}
	if err := put(sums, "1  file\n"); err != nil {
		t.Fatal(err)
	}
	if err := gpg("--verify", sums+".asc", sums); err == nil {
		t.Error("the signature holds for another file")
	}
}

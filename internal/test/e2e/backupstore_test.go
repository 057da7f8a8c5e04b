package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// The object store of the test. It is no dependency of the product: the go command fetches and builds the version, and
// compares it with the checksum database.
const (
	storeModule  = "github.com/versity/versitygw/cmd/versitygw"
	storeVersion = "v1.8.0"
	storeFetch   = 20 * time.Minute
)

// objectStore is a server that speaks S3 over TLS, with a bucket called backups.
type objectStore struct {
	program, dir, endpoint string
	key, secret            string
	cmd                    *exec.Cmd
}

// storeProgram returns the path of the server's program, which is fetched once for all runs on the machine.
func storeProgram(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	bin := filepath.Join(cache, "coterie-test", "versitygw-"+storeVersion)
	program := filepath.Join(bin, "versitygw")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	ctx, cancel := context.WithTimeout(t.Context(), storeFetch)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "install", storeModule+"@"+storeVersion)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "GOBIN="+bin, "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: the object store %s@%s cannot be fetched and built here: %v: %.2000s", storeModule, storeVersion, err, out)
	}
	return program
}

// newObjectStore starts a server on a port of this machine, which ends with the test.
func newObjectStore(t *testing.T) *objectStore {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cote2e-s3-") // others read the certificate of its authority
	if err != nil {
		t.Fatal(err)
	}
	s := &objectStore{program: storeProgram(t), dir: dir, endpoint: fmt.Sprintf("localhost:%d", ports.Range(t, 1)), key: "planted-key", secret: planted + "-of-s3"}
	t.Cleanup(func() { s.stop(); _ = os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.MkdirAll(filepath.Join(dir, "root", "backups"), 0o700)); err != nil {
		t.Fatal(err)
	}
	s.certify(t)
	s.start(t)
	return s
}

func (s *objectStore) ca() string { return filepath.Join(s.dir, "ca.crt") }

// certify makes an authority and the server's certificate.
func (s *objectStore) certify(t *testing.T) {
	t.Helper()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter, DNSNames: []string{"localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ca, err1 := x509.CreateCertificate(rand.Reader, authority, authority, caKey.Public(), caKey)
	cert, err2 := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), caKey)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"ca.crt": {Type: "CERTIFICATE", Bytes: ca}, "server.crt": {Type: "CERTIFICATE", Bytes: cert}, "server.key": {Type: "PRIVATE KEY", Bytes: private}} {
		mode := os.FileMode(0o644)
		if name == "server.key" {
			mode = 0o600
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), pem.EncodeToMemory(block), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// start starts the server, and waits until it takes connections.
func (s *objectStore) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	s.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), s.program, "--port", "127.0.0.1:"+s.endpoint[len("localhost:"):], "--region", "eu-1", "--quiet",
		"--cert", filepath.Join(s.dir, "server.crt"), "--key", filepath.Join(s.dir, "server.key"), "posix", filepath.Join(s.dir, "root"))
	s.cmd.Env = []string{"ROOT_ACCESS_KEY=" + s.key, "ROOT_SECRET_KEY=" + s.secret, "PATH=" + os.Getenv("PATH")}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", s.endpoint, time.Second)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the object store does not listen: %v: %s", err, read(filepath.Join(s.dir, "log")))
		}
	}
}

func (s *objectStore) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// secretArguments collects the command lines of this machine in which a secret is, until stop is called.
func secretArguments() (stop func() []string) {
	end := make(chan struct{})
	var found []string
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, f := range all {
				if line := strings.ReplaceAll(read(f), "\x00", " "); strings.Contains(line, planted) && !slices.Contains(found, line) {
					found = append(found, line)
				}
			}
			select {
			case <-end:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() []string { close(end); looking.Wait(); return found }
}

// TestEndToEndBackupsInS3 makes backups of a group in an object store by its S3 API, over TLS: enable, as the page says
// it, run, list, verify, archive over failovers and through a minute without the store, restore to a time.
func TestEndToEndBackupsInS3(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("pgbackrest"); err != nil {
		t.Skip("NOT RUN: pgbackrest is not installed, as with apt-get install pgbackrest")
	}
	store := newObjectStore(t)
	g := &backups{group: newGroup(t, lab.Options{})}
	stop := secretArguments()
	for _, step := range []struct {
		name string
		test func(*testing.T, *backups, *objectStore)
	}{
		{"a wrong key, and no bucket", storeRefuses},
		{"enable", enableInStore},
		{"an archive over failovers", storeOverFailovers},
		{"restore to a time", restoreFromStore},
		{"the store is out of reach for a minute", storeAway},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, g, store) }) {
			break
		}
	}
	if lines := stop(); len(lines) > 0 {
		t.Errorf("a secret is an argument: %q", lines)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		for _, file := range []string{"agent.log", "keeper.log", "postgres.log"} {
			if strings.Contains(g.log(n, file), planted) {
				t.Errorf("a secret is in %s of %s", file, n)
			}
		}
	}
	if t.Failed() {
		return
	}
	g.judge(t)
	g.down(t)
}

// shell runs a block of the page on a node, with the store of the test in place of its example.
func (s *objectStore) shell(t *testing.T, g *backups, node, block string, with ...string) answer {
	t.Helper()
	bin := t.TempDir()
	if err := os.Symlink(exe, filepath.Join(bin, "coterie")); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(append(with, "/root/s3.secrets", filepath.Join(s.dir, "secrets"), "/etc/ssl/s3-ca.crt", s.ca(), "s3.example.org", s.endpoint, "PASSPHRASE", planted, "key=KEY", "key="+s.key,
		"secret=SECRET", "secret="+s.secret)...).Replace(block)
	cmd := exec.CommandContext(t.Context(), "sh", "-e")
	cmd.Stdin, cmd.Env = strings.NewReader(text), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "COTERIE_NODE="+g.node(node))
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String()+said.String(), planted) {
		t.Errorf("a secret is printed: %s%s", out.String(), said.String())
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), said.String()}
}

// storeLines returns the lines of the page that enable backups in a store.
func storeLines(t *testing.T) string {
	t.Helper()
	for _, b := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(read("../../../docs/how-to/backup.md"), -1) {
		if strings.Contains(b[1], "--repo s3://") {
			return b[1]
		}
	}
	t.Fatal("the page has no lines for an S3 store")
	return ""
}

func storeRefuses(t *testing.T, g *backups, s *objectStore) {
	primary := g.primary(t)
	for want, with := range map[string][]string{
		"the S3 store answered 403 SignatureDoesNotMatch (the secret of the key is wrong": {"secret=SECRET", "secret=" + planted},
		"the S3 store answered 40":                                      {"key=KEY", "key=another"}, // each store has a code of its own
		"the S3 store answered 404 NoSuchBucket (it has no such bucket": {"s3://backups/", "s3://none/"},
	} {
		a := s.shell(t, g, primary, storeLines(t), with...)
		if a.code == 0 || !strings.Contains(a.err, want) || strings.Contains(a.err, "Response Headers") {
			t.Errorf("want %q: %+v", want, a)
		}
		if _, err := os.Stat(filepath.Join(g.node(primary), "backup", "plan.json")); !os.IsNotExist(err) {
			t.Errorf("a plan stays: %v", err)
		}
	}
}

func enableInStore(t *testing.T, g *backups, s *objectStore) {
	st := g.ready(t)
	for _, n := range append([]string{*st.Primary}, secondaries(st)...) {
		if a := s.shell(t, g, n, storeLines(t)); a.code != 0 {
			t.Fatalf("%s: %+v", n, a)
		}
	}
	must(t, "restart", "--postgres", "--pending", "--node", g.node("n1"))
	if a := g.verb(t, g.primary(t), "enable"); a.code != 0 || !strings.Contains(a.out, "a segment was archived") {
		t.Fatalf("%+v", a)
	}
	on := g.preferred(t)
	if a := g.verb(t, g.primary(t), "run", "--type", "full"); a.code != 0 || !strings.Contains(a.err, on+" makes the backup") {
		t.Fatalf("%+v", a)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if got := g.listed(t, n); got != 1 {
			t.Errorf("%s lists %d backups", n, got)
		}
	}
	if a := g.verb(t, on, "verify"); a.code != 0 || !strings.Contains(a.out, "status: ok") {
		t.Errorf("%+v", a)
	}
	g.sound(t)
	for pid := range processesOf(g.Dir()) {
		if strings.Contains(read("/proc/"+strconv.Itoa(pid)+"/environ"), planted) {
			t.Errorf("a secret is in the environment of %s", read("/proc/"+strconv.Itoa(pid)+"/cmdline"))
		}
	}
}

func storeOverFailovers(t *testing.T, g *backups, _ *objectStore) {
	g.acknowledged(t, 20)
	g.failover(t, secondaries(g.ready(t))[0])
	g.acknowledged(t, 20)
	was := g.ready(t)
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	now := g.newPrimary(t, was)
	g.acknowledged(t, 20)
	g.revive(t, *was.Primary)
	sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
	g.sound(t)
	g.listed(t, *now.Primary)
	g.again(t)
	on := g.preferred(t)
	if a := g.verb(t, g.primary(t), "run"); a.code != 0 || !strings.Contains(a.out, "I  incr  ") {
		t.Errorf("an incremental backup: %+v", a)
	}
	if node, _ := g.madeOn(t, on); node != on {
		t.Errorf("the incremental backup was made on %s, want %s", node, on)
	}
}

// storeAway has the store gone for a minute: no commit waits for it, every node says what is wrong, and all is archived
// when it is back.
func storeAway(t *testing.T, g *backups, s *objectStore) {
	st, on := g.ready(t), g.preferred(t)
	s.stop()
	gone := time.Now()
	g.await(t, "every node to say what is wrong", func(lab.Status) bool {
		time.Sleep(2 * time.Second) // a store that is back takes what waits one by one
		sql(t, g.ReadWrite(), "select pg_switch_wal()::text")
		g.acknowledged(t, 10)
		for _, n := range []string{"n1", "n2", "n3"} {
			if !strings.Contains(strings.Join(strings.Fields(coterie(t, "status", "--node", g.node(n)).out), " "), "archiving fails on "+*st.Primary) {
				return false
			}
		}
		return time.Since(gone) > time.Minute
	})
	if a := g.verb(t, on, "list"); a.code == 0 || !strings.Contains(a.err, "unable to connect to 'localhost:") {
		t.Errorf("%+v", a)
	}
	s.start(t)
	g.sound(t)
	g.listed(t, *st.Primary)
	if now := g.ready(t); *now.Primary != *st.Primary {
		t.Errorf("%s led, and %s leads", *st.Primary, *now.Primary)
	}
}

// restoreFromStore practises a restore on a secondary, and makes a whole group of the store's backups as they were
// before rows were deleted: one node is restored, two others join it.
func restoreFromStore(t *testing.T, g *backups, s *objectStore) {
	sql(t, g.ReadWrite(), "create table notes as select i from generate_series(1, 1000) i")
	at := sql(t, g.ReadWrite(), "select clock_timestamp()::text")
	time.Sleep(1100 * time.Millisecond) // another second of the clock
	sql(t, g.ReadWrite(), "delete from notes where i % 2 = 0")
	segment := sql(t, g.ReadWrite(), "select pg_walfile_name(pg_switch_wal())")
	g.await(t, "the segment in the archive", func(lab.Status) bool {
		time.Sleep(time.Second)
		return sql(t, g.ReadWrite(), "select (last_archived_wal >= '"+segment+"')::text from pg_stat_archiver") == "true"
	})
	practiseFromStore(t, g)
	dir, port := filepath.Join(filepath.Dir(g.Dir()), "new"), ports.Range(t, 12)
	place := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", port+i) }
	flags := func(i int) []string {
		return []string{
			"--name", fmt.Sprintf("r%d", i+1), "--address", "127.0.0.1", "--endpoint", place(4 * i), "--read-write", place(4*i + 1), "--read-only", place(4*i + 2), "--http", place(4*i + 3), "--no-start",
		}
	}
	restored := func(i int) string { return fmt.Sprintf("%s%d", dir, i+1) }
	a := coterie(t, append([]string{
		"restore", "--to", at, "--new-group", restored(0), "--node", filepath.Join(s.dir, "none"), "--repo", "s3://backups/orders", "--s3-endpoint", s.endpoint, "--s3-region", "eu-1", "--s3-path-style",
		"--s3-ca-file", s.ca(), "--secrets", filepath.Join(s.dir, "secrets"),
	}, flags(0)...)...)
	if a.code != 0 || strings.Contains(a.out+a.err, planted) {
		t.Fatalf("%+v", a)
	}
	for i := range 3 {
		if i > 0 {
			var token api.TokenResult
			made := must(t, "token", "create", "--json", "--node", restored(0))
			if err := json.Unmarshal([]byte(made.out), &token); err != nil {
				t.Fatalf("%v: %+v", err, made)
			}
			must(t, append([]string{"join", token.Token, "--node", restored(i)}, flags(i)...)...)
		}
		agent := exec.CommandContext(t.Context(), exe, "agent", "--node", restored(i))
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = agent.Process.Signal(syscall.SIGTERM); _ = agent.Wait() }()
		g.await(t, "the new group to take writes", func(lab.Status) bool {
			time.Sleep(500 * time.Millisecond)
			a := coterie(t, "status", "--json", "--node", restored(0))
			var st api.Status
			return json.Unmarshal([]byte(a.out), &st) == nil && st.WriteOpen && len(st.Replicas) == i+1 && (i < 2 || st.Availability.Level == availability.Healthy)
		})
	}
	uri, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int{1, 6, 10} { // the primary, and the read-only ports of the others
		uri.Host = place(i)
		if n := sql(t, uri.String(), "select count(*)::text from notes"); n != "1000" {
			t.Errorf("the new group has %s of 1000 rows at %s", n, uri.Host)
		}
	}
	g.sound(t)
}

// practiseFromStore has a secondary restore the store's last backup and all WAL behind it, and read it.
func practiseFromStore(t *testing.T, g *backups) {
	node, in := secondaries(g.ready(t))[0], filepath.Join(filepath.Dir(g.Dir()), "drills")
	owner, err := os.Stat(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	mkdir(t, in)
	id := owner.Sys().(*syscall.Stat_t)
	if err := os.Chown(in, int(id.Uid), int(id.Gid)); err != nil {
		t.Fatal(err)
	}
	a := g.verb(t, node, "verify", "--restore", filepath.Join(in, "drill"), "--json")
	var out struct {
		Databases map[string]struct{ Tables, Rows int }
	}
	if err := json.Unmarshal([]byte(a.out), &out); err != nil || a.code != 0 || out.Databases["postgres"].Tables < 60 || out.Databases["postgres"].Rows < 500 {
		t.Fatalf("%v: %+v", err, a)
	}
	if left, err := os.ReadDir(in); err != nil || len(left) != 0 {
		t.Errorf("the drill stays: %v, %v", left, err)
	}
}

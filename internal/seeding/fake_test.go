package seeding

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

const fakeSystemID = 7301234567890123456

// entry is one archive member; kind 0 means a plain file.
type entry struct {
	name string
	body string
	kind byte
	link string
}

// fakeSource speaks the source's side of a base backup, in the dialect of 14 or of 15 and later.
type fakeSource struct {
	major    int
	entries  []entry             // of the data directory
	spaces   map[uint32][]entry  // of tablespaces
	manifest func(string) string // changes the manifest before it is sent
	stream   func([]byte) []byte // changes the main archive before it is sent
	late     *pgproto3.ErrorResponse
	slot     string // "", "exists", "dead"
	hang     bool   // stop in the middle of the main archive
}

func control() string {
	b := make([]byte, controlSize)
	binary.NativeEndian.PutUint64(b, fakeSystemID)
	return string(b)
}

// cluster is a small data directory with one of everything that has a rule.
func cluster() []entry {
	dirs := []string{
		"global", "base", "base/1", "pg_wal", "./pg_wal/archive_status", "pg_replslot", "pg_stat", "pg_tblspc", "log",
		"coterie.d",
	}
	list := []entry{
		{name: "backup_label", body: "START WAL LOCATION: 0/2000028\n"},
		{name: "tablespace_map", body: "elsewhere"},
	}
	for _, d := range dirs {
		list = append(list, entry{name: d + "/", kind: tar.TypeDir})
	}
	return append(list,
		entry{name: "PG_VERSION", body: "15\n"},
		entry{name: "base/1/1259", body: strings.Repeat("relation", 20_000)},
		entry{name: "postgresql.conf", body: "# of the source\n"},
		entry{name: "postgresql.auto.conf", body: "# by ALTER SYSTEM\nwork_mem = '8MB'\nprimary_conninfo = 'host=x'\nrecovery_target_lsn = '0/1'\n"},
		entry{name: "standby.signal"},
		entry{name: "coterie.copy", body: "of the source"},
		entry{name: "coterie.d/key", body: "secret"},
		entry{name: "log/postgresql.log", body: "noise"},
		entry{name: "pg_stat/pgstat.stat", body: "statistics"},
		entry{name: "global/1262", body: "databases"},
		entry{name: "global/pg_control", body: control()},
	)
}

func buildTar(entries []entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o600, Size: int64(len(e.body))}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := w.Write([]byte(e.body)); err != nil {
			panic(err)
		}
	}
	if err := w.Flush(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func (f *fakeSource) buildManifest() string {
	var b strings.Builder
	b.WriteString("{ \"PostgreSQL-Backup-Manifest-Version\": ")
	if f.major >= 17 {
		fmt.Fprintf(&b, "2,\n\"System-Identifier\": %d,\n\"Files\": [", uint64(fakeSystemID))
	} else {
		b.WriteString("1,\n\"Files\": [")
	}
	sep := "\n"
	add := func(prefix string, list []entry) {
		for _, e := range list {
			if e.kind == 0 {
				sum := sha256.Sum256([]byte(e.body))
				fmt.Fprintf(&b, "%s{ \"Encoded-Path\": %q, \"Size\": %d, \"Last-Modified\": \"2024-01-01 00:00:00 GMT\", \"Checksum-Algorithm\": \"SHA256\", \"Checksum\": \"%x\" }",
					sep, hex.EncodeToString([]byte(prefix+e.name)), len(e.body), sum)
				sep = ",\n"
			}
		}
	}
	add("", f.entries)
	for oid, list := range f.spaces {
		add(fmt.Sprintf("pg_tblspc/%d/", oid), list)
	}
	b.WriteString("\n],\n\"WAL-Ranges\": [\n{ \"Timeline\": 1, \"Start-LSN\": \"0/2000028\", \"End-LSN\": \"0/2000100\" }\n],\n")
	sum := sha256.Sum256([]byte(b.String()))
	fmt.Fprintf(&b, "\"Manifest-Checksum\": \"%x\"}\n", sum)
	return b.String()
}

// start serves one connection; the goroutine has ended when the test has.
func (f *fakeSource) start(t *testing.T) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer server.Close()
		f.serve(server)
	})
	t.Cleanup(func() {
		_ = client.Close()
		wg.Wait()
	})
	return client
}

func (f *fakeSource) serve(conn net.Conn) {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: fmt.Sprintf("%d.4 (Test)", f.major)})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	for {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		msg, err := b.Receive()
		if err != nil {
			return
		}
		q, ok := msg.(*pgproto3.Query)
		if !ok || !f.answer(b, q.String) {
			return
		}
	}
}

func result(b *pgproto3.Backend, rows ...[][]byte) {
	b.Send(&pgproto3.RowDescription{})
	for _, r := range rows {
		b.Send(&pgproto3.DataRow{Values: r})
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT")})
}

func texts(s ...string) [][]byte {
	var out [][]byte
	for _, v := range s {
		out = append(out, []byte(v))
	}
	return out
}

func (f *fakeSource) answer(b *pgproto3.Backend, q string) bool {
	command, _, _ := strings.Cut(q, " ")
	switch command {
	case "IDENTIFY_SYSTEM":
		result(b, texts(fmt.Sprint(uint64(fakeSystemID)), "1", "0/2000000", ""))
	case "SHOW":
		result(b, texts("log"))
	case "CREATE_REPLICATION_SLOT":
		if f.slot != "" {
			b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: duplicateObject, Message: "it exists"})
			return true
		}
		result(b, texts("s", "0/0", "", ""))
	case "READ_REPLICATION_SLOT":
		if f.slot == "dead" {
			result(b, [][]byte{[]byte("physical"), nil, nil})
		} else {
			result(b, texts("physical", "0/1000000", "1"))
		}
	case "BASE_BACKUP":
		return f.backup(b, q)
	default:
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42601", Message: "what is " + command})
	}
	return true
}

func (f *fakeSource) backup(b *pgproto3.Backend, q string) bool {
	tagged := f.major >= 15
	if tagged != strings.HasPrefix(q, "BASE_BACKUP (") {
		b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "42601", Message: "syntax of another version: " + q})
		return true
	}
	result(b, texts("0/2000028", "1"))
	var list [][][]byte
	var oids []uint32
	for oid := range f.spaces {
		list = append(list, texts(fmt.Sprint(oid), fmt.Sprintf("/source/ts%d", oid), "10"))
		oids = append(oids, oid)
	}
	result(b, append(list, [][]byte{nil, nil, []byte("100")})...)
	begin, data, end := f.copier(b, tagged)
	for _, oid := range oids {
		begin('n', fmt.Sprintf("%d.tar", oid))
		data(buildTar(f.spaces[oid]))
		end()
	}
	begin('n', "base.tar")
	main := buildTar(f.entries)
	if f.stream != nil {
		main = f.stream(main)
	}
	if f.hang {
		data(main[:len(main)/2])
		_ = b.Flush()
		_, _ = b.Receive() // until the other side goes away
		return false
	}
	data(main)
	if tagged {
		data(make([]byte, 1024)) // 15 and later end their archives with two empty blocks
	}
	end()
	begin('m', "")
	m := f.buildManifest()
	if f.manifest != nil {
		m = f.manifest(m)
	}
	data([]byte(m))
	end()
	if tagged {
		b.Send(&pgproto3.CopyDone{})
	}
	result(b, texts("0/2000100", "1"))
	if f.late != nil {
		b.Send(f.late)
		return true
	}
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("BASE_BACKUP")})
	return true
}

// copier returns how a part is begun, filled and ended in the version's dialect.
func (f *fakeSource) copier(b *pgproto3.Backend, tagged bool) (begin func(byte, string), data func([]byte), end func()) {
	if tagged {
		b.Send(&pgproto3.CopyOutResponse{})
	}
	begin = func(kind byte, name string) {
		switch {
		case !tagged:
			b.Send(&pgproto3.CopyOutResponse{})
		case kind == 'm':
			b.Send(&pgproto3.CopyData{Data: []byte{'m'}})
		default:
			b.Send(&pgproto3.CopyData{Data: append([]byte{'n'}, name+"\x00\x00"...)})
		}
	}
	data = func(p []byte) {
		for len(p) > 0 {
			n := min(len(p), 32<<10)
			piece := p[:n]
			p = p[n:]
			if tagged {
				piece = append([]byte{'d'}, piece...)
				b.Send(&pgproto3.CopyData{Data: []byte{'p', 0, 0, 0, 0, 0, 0, 0, 1}})
			}
			b.Send(&pgproto3.CopyData{Data: piece})
			if b.Flush() != nil {
				return
			}
		}
	}
	end = func() {
		if !tagged {
			b.Send(&pgproto3.CopyDone{})
		}
	}
	return begin, data, end
}

// options are those of a seeding from f into a new directory.
func (f *fakeSource) options(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	return Options{
		Conn: f.start(t), User: "postgres", Slot: "cot_seed_x", Fast: true,
		Target: filepath.Join(dir, "pgdata"), StateDir: filepath.Join(dir, "state"),
	}
}

func mustNotStart(t *testing.T, o Options) {
	t.Helper()
	if exists(filepath.Join(o.Target, controlName)) {
		t.Error("pg_control is in place: a server could start from this directory")
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

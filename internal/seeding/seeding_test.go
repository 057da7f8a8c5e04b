package seeding

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestRunInEveryDialect(t *testing.T) {
	t.Parallel()
	for _, major := range []int{14, 15, 17, 18} {
		t.Run(fmt.Sprint(major), func(t *testing.T) {
			t.Parallel()
			f := &fakeSource{major: major, entries: cluster(), spaces: map[uint32][]entry{
				16384: {
					{name: fmt.Sprintf("PG_%d_2022/", major), kind: tar.TypeDir},
					{name: fmt.Sprintf("PG_%d_2022/5", major), body: "in a tablespace"},
				},
			}}
			o := f.options(t)
			place := filepath.Join(t.TempDir(), "a space\\here")
			o.TablespaceMap = func(oid uint32, location string) (string, error) {
				if oid != 16384 || location != "/source/ts16384" {
					t.Errorf("asked about tablespace %d at %s", oid, location)
				}
				return place, nil
			}
			o.NodeFiles = func(id ag.CopyID) map[string][]byte {
				return map[string][]byte{"coterie.copy": []byte(id), "postgresql.conf": []byte("# of this node\n")}
			}
			var phases []string
			o.Progress = func(p Progress) {
				if !slices.Contains(phases, p.Phase) {
					phases = append(phases, p.Phase)
				}
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if want := (Result{
				SystemID: fmt.Sprint(uint64(fakeSystemID)), Timeline: 1, Start: 0x2000028, End: 0x2000100,
				Bytes: r.Bytes, Files: len(f.buildFiles()), Copy: r.Copy,
			}); r != want || r.Copy == "" {
				t.Errorf("result %+v, want %+v", r, want)
			}
			if want := []string{PhaseCheckpoint, PhasePrepare, PhaseCopy, PhaseVerify, PhaseSync, PhaseDone}; !slices.Equal(phases, want) {
				t.Errorf("phases %q, want %q", phases, want)
			}
			checkCopy(t, o, r, place, major)
		})
	}
}

// buildFiles lists the plain files of the backup.
func (f *fakeSource) buildFiles() (files []string) {
	lists := [][]entry{f.entries}
	for _, l := range f.spaces {
		lists = append(lists, l)
	}
	for _, e := range slices.Concat(lists...) {
		if e.kind == 0 {
			files = append(files, e.name)
		}
	}
	return files
}

func checkCopy(t *testing.T, o Options, r Result, place string, major int) {
	t.Helper()
	if HalfSeeded(o.Target, o.StateDir) {
		t.Error("a finished copy counts as half seeded")
	}
	for name, want := range map[string]string{
		"global/pg_control":    control(),
		"base/1/1259":          strings.Repeat("relation", 20_000),
		"backup_label":         "START WAL LOCATION: 0/2000028\n",
		"standby.signal":       "",
		"postgresql.auto.conf": "# by ALTER SYSTEM\nwork_mem = '8MB'\n",
		"postgresql.conf":      "# of this node\n",
		"coterie.copy":         string(r.Copy),
		"tablespace_map":       "16384 " + strings.ReplaceAll(place, `\`, `\\`) + "\n",
		fmt.Sprintf("pg_tblspc/16384/PG_%d_2022/5", major): "in a tablespace",
	} {
		if got := read(t, o.Target, name); got != want {
			t.Errorf("%s holds %.40q, want %.40q", name, got, want)
		}
	}
	for _, name := range []string{"pg_wal/archive_status", "log", "pg_stat", "pg_replslot"} {
		if st, err := os.Stat(filepath.Join(o.Target, name)); err != nil || !st.IsDir() {
			t.Errorf("directory %s is missing (%v)", name, err)
		}
	}
	for _, name := range []string{"log/postgresql.log", "pg_stat/pgstat.stat", "coterie.d", controlNew, controlOld, "backup_manifest"} {
		if exists(filepath.Join(o.Target, name)) {
			t.Errorf("%s was taken from the source", name)
		}
	}
}

// TestWhatMustNotInstall feeds the receiver what a broken or hostile source could send. None of it may become startable, and
// nothing may appear outside the target.
func TestWhatMustNotInstall(t *testing.T) {
	t.Parallel()
	with := func(e ...entry) func(*fakeSource) {
		return func(f *fakeSource) { f.entries = append(e, f.entries...) }
	}
	for name, c := range map[string]struct {
		spoil func(*fakeSource)
		want  string
	}{
		"absolute path":       {with(entry{name: "/tmp/evil", body: "x"}), "outside the data directory"},
		"parent directory":    {with(entry{name: "../evil", body: "x"}), "outside the data directory"},
		"hidden parent":       {with(entry{name: "base/../../evil", body: "x"}), "outside the data directory"},
		"not clean":           {with(entry{name: "base//1", body: "x"}), "outside the data directory"},
		"the directory":       {with(entry{name: "./", kind: tar.TypeDir}), "outside the data directory"},
		"symbolic link":       {with(entry{name: "base", kind: tar.TypeSymlink, link: "/tmp"}), "neither a file nor a directory"},
		"link in pg_tblspc":   {with(entry{name: "pg_tblspc/1", kind: tar.TypeSymlink, link: "/tmp"}), "neither a file nor a directory"},
		"hard link":           {with(entry{name: "a", kind: tar.TypeLink, link: "b"}), "neither a file nor a directory"},
		"device":              {with(entry{name: "a", kind: tar.TypeChar}), "neither a file nor a directory"},
		"long name":           {with(entry{name: strings.Repeat("n", 300), body: "x"}), "does not send"},
		"name in PAX records": {with(entry{name: strings.Repeat("ü", 60), body: "x"}), "does not send"},
		"file twice":          {with(entry{name: "global/1262", body: "databases"}), "1262"},
		"tmp name taken":      {with(entry{name: "global/", kind: tar.TypeDir}, entry{name: controlNew, body: "x"}), "pg_control"},
		"short pg_control":    {with(entry{name: "global/", kind: tar.TypeDir}, entry{name: controlName, body: "x"}), "not 8192"},
		"file not listed": {func(f *fakeSource) {
			f.stream = func(b []byte) []byte { return append(b, buildTar([]entry{{name: "more", body: "x"}})...) }
		}, "more is not in the manifest"},
		"file missing": {func(f *fakeSource) {
			f.stream = func([]byte) []byte { return buildTar(f.entries[:len(f.entries)-2]) }
		}, "2 of 13 files differ"},
		"changed byte": {func(f *fakeSource) {
			f.stream = func(b []byte) []byte {
				b[bytes.Index(b, []byte("relation"))+5000] ^= 0x10
				return b
			}
		}, "base/1/1259 has another checksum"},
		"changed pg_control": {func(f *fakeSource) {
			f.stream = func(b []byte) []byte { b[len(b)-1] ^= 1; return b }
		}, "global/pg_control has another checksum"},
		"cut archive": {func(f *fakeSource) {
			f.stream = func(b []byte) []byte { return b[:len(b)/2] }
		}, ""},
		"changed manifest": {func(f *fakeSource) {
			f.manifest = func(m string) string { return strings.Replace(m, "GMT", "UTC", 1) }
		}, "its own checksum"},
		"cut manifest": {func(f *fakeSource) {
			f.manifest = func(m string) string { return m[:len(m)/2] }
		}, "not readable"},
		"no backup_label": {func(f *fakeSource) { f.entries = f.entries[1:] }, "no backup_label"},
		"checksum failure at the source": {func(f *fakeSource) {
			f.late = &pgproto3.ErrorResponse{Severity: "ERROR", Code: "XX001", Message: "checksum verification failure during base backup"}
		}, "XX001"},
		"dead slot":  {func(f *fakeSource) { f.slot = "dead" }, "keeps no WAL"},
		"tablespace": {func(f *fakeSource) { f.spaces = map[uint32][]entry{9: nil} }, "say where it goes"},
		"old major":  {func(f *fakeSource) { f.major = 13 }, "needs 14"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, major := range []int{14, 15} {
				f := &fakeSource{major: major, entries: cluster()}
				c.spoil(f)
				if f.slot != "" && major == 14 {
					continue // 14 cannot tell
				}
				o := f.options(t)
				_, err := Run(t.Context(), o)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%d: error %v, want one with %q", major, err, c.want)
				}
				mustNotStart(t, o)
				left, err := os.ReadDir(filepath.Dir(o.Target))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range left {
					if e.Name() != "pgdata" && e.Name() != "state" {
						t.Errorf("%d: %s appeared outside the target", major, e.Name())
					}
				}
			}
		})
	}
}

func TestRetryStartsClean(t *testing.T) {
	t.Parallel()
	f := &fakeSource{major: 15, entries: cluster(), slot: "exists"}
	f.stream = func(b []byte) []byte { return b[:len(b)/2] }
	o := f.options(t)
	if _, err := Run(t.Context(), o); err == nil {
		t.Fatal("half an archive was taken for a backup")
	}
	if !HalfSeeded(o.Target, o.StateDir) {
		t.Error("a broken seeding does not count as half seeded")
	}
	stale := filepath.Join(o.Target, "base", "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.stream = nil
	o.Conn = f.start(t)
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if exists(stale) {
		t.Error("a file of the broken attempt is in the copy")
	}
	if HalfSeeded(o.Target, o.StateDir) {
		t.Error("a finished copy counts as half seeded")
	}
}

// TestJoined hands over a connection whose startup packet somebody else has sent.
func TestJoined(t *testing.T) {
	t.Parallel()
	o := (&fakeSource{major: 15, entries: cluster()}).options(t)
	packet, err := (&pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30,
		Parameters:      map[string]string{"user": "somebody", "replication": "true"},
	}).Encode(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Conn.Write(packet); err != nil {
		t.Fatal(err)
	}
	o.Joined = true
	if _, err := Run(t.Context(), o); err != nil {
		t.Error(err)
	}
}

func TestRunRefusesAnotherCluster(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, target string){
		"system identifier": func(t *testing.T, target string) {
			writeFile(t, filepath.Join(target, controlName), "12345678 of another")
		},
		"major version": func(t *testing.T, target string) { writeFile(t, filepath.Join(target, "PG_VERSION"), "14\n") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := (&fakeSource{major: 15, entries: cluster()}).options(t)
			writeCluster(t, o.Target)
			change(t, o.Target)
			if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "empty it yourself") {
				t.Errorf("error %v", err)
			}
			if !exists(filepath.Join(o.Target, controlName)) || !exists(filepath.Join(o.Target, "base/1/1259")) {
				t.Error("the other cluster was touched")
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	o := (&fakeSource{major: 15, entries: cluster(), hang: true}).options(t)
	why := errors.New("the role changed")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(p Progress) {
		if p.Phase == PhaseCopy {
			time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		}
	}
	began := time.Now()
	_, err := Run(ctx, o)
	if !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ending took %v", took)
	}
	mustNotStart(t, o)
}

func TestMaxRate(t *testing.T) {
	t.Parallel()
	o := (&fakeSource{major: 15, entries: cluster()}).options(t)
	o.MaxRate = 400_000 // the stream is about 180 kB
	began := time.Now()
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("took %v: the rate was not kept", took)
	}
}

func TestStripAutoConf(t *testing.T) {
	t.Parallel()
	in := "# Do not edit\nwork_mem = '4MB'\nPRIMARY_CONNINFO = 'host=a'\nprimary_slot_name='x'\nrestore_command = 'cp'\n" +
		"synchronous_standby_names = 'ANY 1 (a)'\nrecovery_min_apply_delay = '1h'\nmy.recovery_plan = 'kept'\nrecovery_prefetch 'off'\nsearch_path = 'primary_conninfo'"
	want := "# Do not edit\nwork_mem = '4MB'\nmy.recovery_plan = 'kept'\nsearch_path = 'primary_conninfo'"
	if got := string(stripAutoConf([]byte(in))); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestDiscards(t *testing.T) {
	t.Parallel()
	discard := discards("log")
	for name, want := range map[string]bool{
		"base/1/1259": false, "pg_wal/000000010000000000000001": true, "pg_stat/pgstat.stat": true, "pg_stat": false,
		"log/a": true, "logs/a": false, "coterie.copy": true, "base/5/pg_internal.init.99": true, "base/pgsql_tmp/x": false,
		"base/pgsql_tmp": true, "postmaster.pid": true, "standby.signal": true, "global/pg_filenode.map": false,
		"pg_hba.conf": false, "pg_logical/replorigin_checkpoint": false, "server.key": false,
	} {
		if got := discard(name); got != want {
			t.Errorf("discard(%s) = %v", name, got)
		}
	}
	if discards("base")("base/1/1259") || discards(".")("PG_VERSION") || discards("../x")("PG_VERSION") {
		t.Error("a log_directory hides data")
	}
	if !discards("pg_log")("pg_log/a") {
		t.Error("pg_log is taken")
	}
}

package pgserver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// instance returns the server of a new node directory without a data directory, and its log.
func instance(t *testing.T) (*Instance, *bytes.Buffer) {
	t.Helper()
	l := config.Layout{Dir: t.TempDir(), Run: t.TempDir()}
	if err := os.Mkdir(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	return &Instance{
		Instance: postgres.New(postgres.Config{PGData: l.Data(), StateDir: l.State(), LogDir: l.Log(), SocketDir: l.Sockets(), Logger: slog.New(slog.DiscardHandler)}),
		Layout:   l, Self: "n1", Log: slog.New(slog.NewTextHandler(&log, nil)),
	}, &log
}

// place writes a file below the data directory.
func place(t *testing.T, i *Instance, name string, text []byte) {
	t.Helper()
	path := filepath.Join(i.data(), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// inState writes a file of the state directory.
func inState(t *testing.T, i *Instance, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(i.Layout.State(), name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// elsewhere is the mark of a copy on a file system that is not mounted.
const elsewhere = `{"mount_point":"/nowhere"}`

func control(id uint64) []byte { return binary.NativeEndian.AppendUint64(nil, id) }

// TestData checks what counts as no data at all: only a directory that is missing or empty, since a copy is made there.
func TestData(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		make func(i *Instance)
		want ag.DataState
		says string
	}{
		{"no directory", func(*Instance) {}, ag.DataEmpty, ""},
		{"an empty one", func(i *Instance) { place(t, i, "x", nil); _ = os.Remove(filepath.Join(i.data(), "x")) }, ag.DataEmpty, ""},
		{"the group's cluster", func(i *Instance) { place(t, i, "global/pg_control", control(7)) }, ag.DataPresent, ""},
		{"another cluster", func(i *Instance) { place(t, i, "global/pg_control", control(8)) }, ag.DataForeign, "system identifier 8; the group's is 7"},
		{"a pg_control that is cut short", func(i *Instance) { place(t, i, "global/pg_control", []byte("abc")) }, ag.DataForeign, "read the system identifier"},
		{"files of somebody", func(i *Instance) { place(t, i, "precious.txt", []byte("x")) }, ag.DataForeign, "there are files in it"},
		{"a copy under way", func(i *Instance) { place(t, i, "global/pg_control.coterie-tmp", control(7)) }, ag.DataPartial, ""},
		{"a file system that is not mounted", func(i *Instance) { inState(t, i, "data-mount.json", elsewhere) }, ag.DataForeign, "/nowhere"},
		{"one on which a copy is under way", func(i *Instance) {
			inState(t, i, "data-mount.json", elsewhere)
			inState(t, i, "seeding.json", `{"target":"`+i.data()+`"}`)
		}, ag.DataForeign, "/nowhere"},
		{"one on which a rewind is under way", func(i *Instance) {
			inState(t, i, "data-mount.json", elsewhere)
			inState(t, i, "rewinding.json", "{}")
		}, ag.DataForeign, "/nowhere"},
		{"a copy under way where none was before", func(i *Instance) {
			inState(t, i, "data-mount.json", elsewhere)
			place(t, i, "global/pg_control.reseeding", control(7))
		}, ag.DataPartial, ""},
	} {
		i, log := instance(t)
		i.GroupSystemID = func() string { return "7" }
		tt.make(i)
		if got := i.Data(); got != tt.want || !strings.Contains(log.String(), tt.says) {
			t.Errorf("%s: %s, logged %q; want %s, %q", tt.name, got, log.String(), tt.want, tt.says)
		}
		before := log.Len()
		if i.Data(); log.Len() != before {
			t.Errorf("%s: the same is logged again: %s", tt.name, log.String())
		}
	}
	i, _ := instance(t)
	place(t, i, "global/pg_control", control(8))
	for _, group := range []func() string{nil, func() string { return "" }} { // before the group has an identifier, any cluster will do
		if i.GroupSystemID = group; i.Data() != ag.DataPresent {
			t.Errorf("a cluster where none is known: %s", i.Data())
		}
	}
}

// TestForeignIsLoggedOnceMore checks that a reason that comes back after the data was right is logged again.
func TestForeignIsLoggedOnceMore(t *testing.T) {
	t.Parallel()
	i, log := instance(t)
	i.GroupSystemID = func() string { return "7" }
	for range 2 {
		place(t, i, "global/pg_control", control(8))
		i.Data()
		place(t, i, "global/pg_control", control(7))
		i.Data()
	}
	if n := strings.Count(log.String(), "left alone"); n != 2 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

func TestCopyID(t *testing.T) {
	t.Parallel()
	i, _ := instance(t)
	if _, err := i.InsideCopy(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a data directory: %v", err)
	}
	if err := i.WriteCopy("c1"); err == nil {
		t.Error("an id was written where no data directory is")
	}
	place(t, i, "x", nil)
	if err := i.WriteCopy("c1"); err != nil {
		t.Fatal(err)
	}
	if id, err := i.InsideCopy(); id != "c1" || err != nil {
		t.Errorf("%q, %v", id, err)
	}
}

// TestObservation checks the setting as members and their epoch. One that is not the group's must not look as if it
// was: an agent would take commits for protected.
func TestObservation(t *testing.T) {
	t.Parallel()
	name := settings.Application
	for _, tt := range []struct {
		names string
		n     int
		p     []ag.ReplicaID
		epoch ag.Epoch
	}{
		{"", 0, nil, 0},
		{`ANY 1 ("` + name("n2", 3) + `", "` + name("n3", 3) + `")`, 1, []ag.ReplicaID{"n2", "n3"}, 3},
		{`ANY 1 ("` + name("n2", 3) + `", "` + name("n3", 4) + `")`, 1, []ag.ReplicaID{"n2", "n3"}, 0},
		{`ANY 1 ("` + name("n2", 3) + `", somebody)`, 1, []ag.ReplicaID{"n2", "somebody"}, 0},
		{`ANY 1 (somebody, "` + name("n2", 3) + `")`, 1, []ag.ReplicaID{"somebody", "n2"}, 0},
		{"ANY (", -1, nil, 0},
	} {
		i, _ := instance(t)
		o := i.observation(postgres.Observation{SyncNames: tt.names, InRecovery: true})
		if o.N != tt.n || !slices.Equal(o.P, tt.p) || o.SyncEpoch != tt.epoch || o.Written != nil {
			t.Errorf("%q: %d of %v in epoch %d, written %v; want %d of %v in %d", tt.names, o.N, o.P, o.SyncEpoch, o.Written, tt.n, tt.p, tt.epoch)
		}
	}
}

// TestObservationOfAStandby checks that a walreceiver on a newer timeline is believed, and on an older one is not.
func TestObservationOfAStandby(t *testing.T) {
	t.Parallel()
	for received, want := range map[ag.Timeline]ag.Timeline{0: 3, 2: 3, 3: 3, 4: 4} {
		i, _ := instance(t)
		o := i.observation(postgres.Observation{InRecovery: true, Timeline: 3, Flush: 0x100, Receive: 0x100, WalReceiver: &postgres.WalReceiver{ReceivedTLI: received}})
		if o.Flushed != (ag.Position{Timeline: want, LSN: 0x100}) || !o.Receiving || !o.Streamed {
			t.Errorf("received %d: %+v", received, o)
		}
	}
	i, _ := instance(t)
	if o := i.observation(postgres.Observation{InRecovery: true}); o.Receiving || o.Streamed {
		t.Errorf("without a walreceiver: %+v", o)
	}
}

func TestWrittenSync(t *testing.T) {
	t.Parallel()
	ours := `ANY 1 ("` + settings.Application("n2", 3) + `")`
	for _, tt := range []struct {
		text    string
		written bool
		n       int
		p       []ag.ReplicaID
	}{
		{ours, true, 1, []ag.ReplicaID{"n2"}},
		{"", true, 0, nil},
		{ours, false, -1, nil}, // not in the file: the next reload takes it away
		{"somebody", true, -1, nil},
		{"ANY (", true, -1, nil},
	} {
		if got := writtenSync(postgres.Observation{SyncWritten: tt.text, IsWritten: tt.written}); got.N != tt.n || !slices.Equal(got.P, tt.p) {
			t.Errorf("%q, %v: %+v", tt.text, tt.written, got)
		}
	}
}

// TestServerEnv checks that nothing of the administrator's environment reaches the server but what it needs.
func TestServerEnv(t *testing.T) {
	for _, name := range []string{"PGPASSWORD", "PGOPTIONS", "LC_ALL", "LANG"} {
		t.Setenv(name, "secret")
	}
	t.Setenv("TZ", "Europe/Vienna")
	env := serverEnv("/srv/node")
	if !slices.Contains(env, "TZ=Europe/Vienna") || !slices.Contains(env, "LC_ALL=C.UTF-8") || !slices.Contains(env, "COTERIE_NODE=/srv/node") {
		t.Errorf("%q", env)
	}
	for _, e := range env {
		if strings.Contains(e, "secret") {
			t.Errorf("the server gets %s", e)
		}
	}
}

func TestSettingsOf(t *testing.T) {
	t.Parallel()
	found := diagnose.LogSettings{
		Values:   map[string][]string{"logging_collector": {"off", "on"}, "log_destination": {"stderr"}, "lc_messages": {"C"}},
		Defaults: []diagnose.LogDefault{{Of: "role app", Name: "log_min_messages", Value: "panic"}}, Granted: []string{"log_min_messages"},
	}
	s := settingsOf(found, true)
	if !s.Collector || s.Unknown || !slices.Equal(s.Destination, []string{"stderr"}) || len(s.MinMessages) != 0 || !slices.Equal(s.Granted, found.Granted) ||
		!slices.Equal(s.Defaults, []serverlog.Default{{Of: "role app", Name: "log_min_messages", Value: "panic"}}) {
		t.Errorf("%+v", s)
	}
	if s := settingsOf(diagnose.LogSettings{}, false); s.Collector || !s.Unknown {
		t.Errorf("%+v", s)
	}
}

// TestNewInstance checks that a directory without PostgreSQL's programs names the setting and its file.
func TestNewInstance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := NewInstance(config.Config{PostgreSQL: &config.PostgreSQL{BinDir: dir, Data: dir}}, config.Layout{Dir: dir}, nil)
	if err == nil || !strings.Contains(err.Error(), "correct postgresql.bin_dir in "+filepath.Join(dir, config.File)) {
		t.Errorf("%v", err)
	}
}

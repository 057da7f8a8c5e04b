package check

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/etcd/standalone"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// TestMain lets the measurement of the time to fence run this binary as its keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// node returns a fake agent whose node directory has a configuration file with this text.
func node(t *testing.T, configuration string) *clitest.Agent {
	t.Helper()
	a := clitest.NewAgent(t)
	write(t, filepath.Join(a.Layout.Dir, config.File), configuration)
	return a
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// said returns each finding as level and text.
func said(found []Finding) (out []string) {
	for _, f := range found {
		out = append(out, string(f.Level)+" "+f.What)
	}
	return out
}

// TestNoNode checks that every area has the same word for a directory without a node: it is no failure of the check.
func TestNoNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, find := range map[string]func() ([]Finding, error){
		"certificates": func() ([]Finding, error) { return FindCertificates(dir, time.Now()) },
		"group":        func() ([]Finding, error) { return FindGroup(t.Context(), dir) },
		"settings":     func() ([]Finding, error) { return FindSettings(t.Context(), dir) },
		"quorum":       func() ([]Finding, error) { return FindQuorum(t.Context(), dir) },
		"backup":       func() ([]Finding, error) { return FindBackup(t.Context(), dir) },
	} {
		if found, err := find(); err != nil || len(found) != 1 || found[0].Level != OK || !strings.HasPrefix(found[0].What, "there is no node in ") {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
}

// TestNodeThatCannotBeLookedAt checks that a directory in which nobody can say whether there is a node fails every
// area. Only its absence is well.
func TestNodeThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	if err := os.Symlink(config.File, filepath.Join(l.Dir, config.File)); err != nil { // leads to itself
		t.Fatal(err)
	}
	areas := map[string]func() ([]Finding, error){
		"certificates": func() ([]Finding, error) { return FindCertificates(l.Dir, time.Now()) },
		"group":        func() ([]Finding, error) { return FindGroup(t.Context(), l.Dir) },
		"settings":     func() ([]Finding, error) { return FindSettings(t.Context(), l.Dir) },
		"quorum":       func() ([]Finding, error) { return FindQuorum(t.Context(), l.Dir) },
		"backup":       func() ([]Finding, error) { return FindBackup(t.Context(), l.Dir) },
	}
	for name, find := range areas {
		if found, err := find(); err == nil || found != nil {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	if err := os.Remove(filepath.Join(l.Dir, config.File)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(l.Dir, config.File), "")
	if found, err := areas["certificates"](); err != nil || len(found) != 1 || found[0].Level != Problem || found[0].Run == "" {
		t.Errorf("a node without certificates: %+v, %v", found, err)
	}
	if err := os.RemoveAll(l.PKI()); err != nil {
		t.Fatal(err)
	}
	write(t, l.PKI(), "no directory")
	if found, err := areas["certificates"](); err == nil {
		t.Errorf("certificates that cannot be listed: %+v", found)
	}
}

func TestFindGroup(t *testing.T) {
	t.Parallel()
	a := node(t, "")
	a.OnSQL("FROM coterie.problems", []string{"severity", "finding", "run"}, []any{"Critical", "n3 does not answer", "start it"}, []any{"Warning", "n4 has not joined", nil})
	a.OnSQL("FROM coterie.options", []string{"replica", "option", "value"}, []any{"n1", "ENDPOINT_URL", "TCP://127.0.0.1:5022"}, []any{"n2", "ENDPOINT_URL", "TCP://%zz"})
	a.OnSQL("availability_group_listeners", []string{"dns_name"}, []any{"127.0.0.1"})
	a.OnSQL("availability_group_listener_ip_addresses", []string{"ip_address", "state_desc"}, []any{"10.0.0.9", "OFFLINE"})
	a.OnSQL("state = 'FAILED'", []string{"node", "address", "problem"}, []any{"n1", "10.0.1.9/24", "no right; run it by the unit"})
	a.OnSQL("state = 'OFFLINE'", []string{"problem"}, []any{"no device is in 10.0.0.0/24"})
	a.OnSQL("failover_mode <> 'AUTOMATIC' AND NOT suspended", []string{"name", "failover_mode"}, []any{"n2", "MANUAL"})
	a.OnSQL("FROM coterie.failures", []string{"none"})
	found, err := FindGroup(t.Context(), a.Layout.Dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"problem n3 does not answer", "warning n4 has not joined",
		`warning ENDPOINT_URL of n2 is TCP://%zz, which has no address here: parse "TCP://%zz": invalid URL escape "%zz"`,
		"problem n1 does not serve 10.0.1.9/24 of the listener: no right",
		"problem no address of the listener is up: no device is in 10.0.0.0/24",
		"warning the listener's name 127.0.0.1 leads to 127.0.0.1, and the listener is at 10.0.0.9",
		"warning n2 is synchronous, and can never take over by itself (FAILOVER_MODE = MANUAL)",
	}
	if got := said(found); !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, f := range found {
		if f.Why == "" || f.Run == "" {
			t.Errorf("%s: no reason, or nothing to run", f.What)
		}
	}
}

// TestRemovedNodeIsNoDeadGroup holds that a node which was removed is told as that: its group is not called dead, and
// coterie recover, which would make another group of it, is not named.
func TestRemovedNodeIsNoDeadGroup(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	c := config.Config{
		Node: "n3", Kind: "witness", Group: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", GroupName: "shop",
		Endpoint: config.Address{Listen: "127.0.0.1:5022", Advertise: "127.0.0.1:5022"}, HTTP: config.Address{Listen: "127.0.0.1:8008", Advertise: "127.0.0.1:8008"},
	}
	if err := c.Save(a.Layout.Dir); err != nil {
		t.Fatal(err)
	}
	a.SetStatus(api.Status{Node: "n3", Availability: availability.Report{Removed: true, Because: "this node is no member of the group any more"}})
	a.OnSQL("", []string{"none"})
	a.OnSQL("FROM coterie.problems", []string{"severity", "finding", "run"}, []any{"Critical", "this node is no member of the group any more: what it shows is what it saw last", "coterie status on a member of the group"})
	quorum, err := FindQuorum(t.Context(), a.Layout.Dir)
	group, errGroup := FindGroup(t.Context(), a.Layout.Dir)
	if err != nil || errGroup != nil || len(quorum) != 1 || len(group) != 1 {
		t.Fatalf("%+v, %v; %+v, %v", quorum, err, group, errGroup)
	}
	for _, f := range append(quorum, group...) {
		if f.Level != Problem || !strings.HasPrefix(f.What, "this node is no member") || strings.Contains(f.Run, "recover") || !strings.Contains(f.Run, "on a member") || strings.Contains(f.Why, "no service") {
			t.Errorf("%+v", f)
		}
	}
}

func TestFindGroupOfAHealthyOne(t *testing.T) {
	t.Parallel()
	a := node(t, "")
	a.OnSQL("", []string{"none"})
	found, err := FindGroup(t.Context(), a.Layout.Dir)
	if got := said(found); err != nil || !slices.Equal(got, []string{"ok the group takes writes, acknowledges commits, and misses nothing"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestFindGroupDoesNotPraiseWhatItBlames holds that a group in which something is found is not said to miss nothing.
func TestFindGroupDoesNotPraiseWhatItBlames(t *testing.T) {
	t.Parallel()
	a := node(t, "")
	a.OnSQL("", []string{"none"})
	a.OnSQL("state = 'FAILED'", []string{"node", "address", "problem"}, []any{"n1", "10.0.1.9/24", "no right; run it by the unit"})
	found, err := FindGroup(t.Context(), a.Layout.Dir)
	if got := said(found); err != nil || !slices.Equal(got, []string{"problem n1 does not serve 10.0.1.9/24 of the listener: no right"}) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestViewsThatFail checks that a view which does not answer fails the area in words, whichever it is: an area that
// looked at half of the group must not end as if all was well.
func TestViewsThatFail(t *testing.T) {
	t.Parallel()
	areas := map[string]func(dir string) ([]Finding, error){
		"group":    func(dir string) ([]Finding, error) { return FindGroup(t.Context(), dir) },
		"settings": func(dir string) ([]Finding, error) { return FindSettings(t.Context(), dir) },
	}
	for view, area := range map[string]string{
		"FROM coterie.problems": "group", "FROM coterie.failures": "group", "FROM coterie.options": "group", "availability_group_listeners": "group", "listener_ip_addresses": "group",
		"state = 'FAILED'": "group", "state = 'OFFLINE'": "group", "failover_mode <> 'AUTOMATIC'": "group",
		"pending_restart": "settings", "EXISTS (SELECT 1": "settings", "written in": "settings",
	} {
		a := node(t, "")
		a.OnSQL("", []string{"none"})
		a.RefuseSQL(view, console.Error{State: "57P03", Message: "n3 does not answer", Hint: "try again"})
		if found, err := areas[area](a.Layout.Dir); err == nil || err.Error() != "n3 does not answer (try again)" {
			t.Errorf("%s: %+v, %v", view, found, err)
		}
	}
	for name, find := range areas {
		l := clitest.NewNode(t)
		write(t, filepath.Join(l.Dir, config.File), "")
		if _, err := find(l.Dir); err == nil || !strings.Contains(err.Error(), "start it with coterie agent") {
			t.Errorf("%s of a stopped node: %v", name, err)
		}
	}
}

func TestFindSettings(t *testing.T) {
	t.Parallel()
	a := node(t, "")
	a.SetStatus(api.Status{Node: "n1", LogWeakness: "log_destination is syslog; set it to stderr"})
	a.OnSQL("pending_restart", []string{"node", "name", "value", "pending_restart", "source"}, []any{"n1", "max_connections", "200", false, ""},
		[]any{"n2", "max_connections", "100", false, ""}, []any{"n2", "work_mem", "4MB", true, "configuration file"})
	a.OnSQL("EXISTS (SELECT 1", []string{"name", "primary", "known"}, []any{"n1", 1, 1}, []any{"n2", 0, true}, []any{"n3", false, 0})
	a.OnSQL("written in", []string{"name", "value"}, []any{"synchronous_commit of role app", "off"}, []any{"synchronous_commit", "on"})
	found, err := FindSettings(t.Context(), a.Layout.Dir)
	want := []string{
		"warning n3 does not say what its settings are",
		"warning synchronous_commit of role app is off by default",
		"problem max_connections differs: 200 on n1, 100 on n2",
		"warning work_mem of n2 was changed, and the change waits for a restart of its server",
		"warning the log of n1 does not tell of cancelled waits: log_destination is syslog",
	}
	if got := said(found); err != nil || !slices.Equal(got, want) {
		t.Errorf("found\n%s\nwant\n%s\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), err)
	}
	if f := found[len(found)-1]; f.Run != "set it to stderr" {
		t.Errorf("%+v", f)
	}
	a.OnSQL("pending_restart", []string{"none"})
	a.OnSQL("written in", []string{"none"})
	a.OnSQL("EXISTS (SELECT 1", []string{"name", "primary", "known"}, []any{"n1", 1, 1}, []any{"n2", 0, 1})
	a.SetStatus(api.Status{Node: "n1"})
	found, err = FindSettings(t.Context(), a.Layout.Dir)
	if got := said(found); err != nil || !slices.Equal(got, []string{"ok the servers of 2 replicas have the same settings"}) {
		t.Errorf("%q, %v", got, err)
	}
	// A lone server agrees with itself, which says nothing.
	a.OnSQL("EXISTS (SELECT 1", []string{"name", "primary", "known"}, []any{"n1", 1, 1})
	if found, err = FindSettings(t.Context(), a.Layout.Dir); err != nil || len(found) > 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestFindQuorum(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	c := config.Config{
		Node: "w", Kind: "witness", Group: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", GroupName: "shop",
		Endpoint: config.Address{Listen: "127.0.0.1:5022", Advertise: "127.0.0.1:5022"}, HTTP: config.Address{Listen: "127.0.0.1:8008", Advertise: "127.0.0.1:8008"},
	}
	save := func() {
		t.Helper()
		if err := c.Save(l.Dir); err != nil {
			t.Fatal(err)
		}
	}
	save()
	if found, err := FindQuorum(t.Context(), l.Dir); err != nil || !strings.HasPrefix(said(found)[0], "ok the quorum is embedded in the group's nodes; no agent answers here") {
		t.Errorf("embedded: %+v, %v", found, err)
	}
	write(t, filepath.Join(l.Dir, config.File), "node: [")
	if found, err := FindQuorum(t.Context(), l.Dir); err == nil {
		t.Errorf("a configuration that cannot be read: %+v", found)
	}
	if testing.Short() {
		t.Skip("starts an etcd")
	}
	e := standalone.New(t, filepath.Join(t.TempDir(), "etcd"))
	c.Quorum = &config.Quorum{Endpoints: []string{e.Endpoint()}, CA: e.CA, Cert: e.Cert, Key: e.Key}
	save()
	found, err := FindQuorum(t.Context(), l.Dir)
	if err != nil || len(found) != 2 || found[0].Level != Problem || found[0].What != e.Endpoint()+" holds no record of this group" || found[1].What != "the external etcd has 1 voting members" {
		t.Errorf("an etcd of another: %+v, %v", found, err)
	}
	e.Stop()
	found, err = FindQuorum(t.Context(), l.Dir)
	if err != nil || len(found) != 1 || found[0].Level != Problem || !strings.Contains(found[0].Why, "fences itself") {
		t.Errorf("a dead etcd: %+v, %v", found, err)
	}
}

func TestProfileOf(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	if got, err := ProfileOf(l.Dir); got != "" || err != nil {
		t.Errorf("without a node: %q, %v", got, err)
	}
	write(t, filepath.Join(l.Dir, config.File), "")
	if got, err := ProfileOf(l.Dir); got != "" || err == nil {
		t.Errorf("a node that does not have the group's configuration: %q, %v", got, err)
	}
	for text, want := range map[string]string{"": "", "{": "", "{}": "default", `{"profile": "wan"}`: "wan"} {
		write(t, l.GroupFile(), text)
		if got, err := ProfileOf(l.Dir); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	if os.Getuid() != 0 {
		if err := os.Chmod(l.GroupFile(), 0); err != nil {
			t.Fatal(err)
		}
		if got, err := ProfileOf(l.Dir); got != "" || err == nil {
			t.Errorf("a file that may not be read: %s, %v", got, err)
		}
	}
}

// TestWitnessHasNoServer checks that a witness is told nothing of a server's fence and backups, which it does not have.
func TestWitnessHasNoServer(t *testing.T) {
	t.Parallel()
	a := node(t, "node: n3\nkind: witness\ngroup: 3b5ee5a4-4c9c-4b7c-9d7e-2f6f6c6c2c11\ngroup_name: g\nendpoint: {listen: ':5022'}\nhttp: {listen: ':8008'}\n")
	for want, find := range map[string]func() ([]Finding, error){
		"ok a witness has no server that would be fenced":                                                   func() ([]Finding, error) { return FindFence(t.Context(), a.Layout.Dir) },
		"ok a witness holds no data, and makes no backups: coterie check backup on a replica looks at them": func() ([]Finding, error) { return FindBackup(t.Context(), a.Layout.Dir) },
	} {
		if found, err := find(); err != nil || !slices.Equal(said(found), []string{want}) || found[0].Run != "" {
			t.Errorf("%+v, %v, want %s", found, err, want)
		}
	}
}

// TestFindFence measures this host: the first finding tells how long it took, and each profile has one.
func TestFindFence(t *testing.T) {
	if testing.Short() {
		t.Skip("starts hundreds of processes")
	}
	l := clitest.NewNode(t)
	write(t, filepath.Join(l.Dir, config.File), "")
	write(t, l.GroupFile(), `{"profile": "wan"}`)
	found, err := FindFence(t.Context(), l.Dir)
	if err != nil || len(found) != 4 || !strings.HasPrefix(found[0].What, "fencing 200 processes took ") {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, f := range found[1:] {
		if strings.Contains(f.What, "; it is the group's") != strings.Contains(f.What, "profile wan ") {
			t.Errorf("%s", f.What)
		}
	}
	if found, err = FindFence(t.Context(), t.TempDir()); err != nil || len(found) != 4 || !strings.Contains(strings.Join(said(found), "\n"), "; a new group has it") {
		t.Errorf("without a node: %+v, %v", found, err)
	}
}

// TestCertificateThatIsNone checks that a damaged file is a problem, and not an error that hides the other files.
func TestCertificateThatIsNone(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	write(t, filepath.Join(l.PKI(), "node.crt"), "nothing")
	found, err := FindCertificates(l.Dir, time.Now())
	if err != nil || len(found) != 1 || found[0].Level != Problem || !strings.Contains(found[0].What, "node.crt holds no certificate") || found[0].Run == "" {
		t.Errorf("%+v, %v", found, err)
	}
	write(t, filepath.Join(l.PKI(), "node.crt"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	if _, err := FindCertificates(l.Dir, time.Now()); err == nil || !strings.Contains(err.Error(), "node.crt") {
		t.Errorf("bytes that are no certificate: %v", err)
	}
}

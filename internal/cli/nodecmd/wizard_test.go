package nodecmd

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/check"
)

// asked runs the wizard with those answers. It returns the plan and the wizard's output.
func asked(t *testing.T, answers ...string) (plan, string, error) {
	t.Helper()
	var out bytes.Buffer
	w := &wizard{in: bufio.NewScanner(strings.NewReader(strings.Join(answers, "\n") + "\n")), out: &out}
	p, err := w.plan("db1")
	return p, out.String(), err
}

func TestWizard(t *testing.T) {
	p, said, err := asked(
		t, "Sales", "9", "4", "20000", "no", "shop, orders", // name; an invalid level; level, timeout, DB_FAILOVER, databases
		"db2.contoso.com", "", "sync", "yes", "db3", "db_3", "async", "wit", "", "witness", "none", // replicas
		"Sales-L", "1433", "manual",
	)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, "a number from 1 to 5") {
		t.Errorf("a wrong answer was taken: %s", said)
	}
	want := `-- The availability group Sales. First, on db1:  coterie init --no-group
-- then on db1:  coterie member add-token  and on db2.contoso.com:  coterie join TOKEN --name db2
-- then on db1:  coterie member add-token  and on db3:  coterie join TOKEN --name db_3
-- then on db1:  coterie member add-token --role witness  and on wit:  coterie witness TOKEN --name wit
-- then on db1:  coterie sql -f THIS_FILE

CREATE AVAILABILITY GROUP [Sales]
    WITH (FAILURE_CONDITION_LEVEL = 4, HEALTH_CHECK_TIMEOUT = 20000, DB_FAILOVER = OFF)
    FOR DATABASE [shop], [orders]
    REPLICA ON
        N'db1' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC),
        N'db2' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SEEDING_MODE = MANUAL),
        N'db_3' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, SEEDING_MODE = MANUAL),
        N'wit' WITH (AVAILABILITY_MODE = CONFIGURATION_ONLY, FAILOVER_MODE = MANUAL)
    LISTENER N'Sales-L' (PORT = 1433);
ALTER AVAILABILITY GROUP [Sales] JOIN REPLICA ON N'db2' WITH NOWAIT;
ALTER AVAILABILITY GROUP [Sales] JOIN REPLICA ON N'db_3' WITH NOWAIT;
`
	if diff := cmp.Diff(want, p.script()); diff != "" {
		t.Error(diff)
	}
	parts, err := ddl.Split(p.script())
	if err != nil || len(parts) != 3 {
		t.Fatalf("the script is read as %d statements: %v", len(parts), err)
	}
	if found := p.check(); check.Worst(found).Worse(check.Warning) {
		t.Errorf("%+v", found)
	}
}

func TestWizardDefaults(t *testing.T) {
	p, _, err := asked(t, "", "", "", "", "", "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := p.statements(); len(got) != 1 || !strings.Contains(got[0].String(), "CREATE AVAILABILITY GROUP [coterie]") {
		t.Errorf("%v", got)
	}
	if _, _, err := asked(t, "Sales"); !errors.Is(err, errNoAnswer) {
		t.Errorf("answers that end: %v", err)
	}
	p.databases = []string{"coterie"}
	if check.Worst(p.check()) != check.Problem {
		t.Error("the console's name is taken as a database's")
	}
	p, _, err = asked(t, "", "", "", "", "", "db1", "db1", "", "", "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if check.Worst(p.check()) != check.Problem {
		t.Error("one node twice")
	}
}

// TestWizardColours holds that the levels of findings are coloured on a terminal, and that a value which has colours of
// its own has them escaped.
func TestWizardColours(t *testing.T) {
	found := []check.Finding{{Level: check.OK, Area: "group", What: "fine"}, {Level: check.Problem, Area: "h\x1b[5m", What: "bad", Why: "so"}}
	for colours, want := range map[bool]string{
		true:  "  \x1b[32mok      \x1b[0m group: fine\n  \x1b[31mproblem \x1b[0m h\\x1b[5m: bad\n           so\n",
		false: "  ok       group: fine\n  problem  h\\x1b[5m: bad\n           so\n",
	} {
		var out bytes.Buffer
		(&wizard{out: &out, colours: colours}).findings(found)
		if got := out.String(); got != want {
			t.Errorf("%v: %q, want %q", colours, got, want)
		}
	}
}

// TestWizardAsksForAnotherFile holds that a file which cannot be written ends nothing: the answers stay, and another
// one is asked for.
func TestWizardAsksForAnotherFile(t *testing.T) {
	p, _, err := asked(t, "", "", "", "", "", "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "group.sql")
	var out bytes.Buffer
	w := &wizard{in: bufio.NewScanner(strings.NewReader(filepath.Join(path, "none", "x.sql") + "\n" + path + "\n")), out: &out}
	got, err := w.ask("File to write", "group.sql", p.write)
	if text, bad := os.ReadFile(path); err != nil || got != path || bad != nil || string(text) != p.script() || !strings.Contains(out.String(), "may write to") {
		t.Errorf("%q, %v, %v: %s", got, err, bad, out.String())
	}
}

package nodecmd

import (
	"bufio"
	"bytes"
	"errors"
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

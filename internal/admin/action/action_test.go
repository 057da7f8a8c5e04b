package action

import (
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestParse holds which documents are which statements, and that a document that is none, names nothing or says more
// than its change has is refused.
func TestParse(t *testing.T) {
	t.Parallel()
	const alter = "ALTER AVAILABILITY GROUP [g] "
	for _, x := range []struct {
		name, body string
		want       string // "": refused
	}{
		{"failover", `{"to":"n2"}`, alter + "FAILOVER TO N'n2'"},
		{"failover", `{"to":"n'2"}`, alter + "FAILOVER TO N'n''2'"},
		{"failover", `{"to":"n2","allow_data_loss":true,"confirm":"n2"}`, alter + "FORCE_FAILOVER_ALLOW_DATA_LOSS TO N'n2'"},
		{"failover", `{"to":"n2","allow_data_loss":true,"now":true,"confirm":"n2"}`, alter + "FORCE_FAILOVER_ALLOW_DATA_LOSS NOW TO N'n2'"},
		{"failover", `{"to":"n2","allow_data_loss":true,"dry_run":true}`, alter + "FORCE_FAILOVER_ALLOW_DATA_LOSS TO N'n2'"},
		{"failover", `{"to":"n2","allow_data_loss":true}`, ""},
		{"failover", `{"to":"n2","allow_data_loss":true,"confirm":"N2"}`, ""},
		{"failover", `{"to":"n2","now":true}`, ""},
		{"failover", `{"to":""}`, ""},
		{"failover", `{}`, ""},
		{"failover", `null`, ""},
		{"failover", `{"to":"n2"} {"to":"n3"}`, ""},
		{"failover", `{"to":"n2","statement":"DROP AVAILABILITY GROUP [g]"}`, ""},
		{"failover", ``, ""},
		{"suspend", `{"replica":"n2"}`, alter + "SUSPEND REPLICA ON N'n2'"},
		{"suspend", `{"database":"shop] SET HADR OFF --"}`, "ALTER DATABASE [shop]] SET HADR OFF --] SET HADR SUSPEND"},
		{"suspend", `{}`, ""},
		{"suspend", `{"replica":"n2","database":"shop"}`, ""},
		{"resume", `{"database":"shop"}`, "ALTER DATABASE [shop] SET HADR RESUME"},
		{"maintenance", `{"on":true}`, alter + "SET (MAINTENANCE = ON)"},
		{"maintenance", `{"on":false}`, alter + "SET (MAINTENANCE = OFF)"},
		{"maintenance", `{"on":true,"replica":"n2","reason":"OFF) --"}`, alter + "MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = N'OFF) --')"},
		{"maintenance", `{"on":true,"until":"2026-11-26T18:00:00+01:00","reason":"disk"}`, alter + "SET (MAINTENANCE = N'until 2026-11-26T17:00:00Z: disk')"},
		{"maintenance", `{"on":true,"reason":"OFF"}`, ""},
		{"maintenance", `{"on":true,"reason":"off"}`, ""},
		{"maintenance", `{"on":true,"reason":"until tomorrow"}`, ""},
		{"maintenance", `{"on":false,"reason":"x"}`, ""},
		{"maintenance", `{"replica":"n2"}`, ""},
		{"options", `{"options":{"DB_FAILOVER":false,"HEALTH_CHECK_TIMEOUT":20000}}`, alter + "SET (DB_FAILOVER = OFF, HEALTH_CHECK_TIMEOUT = 20000)"},
		{"options", `{"replica":"n2","primary_role":{"ALLOW_CONNECTIONS":"READ_WRITE"}}`, alter + "MODIFY REPLICA ON N'n2' WITH (PRIMARY_ROLE (ALLOW_CONNECTIONS = READ_WRITE))"},
		{"options", `{"options":{"DB_FAILOVER":"OFF, COMMIT_RULE = ALL"}}`, ""},
		{"options", `{"options":{"work_mem":"64MB"}}`, ""},
		{"options", `{"options":{"HEALTH_CHECK_TIMEOUT":1.5}}`, ""},
		{"options", `{"options":{"DB_FAILOVER":null}}`, ""},
		{"options", `{"options":{"MAINTENANCE":"off"}}`, alter + "SET (MAINTENANCE = OFF)"},
		{"options", `{"options":{"MAINTENANCE":"the disk is off"}}`, alter + "SET (MAINTENANCE = N'the disk is off')"},
		{"options", `{"options":{}}`, ""},
		{"options", `{"primary_role":{"ALLOW_CONNECTIONS":"ALL"}}`, ""},
		{"routing", `{"replica":"n1","list":"NONE"}`, alter + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = NONE))"},
		{"routing", `{"replica":"n1","list":[["n2"]]}`, alter + "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (N'n2')))"},
		{"routing", `{"replica":"n1","list":"ANY"}`, ""},
		{"routing", `{"replica":"n1","list":["n2"]}`, ""},
		{"routing", `{"replica":"n1","list":[[]]}`, ""},
		{"routing", `{"list":"NONE"}`, ""},
		{"seed", `{"replica":"n2"}`, alter + "SEED REPLICA ON N'n2'"},
		{"seed", `{}`, ""},
		{"cancel-seed", `{"replica":"n2"}`, alter + "CANCEL SEEDING ON N'n2'"},
		{"remove", `{"replica":"n2","confirm":"n2"}`, alter + "REMOVE REPLICA ON N'n2'"},
		{"remove", `{"replica":"n2"}`, ""},
		{"remove", `{}`, ""},
		{"create", `{"group":"S]","replicas":[{"replica":"n1"}]}`, "CREATE AVAILABILITY GROUP [S]]]\n    FOR REPLICA ON\n        N'n1'"},
		{"create", `{"group":"s"}`, ""},
		{"create", `{"replicas":[{"replica":"n1"}]}`, ""},
		{"create", `{"group":"s","replicas":[{"replica":"n1","statement":"x"}]}`, ""},
		{"join", `{"replica":"n'2"}`, alter + "JOIN REPLICA ON N'n''2'"},
		{"join", `{}`, ""},
		{"sql", `{}`, ""},
	} {
		r, err := Parse(x.name, "g", []byte(x.body))
		switch {
		case err == nil && r.Statement.String() != x.want:
			t.Errorf("%s %s: %s, want %q", x.name, x.body, r.Statement, x.want)
		case err != nil && x.want != "":
			t.Errorf("%s %s: %v", x.name, x.body, err)
		case err != nil && !errors.As(err, new(*ddl.Error)) && !errors.As(err, new(fail.Error)):
			t.Errorf("%s %s: the error is a %T", x.name, x.body, err)
		}
	}
}

// FuzzParse holds that whatever a document has, its statement is one of its own change and of its own group.
func FuzzParse(f *testing.F) {
	for _, name := range Names() {
		f.Add(name, `{"replica":"n2","to":"n2","confirm":"n2","on":true,"reason":"x","options":{"DB_FAILOVER":"OFF"},"list":[["a"]]}`)
	}
	f.Add("create", wholeGroup)
	f.Add("maintenance", `{"on":true,"reason":"') WITH (NOWAIT"}`)
	f.Fuzz(func(t *testing.T, name, body string) {
		r, err := Parse(name, "g", []byte(body))
		if err != nil {
			return
		}
		s := r.Statement
		_, founds := s.Action.(ddl.Create)
		if founds != (name == "create") || s.NoWait || s.Strict || s.Group != "g" && s.Group != "" && !founds || s.Needs() > ddl.MayAdminister || s.Kind() == ddl.KindReport {
			t.Errorf("%s %s: %s", name, body, s)
		}
		again, err := ddl.Parse(s.String())
		if err != nil || !again.Equal(s) {
			t.Errorf("%s %s: %s is read as %s: %v", name, body, s, again, err)
		}
	})
}

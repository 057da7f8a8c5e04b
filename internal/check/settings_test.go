package check

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// TestThePrimaryIsSelected holds that the console takes the second column for a comparison, and not for the name of a
// text: the primary was never known, and a standby that stops replaying was a warning.
func TestThePrimaryIsSelected(t *testing.T) {
	env := dialect.Env{Table: func(_, name string) (string, []dialect.Column, bool) {
		var columns []dialect.Column
		for _, c := range []string{"name", "role", "availability_mode", "join_state", "node"} {
			columns = append(columns, dialect.Column{Name: c, Type: dialect.Type{Kind: dialect.Text}})
		}
		return "coterie", columns, name == "replicas" || name == "settings"
	}}
	query, err := dialect.Translate(t.Context(), serversThatCount, env)
	if err != nil || len(query.Columns) != 3 || query.Columns[1].Type.Kind != dialect.Bit || query.Columns[2].Type.Kind != dialect.Bit {
		t.Errorf("%+v, %v", query, err)
	}
}

func TestJudgeSettings(t *testing.T) {
	on := func(name, a, b, c string) []serverSetting {
		return []serverSetting{{"a", name, a, false, ""}, {"b", name, b, false, ""}, {"c", name, c, false, ""}}
	}
	for _, tt := range []struct {
		all  []serverSetting
		want Level
		says string
	}{
		{nil, OK, ""},
		{on("max_connections", "200", "100", "200"), Problem, "less than the primary a stops replaying: b"},
		{on("max_connections", "100", "100", "200"), Warning, "max_connections differs: 100 on a, 100 on b, 200 on c"},
		{on("max_wal_senders", "20", "20", "9"), Problem, "stops replaying: c"},
		{on("work_mem", "4MB", "64MB", "4MB"), Warning, "work_mem differs"},
		{on("archive_command", "", "cp %p /a", ""), Warning, "nothing on a"},
		{on("shared_preload_libraries", "pg_stat_statements", "", "pg_stat_statements"), Problem, "once another replica leads"},
		{on("collation version of libc", "2.36", "2.36", "2.41"), Problem, "indexes on text"},
		{on("server_version", "15.18", "15.18", "15.17"), Warning, "the primary last"},
		{on("coterie.hba", "1 rule, 12", "1 rule, 12", "2 rules, 34"), Warning, "coterie hba set FILE"},
		{on("coterie.client_ca", "none", "12ab", "12ab"), Warning, "make client_ca in coterie.yaml"},
		{[]serverSetting{{"b", "max_connections", "100", true, "configuration file"}}, Warning, "waits for a restart"},
		{[]serverSetting{{"b", "max_connections", "100", true, "kept while the primary has 100"}}, Warning, "which has to restart first"},
		{[]serverSetting{{"b", "max_connections", "100", true, "kept while there are prepared transactions"}}, Warning, "pg_prepared_xacts"},
	} {
		found := judgeSettings(tt.all, "a")
		text := ""
		for _, f := range found {
			text += f.What + " " + f.Why + " " + f.Run + "\n"
			if f.Run == "" {
				t.Errorf("%q: nothing to run", f.What)
			}
		}
		if Worst(found) != tt.want || !strings.Contains(text, tt.says) {
			t.Errorf("%v: %+v, want %s, %q", tt.all, found, tt.want, tt.says)
		}
	}
	if n := len(judgeSettings(append(on("a", "1", "2", "1"), on("b", "1", "1", "2")...), "a")); n != 2 {
		t.Errorf("%d findings of two settings", n)
	}
}

func TestJudgeReserved(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"synchronous_commit", "on", ""},
		{"synchronous_commit", "remote_apply", ""},
		{"synchronous_commit", "off", "synchronous_commit of every session is off"},
		{"synchronous_commit of role app in database shop", "local", "synchronous_commit of role app in database shop is local"},
		{"synchronous_commit of all roles", "on", ""},
		{"primary_conninfo written in /data/postgresql.auto.conf", "host=x", "primary_conninfo is set in /data/postgresql.auto.conf"},
	} {
		f, bad := judgeReserved(c.name, c.value)
		if bad != (c.want != "") || !strings.HasPrefix(f.What, c.want) || bad && (f.Run == "" || f.Why == "") {
			t.Errorf("%s = %s: %+v", c.name, c.value, f)
		}
	}
}

package catalog

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestEveryColumnHasAMeaning holds that every column of our views has a line in columns.txt, and every line a column.
// A line that several views share is in [shared] once.
func TestEveryColumnHasAMeaning(t *testing.T) {
	meanings := parseMeanings(columnText)
	used := map[string]int{}
	of := map[string][]string{} // the views of a meaning of a column
	for _, v := range views {
		if !v.ours() {
			continue
		}
		for _, c := range v.columns {
			key := v.full() + "." + c.name
			if _, own := meanings[key]; !own {
				key = shared + "." + c.name
			}
			used[key]++
			if c.meaning == "" {
				t.Errorf("%s.%s has no meaning: add it to columns.txt", v.full(), c.name)
			}
			of[c.name+": "+c.meaning] = append(of[c.name+": "+c.meaning], v.full())
			if n := utf8.RuneCountInString(c.meaning); n > 160 || strings.ContainsAny(c.meaning, "|\t") || strings.HasSuffix(c.meaning, ".") {
				t.Errorf("%s.%s: a short phrase without | and without a full stop, please, not %d characters: %s", v.full(), c.name, n, c.meaning)
			}
		}
	}
	for key := range meanings {
		switch n := used[key]; {
		case n == 0:
			t.Errorf("columns.txt has %s, and there is no such column without a line of its own", key)
		case n == 1 && strings.HasPrefix(key, shared+"."):
			t.Errorf("columns.txt has %s, and only one view uses it: it belongs to the view", key)
		}
	}
	lines := 0
	for line := range strings.Lines(columnText) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "[") {
			lines++
		}
	}
	if lines != len(meanings) {
		t.Errorf("columns.txt has %d lines and %d meanings: one is there twice, or has no colon", lines, len(meanings))
	}
}

// unknown changes the facts to those of a node that knows little, and of objects that lack what most have.
func unknown(f *Facts) {
	f.Record.State.Timelines = nil
	f.Group.Options.Databases, f.Group.Replicas[1].HTTP = []string{"gone"}, ""
	f.Availability.Problems[0].Run, f.Availability.Failures[0].Primary = "", ""
	for id, n := range f.Nodes {
		n.Position, n.Streams = ag.Position{}, nil
		n.Seedings = []Seeding{{ID: "x", State: "PENDING", Started: noon}}
		n.Places = []Place{{Address: "/tmp/socket", State: "ONLINE"}}
		if n.Routes != nil {
			n.Routes.ReadList = nil
		}
		n.Backup = &Backup{Enabled: id == "b", Primary: id == "c", Problem: "no answer"}
		f.Nodes[id] = n
	}
	f.Journals = func() map[ag.ReplicaID]Journal {
		return map[ag.ReplicaID]Journal{"a": {Events: []Event{{At: noon, Kind: "link", What: "link with b: cut"}}, Acts: []Act{
			{At: noon, User: "me", Via: "CLI", Operation: "restart", Result: ActDone}, {At: noon, User: "me", Privilege: "superuser", Via: "SQL", Operation: "x", Result: ActDenied, Message: "no"},
		}}}
	}
}

// TestMeaningsHoldForValues asks every view under all changes of the facts that the tests have. A column that is NULL
// says what NULL means, and one that says it is NULL in some of the facts. A code with its word, every word of an
// enumeration, and a value that is always the same, are named.
func TestMeaningsHoldForValues(t *testing.T) {
	all := []func(*Facts){func(*Facts) {}, func(f *Facts) { *f = scriptFacts() }, unknown}
	for _, c := range changes {
		all = append(all, c.change)
	}
	for _, c := range truths {
		all = append(all, c.change)
	}
	seen := map[string]bool{} // columns that were NULL
	for _, self := range []ag.ReplicaID{"a", "b", "w"} {
		for _, change := range all {
			f := demo()
			change(&f)
			f.Self = self
			for _, v := range views {
				for _, row := range v.rows(f) {
					if v.ours() {
						checkMeanings(t, v, row, seen)
					}
				}
			}
			if t.Failed() {
				return // the same again and again
			}
		}
	}
	for _, v := range views {
		for _, c := range v.columns {
			if strings.Contains(c.meaning, "NULL: ") && !c.null && !seen[v.full()+"."+c.name] {
				t.Errorf("%s.%s is never NULL here, and its meaning says when it is: %s", v.full(), c.name, c.meaning)
			}
		}
	}
}

// aWord is a value that is one of an enumeration.
var aWord = regexp.MustCompile(`^[A-Z]{2}[A-Z_ ]*$`)

// anyWord are columns whose words are not in their meaning: names, texts of a user, and lists that are elsewhere.
var anyWord = []string{
	"coterie.options.option", "coterie.options.value", "coterie.continuity.statement", "coterie.sessions.statement", "coterie.events.what", "coterie.audit.operation", "coterie.audit.via",
	"coterie.policies.finding",
	"sys.dm_hadr_automatic_seeding.failure_state_desc", "sys.dm_hadr_physical_seeding_stats.internal_state_desc",
}

func checkMeanings(t *testing.T, v view, row []any, seen map[string]bool) {
	t.Helper()
	for i, c := range v.columns {
		key, value := v.full()+"."+c.name, fmt.Sprint(row[i])
		if c.typ == typeBool {
			value = map[string]string{"0": "false", "1": "true"}[value]
		}
		code, isDesc := strings.CutSuffix(c.name, "_desc")
		switch isDesc = isDesc && i > 0 && v.columns[i-1].name == code; {
		case row[i] == nil:
			if seen[key] = true; !strings.Contains(c.about(), "NULL: ") {
				t.Errorf("%s is NULL, and its meaning does not say when: %s", key, c.meaning)
			}
		case strings.HasPrefix(c.meaning, "always ") && !strings.HasPrefix(c.meaning, "always "+value):
			t.Errorf("%s is %s, and its meaning is: %s", key, value, c.meaning)
		case slices.Contains(anyWord, key):
		case isDesc:
			if pair := fmt.Sprintf("%v %s", row[i-1], value); !strings.Contains(v.columns[i-1].meaning, pair) {
				t.Errorf("the meaning of %s.%s does not have %s: %s", v.full(), code, pair, v.columns[i-1].meaning)
			}
		case aWord.MatchString(value) && !strings.Contains(c.meaning, value):
			t.Errorf("%s is %s, and its meaning does not have it: %s", key, value, c.meaning)
		}
	}
}

// TestMeaningsInTheConsole holds that the console tells the meanings: by a view, and by the comments of PostgreSQL's
// catalog, which psql and graphical tools show.
func TestMeaningsInTheConsole(t *testing.T) {
	f := demo()
	c := open(t, &f)
	for _, tt := range []struct{ query, want string }{
		{"select type, meaning, absent_because from coterie.columns where view_name = 'sys.databases' and column_name = 'is_read_only'", "boolean|whether this node is not the primary|<nil>"},
		{"select meaning, absent_because from coterie.columns where view_name = 'sys.endpoints' and column_name = 'principal_id'", "always NULL: endpoints have no owner|endpoints have no owner"},
		{"select count(*) from coterie.columns where meaning is null", "0"},
		{"select meaning from coterie.columns where view_name = 'coterie.columns' and column_name = 'type'", "type of the column"},
		{"select col_description('sys.databases'::regclass, 10)", "whether this node is not the primary"},
		{"select col_description('sys.databases'::regclass, 99), col_description('pg_catalog.pg_class'::regclass, 1), obj_description(1)", "<nil>|<nil>|<nil>"},
		{"select obj_description('sys.databases'::regclass, 'pg_class')", "The databases of this node's instance."},
		{"select d.description from pg_class c join pg_attribute a on a.attrelid = c.oid join pg_description d on d.objoid = c.oid and d.classoid = 'pg_class'::regclass and d.objsubid = a.attnum where c.relname = 'dm_hadr_cluster' and a.attname = 'cluster_name'", "name of the group"},
	} {
		if got := ask(t, c, tt.query); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.query, got, tt.want)
		}
	}
}

package listener

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// The settings of TestRefusalsByGrammar. Neither matters to a server that does not read its files again.
const (
	settingOfGroup  = "log_min_duration_sample"
	settingOfNobody = "log_temp_files"
	valueOfGroup    = "7" // of settingOfGroup, in the server's file
)

// changeWriter writes statements that change a setting beyond their session, at random: in each spelling that
// PostgreSQL takes, and in some that it does not.
type changeWriter struct {
	*rand.Rand
	odd bool // the listener may refuse it whatever it does, because the text does not tell
}

func (w *changeWriter) of(list ...string) string { return list[w.IntN(len(list))] }

// rarely returns s once in n times.
func (w *changeWriter) rarely(n int, s string) string {
	if w.IntN(n) == 0 {
		return s
	}
	return ""
}

// between returns what may stand between two words.
func (w *changeWriter) between() string {
	s := w.of(" ", "\t", "\n", "\r\n", "\f", "\v", "/* ' */", "/* /* ; */ $$ \" */", "-- ' /*\n", "--\r", "/***/", "/*/ */")
	return s + w.rarely(3, w.of(" ", "/*x*/", "-- \n", "\n\n"))
}

// cased returns a word with letters in random cases.
func (w *changeWriter) cased(word string) string {
	b := []byte(word)
	for i := range b {
		if w.IntN(3) == 0 {
			b[i] = strings.ToUpper(string(b[i]))[0]
		}
	}
	return string(b)
}

// words joins words with what may stand between them.
func (w *changeWriter) words(list ...string) string {
	var b strings.Builder
	for i, s := range list {
		if i > 0 {
			b.WriteString(w.between())
		}
		b.WriteString(s)
	}
	return b.String()
}

// name returns the name of a setting in some spelling.
func (w *changeWriter) name(of string) string {
	switch w.IntN(6) {
	case 0:
		return `"` + w.cased(of) + `"`
	case 1:
		i := w.IntN(len(of))
		w.odd = true
		return w.of("U", "u") + `&"` + of[:i] + fmt.Sprintf(`\%04x`, of[i]) + of[i+1:] + `"`
	case 2:
		i := w.IntN(len(of))
		w.odd = true
		return w.words(w.of("U", "u")+`&"`+of[:i]+fmt.Sprintf(`!+%06X`, of[i])+of[i+1:]+`"`, w.cased("uescape"), "'!'")
	}
	return w.cased(of)
}

// value returns one of these values in some spelling.
func (w *changeWriter) value(list ...string) string {
	v := w.of(list...)
	if w.IntN(6) == 0 { // no plain value: the listener refuses any
		w.odd = true
		return w.of("'"+v[:1]+"'\n'"+v[1:]+"'", "U&'"+v+"'")
	}
	return w.of(v, "'"+v+"'", `"`+v+`"`, "E'"+v+"'")
}

// system returns an ALTER SYSTEM.
func (w *changeWriter) system() string {
	head := []string{w.cased("alter"), w.cased("system")}
	name := w.name(w.of(settingOfGroup, settingOfGroup, settingOfNobody))
	switch w.IntN(6) {
	case 0:
		return w.words(append(head, w.cased("reset"), name)...)
	case 1:
		return w.words(append(head, w.cased("reset"), w.cased("all"))...)
	case 2:
		return w.words(append(head, w.cased("set"), name, w.cased("to"), w.cased("default"))...)
	}
	return w.words(append(head, w.cased("set"), name, w.of("=", w.cased("to")), w.value("5", "-1", "120"))...)
}

// defaults returns an ALTER ROLE or an ALTER DATABASE.
func (w *changeWriter) defaults() string {
	list := []string{w.cased("alter"), w.cased("database"), w.of("postgres", `"postgres"`)}
	if w.IntN(3) > 0 {
		list = []string{w.cased("alter"), w.cased(w.of("role", "user")), w.of("postgres", `"postgres"`, "current_user", "Session_User", "all")}
		if w.IntN(3) == 0 {
			list = append(list, w.cased("in"), w.cased("database"), "postgres")
		}
	}
	name := w.name(w.of("synchronous_commit", "synchronous_commit", "work_mem"))
	switch w.IntN(8) {
	case 0:
		list = append(list, w.cased("reset"), w.of(name, w.cased("all")))
	case 1:
		list = append(list, w.cased("set"), name, w.cased("from"), w.cased("current"))
		w.odd = true // its value is not in the text
	case 2:
		list = append(list, w.cased("set"), name, w.of("=", w.cased("to")), w.cased("default"))
	default:
		list = append(list, w.cased("set"), name, w.of("=", w.cased("to")), w.value("off", "Off", "local", "remote_write", "false", "no", "0", "on", "remote_apply", "ON"))
	}
	return w.words(list...)
}

// statement returns a statement, between others in some cases.
func (w *changeWriter) statement() string {
	w.odd = false
	if w.IntN(2) == 0 {
		return w.rarely(3, w.between()) + w.rarely(4, ";"+w.between()+";") + w.system() + w.rarely(3, w.between()+";") + w.rarely(6, ";")
	}
	before := w.of("", "", "select 'a'';b';", `select E'\'; alter';`, "select $a$;'$a$;", `select 1 as "x;y";`, "select 1e5-- ;\n;", "select 3/ 2 - -1;", "begin;", ";;", "select $$ $a$ $$;", "select 1 as a$b;", "select '\\';")
	after := w.of("", "", ";", "; select 1", ";commit", "-- ", "/* */")
	if before == "begin;" {
		after = ";commit"
	}
	return before + w.rarely(3, w.between()) + w.defaults() + after
}

// changedSettings reports whether a setting of the group was changed in the server's file, or a default of
// synchronous_commit waits for less than the group. It puts all back.
func changedSettings(t *testing.T, server *pgx.Conn) bool {
	t.Helper()
	file := value[string](t, server, "select coalesce((select setting from pg_file_settings where name = '"+settingOfGroup+"' and sourcefile like '%postgresql.auto.conf'), 'none')")
	weak := value[int](t, server, `select count(*)::int from pg_db_role_setting, unnest(setconfig) s where s ~* '^synchronous_commit=' and split_part(lower(s), '=', 2) not in ('on', 'remote_apply')`)
	for _, s := range []string{
		"alter system set " + settingOfGroup + " = " + valueOfGroup, "alter system reset " + settingOfNobody, "alter role postgres reset all", "alter role all reset all",
		"alter database postgres reset all", "alter role postgres in database postgres reset all", "alter role all in database postgres reset all",
	} {
		if _, err := server.Exec(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	return file != valueOfGroup || weak > 0
}

// answerTo sends pieces of requests and returns the code of the first error, or "". The session may end.
func answerTo(t *testing.T, conn io.ReadWriter, pieces [][]byte) (code, text string) {
	t.Helper()
	for i, p := range pieces {
		if i > 0 {
			time.Sleep(time.Millisecond) // they arrive one by one
		}
		if _, err := conn.Write(p); err != nil {
			break // the session has ended, as the answers tell
		}
	}
	for {
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		switch {
		case err != nil && code == "" && !errors.Is(err, io.EOF):
			t.Fatal(err)
		case err != nil, typ == 'Z':
			return code, text
		case typ == 'E' && code == "":
			code, text = pgwire.ErrorField(body, 'C'), pgwire.ErrorField(body, 'M')
		}
	}
}

// TestRefusalsByGrammar has PostgreSQL execute random statements, directly and through the listener. A statement
// that directly changes a setting of the group, or lowers a default of synchronous_commit, is refused by the listener
// in that spelling, and no other is.
func TestRefusalsByGrammar(t *testing.T) {
	for _, loops := range []int{0, -1} {
		t.Run(map[int]string{0: PathLoop, -1: PathGoroutines}[loops], func(t *testing.T) {
			g := newGroup(t, func(c *Config) {
				trusting(c)
				c.offloadAfter, c.Loops = 1, loops
				c.Reserved = func(name string) (string, bool) { return "do something else", name == settingOfGroup }
			})
			server, err := g.servers["a"].connect(t.Context(), "postgres")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_, _ = server.Exec(context.Background(), "alter system reset "+settingOfGroup)
				_ = server.Close(context.Background())
			})
			changedSettings(t, server)
			var did, refused int
			runScripts(t, 150, func(r *rand.Rand) bool {
				changed, no := refusedAsDirectly(t, g, server, &changeWriter{Rand: r})
				if changed {
					did++
				}
				if no {
					refused++
				}
				return true
			})
			t.Logf("%d statements changed what belongs to the group, %d were refused", did, refused)
			if did < 20 {
				t.Errorf("only %d statements changed anything", did)
			}
		})
	}
}

// refusedAsDirectly executes one random statement both ways. It reports whether it changed what belongs to the group,
// directly, and whether the listener refused it.
func refusedAsDirectly(t *testing.T, g *group, server *pgx.Conn, w *changeWriter) (changed, refused bool) {
	t.Helper()
	sql := w.statement()
	message := query(sql)
	if w.IntN(3) == 0 {
		message = extended(sql)
	}
	session := startup.Message{User: "postgres", Database: "postgres"}
	if w.IntN(4) == 0 && !strings.Contains(sql, `\`) { // a string that ends in a backslash hides what follows it: documented
		session.Settings = append(session.Settings, pgwire.Parameter{Name: "options", Value: "-c standard_conforming_strings=off"})
	}
	a := g.servers["a"]
	own, err := net.Dial("unix", a.dir+"/.s.PGSQL."+cmp.Or(a.port, "5432"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	if _, err := own.Write(session.Packet()); err != nil {
		t.Fatal(err)
	}
	readUntil(t, own, 'Z')
	code, text := answerTo(t, own, [][]byte{message})
	changed = changedSettings(t, server)

	conn := g.begin(session.Packet())
	defer func() { _ = conn.Close() }()
	readUntil(t, conn, 'Z')
	if w.IntN(2) == 0 {
		g.ask(conn, "select 1") // the kernel may relay it now
	}
	pieces := [][]byte{message}
	if w.IntN(3) == 0 {
		at := 1 + w.IntN(len(message)-1)
		pieces = [][]byte{message[:at], message[at:]}
	}
	got, said := answerTo(t, conn, pieces)
	refused = got == "42501" || got == "57P01"
	switch {
	case changedSettings(t, server):
		t.Errorf("%q passed: %s %s", sql, got, said)
	case changed && !refused:
		t.Errorf("%q was answered %s %s, and directly changes a setting of the group", sql, got, said)
	case !changed && code == "" && got != "" && !w.odd:
		t.Errorf("%q was answered %s %s, and directly changes nothing of the group", sql, got, said)
	case code != "" && got == "":
		t.Errorf("%q succeeded, and directly fails with %s %s", sql, code, text)
	}
	return changed, refused
}

package sessionstate

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTrackerFindsNamesAndReasons(t *testing.T) {
	for text, want := range map[string]struct {
		names string
		why   string // a part of it
	}{
		"select 1":                                                     {},
		"select f(1), g (2)":                                           {},
		"set my.tenant = '42'":                                         {names: "my.tenant"},
		"  SET  SESSION  my.Tenant to 42":                              {names: "my.Tenant"},
		"set local my.a.b = 1":                                         {names: "my.a.b"},
		`set "my"."x" = 1`:                                             {names: "my.x"},
		"reset my.x":                                                   {names: "my.x"},
		"reset all; reset work_mem; RESET a.b":                         {names: "a.b"},
		"do $$ begin reset a.b; end $$":                                {names: "a.b"},
		"set work_mem = '1MB'":                                         {},
		"select 1; set a.b = 1; set c.d = 2":                           {names: "a.b c.d"},
		"update t set a.b = 1":                                         {},
		"select set_config('app.user', $1, false)":                     {names: "app.user"},
		"select pg_catalog.set_config ( 'app.user', 'x', true)":        {names: "app.user"},
		`select "set_config"('app.user','x',true)`:                     {names: "app.user"},
		"select set_config('work_mem','1MB',false)":                    {},
		"select set_config('my.' || 'x', $2, false)":                   {why: "set_config"},
		"select set_config($1, $2, false)":                             {why: "set_config"},
		"select set_config/**/('a.b','',false)":                        {why: "comment"},
		"select CURRVAL('s')":                                          {why: "currval"},
		"select lastval()":                                             {why: "lastval"},
		"select setseed(0.5)":                                          {why: "seed"},
		"load 'auto_explain'":                                          {why: "library"},
		"do $$ begin set a.b = 1; end $$":                              {names: "a.b"},
		"do $$ begin perform set_config('a.c','',true); end $$":        {names: "a.c"},
		"/* x */ set a.b = 1":                                          {names: "a.b"},
		"-- x\nset a.b = 1":                                            {names: "a.b"},
		"select dblink_connect('x')":                                   {why: "dblink"},
		"set /* a */ my.x = 1":                                         {names: "my.x"},
		"set session -- a\n my . \"x\" = 1":                            {names: "my.x"},
		`set "my"."odd name" = 1`:                                      {why: "unusual"},
		`set U&"m\0079".x = 1`:                                         {why: "unusual"},
		"\vset\vmy.x = 1":                                              {names: "my.x"},
		"set seed = 0.5":                                               {why: "seed"},
		"select set_config('seed', '0.5', false)":                      {why: "seed"},
		"select set_config -- a\n('my.x', '1', false)":                 {names: "my.x"},
		"select set_config -- a\n-- b\n('my.x', '1', false)":           {names: "my.x"},
		`select U&"s\0065t_config"('my.x', '1', false)`:                {why: "escapes"},
		"select U&\"set!005fconfig\" uescape '!' ('my.x', '1', false)": {why: "escapes"},
		`select U&"s\0065t" from t`:                                    {},
		"select '--', set_config -- a\n('my.x', '1', false)":           {names: "my.x"},
		"select set_config -- -- a\n -- b -- c\n('my.x', 'x', false)":  {names: "my.x"},
		"select 1 where -- setting --\n(a = 1)":                        {},
		"set /* a /* b */ c */ my.x = 1":                               {names: "my.x"},
		"select pg_catalog.pg_backup_start('x')":                       {why: "backup"},
	} {
		var whole Tracker
		whole.Text([]byte(text+"\x00"), true, true)
		check := func(how string, tr *Tracker) {
			t.Helper()
			if got := strings.Join(tr.Names(), " "); got != want.names || (want.why == "") != (tr.Why() == "") || !strings.Contains(tr.Why(), want.why) {
				t.Errorf("%q %s: names %q, why %q", text, how, got, tr.Why())
			}
		}
		check("whole", &whole)
		for cut := range len("name") + 3 { // a Parse has the name before the text
			body := []byte("name\x00" + text + "\x00\x00\x00")
			var parsed Tracker
			parsed.Message('P', body[:cut], true, false)
			parsed.Message('P', body[cut:], false, true)
			check("parsed", &parsed)
		}
	}
}

// A text that arrives in pieces shows no less than it shows whole.
func TestTrackerFollowsPieces(t *testing.T) {
	text := "select 1; " + strings.Repeat(" ", 300) + "select set_config('app.user', 'x', false); set c.d = 1; select currval('s')"
	for cut := 1; cut < len("set my.tenant = 1"); cut++ {
		var tr Tracker
		tr.Text([]byte("set my.tenant = 1")[:cut], true, false)
		tr.Text([]byte("set my.tenant = 1")[cut:], false, true)
		if !slices.Contains(tr.Names(), "my.tenant") {
			t.Fatalf("cut at %d: names %q", cut, tr.Names())
		}
	}
	for cut := 1; cut < len(text); cut++ {
		var tr Tracker
		tr.Text([]byte(text[:cut]), true, false)
		tr.Text([]byte(text[cut:]), false, true)
		if !slices.Contains(tr.Names(), "app.user") || !slices.Contains(tr.Names(), "c.d") {
			if tr.Why() == "" {
				t.Fatalf("cut at %d: names %q", cut, tr.Names())
			}
		}
		if tr.Why() == "" {
			t.Fatalf("cut at %d: currval is not seen", cut)
		}
	}
}

// Space of any length may stand between what belongs together, also where pieces end.
func TestTrackerFollowsGapsBetweenPieces(t *testing.T) {
	for _, text := range []string{"~set my.tenant = 1", "select 1;~set my.tenant = 1", "select set_config~('my.tenant', '', false)", "select set_config--~\n~('my.tenant', '', false)", "select set_config--#\n('my.tenant', '', false)", "select set_config -- #\n--#\n~('my.tenant', '', false)"} {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "~", strings.Repeat(" \t", overlap)), "#", strings.Repeat("x", 2*overlap))
		for _, piece := range []int{1, 7, overlap - 1, overlap, overlap + 1, 2*overlap + 20} {
			var tr Tracker
			for at := 0; at < len(text); at += piece {
				tr.Text([]byte(text)[at:min(at+piece, len(text))], at == 0, at+piece >= len(text))
			}
			if !slices.Contains(tr.Names(), "my.tenant") && tr.Why() == "" {
				t.Errorf("%.20q in pieces of %d: names %q", text, piece, tr.Names())
			}
		}
	}
}

// A function that is called by a message, without a text, is one like another.
func TestTrackerFollowsFunctionCalls(t *testing.T) {
	for number, why := range map[uint32]string{1575: "currval", 2559: "lastval", 1599: "seed", 2078: "set_config", 2172: "backup", 6006: "origin", 952: "", 70_000: ""} {
		var tr Tracker
		tr.Message('F', append(binary.BigEndian.AppendUint32(nil, number), 0, 0, 0, 0, 0, 0), true, false)
		tr.Message('F', []byte{0, 0, 7, 0xcf, 0, 0}, false, true)
		if (tr.Why() == "") != (why == "") || !strings.Contains(tr.Why(), why) {
			t.Errorf("function %d: %q", number, tr.Why())
		}
	}
	var tr Tracker
	if tr.Message('F', []byte{0, 0}, true, false); tr.Why() == "" {
		t.Error("one in parts is not refused")
	}
}

// A setting by which constants are read counts once a statement was prepared.
func TestTrackerNoticesHowConstantsAreRead(t *testing.T) {
	for typ, body := range map[byte]string{'P': "name\x00select 1\x00", 'Q': "prepare p as select 1\x00"} {
		var tr Tracker
		tr.Reported("TimeZone")
		tr.Message('P', []byte("\x00select 1\x00"), true, true)
		tr.Reported("TimeZone")
		if tr.Turned() {
			t.Error("nothing was prepared")
		}
		tr.Message(typ, []byte(body), true, true)
		tr.Reported("application_name")
		if tr.Turned() {
			t.Error("application_name reads no constants")
		}
		if tr.Reported("DateStyle"); !tr.Turned() {
			t.Errorf("%c %q: not noticed", typ, body)
		}
	}
}

func TestTrackerIsBounded(t *testing.T) {
	var tr Tracker
	for i := range 1000 {
		tr.Text([]byte("set a.x"+strings.Repeat("y", i)+" = 1"), true, true)
	}
	if len(tr.Names()) > maxNames || tr.Why() == "" {
		t.Errorf("%d names, why %q", len(tr.Names()), tr.Why())
	}
}

// TestTrackerLooksNoFurtherThanAReason: a session that cannot be moved costs its event loop nothing more, within the
// text of the reason or behind it.
func TestTrackerLooksNoFurtherThanAReason(t *testing.T) {
	for _, text := range []string{"load 'x'; set a.b = 1", "select setseed(1), set_config('a.b', '', false)", "do $$ load 'x'; set a.b = 1 $$"} {
		var tr Tracker
		tr.Text([]byte(text), true, true)
		tr.Text([]byte("set c.d = 1"), true, true)
		if tr.Why() == "" || len(tr.Names()) > 0 {
			t.Errorf("%q: why %q, names %q", text, tr.Why(), tr.Names())
		}
	}
}

// TestTrackerTakesNoLongForAnyText: an event loop follows the texts of its sessions, so none may take it long. These
// took up to twenty seconds.
func TestTrackerTakesNoLongForAnyText(t *testing.T) {
	for _, part := range []string{"--\n", "do;", "do s;", "--;", "set.", "do set.", "set--", "set/*", "set--set\n", "set \" ", "set a.", "(", "\n(", "\"("} {
		for _, text := range []string{strings.Repeat(part, 64<<10/len(part)) + "(", "do " + strings.Repeat(part, 64<<10/len(part))} {
			took := time.Hour
			for i := 0; i < 3 && took > time.Second; i++ { // the machine may have been busy
				var tr Tracker
				began := time.Now()
				tr.Text([]byte(text), true, true)
				took = min(took, time.Since(began))
			}
			if took > time.Second {
				t.Errorf("%d bytes of %q take %v", len(text), text[:10], took)
			}
		}
	}
}

// TestTrackerLooksSoFar: a name that is far from its SET is not searched for, and the session is not moved.
func TestTrackerLooksSoFar(t *testing.T) {
	for text, moves := range map[string]bool{
		"set /*" + strings.Repeat("x", 100) + "*/ a.b = 1":           true,
		"set /*" + strings.Repeat("x", 2*maxSet) + "*/ a.b = 1":      false,
		"set --" + strings.Repeat("x", 2*maxSet) + "\na.b = 1":       false,
		"set a.b /*" + strings.Repeat("x", 2*maxSet) + "*/ = 1":      false,
		"set a.b = '" + strings.Repeat("x", 2*maxSet) + "'":          true,
		"set session a.b to '" + strings.Repeat("x", 2*maxSet) + "'": true,
		"set \"" + strings.Repeat("x", 2*maxSet) + "\".b = 1":        false,
		"set" + strings.Repeat(" ", 2*maxSet) + "a.b = 1":            false,
		"update t set x = '" + strings.Repeat("x", 2*maxSet) + "'":   true,
	} {
		var tr Tracker
		tr.Text([]byte(text), true, true)
		if (tr.Why() == "") != moves {
			t.Errorf("%.30q: why %q", text, tr.Why())
		}
	}
}

func BenchmarkText(b *testing.B) {
	text := []byte("select abalance, coalesce(x, 0) from pgbench_accounts where aid = $1 and exists (select 1 from t where t.id = 3)\x00")
	var tr Tracker
	for b.Loop() {
		tr.Text(text, true, true)
	}
}

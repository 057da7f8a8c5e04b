package listener

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/ag"
)

// message builds a StartupMessage without its length from name, value, name, value ...
func message(pairs ...string) []byte {
	b := binary.BigEndian.AppendUint32(nil, protocol3)
	for _, p := range pairs {
		b = appendCString(b, p)
	}
	return append(b, 0)
}

func TestParseStartup(t *testing.T) {
	long := strings.Repeat("n", 70)
	cases := []struct {
		name, packet string
		check        func(*startup) bool
	}{
		{"database defaults to user", "user u", func(s *startup) bool { return s.database == "u" && s.intent == "" }},
		{"last duplicate wins", "user u user v database a database b", func(s *startup) bool { return s.user == "v" && s.database == "b" }},
		{"duplicate settings in any case", "user u TimeZone a timezone b", func(s *startup) bool {
			return len(s.settings) == 1 && s.settings[0] == setting{"timezone", "b"}
		}},
		{"names are cut", "user " + long, func(s *startup) bool { return len(s.user) == 63 && len(s.database) == 63 }},
		{"names are cut between characters", "user " + strings.Repeat("n", 62) + "ää", func(s *startup) bool { return len(s.user) == 62 }},
		{"suffix", "user u database d@ro", func(s *startup) bool { return s.database == "d" && s.intent == ag.ReadOnly }},
		{"suffix before the cut", "user u database " + strings.Repeat("d", 63) + "@ro", func(s *startup) bool {
			return s.database == strings.Repeat("d", 63) && s.intent == ag.ReadOnly
		}},
		{"our settings are taken out", "user u coterie.client_addr x Coterie.TLS y coterie.suffix on", func(s *startup) bool { return len(s.settings) == 0 && s.intent == "" }},
		{"direct wins over options", "user u options -c\tcoterie.intent=READ_ONLY coterie.intent READ_WRITE", func(s *startup) bool { return s.intent == ag.ReadWrite }},
		{"last replication wins", "user u replication true replication off", func(s *startup) bool { return s.replication == replicationNone }},
		{"logical", "user u replication database", func(s *startup) bool { return s.replication == replicationLogical }},
		{"unknown protocol options", "user u _pq_.x 1", func(s *startup) bool { return len(s.unknown) == 1 && len(s.settings) == 0 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, bad := parseStartup(message(strings.Split(c.packet, " ")...))
			if bad != nil {
				t.Fatal(bad)
			}
			if !c.check(s) {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestParseStartupRefuses(t *testing.T) {
	cases := []struct {
		name   string
		packet []byte
		state  string
	}{
		{"no user", message("database", "d"), "28000"},
		{"empty user", message("user", ""), "28000"},
		{"no terminator", message("user", "u")[:10], "08P01"},
		{"value missing", append(message("user", "u")[:11], "x\x00"...), "08P01"},
		{"NUL in the middle", append(message("user", "u"), message("user", "postgres")[4:]...), "08P01"},
		{"not UTF-8", message("user", "\xff"), "22021"},
		{"setting not UTF-8", message("user", "u", "application_name", "\xc3"), "22021"},
		{"protocol 2", append([]byte{0, 2, 0, 0}, message("user", "u")[4:]...), "0A000"},
		{"second SSLRequest", binary.BigEndian.AppendUint32(nil, codeSSL), "0A000"},
		{"replication", message("user", "u", "replication", "o"), "22023"},
		{"intent", message("user", "u", "ApplicationIntent", "sometimes"), "22023"},
		{"empty option name", message("user", "u", "options", "-c="), "42601"},
		{"empty option name, two words", message("user", "u", "options", "-c =x"), "42601"},
		{"option without value", message("user", "u", "options", "-c"), "42601"},
		{"option without =", message("user", "u", "options", "--work_mem"), "42601"},
		{"bundled switches", message("user", "u", "options", "-ec coterie.client_addr=x"), "0A000"},
		{"User in capitals", message("user", "u", "USER", "postgres"), "42704"},
		{"User in options", message("user", "u", "options", "--User=postgres"), "42704"},
		{"user in options", message("user", "u", "options", "-c user=postgres"), "42704"},
		{"replication in options", message("user", "u", "options", "--replication=true"), "42704"},
		{"end of switches", message("user", "u", "options", "-- -c a=b"), "42601"},
		{"a bare word", message("user", "u", "options", "postgres"), "0A000"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, bad := parseStartup(c.packet)
			if bad == nil {
				t.Fatalf("accepted: %+v", s)
			}
			if bad.code != c.state {
				t.Errorf("%v, want %s", bad, c.state)
			}
		})
	}
}

func TestSplitOptions(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		"  -c  a=b ":                "-c|a=b",
		`-c my.x=4\ 2 -c y=\\`:      `-c|my.x=4 2|-c|y=\`,
		"-c\ta=b\n--c=d":            "-c|a=b|--c=d",
		`trailing\`:                 "trailing",
		"\v-c\fx=1\r":               "-c|x=1",
		`-c search_path=\"A\ b\",c`: `-c|search_path="A b",c`,
	} {
		if got := strings.Join(splitOptions(in), "|"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestParseBool(t *testing.T) {
	for in, want := range map[string]string{
		"t": "on", "TRU": "on", "true": "on", "y": "on", "Yes": "on", "on": "on", "1": "on",
		"f": "off", "false": "off", "n": "off", "NO": "off", "of": "off", "OFF": "off", "0": "off",
		"o": "bad", "": "bad", "truee": "bad", "2": "bad", "database": "bad", "ok": "bad",
	} {
		on, ok := parseBool(in)
		got := "bad"
		if ok {
			got = map[bool]string{true: "on", false: "off"}[on]
		}
		if got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}

// What is built for PostgreSQL reads back as itself: there is no second meaning to find in it.
func checkRebuilt(t *testing.T, s *startup) {
	t.Helper()
	packet := s.packet(setting{"coterie.intent", "READ_WRITE"})
	if int(binary.BigEndian.Uint32(packet)) != len(packet) {
		t.Fatalf("length of %q", packet)
	}
	params, bad := splitParameters(packet[8:])
	if bad != nil {
		t.Fatalf("rebuilt packet: %v", bad)
	}
	seen := make(map[string]bool)
	for _, p := range params {
		name := strings.ToLower(p.name)
		if seen[name] || name == "options" || strings.HasPrefix(name, "_pq_.") {
			t.Fatalf("%q twice or not allowed in %q", name, packet)
		}
		seen[name] = true
		switch {
		case name == "user" && p.value != s.user, name == "database" && p.value != s.database,
			name == "replication" && p.value != "database",
			strings.HasPrefix(name, "coterie.") && p.name != "coterie.intent":
			t.Fatalf("%q has become %q in %q", p.name, p.value, packet)
		}
	}
	if len(s.user) > maxName || len(s.database) > maxName || !utf8.ValidString(s.user) {
		t.Fatalf("names %q, %q", s.user, s.database)
	}
}

func FuzzStartup(f *testing.F) {
	f.Add(message("user", "u", "database", "d@ro", "options", `-c a=b --c=d\ e`))
	f.Add(message("user", "u", "USER", "postgres", "Database", "x", "replication", "t"))
	f.Add(message("user", "u", "options", "-c=", "options", "-c"))
	f.Add(message("user", strings.Repeat("ä", 40), "coterie.intent", "READ_ONLY"))
	f.Add(append(message("user", "u"), message("user", "v")[4:]...))
	f.Add([]byte{0, 3, 0, 2, 0})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) < 4 || len(packet) > 9996 {
			return
		}
		if s, bad := parseStartup(packet); bad == nil {
			checkRebuilt(t, s)
		} else if bad.code == "" || len(bad.encode()) > 16<<10 {
			t.Fatalf("%+v", bad)
		}
	})
}

func FuzzOptions(f *testing.F) {
	for _, s := range []string{"-c a=b", "-c=", "-c", "--a-b=c d", `-c x=\`, "-c user=postgres", `--coterie.intent=x\ y`, "-ec a=b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, options string) {
		list, bad := parseOptions(options)
		if bad != nil {
			return
		}
		for _, p := range list {
			if p.name == "" || reserved(p.name) || strings.Contains(p.name, "-") {
				t.Fatalf("%q gave %q", options, p)
			}
		}
	})
}

func FuzzFramer(f *testing.F) {
	f.Add([]byte{'Z', 0, 0, 0, 5, 'I', 'D', 0, 0, 0, 4}, 3)
	f.Add([]byte{'D', 0xff, 0xff, 0xff, 0xff, 0}, 1)
	f.Add([]byte{'E', 0, 0, 0, 3}, 2)
	f.Add([]byte{'D', 0, 1, 0, 4, 'Q', 0, 0, 0, 4}, 2)             // a length that sixteen bits cut to four
	f.Add([]byte{'d', 0x7f, 0xff, 0xff, 0xff, 'Q', 0, 0, 0, 4}, 4) // the next message is the body of this one (CVE-2024-27304)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		var whole, pieces [][]byte
		note := func(to *[][]byte) func(byte, []byte) {
			return func(typ byte, body []byte) { *to = append(*to, append([]byte{typ}, body...)) }
		}
		var a, b framer
		errA := a.scan(stream, note(&whole))
		var errB error
		size = max(1, size&0xff)
		for rest := stream; len(rest) > 0 && errB == nil; rest = rest[min(size, len(rest)):] {
			errB = b.scan(rest[:min(size, len(rest))], note(&pieces))
		}
		if (errA == nil) != (errB == nil) || len(whole) != len(pieces) {
			t.Fatalf("whole %d messages, %v; in pieces %d, %v", len(whole), errA, len(pieces), errB)
		}
		for i := range whole {
			if !bytes.Equal(whole[i], pieces[i]) {
				t.Fatalf("message %d differs", i)
			}
		}
		if errA == nil && a.atBoundary() != b.atBoundary() {
			t.Fatal("boundary differs")
		}
	})
}

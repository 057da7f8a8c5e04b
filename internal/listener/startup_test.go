package listener

import (
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// message builds a StartupMessage without its length from name, value, name, value ...
func message(pairs ...string) []byte {
	b := binary.BigEndian.AppendUint32(nil, pgwire.Protocol3)
	for _, p := range pairs {
		b = pgwire.AppendCString(b, p)
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
			return len(s.settings) == 1 && s.settings[0] == pgwire.Parameter{Name: "timezone", Value: "b"}
		}},
		{"names are cut", "user " + long, func(s *startup) bool { return len(s.user) == 63 && len(s.database) == 63 }},
		{"names are cut between characters", "user " + strings.Repeat("n", 62) + "ää", func(s *startup) bool { return len(s.user) == 62 }},
		{"suffix", "user u database d@ro", func(s *startup) bool { return s.database == "d" && s.intent == ag.ReadOnly }},
		{"suffix before the cut", "user u database " + strings.Repeat("d", 63) + "@ro", func(s *startup) bool {
			return s.database == strings.Repeat("d", 63) && s.intent == ag.ReadOnly
		}},
		{"our settings are taken out", "user u coterie.client_addr x Coterie.TLS y coterie.suffix on", func(s *startup) bool { return len(s.settings) == 0 && s.intent == "" }},
		{"direct wins over options", "user u options -c\tcoterie.intent=READ_ONLY coterie.intent READ_WRITE", func(s *startup) bool { return s.intent == ag.ReadWrite }},
		{"last replication wins", "user u replication true replication off", func(s *startup) bool { return s.replication == pgwire.ReplicationNone }},
		{"logical", "user u replication database", func(s *startup) bool { return s.replication == pgwire.ReplicationLogical }},
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
		{"second SSLRequest", binary.BigEndian.AppendUint32(nil, pgwire.SSLRequest), "0A000"},
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
			if bad.Code != c.state {
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

// What is built for PostgreSQL reads back as itself: there is no second meaning to find in it.
func checkRebuilt(t *testing.T, s *startup) {
	t.Helper()
	packet := s.packet(pgwire.Parameter{Name: "coterie.intent", Value: "READ_WRITE"})
	if int(binary.BigEndian.Uint32(packet)) != len(packet) {
		t.Fatalf("length of %q", packet)
	}
	params, bad := pgwire.SplitParameters(packet[8:])
	if bad != nil {
		t.Fatalf("rebuilt packet: %v", bad)
	}
	seen := make(map[string]bool)
	for _, p := range params {
		name := strings.ToLower(p.Name)
		if seen[name] || name == "options" || strings.HasPrefix(name, "_pq_.") {
			t.Fatalf("%q twice or not allowed in %q", name, packet)
		}
		seen[name] = true
		switch {
		case name == "user" && p.Value != s.user, name == "database" && p.Value != s.database,
			name == "replication" && p.Value != "database",
			strings.HasPrefix(name, "coterie.") && p.Name != "coterie.intent":
			t.Fatalf("%q has become %q in %q", p.Name, p.Value, packet)
		}
	}
	if len(s.user) > pgwire.MaxName || len(s.database) > pgwire.MaxName || !utf8.ValidString(s.user) {
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
		} else if bad.Code == "" || len(bad.Encode()) > 16<<10 {
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
			if p.Name == "" || reserved(p.Name) || strings.Contains(p.Name, "-") {
				t.Fatalf("%q gave %q", options, p)
			}
		}
	})
}

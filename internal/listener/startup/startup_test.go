package startup

import (
	"encoding/binary"
	"strconv"
	"strings"
	"testing"
	"time"
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
		check        func(*Message) bool
	}{
		{"database defaults to user", "user u", func(s *Message) bool { return s.Database == "u" && s.Intent == "" }},
		{"last duplicate wins", "user u user v database a database b", func(s *Message) bool { return s.User == "v" && s.Database == "b" }},
		{"duplicate settings in any case", "user u TimeZone a timezone b", func(s *Message) bool {
			return len(s.Settings) == 1 && s.Settings[0] == pgwire.Parameter{Name: "timezone", Value: "b"}
		}},
		{"names are cut", "user " + long, func(s *Message) bool { return len(s.User) == 63 && len(s.Database) == 63 }},
		{"names are cut between characters", "user " + strings.Repeat("n", 62) + "ää", func(s *Message) bool { return len(s.User) == 62 }},
		{"suffix", "user u database d@ro", func(s *Message) bool { return s.Database == "d" && s.Intent == ag.ReadOnly }},
		{"suffix before the cut", "user u database " + strings.Repeat("d", 63) + "@ro", func(s *Message) bool {
			return s.Database == strings.Repeat("d", 63) && s.Intent == ag.ReadOnly
		}},
		{"our settings are taken out", "user u coterie.client_addr x Coterie.TLS y coterie.suffix on", func(s *Message) bool { return len(s.Settings) == 0 && s.Intent == "" }},
		{"direct wins over options", "user u options -c\tcoterie.intent=READ_ONLY coterie.intent READ_WRITE", func(s *Message) bool { return s.Intent == ag.ReadWrite }},
		{"last replication wins", "user u replication true replication off", func(s *Message) bool { return s.Replication == pgwire.ReplicationNone }},
		{"logical", "user u replication database", func(s *Message) bool { return s.Replication == pgwire.ReplicationLogical }},
		{"unknown protocol options", "user u _pq_.x 1", func(s *Message) bool { return len(s.Unknown) == 1 && len(s.Settings) == 0 }},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, bad := Parse(message(strings.Split(c.packet, " ")...))
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
			s, bad := Parse(c.packet)
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

// The packet that is built for PostgreSQL reads back as itself: it has no second meaning.
func checkRebuilt(t *testing.T, s *Message) {
	t.Helper()
	packet := s.Packet(pgwire.Parameter{Name: "coterie.intent", Value: "READ_WRITE"})
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
		case name == "user" && p.Value != s.User, name == "database" && p.Value != s.Database,
			name == "replication" && p.Value != map[pgwire.Replication]string{pgwire.ReplicationLogical: "database", pgwire.ReplicationPhysical: "true"}[s.Replication],
			strings.HasPrefix(name, "coterie.") && p.Name != "coterie.intent":
			t.Fatalf("%q has become %q in %q", p.Name, p.Value, packet)
		}
	}
	if len(s.User) > pgwire.MaxName || len(s.Database) > pgwire.MaxName || !utf8.ValidString(s.User) {
		t.Fatalf("names %q, %q", s.User, s.Database)
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
		if s, bad := Parse(packet); bad == nil {
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

func TestParseLag(t *testing.T) {
	for _, text := range []string{"", "0", "-1s", "x", "5 fortnights", "2d", "nan", "inf", "1e300d", "0.0000001us"} {
		if d, bad := ParseLag(pgwire.Parameter{Name: "coterie.max_lag", Value: text}); bad == nil {
			t.Errorf("%q is %v", text, d)
		} else if bad.Code != pgwire.StateInvalidValue || bad.Hint == "" {
			t.Errorf("%q: %v", text, bad)
		}
	}
	for text, want := range map[string]time.Duration{"1": time.Millisecond, "500 ms": 500 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "2min": 2 * time.Minute, " 1d ": 24 * time.Hour} {
		if d, bad := ParseLag(pgwire.Parameter{Name: "coterie.max_lag", Value: text}); bad != nil || d != want {
			t.Errorf("%q: %v %v", text, d, bad)
		}
	}
}

// TestManyParameters holds that a startup packet costs little, whatever a client without a password puts in it.
func TestManyParameters(t *testing.T) {
	var many []string
	for i := range 2171 {
		many = append(many, strconv.FormatInt(int64(i), 36), "")
	}
	packet := message(append([]string{"user", "u"}, many...)...)
	fastest := time.Hour
	for range 20 {
		began := time.Now()
		if _, bad := Parse(packet); bad == nil || bad.Code != pgwire.StateLimit {
			t.Fatalf("%d parameters: %v", len(many)/2, bad)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > time.Millisecond {
		t.Errorf("a packet of %d bytes takes %v", len(packet), fastest)
	}
	atMost := append([]string{"user", "u"}, many[:2*MaxSettings]...)
	if s, bad := Parse(message(atMost...)); bad != nil || len(s.Settings) != MaxSettings {
		t.Errorf("%d settings: %v", MaxSettings, bad)
	}
	if _, bad := Parse(message(append(atMost, "options", "-c one=more")...)); bad == nil || bad.Code != pgwire.StateLimit {
		t.Errorf("one setting more, by options: %v", bad)
	}
	if _, bad := Parse(message("user", "u", "options", strings.Repeat("-ca=b ", 1500))); bad == nil || bad.Code != pgwire.StateLimit {
		t.Errorf("many options: %v", bad)
	}
}

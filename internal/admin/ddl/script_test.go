package ddl

import (
	"errors"
	"strings"
	"testing"
)

// TestNewSetting holds that a value is one value of its option, and that nothing else of a statement fits into it.
func TestNewSetting(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		place       Place
		name, value string
		want        string // "": refused
	}{
		{InGroup, "MAINTENANCE", "ON", "MAINTENANCE = ON"},
		{InGroup, "maintenance", "it's the disk", "MAINTENANCE = N'it''s the disk'"},
		{InGroup, "MAINTENANCE", "ON, DB_FAILOVER = OFF", "MAINTENANCE = N'ON, DB_FAILOVER = OFF'"},
		{InGroup, "DB_FAILOVER", "OFF", "DB_FAILOVER = OFF"},
		{InGroup, "DB_FAILOVER", "OFF, COMMIT_RULE = ALL", ""},
		{InGroup, "DB_FAILOVER", "OFF) ; DROP AVAILABILITY GROUP [g] --", ""},
		{InGroup, "DB_FAILOVER", "OFF -- and a comment", "DB_FAILOVER = OFF"},
		{InGroup, "DB_FAILOVER", "", ""},
		{InGroup, "FAILURE_DETECTION", "ADAPTIVE(500)", "FAILURE_DETECTION = ADAPTIVE(500)"},
		{InGroup, "FAILURE_CONDITION_LEVEL", "9", ""},
		{InGroup, "CLUSTER_TYPE", "NONE", ""},
		{InGroup, "BASIC", "", ""},
		{InReplica, "LOG_COMPRESSION", "ZSTD:3", "LOG_COMPRESSION = ZSTD:3"},
		{InReplica, "LOG_COMPRESSION", "ZSTD:99", ""},
		{InReplica, "SEED_MAX_RATE", "10 MB", "SEED_MAX_RATE = 10485760"},
		{InReplica, "ENDPOINT_URL", strings.Repeat("x", 600), ""},
		{InPrimary, "READ_ONLY_ROUTING_LIST", "(('b', 'c'), 'a')", "READ_ONLY_ROUTING_LIST = ((N'b', N'c'), N'a')"},
		{InPrimary, "READ_ONLY_ROUTING_LIST", "('b'), ALLOW_CONNECTIONS = ALL", ""},
		{InReplica, "NOTHING", "1", ""},
		{InGroup, "AVAILABILITY_MODE", "SYNCHRONOUS_COMMIT", ""},
	} {
		s, err := NewSetting(x.place, x.name, x.value)
		switch {
		case err == nil && s.text() != x.want:
			t.Errorf("%s = %q: %s, want %q", x.name, x.value, s.text(), x.want)
		case err != nil && x.want != "":
			t.Errorf("%s = %q: %v", x.name, x.value, err)
		}
		if err != nil && !errors.As(err, new(*Error)) {
			t.Errorf("%s = %q: the error is a %T", x.name, x.value, err)
		}
	}
}

// TestChecked holds that a statement which is put together is read as what it was meant to be, or refused.
func TestChecked(t *testing.T) {
	t.Parallel()
	good := []Statement{
		{Group: "it's a [group]", Action: Failover{To: "n'2"}},
		{Group: "g", Action: ModifyReplica{[]Replica{{Server: "n2", Primary: []Setting{NewRoutes([][]string{{"n1", "n3"}, {"n2"}})}}}}},
		{Action: Suspend{Database: "a] SET HADR OFF; --"}},
	}
	for _, s := range good {
		if read, err := s.Checked(); err != nil || !read.Equal(s) {
			t.Errorf("%s: %v", s, err)
		}
	}
	bad := []Statement{
		{Group: "", Action: Failover{To: "n2"}},
		{Group: strings.Repeat("g", 200), Action: Failover{To: "n2"}},
		{Group: "g", Action: Failover{To: strings.Repeat("n", 300)}},
		{Group: "g", Action: Set{[]Setting{{Name: "MAINTENANCE", Value: Value{Form: Word, Text: "ON) WITH (NOWAIT"}}}}},
		{Group: "g", Action: Set{}},
	}
	for _, s := range bad {
		if read, err := s.Checked(); err == nil {
			t.Errorf("%s is accepted as %s", s, read)
		}
	}
}

package datadir

import (
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

func TestListsThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string][]wire.File{
		"outside":               {{Name: "../x"}},
		"absolute":              {{Name: "/etc/passwd"}},
		"not clean":             {{Name: "base/../x"}},
		"negative":              {{Name: "base/1", Size: -1}},
		"huge":                  {{Name: "base/1", Size: 1 << 60}},
		"twice":                 {{Name: "base/1"}, {Name: "base/1"}},
		"pg_control":            {{Name: ControlFile, Size: 8192}},
		"postmaster.pid":        {{Name: "postmaster.pid"}},
		"ours":                  {{Name: "coterie.copy"}},
		"WAL":                   {{Name: "pg_wal/000000010000000000000001"}},
		"beside a tablespace":   {{Space: 5, Name: "authorized_keys", Size: 5}},
		"before a tablespace's": {{Space: 5, Name: ".PG_15_1/x"}},
		"slots":                 {{Name: "pg_replslot/x", Dir: true}},
	} {
		if err := CheckList(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := CheckList([]wire.File{{Name: "base", Dir: true}, {Name: "base/1", Size: 5}, {Name: "pg_wal", Dir: true}, {Space: 5, Name: "PG_15_1/5", Dir: true}}); err != nil {
		t.Error(err)
	}
}

func TestRelationFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		space   uint32
		name    string
		segment uint32
		ok      bool
	}{
		{0, "base/5/16384", 0, true},
		{0, "base/5/16384.3", 3, true},
		{0, "base/5/16384_fsm", 0, true},
		{0, "base/5/16384_vm.1", 1, true},
		{0, "global/1262", 0, true},
		{7, "PG_15_2022/5/16384", 0, true},
		{0, "base/5/pg_filenode.map", 0, false},
		{0, "base/5/PG_VERSION", 0, false},
		{0, "pg_xact/0000", 0, false},
		{0, "base/5/16384_other", 0, false},
		{0, "base/5/16384.x", 0, false},
		{0, "postgresql.conf", 0, false},
	} {
		if segment, ok := RelationFile(c.space, c.name); ok != c.ok || segment != c.segment {
			t.Errorf("%s: segment %d, %v", c.name, segment, ok)
		}
	}
}

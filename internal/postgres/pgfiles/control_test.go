package pgfiles

import (
	_ "embed"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:embed testdata/controldata.txt
var controldata string

func TestParseControl(t *testing.T) {
	c, err := ParseControl(controldata)
	want := Control{
		SystemID: "7000000000000000001", State: "in archive recovery", Timeline: 4, PrevTimeline: 1, CheckPoint: 0x15C05B0, Redo: 0x15C0578, NextXID: 3<<32 + 745,
		MinRecoveryEnd: 0x15C0628, MinRecoveryTLI: 5, DataChecksums: true, BlockSize: 8192, WalBlockSize: 8192, WalSegmentSize: 16 << 20, CatalogVersion: "202209061",
		Settings: map[string]int{"max_connections": 100, "max_worker_processes": 8, "max_wal_senders": 10, "max_prepared_transactions": 0, "max_locks_per_transaction": 64},
	}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{
		"", "WARNING: Calculated CRC checksum does not match\n" + controldata, strings.Replace(controldata, "16777216", "16777217", 1),
		strings.Replace(controldata, "0/15C05B0", "here", 1), strings.Replace(controldata, "3:745", "3", 1), strings.Replace(controldata, "3:745", ":745", 1), controldata[:len(controldata)/2],
	} {
		if c, err := ParseControl(bad); err == nil {
			t.Errorf("%.60q... was read as %+v", bad, c)
		}
	}
}

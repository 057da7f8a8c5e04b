package benchcmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/bench/endpointbench"
	"github.com/coteriedb/coterie/internal/bench/seedbench"
	"github.com/coteriedb/coterie/internal/bench/suite"
)

func TestCheckCompression(t *testing.T) {
	list := []string{"off", "ZSTD:3", "auto", ""}
	if err := checkCompression(list); err != nil || strings.Join(list, " ") != "OFF ZSTD:3 AUTO " {
		t.Errorf("%q, %v", list, err)
	}
	for _, wrong := range []string{"FOO", "ZSTD:99", "ZSTD), (", "OFF, TRANSPORT = TCP", "'ZSTD'"} {
		if err := checkCompression([]string{wrong}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func TestPartsAreThere(t *testing.T) {
	if err := checkOnly([]string{"lan", "zstd"}, endpointbench.EndpointParts); err != nil {
		t.Error(err)
	}
	if err := checkOnly([]string{"lan", "wan"}, endpointbench.EndpointParts); err == nil || !strings.Contains(err.Error(), "--only wan: choose among wan-good, wan-bad") {
		t.Errorf("an unknown part: %v", err)
	}
}

func TestParseCells(t *testing.T) {
	got, err := parseCells([]string{"1x1000000", "100x10"})
	if err != nil || len(got) != 2 || got[0].Rows != 1_000_000 || got[1].Inserts != 100 || suite.Largest(got) != 1_000_000 {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range []string{"", "5", "x5", "5x", "0x5", "5x-1", "axb"} {
		if _, err := parseCells([]string{wrong}); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

// TestUnknownSeedingPart: an unknown part is refused before anything is made, because a run without measurements would
// look like success.
func TestUnknownSeedingPart(t *testing.T) {
	if err := checkSeedingParts(seedbench.SeedingOptions{Only: []string{"mends"}}); err == nil || !strings.Contains(err.Error(), "choose among metro, wan, mend") {
		t.Errorf("an unknown part: %v", err)
	}
}

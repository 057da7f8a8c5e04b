package buildinfo

import (
	"strings"
	"testing"
)

func TestStrings(t *testing.T) {
	was := [3]string{Version, Commit, Date}
	defer func() { Version, Commit, Date = was[0], was[1], was[2] }()
	if s := String(); !strings.HasPrefix(s, "0.1.0-dev (commit ") || strings.Contains(s, "commit ,") {
		t.Error(s)
	}
	Version, Commit, Date = "1.2.3", "abc", "2026-11-25T06:00:00Z"
	if s := String() + " " + Describe(); s != "1.2.3 (commit abc, 2026-11-25T06:00:00Z) 1.2.3+abc" {
		t.Error(s)
	}
}

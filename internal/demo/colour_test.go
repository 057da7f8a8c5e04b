package demo

import (
	"strings"
	"testing"
)

func TestPaint(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"      00:10.066 kill -9 n1: agent 1":                     "      00:10.066 <red>kill -9 n1<off>: agent 1",
		"[6/6] verdict: every promise was kept   (67 s)":          "[6/6] <green>verdict: every promise was kept<off>   (67 s)",
		"[6/6] verdict: NOT SOUND   (67 s)":                       "[6/6] verdict: <red>NOT SOUND<off>   (67 s)",
		"      outage 1 ms   acknowledged 9   lost 0   unknown 1": "      outage 1 ms   acknowledged 9   <green>lost 0<off>   unknown 1",
		"      acknowledged 9   lost 1,234   unknown 1":           "      acknowledged 9   <red>lost 1,234<off>   unknown 1",
		"      nothing to see":                                    "      nothing to see",
	} {
		if got := strings.NewReplacer("\x1b[1;31m", "<red>", "\x1b[1;32m", "<green>", "\x1b[0m", "<off>").Replace(paint(line)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPlainWords(t *testing.T) {
	t.Parallel()
	r := sound()
	r.judge()
	if got := strings.Join(r.plainly(), " "); got != "In plain words: n1 was killed while clients wrote. After 7.5 s without a write n2 took its place. "+
		"24,118 rows were acknowledged in all, and each of them is on all 3 replicas." {
		t.Error(got)
	}
	r.Replicas[0].Ledger.Duplicates = 1
	r.judge()
	if got := strings.Join(r.plainly(), " "); strings.Contains(got, "each of them") || !strings.Contains(got, "A promise was broken") {
		t.Error(got)
	}
	r.Replicas[1].Ledger.Lost = 23
	r.judge()
	if got := strings.Join(r.plainly(), " "); !strings.HasSuffix(got, "Of the 24,118 rows that were acknowledged 23 are lost.") {
		t.Error(got)
	}
}

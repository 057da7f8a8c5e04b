package suite

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/workload"
)

// TestMinutes: every run has a line like that of the published script. The averages and the difference follow.
func TestMinutes(t *testing.T) {
	var out strings.Builder
	m := &Minutes{W: &out, Took: map[workload.Payload]map[string][]float64{}}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, arm := range []string{"AUTO", "OFF", "OFF", "AUTO"} { // the order of a drawn block
		m.Run(at.Add(time.Duration(i)*time.Second), map[string]time.Duration{"AUTO": time.Minute, "OFF": 2 * time.Minute}[arm], workload.PayloadConstant, arm)
	}
	if err := m.Averages(); err != nil {
		t.Fatal(err)
	}
	want := `2026-01-02T03:04:05.000Z,1.000000000,AUTO,constant
2026-01-02T03:04:06.000Z,2.000000000,OFF,constant
2026-01-02T03:04:07.000Z,2.000000000,OFF,constant
2026-01-02T03:04:08.000Z,1.000000000,AUTO,constant
average,2.000000000,OFF,constant
average,1.000000000,AUTO,constant
difference_pct,50.000000000,AUTO,constant
`
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/node/metrics"
)

// TestMetricsPage holds that docs/reference/metrics.md has every metric, as the code defines it.
func TestMetricsPage(t *testing.T) {
	var out strings.Builder
	for _, s := range metrics.Definitions() {
		fmt.Fprintf(&out, "## %s\n\n| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n", s.Title)
		for _, d := range s.Metrics {
			labels := ""
			if len(d.Labels) > 0 {
				labels = "`" + strings.Join(d.Labels, "`, `") + "`"
			}
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s | %s |\n", d.Name, d.Kind, d.Unit, labels, d.Help)
		}
		out.WriteString("\n")
	}
	generated(t, "docs/reference/metrics.md", out.String())
}

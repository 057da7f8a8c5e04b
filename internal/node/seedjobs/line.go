package seedjobs

import (
	"fmt"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// Line returns the progress of a copy as one line for people.
func Line(p progress.Progress) string {
	line := p.Phase
	if p.Total > 0 {
		line = fmt.Sprintf("%s %d of %d MiB", p.Phase, p.Done>>20, p.Total>>20)
		if p.Same > 0 {
			line += fmt.Sprintf(", %d MiB were there", p.Same>>20)
		}
		line += fmt.Sprintf(", %d MiB on the wire", p.Wire>>20)
	}
	if eta := p.ETA(); eta > 0 && p.Phase == progress.PhaseCopy {
		line += fmt.Sprintf(", %v left", eta.Round(time.Second))
	}
	if p.Waiting == "" {
		return line
	}
	return strings.TrimPrefix(line+"; "+p.Waiting, "; ")
}

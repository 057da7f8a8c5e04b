package posture

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/hooks"
)

// judgeHooks returns which commands the agent runs for events, and which files of their directory it does not run.
func judgeHooks(l config.Layout) (out []check.Finding) {
	files, err := hooks.List(l.Hooks(), l.Owner())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return []check.Finding{{
			Level: check.Problem, What: "no command of hooks.d is run: " + err.Error(), Why: "nobody is told of events: a directory that others may change, or that the node's user cannot read, is not used",
			Run: "look at what is in it; then chown it to the node's user, and chmod u+rx,go-w " + l.Hooks(),
		}}
	}
	var run []string
	for _, f := range files {
		if f.Bad == "" {
			run = append(run, f.Name)
			continue
		}
		out = append(out, check.Finding{Level: check.Warning, What: l.Hooks() + "/" + f.Name + " " + f.Bad + ", and is not run", Why: "a notification that you count on may be missing", Run: "mend it, or take it away"})
	}
	if len(run) == 0 {
		return append(out, ok("the agent runs no command for events"))
	}
	return append(out, ok("the agent runs these commands of hooks.d for events, if that directory was there when it started, as the node's user: %s", strings.Join(run, ", ")))
}

package demo

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/coteriedb/coterie/internal/bench/observe"
)

// colours are the parts of the story that a terminal shows in colour: the first that a line has, with how it is shown.
var colours = []struct {
	part *regexp.Regexp
	mark string
}{
	{regexp.MustCompile(`WRONG: .*|NOT SOUND|THE REPLICAS DIFFER|BROKEN ON PURPOSE`), "\x1b[1;31m"},
	{regexp.MustCompile(`kill -9 \w+`), "\x1b[1;31m"},
	{regexp.MustCompile(`lost [1-9][\d,]*`), "\x1b[1;31m"},
	{regexp.MustCompile(`lost 0\b|verdict: every promise was kept|all replicas hold the same`), "\x1b[1;32m"},
	{regexp.MustCompile(`acknowledges writes: outage .*|SYNCHRONIZED after .*`), "\x1b[32m"},
	{regexp.MustCompile(`coterie failover --to \w+|takes over|claims epoch \d+`), "\x1b[33m"},
	{regexp.MustCompile(`^In plain words:.*`), "\x1b[1m"},
	{regexp.MustCompile(`^\[\d/\d\]`), "\x1b[1m"},
}

// paint colours a line of the story. The text must have no control characters.
func paint(line string) string {
	for _, c := range colours {
		text := strings.TrimLeft(line, " ")
		if at := c.part.FindStringIndex(text); at != nil {
			indent := line[:len(line)-len(text)]
			return indent + text[:at[0]] + c.mark + text[at[0]:at[1]] + "\x1b[0m" + text[at[1]:]
		}
	}
	return line
}

// plainly returns the verdict in sentences, for a reader to whom the words of the story are new.
func (r *Report) plainly() []string {
	kept := fmt.Sprintf("%s rows were acknowledged in all, and each of them is on all %d replicas.", observe.Thousands(r.Acknowledged), len(r.Replicas))
	switch {
	case r.Lost > 0:
		kept = fmt.Sprintf("Of the %s rows that were acknowledged %s are lost.", observe.Thousands(r.Acknowledged), observe.Thousands(r.Lost))
	case !r.Sound:
		kept = "A promise was broken: the lines above that begin with WRONG say which."
	}
	return []string{
		fmt.Sprintf("In plain words: %s was killed while clients wrote. After %.1f s without a write %s took its place.", r.Killed, float64(r.OutageMS)/1000, r.Promoted),
		kept,
	}
}

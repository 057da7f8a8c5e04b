package labcmd

import (
	"fmt"
	"io"
	"iter"
	"strings"
	"text/tabwriter"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// linkLine is a link in a table: both directions where they are alike, else one.
type linkLine struct {
	name  string
	shape linkem.Shape
	both  bool
	sum   linkem.Stats // of its counters
}

// linkLines joins directions that are alike.
func linkLines(all []linkem.Stats) iter.Seq[linkLine] {
	return func(yield func(linkLine) bool) {
		for i, s := range all {
			line := linkLine{name: s.From + " -> " + s.To, shape: s.Shape, sum: s}
			if j := back(all, s); j >= 0 && all[j].Shape == s.Shape {
				if j < i {
					continue // told already
				}
				line.name, line.both = s.From+" <-> "+s.To, true
				line.sum = sumOf(s, all[j])
			}
			if !yield(line) {
				return
			}
		}
	}
}

// back finds the other direction.
func back(all []linkem.Stats, s linkem.Stats) int {
	for i, t := range all {
		if t.From == s.To && t.To == s.From {
			return i
		}
	}
	return -1
}

func sumOf(a, b linkem.Stats) linkem.Stats {
	a.Packets += b.Packets
	a.Bytes += b.Bytes
	a.Lost += b.Lost
	a.QueueDrops += b.QueueDrops
	a.Blocked += b.Blocked
	a.Rejected += b.Rejected
	a.UnderWay += b.UnderWay
	return a
}

// printLines prints a table of links, with their counters if asked for.
func printLines(w io.Writer, lines []linkLine, counters bool) error {
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	if counters {
		_, _ = fmt.Fprintln(t, "LINK\tIS\tPACKETS\tBYTES\tLOST\tQUEUE FULL\tCUT OFF\tUNDER WAY")
	}
	for _, l := range lines {
		_, _ = fmt.Fprintf(t, "%s\t%s", l.name, shapeWords(l.shape, l.both))
		if counters {
			_, _ = fmt.Fprintf(t, "\t%d\t%d\t%d\t%d\t%d\t%d", l.sum.Packets, l.sum.Bytes, l.sum.Lost, l.sum.QueueDrops, l.sum.Blocked+l.sum.Rejected, l.sum.UnderWay)
		}
		_, _ = fmt.Fprintln(t)
	}
	return t.Flush()
}

// shapeWords describes a shape; of both directions of a link it tells the round trip.
func shapeWords(s linkem.Shape, both bool) string {
	var words []string
	delay := "delay=" + s.Delay.String()
	text := s.String()
	if both && s.Delay > 0 {
		text = strings.Replace(text, delay, "rtt="+(2*s.Delay).String(), 1)
	}
	how := ""
	for _, w := range strings.Split(text, ",") {
		switch {
		case strings.HasPrefix(w, "forgot="):
			how = "CUT for what was connected (forgot " + strings.TrimPrefix(w, "forgot=") + " times)"
		case w == "cut":
			how = "CUT"
		case w == "reject":
			how = "CUT, rejects"
		case w == "":
		default:
			words = append(words, strings.Replace(w, "=", " ", 1))
		}
	}
	rest := strings.Join(words, ", ")
	switch {
	case how != "" && rest != "":
		return how + " (else " + rest + ")"
	case how != "":
		return how
	case rest == "":
		return "perfect"
	}
	return rest
}

// printNetwork prints the network of a lab that has one: its problems, and the links that are not perfect.
func printNetwork(w io.Writer, s lab.Status) error {
	if s.Net.Kind != lab.NetNamespaces {
		return nil
	}
	process := "not running"
	if s.Net.PID != nil {
		process = fmt.Sprintf("process %d", *s.Net.PID)
	}
	_, _ = fmt.Fprintf(w, "network     %s (%s); this host is %s\n", s.Net.Subnet, process, s.Net.Client)
	if s.Net.Finding != "" {
		_, _ = fmt.Fprintf(w, "\n! %s\n", s.Net.Finding)
	}
	var shaped []linkLine
	perfect := 0
	for line := range linkLines(s.Links) {
		if line.shape == (linkem.Shape{}) {
			perfect++
		} else {
			shaped = append(shaped, line)
		}
	}
	if len(shaped) == 0 {
		_, err := fmt.Fprintln(w, "links       all perfect")
		return err
	}
	_, _ = fmt.Fprintln(w)
	if err := printLines(w, shaped, true); err != nil {
		return err
	}
	if perfect > 0 {
		_, err := fmt.Fprintln(w, "the other links are perfect")
		return err
	}
	return nil
}

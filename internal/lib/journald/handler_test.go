package journald

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/google/go-cmp/cmp"
)

// sent is a record as the journal gets it.
type sent struct {
	Text   string
	P      journal.Priority
	Fields map[string]string
}

func TestFields(t *testing.T) {
	t.Parallel()
	var got []sent
	long := strings.Repeat("x", 3*maxValue)
	h := newHandler(slog.LevelInfo, 10, func(text string, p journal.Priority, f map[string]string) error {
		got = append(got, sent{text, p, f})
		return nil
	})
	log := slog.New(h).With("part", "agent")
	log.Debug("not this")
	log.Info("decided", "rule", "CLAIM", "epoch", 7, "because", `it said "x"`, "took", time.Second)
	log.WithGroup("g").Warn("two\nlines", "err", errors.New("no"), slog.String("Größe", ""), slog.Group("in", "a", 1)) //nolint:sloglint // a name that no field can have
	log.Error(long, "long", strings.Repeat("é", maxValue))                                                             //nolint:sloglint // a long message
	h.Close()
	want := []sent{
		{`decided part=agent rule=CLAIM epoch=7 because="it said \"x\"" took=1s`, journal.PriInfo, map[string]string{
			"SYSLOG_IDENTIFIER": "coterie", "COTERIE_PART": "agent", "COTERIE_RULE": "CLAIM", "COTERIE_EPOCH": "7", "COTERIE_BECAUSE": `it said "x"`, "COTERIE_TOOK": "1s",
		}},
		{"two\nlines part=agent g.err=no g.Größe=\"\" g.in.a=1", journal.PriWarning, map[string]string{
			"SYSLOG_IDENTIFIER": "coterie", "COTERIE_PART": "agent", "COTERIE_G_ERR": "no", "COTERIE_G_GR__E": "", "COTERIE_G_IN_A": "1",
		}},
	}
	if len(got) != 3 {
		t.Fatalf("%d records", len(got))
	}
	if diff := cmp.Diff(want, got[:2]); diff != "" {
		t.Error(diff)
	}
	if n := len(got[2].Text); got[2].P != journal.PriErr || n > 3*maxValue || len(got[2].Fields["COTERIE_LONG"]) > maxValue {
		t.Errorf("a long record has %d bytes", n)
	}
}

// A record has a bounded number of fields, and names that the journal takes.
func TestManyFields(t *testing.T) {
	t.Parallel()
	var got map[string]string
	h := newHandler(slog.LevelInfo, 1, func(_ string, _ journal.Priority, f map[string]string) error {
		got = f
		return nil
	})
	var list []any
	for i := range 1000 {
		list = append(list, fmt.Sprint(i, strings.Repeat("n", 200)), i)
	}
	slog.New(h).Info("many", list...)
	h.Close()
	if len(got) != maxFields+1 {
		t.Errorf("%d fields", len(got))
	}
	for name := range got {
		if len(name) > maxName {
			t.Errorf("%s", name)
		}
	}
}

// A journal that hangs delays nobody, and the records that found no place are counted in their place.
func TestJournalThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		healed := make(chan struct{})
		var got []string
		h := newHandler(slog.LevelInfo, 2, func(text string, _ journal.Priority, _ map[string]string) error {
			<-healed
			got = append(got, text)
			return nil
		})
		log := slog.New(h)
		log.Info("1")
		synctest.Wait() // it is being sent
		for _, text := range []string{"2", "3", "4", "5"} {
			log.Info(text) //nolint:sloglint // one of many
		}
		close(healed)
		synctest.Wait()
		log.Info("6")
		h.Close()
		if want := "1|2|3|2 records of this log are lost: the journal did not keep up|6"; strings.Join(got, "|") != want {
			t.Errorf("%q", got)
		}
	})
}

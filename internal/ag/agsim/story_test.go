package agsim

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

var update = flag.Bool("update", false, "write what the stories in ag/testdata came to")

const line = "----\n"

// TestStory replays the stories that are kept with the core, and compares the nodes' decisions.
func TestStory(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(text), line)
			got := replay(t, script)
			if *update {
				if err := os.WriteFile(file, []byte(script+line+got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != want {
				t.Errorf("the story came out otherwise; -update accepts it.\ngot:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// teller replays a story.
type teller struct {
	m   *Model
	w   World
	out strings.Builder
}

func replay(t *testing.T, script string) string {
	t.Helper()
	s := &teller{m: NewModel(NewGroup(3, false, ag.RuleQuorum))}
	s.w = s.m.steady()
	s.w.faults, s.w.writes = 9, 9
	for _, l := range strings.Split(script, "\n") {
		words := strings.Fields(l)
		if len(words) == 0 || words[0] == "#" {
			continue
		}
		var who []uint8
		for _, name := range words[1:] {
			who = append(who, name[0]-'a')
		}
		switch words[0] {
		case "write":
			s.tell(event{doWrite, who[0], 0})
		case "ack":
			s.tell(event{doAck, who[0], 0})
		case "crash":
			s.tell(event{doCrash, who[0], 0})
		case "silence":
			s.tell(event{doTurn, who[0], sawSilence})
		case "stream":
			if !s.stream(who[0]) {
				t.Fatalf("%s has nothing to stream after\n%s", names[who[0]], s.out.String())
			}
		case "settle":
			s.settle(who)
		default:
			t.Fatalf("a story knows no %q", words[0])
		}
	}
	return s.out.String()
}

// tell makes an event happen, and records it unless it changes nothing.
func (s *teller) tell(ev event) bool {
	before := s.w
	said := s.m.tell(&s.w, ev)
	if s.w == before {
		return false
	}
	s.out.WriteString(said + "\n")
	return true
}

func (s *teller) stream(j uint8) bool {
	src, ok := s.m.mayStream(&s.w, int(j))
	return ok && s.tell(event{doStream, uint8(src), j})
}

// settle lets these nodes decide, act, seal and stream until nothing changes. A leader has found the closed streams
// silent for long.
func (s *teller) settle(who []uint8) {
	for again := true; again; {
		again = false
		for _, i := range who {
			saw := uint8(0)
			if s.w.epoch.phase == lead && s.w.epoch.leader == i+1 {
				saw = sawSilence
			}
			for s.w.nodes[i].busy.kind == idle && s.tell(event{doTurn, i, saw}) {
				again = true
			}
			if s.w.epoch.phase == seal && s.w.epoch.leader == i+1 && s.w.nodes[i].busy.kind == idle {
				for _, j := range who {
					if !s.w.nodes[i].seals.has(int(j)) {
						again = s.tell(event{doSeal, i, j}) || again
					}
				}
			}
			if s.w.nodes[i].busy.kind != idle {
				again = s.tell(event{doPerform, i, 0}) || again
			}
			again = s.stream(i) || again
		}
	}
}

package routing

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// routes are those of a group whose primary is a, as node self has them. Readers go to b, then to c.
func routes(self ag.ReplicaID) *ag.Routes {
	return &ag.Routes{
		Self: self, Epoch: 7, Lossless: 3, Primary: "a", WriteOpen: true,
		Targets:  []ag.Target{{ID: "a", Healthy: true, Local: self == "a"}, {ID: "b", Healthy: true, Readable: true, Local: self == "b"}, {ID: "c", Healthy: true, Readable: true, Local: self == "c"}},
		ReadList: [][]ag.ReplicaID{{"b"}, {"c"}},
	}
}

func TestPick(t *testing.T) {
	r := routes("a")
	w, ok := Pick(r, ag.ReadWrite, 0)
	if !ok || w.ID != "a" || w.Epoch != 7 || w.Lossless != 3 || w.Entry != 0 || w.FellBack || !w.Local {
		t.Errorf("a writer: %+v, %v", w, ok)
	}
	reader, ok := Pick(r, ag.ReadOnly, 0)
	if !ok || reader.ID != "b" || reader.Entry != 1 {
		t.Errorf("a reader: %+v, %v", reader, ok)
	}
	reader, ok = Pick(r, ag.ReadOnly, 0, "b")
	if !ok || reader.ID != "c" || reader.Entry != 2 {
		t.Errorf("a reader that passes over b: %+v, %v", reader, ok)
	}
	r.Primary, r.WriteOpen = "", false
	if w, ok := Pick(r, ag.ReadWrite, 0); ok {
		t.Errorf("a writer without a primary: %+v", w)
	}
}

// A session of another node's client is placed by the routes of the node with the server.
func TestPlace(t *testing.T) {
	for name, c := range map[string]struct {
		self   ag.ReplicaID
		change func(*ag.Routes)
		intent ag.Intent
		held   bool
		want   string // part of the refusal; "" if it is placed
	}{
		"writer":                       {"a", nil, ag.ReadWrite, false, ""},
		"reader on the primary":        {"a", func(r *ag.Routes) { r.ReadList = [][]ag.ReplicaID{{"b"}, {"a"}} }, ag.ReadOnly, false, ""},
		"reader of a list without it":  {"a", func(r *ag.Routes) { r.ReadList = [][]ag.ReplicaID{{"b", "c"}} }, ag.ReadOnly, false, "does not name it"},
		"writer and the same list":     {"a", func(r *ag.Routes) { r.ReadList = [][]ag.ReplicaID{{"b", "c"}} }, ag.ReadWrite, false, ""},
		"reader on that list":          {"b", func(r *ag.Routes) { r.ReadList = [][]ag.ReplicaID{{"b", "c"}} }, ag.ReadOnly, false, ""},
		"reader":                       {"b", nil, ag.ReadOnly, false, ""},
		"writer on a secondary":        {"b", nil, ag.ReadWrite, false, "READ_WRITE"},
		"reader of an unreadable copy": {"b", func(r *ag.Routes) { r.Targets[1].Readable = false }, ag.ReadOnly, false, "no readers"},
		"writer before it is open":     {"a", func(r *ag.Routes) { r.WriteOpen = false }, ag.ReadWrite, false, "not open"},
		"reader before it is open":     {"a", func(r *ag.Routes) { r.WriteOpen = false }, ag.ReadOnly, false, "not open"},
		"writer before it stops":       {"a", nil, ag.ReadWrite, true, "about to stop"},
		"reader beside one that stops": {"b", nil, ag.ReadOnly, true, ""},
		"reader of one being promoted": {"b", func(r *ag.Routes) { r.Promoting = true }, ag.ReadOnly, false, "no sessions"},
	} {
		t.Run(name, func(t *testing.T) {
			r := routes(c.self)
			if c.change != nil {
				c.change(r)
			}
			p, bad := Place(r, c.intent, func() bool { return c.held })
			switch {
			case c.want == "" && (bad != nil || p != Placed{c.self, 7, c.self == "a"}):
				t.Errorf("%+v, %v", p, bad)
			case c.want != "" && (bad == nil || !strings.Contains(bad.Message, c.want)):
				t.Errorf("%v, want %q", bad, c.want)
			}
		})
	}
	if _, bad := Place(nil, ag.ReadOnly, nil); bad == nil {
		t.Error("placed without routes")
	}
}

func TestHolds(t *testing.T) {
	r := routes("a")
	if !Holds(r, "a", true) || Holds(r, "a", false) || !Holds(r, "b", false) || Holds(r, "b", true) || Holds(nil, "a", true) {
		t.Error("the role is not that of the routes")
	}
	if r.Targets[1].Readable = false; Holds(r, "b", false) {
		t.Error("a copy that takes no readers")
	}
	if r.Promoting = true; Holds(r, "a", true) {
		t.Error("the local server is being promoted")
	}
}

// Without word of a primary, any replica that the session may be on can be the next one.
func TestPromoted(t *testing.T) {
	r := routes("b")
	if Promoted(r, "b", 7, true) || Promoted(r, "c", 7, false) || !Promoted(r, "a", 7, false) || !Promoted(nil, "c", 7, false) {
		t.Error("by the routes of its epoch")
	}
	if r.Promoting = true; !Promoted(r, "b", 7, true) || Promoted(r, "c", 7, false) {
		t.Error("only the local server is known to be promoted")
	}
	r = routes("b")
	if r.Primary = ""; Promoted(r, "c", 7, false) || !Promoted(r, "c", 6, false) {
		t.Error("there is no primary in another epoch")
	}
}

func TestRefusals(t *testing.T) {
	r := routes("a")
	if bad := NeverServed(r, ag.ReadOnly); bad != nil {
		t.Errorf("a reader of a list: %v", bad)
	}
	if bad := NoReplica(r, ag.ReadWrite, 0, false); !strings.Contains(bad.Message, "(983)") || !strings.Contains(bad.Detail, "No primary") {
		t.Errorf("a writer: %+v", bad)
	}
	if bad := NoReplica(r, ag.ReadOnly, 0, false); !strings.Contains(bad.Message, "(982)") {
		t.Errorf("a reader: %+v", bad)
	}
	if bad := NoReplica(r, ag.ReadOnly, time.Second, false); !strings.Contains(bad.Detail, "coterie.max_lag = 1s") {
		t.Errorf("a reader that minds the lag: %+v", bad)
	}
	if bad := NoReplica(r, ag.ReadWrite, 0, true); !strings.Contains(bad.Detail, "could not be reached") {
		t.Errorf("a server that does not answer: %+v", bad)
	}
	if r.ReadList = nil; NeverServed(r, ag.ReadOnly) == nil || NeverServed(r, ag.ReadWrite) != nil || NeverServed(nil, ag.ReadOnly) != nil {
		t.Error("a list without another replica")
	}
	if r.Primary = ""; NeverServed(r, ag.ReadOnly) != nil {
		t.Error("without a primary no list is in force")
	}
}

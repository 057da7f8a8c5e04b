package upgradecmd

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// agent serves a fake agent of n2, on whose disk is this state of an upgrade.
func agent(t *testing.T, u major.Upgrade) *clitest.Agent {
	t.Helper()
	a := clitest.NewAgent(t)
	if err := os.MkdirAll(a.Layout.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	if u.Phase == "" {
		return a // no upgrade was begun here, so there is no file
	}
	if err := durable.ReplaceJSON(a.Layout.MajorFile(), u); err != nil {
		t.Fatal(err)
	}
	return a
}

func status(n3 ag.DataState) api.Status {
	s := api.Status{Group: "orders", Primary: "n2", Node: "n2", WriteOpen: true}
	for _, id := range []ag.ReplicaID{"n1", "n2", "n3"} {
		r := api.Replica{Name: id, Mode: ag.SynchronousCommit, Sync: ag.Synchronized, Data: ag.DataPresent}
		if id == "n3" && n3 != ag.DataPresent {
			r.Sync, r.Data = ag.NotSynchronizing, n3
		}
		s.Replicas = append(s.Replicas, r)
	}
	return s
}

// TestFollowersOfALaterPrimary has a replica follow that had not, after a failover to one that had: the state of the
// group names this command on the primary.
func TestFollowersOfALaterPrimary(t *testing.T) {
	t.Parallel()
	a := agent(t, major.Upgrade{
		Phase: major.Done, Self: "n2", Asked: time.Now().UTC(), From: major.Cluster{Major: 15, SystemID: "15"}, To: major.Cluster{Major: 16},
	})
	a.SetStatus(status(ag.DataForeign))
	a.On("Major", func(req any) (any, error) {
		if r := req.(api.MajorRequest); r.Act != api.MajorFollow || r.Replica != "n3" || r.To != 16 {
			return nil, errors.New("not asked for")
		}
		a.SetStatus(status(ag.DataPresent))
		return api.MajorPlan{Begun: true}, nil
	})
	if r := clitest.Run(t, Upgrade(), a.Layout.Dir, "major", "--to", "16", "--yes"); r.Err != nil || len(a.Asked("Major")) != 1 {
		t.Errorf("%v, said %q, asked %+v", r.Err, r.Said, a.Asked("Major"))
	}
}

// TestFollowerWithoutData has a replica follow whose data directory somebody has removed, by programs
// that are named as seen from where the command runs.
func TestFollowerWithoutData(t *testing.T) {
	t.Parallel()
	a := agent(t, major.Upgrade{
		Phase: major.Done, Self: "n2", Asked: time.Now().UTC(), From: major.Cluster{Major: 15, SystemID: "15"}, To: major.Cluster{Major: 16},
	})
	a.SetStatus(status(ag.DataEmpty))
	a.On("Major", func(req any) (any, error) {
		if r := req.(api.MajorRequest); r.Act != api.MajorFollow || r.Replica != "n3" || !filepath.IsAbs(r.BinDir) {
			return nil, errors.New("not asked for")
		}
		a.SetStatus(status(ag.DataPresent))
		return api.MajorPlan{Begun: true}, nil
	})
	if r := clitest.Run(t, Upgrade(), a.Layout.Dir, "major", "--to", "16", "--yes", "--pg-bindir", "bin"); r.Err != nil || len(a.Asked("Major")) != 1 {
		t.Errorf("%v, said %q, asked %+v", r.Err, r.Said, a.Asked("Major"))
	}
}

// TestLostBeforeItBegan has the agent die before it has begun, and holds that an earlier upgrade is not taken for the
// one that was asked for.
func TestLostBeforeItBegan(t *testing.T) {
	t.Parallel()
	for _, was := range []major.Upgrade{
		{},
		{Phase: major.Done, Self: "n2", Asked: time.Now().UTC(), From: major.Cluster{Major: 15, SystemID: "15"}, To: major.Cluster{Major: 16, SystemID: "16"}},
	} {
		a := agent(t, was)
		a.SetStatus(status(ag.DataPresent))
		a.On("Major", func(req any) (any, error) {
			if req.(api.MajorRequest).Act == api.MajorBegin {
				panic(http.ErrAbortHandler) // the connection ends without an answer
			}
			return api.MajorPlan{}, nil
		})
		r := clitest.Run(t, Upgrade(), a.Layout.Dir, "major", "--to", "17", "--yes")
		if n := len(a.Asked("Major")); n != 2 || fail.KindOf(r.Err) != fail.Unhealthy || !strings.Contains(r.Err.Error(), "before it had begun") {
			t.Errorf("asked %d times: %v, said %q", n, r.Err, r.Said)
		}
	}
}

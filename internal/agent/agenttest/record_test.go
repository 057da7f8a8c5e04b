package agenttest_test

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
)

func TestFakeStoreKeepsTheContract(t *testing.T) {
	agenttest.StoreSuite(t, func(*testing.T) (x, y agent.Store) {
		r := agenttest.NewRecord(ag.Group{}, ag.Record{Epoch: ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "x"}})
		return r.Store("x"), r.Store("y")
	})
}

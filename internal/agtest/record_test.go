package agtest_test

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agtest"
)

func TestFakeStoreKeepsTheContract(t *testing.T) {
	agtest.StoreSuite(t, func(*testing.T) (x, y agent.Store) {
		r := agtest.NewRecord(ag.Group{}, ag.Record{Epoch: ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "x"}})
		return r.Store("x"), r.Store("y")
	})
}

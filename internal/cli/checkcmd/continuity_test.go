package checkcmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/cli/clitest"
)

func TestCheckContinuity(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	columns := strings.Fields("a u r n f fr n nr s sr st ot otr cd cdr")
	a.OnSQL("coterie.continuity", columns,
		[]any{"shop", "app", "n1", 3, "KEPT", nil, "KEPT", nil, "KEPT", nil, nil, "ENDS", "CONTINUITY = SESSION", "UNKNOWN", "not asked"},
		[]any{"shop", "app", "n1", 2, "LIKELY", "its server will be asked", "ENDS", "it came through the listener of that node", "KEPT", nil, nil, "KEPT", nil, "PROVED", nil},
		[]any{"shop", "app", "n1", 1, "ENDS", "it has temporary objects", "ENDS", "it has temporary objects", "ENDS", "it has temporary objects", "CREATE TEMP TABLE", nil, nil, "PROVED", nil},
		[]any{"", "cron", "n1", 1, "KEPT", nil, "KEPT", nil, "KEPT", nil, nil, nil, nil, nil, nil},
	)
	r := clitest.Run(t, Check(), a.Layout.Dir, "continuity")
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	lines := strings.Split(strings.TrimSpace(r.Out), "\n")
	for i, want := range []string{
		"APPLICATION USER SERVER SESSIONS KEPT IN A PLANNED FAILOVER IF THE NODE DIES IF POSTGRESQL DIES",
		"- cron n1 1 1 (100 %) 1 (100 %) 1 (100 %)",
		"shop app n1 6 5 (83 %) 3 (50 %) 5 (83 %)",
		"",
		"shop app n1 3 open transaction, if either dies: CONTINUITY = SESSION",
		"shop app n1 3 commit in doubt, 08007: not asked",
		"shop app n1 2 node dies: it came through the listener of that node",
		"shop app n1 1 planned failover: it has temporary objects (CREATE TEMP TABLE)",
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Errorf("line %d is not %q:\n%s", i, want, r.Out)
		}
	}
	var list []prospects
	if r := clitest.Run(t, Check(), a.Layout.Dir, "continuity", "--json"); r.Err != nil || json.Unmarshal([]byte(r.Out), &list) != nil || len(list) != 2 || len(list[1].Not) != 6 || list[1].Unknown != 3 || list[1].Open != 5 || list[1].Replayed != 2 {
		t.Errorf("%v: %s", r.Err, r.Out)
	}
}

// The rows of several nodes are joined by day, application and user.
func TestCheckContinuityHistory(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	columns := strings.Fields("d a u n f fr n nr s sr o r rr")
	a.OnSQL("coterie.continuity_by_application", columns,
		[]any{"2026-11-26T00:00:00Z", "shop", "app", 3, 100, nil, 0, "it came through the listener of that node", 100, nil, 1, 50, "CONTINUITY = SESSION"},
		[]any{"2026-11-26T00:00:00Z", "shop", "app", 1.5, 100, nil, 100, nil, 99.9, "it has temporary objects (CREATE TEMP TABLE)", 0, nil, nil},
		[]any{"2026-11-27T00:00:00Z", "shop", "app", 12.25, 90, "it has temporary objects", 90, "it has temporary objects", 90, "it has temporary objects", 0, nil, nil},
		[]any{"2026-11-27T00:00:00Z", "(the rest)", "(the rest)", 2, 100, nil, 100, nil, 100, nil, 0, nil, nil},
	)
	r := clitest.Run(t, Check(), a.Layout.Dir, "continuity", "--history")
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	lines := strings.Split(strings.TrimSpace(r.Out), "\n")
	for i, want := range []string{
		"APPLICATION USER DAY SESSIONS KEPT IN A PLANNED FAILOVER IF THE NODE DIES IF POSTGRESQL DIES TRANSACTIONS EXECUTED AGAIN",
		"shop app 2026-11-26 4.5 100 % 33 % 99 % 50 %",
		"shop app 2026-11-27 12 90 % 90 % 90 % -",
		"(the rest) (the rest) 2026-11-27 2 100 % 100 % 100 % -",
		"",
		"shop app 2026-11-26 node dies: it came through the listener of that node",
		"shop app 2026-11-26 open transaction, if either dies: CONTINUITY = SESSION",
		"shop app 2026-11-26 PostgreSQL dies: it has temporary objects (CREATE TEMP TABLE)",
	} {
		if i >= len(lines) || strings.Join(strings.Fields(lines[i]), " ") != want {
			t.Errorf("line %d is not %q:\n%s", i, want, r.Out)
		}
	}
	var list []daily
	if r := clitest.Run(t, Check(), a.Layout.Dir, "continuity", "--history", "--json"); r.Err != nil || json.Unmarshal([]byte(r.Out), &list) != nil || len(list) != 3 || *list[0].Node > 34 || list[1].Replayed != nil {
		t.Errorf("%v: %s", r.Err, r.Out)
	}
}

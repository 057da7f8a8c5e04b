package provision

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// TestEndKeeper gives back the data of a node whose agent was killed: its keeper is alive, and at first the server,
// too. When that has ended, the keeper puts standby.signal into the data directory. Nothing of the data is touched
// while it may, and nothing does it afterwards.
func TestEndKeeper(t *testing.T) {
	l := layoutIn(t, filepath.Join(t.TempDir(), "node"))
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	if err := EndKeeper(t.Context(), l); err != nil {
		t.Errorf("without a keeper: %v", err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := keeper.Spawn(t.Context(), exe, l.Dir, l.Run); err != nil {
		t.Fatal(err)
	}
	k, _, err := keeper.Dial(t.Context(), l.KeeperSock(), "an agent")
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(l.Data(), "PG_VERSION"), "15")
	server, err := k.Start(t.Context(), keeper.StartRequest{Postgres: "/bin/sleep", PGData: l.Data(), Args: []string{"60"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil { // the agent is killed
		t.Fatal(err)
	}
	cfg := config.Config{PostgreSQL: &config.PostgreSQL{BinDir: "/nowhere", Data: l.Data()}}
	err = departData(t.Context(), l, cfg, &Departure{Data: l.Data()}, func(string) {})
	if kindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "still runs") {
		t.Errorf("while the server runs: %v", err)
	}
	if p, err := os.FindProcess(server); err != nil || p.Kill() != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for err = EndKeeper(t.Context(), l); err != nil && time.Now().Before(deadline); err = EndKeeper(t.Context(), l) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(l.Data(), "standby.signal")
	if err := os.Remove(signal); err != nil { // as the end of recovery does
		t.Fatal(err)
	}
	if lives, err := keeperLives(l); err != nil || lives {
		t.Errorf("a keeper lives: %v, %v", lives, err)
	}
	if exists(t, signal) {
		t.Error("standby.signal came back")
	}
}

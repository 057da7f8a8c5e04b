package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndStray has a program of the server's own user stream from the primary under a member's name, and confirm
// everything, as a walreceiver does that no agent opened. It is ended, beside the member's own and in its absence, and
// what is acknowledged meanwhile and later is on the members.
func TestEndToEndStray(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	primary, absent := *was.Primary, secondaries(was)[0]
	name := g.askPrivately(t, primary, fmt.Sprintf("select application_name from pg_stat_replication where application_name like '%%%s%%'", absent))
	g.stray(t, primary, name)
	g.acknowledged(t, 50)
	g.ready(t)

	g.kill(t, absent)
	g.await(t, absent+" is gone", func(lab.Status) bool {
		return g.askPrivately(t, primary, "select count(*) from pg_stat_replication") == "1"
	})
	g.acknowledged(t, 20)
	g.stray(t, primary, name)
	g.acknowledged(t, 50)
	if log := g.log(primary, "agent.log"); !strings.Contains(log, "walsender") {
		t.Errorf("the log of %s does not tell of a walsender", primary)
	}
	g.revive(t, absent)
	g.kill(t, primary) // what was acknowledged beside the stray is on the others
	g.newPrimary(t, was)
	g.acknowledged(t, 50)
	g.revive(t, primary)
	g.down(t)
}

// stray streams under that name, and waits until that is ended.
func (g *group) stray(t *testing.T, from, name string) {
	t.Helper()
	l, err := config.NewLayout(g.node(from))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgconn.Connect(ctx, fmt.Sprintf("host=%s user=postgres sslmode=disable replication=true application_name=%s", l.Sockets(), name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	at := g.askPrivately(t, from, "select pg_current_wal_flush_lsn()")
	conn.Frontend().SendQuery(&pgproto3.Query{String: "START_REPLICATION PHYSICAL " + at})
	if err := conn.Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		message, err := conn.ReceiveMessage(ctx)
		if ctx.Err() != nil {
			t.Fatalf("a walsender under the name %s still runs after %v", name, patience)
		}
		if err != nil {
			t.Logf("the stray walsender %s was ended: %v", name, err)
			return
		}
		if data, is := message.(*pgproto3.CopyData); is && len(data.Data) > 17 && data.Data[0] == 'w' {
			end := binary.BigEndian.Uint64(data.Data[1:]) + uint64(len(data.Data)-25)
			confirms(conn, end)
		}
	}
}

// confirms tells the server that everything up to that position is written, flushed and replayed.
func confirms(conn *pgconn.PgConn, end uint64) {
	update := []byte{'r'}
	for range 3 {
		update = binary.BigEndian.AppendUint64(update, end)
	}
	update = append(binary.BigEndian.AppendUint64(update, 0), 0)
	conn.Frontend().Send(&pgproto3.CopyData{Data: update})
	_ = conn.Frontend().Flush()
}

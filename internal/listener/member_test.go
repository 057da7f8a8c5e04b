package listener

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
)

// impostor is a member that commits of the pair may wait for as well, and that does not exist.
const impostor = "cot_x_1"

// pose is a way to stream under that name.
type pose struct {
	name     string
	role     string   // its default
	commands []string // sent one after the other, each answered before the next
	together bool     // START_REPLICATION is sent with the last of them
}

var poses = []pose{
	{name: "SET", commands: []string{"SET application_name = '" + impostor + "'"}},
	{name: "in other letters", commands: []string{"SET application_name = '" + strings.ToUpper(impostor) + "'"}},
	{name: "set_config", commands: []string{"SELECT set_config('application_' || 'name', 'c' || 'ot_x_1', false)"}},
	{name: "DO", commands: []string{"DO $$ BEGIN EXECUTE 'SET application' || '_name = ''" + impostor + "'''; END $$"}},
	{name: "a default of the role", role: impostor},
	{name: "before it is answered", commands: []string{"SET application_name = '" + impostor + "'"}, together: true},
}

// stream takes the name and streams under it, claiming to have flushed up to that position. It returns what prevented
// it.
func (o pose) stream(t *testing.T, conn *pgconn.PgConn, at ag.LSN) error {
	t.Helper()
	_ = conn.Conn().SetDeadline(time.Now().Add(30 * time.Second))
	f := conn.Frontend()
	for k, q := range o.commands {
		if o.together && k == len(o.commands)-1 {
			f.Send(&pgproto3.Query{String: q})
			break
		}
		if _, err := conn.Exec(t.Context(), q).ReadAll(); err != nil {
			return err
		}
	}
	f.Send(&pgproto3.Query{String: fmt.Sprintf("START_REPLICATION SLOT pose_%d LOGICAL 0/0 (proto_version '1', publication_names 'nothing')", conn.PID())})
	if err := f.Flush(); err != nil {
		return err
	}
	for {
		msg, err := f.Receive()
		if err != nil {
			return err
		}
		switch msg := msg.(type) {
		case *pgproto3.ErrorResponse:
			return errors.New(msg.Message)
		case *pgproto3.CopyBothResponse:
			acknowledge(f, at)
			return nil
		}
	}
}

// acknowledge runs until the connection is closed: a walsender only counts when it has caught up. It claims no more
// than the WAL has: PostgreSQL believes any position, and then never lets a commit before it wait again.
func acknowledge(f *pgproto3.Frontend, at ag.LSN) {
	status := append([]byte{'r'}, make([]byte, 33)...)
	for k := range 3 {
		binary.BigEndian.PutUint64(status[1+8*k:], uint64(at))
	}
	said := func() error {
		f.Send(&pgproto3.CopyData{Data: status})
		return f.Flush()
	}
	go func() {
		for said() == nil {
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

// commitBesides has the pose stream while a commit waits for a standby whose feedback is frozen. It reports whether
// that commit was acknowledged.
func (o pose) commitBesides(t *testing.T, p *pair, g *group, dial func(string) (*pgx.Conn, error), patience time.Duration) (acknowledged bool, refused error) {
	t.Helper()
	p.reset(t)
	p.primary.sql(t, "drop role if exists cdc", "create role cdc login replication", "drop publication if exists nothing", "create publication nothing")
	if o.role != "" {
		p.primary.sql(t, "alter role cdc set application_name = '"+o.role+"'")
	}
	conn := g.mustDial(g.rw, "user=postgres synchronous_commit=on")
	stream, refused := dial("user=cdc replication=database")
	if refused == nil { // while no transaction runs: a slot waits for those
		defer func() { _ = stream.PgConn().Conn().Close() }()
		slot := fmt.Sprintf("CREATE_REPLICATION_SLOT pose_%d TEMPORARY LOGICAL pgoutput", stream.PgConn().PID())
		if _, err := stream.PgConn().Exec(t.Context(), slot).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	p.relay.freeze(true)
	heard := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), insert)
		heard <- err
	}()
	p.inSyncRep(t, conn.PgConn().PID())
	if refused == nil {
		at, err := p.flushLSN(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		refused = o.stream(t, stream.PgConn(), at)
	}
	if refused != nil {
		patience = 300 * time.Millisecond
	}
	select {
	case err := <-heard:
		acknowledged = err == nil && !p.confirmed(t)
	case <-time.After(patience):
		p.relay.freeze(false)
		if err := <-heard; err != nil {
			t.Errorf("%s: the commit: %v", o.name, err)
		}
	}
	return acknowledged, refused
}

// The hole itself: without the listener, a stream of logical replication acknowledges a commit in a member's name.
func TestLogicalStreamCountsAsAMember(t *testing.T) {
	p := thePair(t)
	g := p.group(t, nil)
	direct := func(rest string) (*pgx.Conn, error) {
		return pgx.Connect(t.Context(), "host="+p.primary.dir+" port=5432 dbname=postgres "+rest)
	}
	for _, o := range []pose{poses[0], poses[1], poses[4]} {
		if acknowledged, err := o.commitBesides(t, p, g, direct, time.Minute); !acknowledged {
			t.Errorf("%s: the commit was not acknowledged by it, %v; PostgreSQL has changed", o.name, err)
		}
	}
}

// Through the listener no such stream begins, and commits wait for their members.
func TestLogicalStreamIsNoMember(t *testing.T) {
	p := thePair(t)
	g := p.group(t, nil)
	dial := func(rest string) (*pgx.Conn, error) { return g.dial(g.rw, rest) }
	for _, o := range poses {
		acknowledged, err := o.commitBesides(t, p, g, dial, time.Second)
		if acknowledged || err == nil {
			t.Errorf("%s: the commit acknowledged: %v; the stream: %v", o.name, acknowledged, err)
		}
	}
	plain := pose{name: "its own name", commands: []string{"SET application_name = 'cdc'"}}
	if acknowledged, err := plain.commitBesides(t, p, g, dial, time.Second); acknowledged || err != nil {
		t.Errorf("by a name of its own: %v, %v", acknowledged, err)
	}
}

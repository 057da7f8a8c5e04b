package bluegreen_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/bluegreen"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// TestWayBack: green keeps what is written to it from the moment at which it had everything, across its promotion, and
// blue gets that, each row once, and the sequences in the end.
func TestWayBack(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.Keep = true
	if err := os.WriteFile(filepath.Join(w.Data, "postgresql.auto.conf"), []byte("wal_level = logical\n"), 0o600); err != nil { // as of a cluster that has blue's settings
		t.Fatal(err)
	}
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY, x text)", "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i", "CREATE SEQUENCE s", "CREATE DATABASE empty",
		"CREATE TABLE bare (i int)", "ALTER TABLE bare REPLICA IDENTITY FULL")
	print := w.filled(t)
	w.exec(t, "", "INSERT INTO t VALUES (1001, 'last')")
	if _, err := w.Finish(t.Context(), end(t, w.Blue), bluegreen.Shape{Print: print, Databases: []string{"empty", "postgres", "template1"}}); err != nil {
		t.Fatal(err)
	}
	held := w.Held()
	if held.Why != nil || held.Slots != 1 {
		t.Fatalf("%+v", held)
	}
	w.endBlue(t)
	if err := os.WriteFile(filepath.Join(w.Data, "standby.signal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	run(t, w.Green, "", "SELECT pg_promote()", "INSERT INTO public.t VALUES (2000, 'new')", "UPDATE public.t SET x = 'changed' WHERE i <= 10", "DELETE FROM public.t WHERE i = 500", "SELECT setval('public.s', 99)")
	work := filepath.Join(w.dir, "k")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	back := &bluegreen.Pair{
		Back: true, Blue: w.Green, Sockets: w.Work, Install: w.older, Data: filepath.Join(w.dir, "blue"), Work: work, HBA: w.HBA, LogFile: filepath.Join(w.dir, "blue.log"), Superuser: "postgres",
	}
	t.Cleanup(func() { _ = back.End(false) })
	follow := func() {
		t.Helper()
		if err := back.Start(t.Context(), 3); err != nil {
			t.Fatal(err)
		}
		if n, err := back.Follow(t.Context()); err != nil || n != 1 {
			t.Fatalf("%d follow: %v", n, err)
		}
	}
	follow()
	run(t, w.Green, "", "INSERT INTO public.t SELECT i, 'more' FROM generate_series(3000, 3999) i")
	if err := back.End(false); err != nil { // as a kill would
		t.Fatal(err)
	}
	run(t, w.Green, "", "INSERT INTO public.t VALUES (4000, 'while it was down')")
	follow()
	if now, err := back.Fingerprint(t.Context(), []string{"empty", "postgres", "template1"}); err != nil || now != held.Print {
		t.Errorf("the definitions are taken for others: %v", err)
	}
	if kept, slots, err := back.Retained(t.Context()); err != nil || kept <= 0 || slots != 1 {
		t.Errorf("%d bytes, %d slots: %v", kept, slots, err)
	}
	if err := back.MakeReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	shape := bluegreen.Shape{Print: held.Print, Databases: []string{"empty", "postgres", "template1"}}
	finish := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := back.Finish(ctx, end(t, w.Green), shape)
		return err
	}
	run(t, w.Green, "empty", "SELECT lo_create(7)")
	if err := finish(); err == nil || !strings.Contains(err.Error(), "1 large objects") || !back.Runs() {
		t.Errorf("a large object: %v", err)
	}
	run(t, w.Green, "empty", "SELECT lo_unlink(7)")
	run(t, w.Green, "", "INSERT INTO public.bare VALUES (1)")
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	// The group has not passed. Green crashes, so that its slots may say less than blue has, and takes writes again.
	if err := w.End(false); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	run(t, w.Green, "", "INSERT INTO public.bare VALUES (2)", "SELECT setval('public.s', 199)")
	follow()
	if err := finish(); err != nil {
		t.Fatal(err)
	}
	if err := back.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	b := &twins{Pair: back}
	b.has(t, "", "SELECT string_agg(subenabled::text, ' ') FROM pg_subscription", "false")
	if err := bluegreen.Leave(t.Context(), back.Green); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"SELECT count(*) FROM public.t": "2002", "SELECT count(*) FROM public.t WHERE x = 'changed'": "10", "SELECT count(*) FROM public.t WHERE i IN (1001, 2000, 4000)": "3", "SELECT nextval('public.s')": "200",
		"SELECT string_agg(i::text, ' ' ORDER BY i) FROM public.bare": "1 2", "SELECT count(*) FROM pg_subscription": "0", "SELECT count(*) FROM pg_publication": "0",
	} {
		b.has(t, "", query, want)
	}
	run(t, w.Green, "", "ALTER PUBLICATION coterie_blue DROP TABLE public.bare")
	if now, err := back.Fingerprint(t.Context(), shape.Databases); err != nil || now == held.Print {
		t.Errorf("a table that is published no more is not found: %v", err)
	}
	if err := back.Sweep(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	w.has(t, "", "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication)", "0")
}

// TestErrorsOnTheWayBack: a way back that is open for long outlives any number of connections that end, if rows arrive
// in between. Rows that blue cannot take end it.
func TestErrorsOnTheWayBack(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.Keep = true
	if err := os.WriteFile(filepath.Join(w.Data, "postgresql.auto.conf"), []byte("wal_level = logical\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY)")
	shape := bluegreen.Shape{Print: w.filled(t), Databases: []string{"postgres", "template1"}}
	if _, err := w.Finish(t.Context(), end(t, w.Blue), shape); err != nil {
		t.Fatal(err)
	}
	w.endBlue(t)
	if err := w.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(w.dir, "k")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	back := &bluegreen.Pair{
		Back: true, Blue: w.Green, Sockets: w.Work, Install: w.older, Data: filepath.Join(w.dir, "blue"), Work: work, HBA: w.HBA, LogFile: filepath.Join(w.dir, "blue.log"), Superuser: "postgres",
	}
	t.Cleanup(func() { _ = back.End(false) })
	if err := back.Start(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := back.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := &twins{Pair: back}
	progress := func() bluegreen.Progress {
		t.Helper()
		p, err := back.Progress(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	for i := range 8 {
		run(t, w.Green, "", fmt.Sprintf("INSERT INTO public.t VALUES (%d)", i))
		w.comes(t, fmt.Sprintf("SELECT confirmed_flush_lsn >= '%s' FROM pg_replication_slots", end(t, w.Green)), "true")
		if p := progress(); p.Failed != "" {
			t.Fatalf("after %d connections that ended: %s", i, p.Failed)
		}
		run(t, w.Green, "", "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_replication")
	}
	b.comes(t, "SELECT (sum(apply_error_count) > 5)::text FROM pg_stat_subscription_stats", "true") // else this shows nothing
	run(t, back.Green, "", "INSERT INTO public.t VALUES (100)")
	run(t, w.Green, "", "INSERT INTO public.t VALUES (100)")
	for until := time.Now().Add(2 * time.Minute); progress().Failed == ""; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a row that blue cannot take does not end the way back")
		}
	}
}

// comes waits until a query has that answer.
func (w *twins) comes(t *testing.T, query, want string) {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var got string
		c, err := w.Green(t.Context(), "")
		if err == nil {
			err = c.QueryRow(t.Context(), "SELECT ("+query+")::text").Scan(&got)
			session.Close(c)
		}
		if err == nil && got == want {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%s: %s, %v", query, got, err)
		}
	}
}

// TestLateDefinition: a definition that is made while green gets the last of it is found, although blue counted as
// quiet before.
func TestLateDefinition(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE TABLE t (i int PRIMARY KEY)")
	print := w.filled(t)
	x := end(t, w.Blue)
	c, err := w.Blue(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "BEGIN; CREATE TABLE public.late AS SELECT 1 AS i"); err != nil { // Finish ends it
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() { // ends with its commit, at the latest when blue ends
		_, err := c.Exec(t.Context(), "SELECT pg_sleep(0.05); COMMIT")
		made <- errors.Join(err, c.Close(context.WithoutCancel(t.Context())))
	}()
	_, err = w.Finish(t.Context(), x, bluegreen.Shape{Print: print, Databases: []string{"postgres", "template1"}})
	if committed := <-made == nil; committed != errors.Is(err, bluegreen.ErrChanged) {
		t.Errorf("the table was made: %v; %v", committed, err)
	}
}

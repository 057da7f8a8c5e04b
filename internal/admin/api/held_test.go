package api

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// counting answers a statement with the number of statements that its session has had.
type counting struct{ Node }

func (counting) SQL(ctx context.Context, text string) (any, error) {
	if text == "hang" {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	n := 1
	if h := SessionOf(ctx); h != nil {
		if h.Value != nil {
			n = h.Value.(int) + 1
		}
		h.Value = n
	}
	return SQLAnswer{Result: []byte{'0' + byte(n)}}, nil
}

// agent serves the socket until the function that it returns is called.
func agent(t *testing.T, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- NewServer(counting{}, slog.New(slog.DiscardHandler)).ServeAdmin(ctx, socket) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := NewClient(socket, os.Getuid()).SQL(ctx, ""); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the agent does not answer")
		}
	}
	return func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// TestStatementsOfASession holds that the statements of a client of InSession share a session and those of others do
// not, and that one whose session was lost is not run in another one.
func TestStatementsOfASession(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	stop := agent(t, socket)
	single := NewClient(socket, os.Getuid())
	one, other := single.InSession(), single.InSession()
	defer one.Close()
	defer other.Close()
	ask := func(c *Client, ctx context.Context, text string) string {
		a, err := c.SQL(ctx, text)
		if err != nil {
			return err.Error()
		}
		return string(a.Result)
	}
	for i, c := range []*Client{one, one, single, one, other, single, other} {
		if got, want := ask(c, t.Context(), "SELECT 1"), []string{"1", "2", "1", "3", "1", "1", "2"}[i]; got != want {
			t.Errorf("statement %d: its session had %s, want %s", i, got, want)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if got := ask(one, ctx, "hang"); !strings.Contains(got, "deadline") {
		t.Error(got)
	}
	if got := ask(one, t.Context(), "SELECT 1"); got != "1" {
		t.Errorf("after one that was cancelled: %s", got)
	}
	stop()
	defer agent(t, socket)()
	if got := ask(one, t.Context(), "SELECT 1"); !strings.Contains(got, "the session has ended") && !strings.Contains(got, "EOF") && !strings.Contains(got, "reset") && !strings.Contains(got, "broken pipe") {
		t.Errorf("after a restart of the agent: %s", got)
	}
	if got := ask(one, t.Context(), "SELECT 1"); got != "1" {
		t.Errorf("after that: %s", got)
	}
}

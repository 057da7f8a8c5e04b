package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// refusing is a Node that refuses to remove members, with an error of its choice.
type refusing struct {
	Node
	err error
}

func (r *refusing) Remove(context.Context, ag.ReplicaID) error { return r.err }

// TestKindTravels holds that an error of the agent reaches the client's process with its kind and its text.
func TestKindTravels(t *testing.T) {
	t.Parallel()
	n := &refusing{}
	socket := filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- NewServer(n, slog.New(slog.DiscardHandler)).ServeAdmin(ctx, socket) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c := NewClient(socket, os.Getuid())
	for end := time.Now().Add(10 * time.Second); ; {
		if err := c.Remove(ctx, "a"); !errors.Is(err, ErrNoAgent) || time.Now().After(end) {
			break
		}
	}
	for _, tt := range []struct {
		err  error
		kind fail.Kind
		text string
	}{
		{fail.Refusedf("a is the primary"), fail.Refused, "a is the primary"},
		{errors.Join(fail.Unhealthyf("no quorum")), fail.Unhealthy, "no quorum"},
		{fail.Usagef("which?"), fail.Usage, "which?"},
		{errors.New("disk full"), fail.Ordinary, "disk full"},
	} {
		n.err = tt.err
		err := c.Remove(ctx, "a")
		var known fail.Error
		if !errors.As(err, &known) || known.Kind != tt.kind || err.Error() != tt.text {
			t.Errorf("%v of kind %s; want %q of kind %s", err, known.Kind, tt.text, tt.kind)
		}
	}
	n.err = nil
	if err := c.Remove(ctx, "a"); err != nil {
		t.Error(err)
	}
	_, e := refusal(fail.Refusedf("no"))
	if b, err := json.Marshal(e); err != nil || string(b) != `{"kind":"refused","message":"no"}` {
		t.Errorf("the document is %s, %v", b, err)
	}
}

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// A request of an administrator may take minutes. While one is not answered, the client looks every lookEvery whether
// the agent answers anything at all, and ends it when the agent has answered nothing for silentLimit.
const (
	lookEvery   = 5 * time.Second
	silentLimit = 20 * time.Second
)

// errSilent is why a request ends whose agent answers nothing.
var errSilent = errors.New("the agent answers nothing")

// watch returns a context that ends with errSilent once the agent has answered no look for silentLimit. The caller ends
// it.
func (c *Client) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		heard := time.Now()
		for retry.Sleep(ctx, c.look) == nil {
			if c.answers(ctx) {
				heard = time.Now()
			} else if time.Since(heard) > c.silent {
				cancel(errSilent)
			}
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-ended
	}
}

// answers reports whether the agent answers a question for a path that it does not have within the time of a look. An
// agent that refuses connections counts as one: the request that is looked after learns of it by itself.
func (c *Client) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, c.look)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, "http://agent/api/v1/", nil)
	if err != nil {
		return true
	}
	look := NewClient(c.socket, c.owner)
	defer look.Close()
	resp, err := look.http.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err == nil || !errors.Is(err, context.DeadlineExceeded)
}

// silence returns the error of a request that the agent did not answer, nor anything else meanwhile.
func (c *Client) silence(method string) error {
	process := ""
	if pid, err := c.Process(context.Background()); err == nil && pid > 0 {
		process = fmt.Sprintf(" (process %d)", pid)
	}
	outcome := "nothing was changed"
	if method != http.MethodGet {
		outcome = "what it was asked for may be carried out when it goes on"
	}
	return fail.Unhealthyf("the agent%s runs and has answered nothing for %v: it is stopped or hangs, or its machine does; %s. Run this on another member, or on this one: systemctl restart coterie",
		process, c.silent, outcome)
}

package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/sdnotify"
)

// Times of what the service manager is told.
const (
	// readyAtLatest is when a node that has not decided anything yet is called ready all the same: it may be waiting
	// for others, and a manager that waits too long would end it.
	readyAtLatest = time.Minute
	startingLook  = 100 * time.Millisecond // how often a node that is starting is looked at
	statusLook    = time.Second            // how often the text about a node is
	mostPause     = 10 * time.Second       // between two messages
)

// told tells the service manager how a node is. It runs beside everything else: nothing waits for the manager.
type told struct {
	tell     func(messages ...string) error
	watchdog time.Duration        // as sdnotify.Manager has it
	turned   func() time.Duration // BOOTTIME of the last turn of the loop that decides; 0: none yet
	status   func() string        // in a line
	log      *slog.Logger
}

// run tells until ctx is done. Signs of life do not wait for the text, which looks at more.
func (m *told) run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { m.tellSigns(ctx) })
	both.Go(func() { m.tellStatus(ctx) })
	both.Wait()
}

// tellSigns sends that the node is ready, until the manager has heard it, and that it is alive.
func (m *told) tellSigns(ctx context.Context) {
	began, ready, failed := boottime.Now(), false, false
	for {
		var messages []string
		is := m.turned() != 0 || boottime.Now()-began >= readyAtLatest
		if is && !ready {
			messages = append(messages, sdnotify.Ready)
		}
		if m.alive() {
			messages = append(messages, sdnotify.Alive)
		}
		err := m.send(messages)
		if err != nil && !failed {
			m.log.Warn("the service manager does not hear this node", "err", err)
		}
		failed = err != nil
		ready = ready || is && !failed
		pause := mostPause
		if m.watchdog > 0 {
			pause = min(pause, m.watchdog/6)
		}
		if !ready {
			pause = startingLook
		}
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (m *told) send(messages []string) error {
	if len(messages) == 0 {
		return nil
	}
	return m.tell(messages...)
}

// tellStatus sends the state of the node in a line, when that has changed and at intervals.
func (m *told) tellStatus(ctx context.Context) {
	said, at := "", time.Duration(0)
	for {
		if text, now := m.status(), boottime.Now(); text != said || now-at >= mostPause {
			if m.tell(sdnotify.Status+text) == nil {
				said, at = text, now
			}
		}
		if retry.Sleep(ctx, statusLook) != nil {
			return
		}
	}
}

// alive reports whether the loop that decides turns, or has not begun to.
func (m *told) alive() bool {
	last := m.turned()
	return last == 0 || m.watchdog <= 0 || boottime.Now()-last < m.watchdog/2
}

// tellManager tells the service manager how this node is, if there is one, until the returned function is called.
func (n *node) tellManager() (stop func()) {
	manager := sdnotify.Open()
	if manager == nil {
		return func() {}
	}
	m := &told{tell: manager.Tell, watchdog: manager.Watchdog, turned: n.turned, status: n.inShort, log: n.log}
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.run(ctx)
	}()
	return func() {
		end()
		<-done
	}
}

func (n *node) turned() time.Duration {
	select {
	case <-n.ready:
		return n.agent.Turned()
	default:
		return 0
	}
}

// inShort returns how this node and its group are, in a line.
func (n *node) inShort() string {
	if n.turned() == 0 {
		return "starting"
	}
	v := n.agent.View()
	if v == nil {
		return "starting: nothing is decided yet"
	}
	text := fmt.Sprintf("%s of group %s, which is %s", strings.ToLower(string(v.Role())), v.Group.Name, n.status.Availability().Level)
	if problems := n.clients.LoginProblems(); len(problems) > 0 {
		text += "; " + problems[0]
	}
	return text
}

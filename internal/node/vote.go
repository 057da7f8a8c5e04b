package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// This file keeps a full disk below etcd/ from taking more than this node's vote: the agent, the server and the other nodes go on.
//
// With little room left the member is stopped in order, while it still can be. Where the disk filled up faster than that, etcd gives
// up, and what is left of it in this process can only be got rid of with the process: once there is room the agent is restarted in
// place, as coterie restart does, which leaves the server and the leadership where they are.

const (
	// voteFloor is the room below which the member is stopped: etcd allocates its next log file of 4 MB ahead, and its database grows by pages.
	voteFloor = 4 << 20
	// voteRoom is the room with which it is started: twice two log files.
	voteRoom = 16 << 20
	// A restart for the sake of a member that failed is tried at most every fullPause where the disk was full, else every brokenPause.
	fullPause, brokenPause = time.Minute, 10 * time.Minute
)

// vote is this node's vote in the quorum as far as its own disk is concerned. Only the membership's goroutine, and before it the start of
// the node, change it.
type vote struct {
	missing atomic.Pointer[string] // why it is not cast
	failed  error                  // the member that ran in this process gave up
	tried   time.Time              // when a restart was asked for last
}

// noVote says why this node's vote is not cast; "": it is, or there is none.
func (n *node) noVote() string {
	if s := n.vote.missing.Load(); s != nil {
		return *s
	}
	return ""
}

func (n *node) wasMember() bool {
	_, err := os.Stat(n.layout.MemberMark())
	return err == nil
}

// room returns how many bytes are free for this user where the member's directory is.
func room(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("the room in %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// castVote starts the member that this node had, if there is room for it. That there is none is no error: the node goes on without.
func (n *node) castVote(ctx context.Context) error {
	free, err := room(n.layout.Etcd())
	if err == nil && free < voteRoom {
		n.loseVote(fmt.Sprintf("%d MB are free in %s", free>>20, n.layout.Etcd()))
		return nil
	}
	err = n.startMember(ctx, n.cfg.Group, false, nil) // which says what is wrong with a directory that is not there
	if errors.Is(err, embedded.ErrFailed) {
		n.failVote(err)
		return nil
	}
	if err == nil && n.vote.missing.Swap(nil) != nil {
		n.log.Info("the quorum member runs again")
		n.ports.refresh()
	}
	return err
}

// keepVote takes the member's disk into account, one turn of it; has says that the group's configuration knows the member. kept says that
// there is nothing else to be done about the membership in this turn.
func (n *node) keepVote(ctx context.Context, has bool) (kept bool, err error) {
	m := n.member.Load()
	switch {
	case m != nil:
		if n.mayRenewVote() {
			return true, n.renewVote(ctx, m)
		}
		return n.watchVote(m)
	case n.vote.failed != nil:
		return true, n.replaceProcess(ctx)
	case has && n.wasMember():
		return true, n.castVote(ctx)
	}
	return false, nil
}

// watchVote looks after the member that runs.
func (n *node) watchVote(m *embedded.Member) (gone bool, err error) {
	if err := m.Err(); errors.Is(err, embedded.ErrFailed) {
		n.failVote(err)
		return true, nil
	}
	free, err := room(n.layout.Etcd())
	if err != nil || free >= voteFloor {
		return false, err
	}
	n.loseVote(fmt.Sprintf("%d MB are free in %s", free>>20, n.layout.Etcd()))
	if err := m.Close(); errors.Is(err, embedded.ErrFailed) {
		n.failVote(err)
	} else if err != nil { // it may hold its files still
		n.failVote(fmt.Errorf("%w: %w", embedded.ErrFailed, err))
	}
	return true, nil
}

// loseVote says that this node does not vote, and asks the others for the quorum from now on.
func (n *node) loseVote(why string) {
	n.member.Store(nil)
	n.ports.refresh()
	s := fmt.Sprintf("%s; the quorum's member begins again by itself when %d MB are free there: remove what does not belong on that disk, or enlarge it", why, voteRoom>>20)
	if old := n.vote.missing.Swap(&s); old == nil {
		n.log.Error("this node does not vote in the quorum", "because", s)
	}
}

// failVote notes that etcd gave up. Only another process can start it again.
func (n *node) failVote(why error) {
	n.vote.failed, n.vote.tried = why, time.Now()
	n.loseVote(why.Error())
}

// replaceProcess restarts the agent in place once the disk has room again, so that the member can be started.
func (n *node) replaceProcess(ctx context.Context) error {
	pause := brokenPause
	if errors.Is(n.vote.failed, embedded.ErrNoSpace) {
		pause = fullPause
	}
	free, err := room(n.layout.Etcd())
	if err != nil || free < voteRoom || time.Since(n.vote.tried) < pause {
		return err
	}
	n.vote.tried = time.Now()
	n.log.Warn("the agent restarts in place, so that its quorum member can start again", "because", n.vote.failed)
	if err := n.agent.Restart(ctx, agent.RestartOptions{}); err != nil {
		return fmt.Errorf("restart in place, for the quorum member: %w", err)
	}
	return nil
}

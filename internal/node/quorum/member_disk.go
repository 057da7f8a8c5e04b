package quorum

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// A full disk below etcd/ must cost no more than this node's vote: the agent, the server and the other nodes continue.
//
// With little space left the member is stopped in order, while that still works. If the disk fills up faster, etcd
// gives up, and its remains in this process disappear only with the process. Once there is space, the agent is then
// restarted in place, as by coterie restart, which leaves the server and the leadership where they are.

const (
	// suspendBelow is the free space below which the member is stopped. etcd allocates its next log file of 4 MB ahead,
	// and its database grows by pages.
	suspendBelow = 4 << 20
	// startAbove is the free space needed to start the member: four log files.
	startAbove = 16 << 20
	// fullPause and brokenPause are the least time between two restarts of the agent for a member that failed, on a
	// full disk and for another reason.
	fullPause, brokenPause = time.Minute, 10 * time.Minute
	// startLimit is how long the start of the member may take: on a disk that hangs it keeps the agent from serving.
	startLimit = 2 * time.Minute
	// writeLimit is how long a disk on which the member gave up may take for a small file before it counts as hanging.
	writeLimit = 2 * time.Second
)

// NoVote returns why this node's member does not run, or has not come to vote for a while; "" if it votes, or if the
// node has none.
func (s *Service) NoVote() string {
	for _, why := range []*string{s.missing.Load(), s.waiting.Load()} {
		if why != nil {
			return *why
		}
	}
	return ""
}

// wasMember reports whether this node has a member of the quorum, running or not.
func (s *Service) wasMember() bool {
	_, err := os.Stat(s.Layout.MemberMark())
	return err == nil
}

// freeBytes returns how many bytes this user may still write to the file system of dir.
func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("the room in %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// writes reports whether a file can be written and synced in dir now. A disk that hangs cannot: the attempt that waits
// for it is the only one.
func (s *Service) writes(dir string) bool {
	if !s.trying.CompareAndSwap(false, true) {
		return false
	}
	done := make(chan error, 1)
	go func() {
		defer s.trying.Store(false)
		path := filepath.Join(dir, "probe.tmp")
		err := durable.Replace(path, []byte("probe\n"), 0o600)
		done <- errors.Join(err, os.Remove(path))
	}()
	select {
	case err := <-done:
		return err == nil
	case <-time.After(writeLimit):
		return false
	}
}

// startMember starts the member that this node had, if there is space for it. It returns nil if there is none: the node
// continues without its member.
func (s *Service) startMember(ctx context.Context) error {
	free, err := s.freeBytes(s.Layout.Etcd())
	if err == nil && free < startAbove {
		s.suspendMember(s.lowOn(free))
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = s.launch(limited, embedded.Config{Token: s.Node.Group}) // its error tells what is wrong with a missing directory
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", embedded.ErrFailed, err)
	}
	if errors.Is(err, embedded.ErrFailed) {
		s.memberFailed(err)
		return nil
	}
	if err == nil && s.missing.Swap(nil) != nil {
		s.Logger.Info("the quorum member runs again")
		s.store.Refresh()
	}
	return err
}

// supervise looks after the member and its disk; has reports whether the group's configuration knows the member. done
// means that nothing else may be done about the membership in this turn.
func (s *Service) supervise(ctx context.Context, has bool) (done bool, err error) {
	m := s.running()
	switch {
	case m != nil:
		if s.mayRestartMember() {
			return true, s.restartMember(ctx, m)
		}
		return s.watchMember(m)
	case errors.Is(s.failed, embedded.ErrCorrupt): // no start of it can succeed: see replaceMember
		return false, nil
	case s.failed != nil:
		return true, s.restartAgent(ctx)
	case has && s.wasMember():
		return true, s.startMember(ctx)
	}
	return false, nil
}

// watchMember suspends the member that runs if its disk is nearly full, and reports whether it has ended.
func (s *Service) watchMember(m member) (gone bool, err error) {
	if err := m.Err(); errors.Is(err, embedded.ErrFailed) {
		s.memberFailed(err)
		return true, nil
	}
	free, err := s.freeBytes(s.Layout.Etcd())
	if err != nil || free >= suspendBelow {
		return false, err
	}
	s.suspendMember(s.lowOn(free))
	if err := m.Close(); errors.Is(err, embedded.ErrFailed) {
		s.memberFailed(err)
	} else if err != nil { // it may still hold its files
		s.memberFailed(fmt.Errorf("%w: %w", embedded.ErrFailed, err))
	}
	return true, nil
}

func (s *Service) lowOn(free int64) string {
	return fmt.Sprintf("%d MB are free in %s", free>>20, s.Layout.Etcd())
}

// suspendMember records why this node does not vote, and when it does again. From now on the node asks the others for
// the quorum. The caller closes the member.
func (s *Service) suspendMember(why string) {
	s.member.Store(nil)
	s.store.Refresh()
	text := why + "; " + s.beginsAgain()
	if old := s.missing.Swap(&text); old == nil {
		s.Logger.Error("this node does not vote in the quorum", "because", text)
	}
}

// beginsAgain returns when the member that does not run is started, and what helps it.
func (s *Service) beginsAgain() string {
	again, room := "the quorum's member begins again by itself ", fmt.Sprintf("when %d MB are free there", startAbove>>20)
	switch {
	case s.failed == nil:
	case errors.Is(s.failed, embedded.ErrCorrupt) && s.Node.Kind == "witness":
		return fmt.Sprintf("run coterie member replace %s on a replica, and here coterie destroy and what the first command prints", s.self)
	case errors.Is(s.failed, embedded.ErrCorrupt) && s.majorityNeeds():
		return "stop this agent, and found the quorum anew: coterie recover"
	case errors.Is(s.failed, embedded.ErrCorrupt):
		return "another member begins in its place by itself, once a majority of the other votes answers"
	case errors.Is(s.failed, embedded.ErrNoSpace):
		room += fmt.Sprintf(", and %s after it gave up at the earliest", age(fullPause))
	default:
		return again + fmt.Sprintf("%s after it gave up, or %s where no majority answers; at once, when its disk is sound: coterie restart on %s; log/agent.log has more", age(brokenPause), age(fullPause), s.self)
	}
	return again + room + ": remove what does not belong on that disk, or enlarge it"
}

// majorityNeeds reports whether the members that vote are no majority without this node: it is one of two, or the only
// one.
func (s *Service) majorityNeeds() bool {
	voters := s.Members.Voters()
	return len(voters) <= 2 && slices.ContainsFunc(voters, func(r ag.Replica) bool { return r.ID == s.self })
}

// age returns a pause of whole minutes as people say it.
func age(d time.Duration) string { return fmt.Sprintf("%d min", int(d.Minutes())) }

// memberFailed records that etcd gave up. Only another process can start the member again.
func (s *Service) memberFailed(why error) {
	s.failed, s.restarted = why, s.now()
	s.suspendMember(why.Error())
}

// restartAgent restarts the agent in place once the disk has space again, so that the member can be started.
func (s *Service) restartAgent(ctx context.Context) error {
	pause, v := brokenPause, s.View()
	alone := v != nil && !v.Quorum // nothing is lost by a restart that fails again, and everything waits for this vote
	if errors.Is(s.failed, embedded.ErrNoSpace) || alone {
		pause = fullPause
	}
	free, err := s.freeBytes(s.Layout.Etcd())
	if err != nil || free < startAbove || s.now().Sub(s.restarted) < pause {
		return err
	}
	if !errors.Is(s.failed, embedded.ErrNoSpace) && alone && !s.writes(s.Layout.Etcd()) {
		return nil
	}
	s.restarted = s.now()
	s.Logger.Warn("the agent restarts in place, so that its quorum member can start again", "because", s.failed)
	if err := s.Restart(ctx); err != nil {
		return fmt.Errorf("restart in place, for the quorum member: %w", err)
	}
	return nil
}

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lab/faketime"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// clockName is the name, among the helpers, of the process that gives the programs that nodes start the clock of their
// node. It ends when no clock is wrong any more.
const clockName = "lab-clocks"

// clockTurn is how long a new program has the true time at most, on an idle machine.
const clockTurn = 300 * time.Millisecond

// How long a process is waited for that cannot be stopped or changed just now: by a command, and by the keeper of
// clocks, which comes back to it.
const (
	clockPatience = 5 * time.Second
	clockGlance   = 50 * time.Millisecond
)

// ClockStatus is the wall clock of a node.
type ClockStatus struct {
	Offset    time.Duration `json:"offset_ns"` // from the true time
	Processes int           `json:"processes"` // of the node
	Shifted   int           `json:"shifted"`   // of these, how many have that offset
}

// Clock shifts what the processes of a node, and those that they start, believe the time of day to be; zero gives the
// true time back.
func (l *Lab) Clock(node string, offset time.Duration) (ClockStatus, error) {
	n, err := l.node(node)
	if err != nil {
		return ClockStatus{}, err
	}
	if err := faketime.Check(offset); err != nil {
		return ClockStatus{}, usage("%s", err)
	}
	if err := faketime.Possible(); err != nil {
		return ClockStatus{}, fail.Refusedf("%w", err)
	}
	unlock, err := l.lock()
	if err != nil {
		return ClockStatus{}, err
	}
	defer unlock()
	if err := l.changeClock(n, offset); err != nil {
		return ClockStatus{}, err
	}
	return l.clockStatus(n, offset)
}

// changeClock notes the offset and sets it. A process that could not be shifted is left to the keeper of clocks.
func (l *Lab) changeClock(n Node, offset time.Duration) error {
	release, err := l.lockClocks()
	if err != nil {
		return err
	}
	defer release()
	clocks, err := l.clocks()
	if err != nil {
		return err
	}
	clocks[n.Name] = offset
	if err := durable.ReplaceJSON(l.clocksFile(), clocks); err != nil {
		return err
	}
	err = l.setClocks(n, offset, clockPatience)
	if err != nil || offset != 0 {
		err = errors.Join(err, l.keepClocks())
	}
	return err
}

// lockClocks waits until nobody else sets clocks: the keeper of clocks would set an offset again that it has read, and
// that was changed meanwhile.
func (l *Lab) lockClocks() (release func(), err error) {
	return lockFile(context.Background(), filepath.Join(l.dir, ".clocks.lock"), networkTimeout)
}

func (l *Lab) clocksFile() string { return filepath.Join(l.dir, "clocks.json") }

// clocks reads the offsets by node. A node whose clock was put right again is in it with zero: its processes may still
// be shifted.
func (l *Lab) clocks() (map[string]time.Duration, error) {
	b, err := os.ReadFile(l.clocksFile())
	if errors.Is(err, os.ErrNotExist) {
		return map[string]time.Duration{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]time.Duration{}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", l.clocksFile(), err)
	}
	return out, nil
}

// setClocks gives every process of the node the offset, also those after one that could not be shifted.
func (l *Lab) setClocks(n Node, offset, patience time.Duration) error {
	t, err := l.find(n)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range t.all {
		err := p.setClock(offset, patience)
		if errors.Is(err, os.ErrPermission) {
			return fail.Refusedf("this user may not change the clock of %s (%s); run this as root, or with kernel.yama.ptrace_scope = 0", n.Name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// setClock stops the process for a moment and shifts its clock. A process that has the offset, or has ended, is left as
// it is.
func (p process) setClock(offset, patience time.Duration) error {
	if is, err := faketime.Offset(p.pid); err == nil && is == offset {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	_ = retry.Until(ctx, time.Millisecond, func() (bool, error) { // at its end the error of the last attempt counts
		if err = p.shift(offset); !p.alive() {
			err = nil
		}
		return !errors.Is(err, faketime.ErrBusy), nil
	})
	return err
}

// shift shifts the clock while the process is stopped. A process that was stopped before, by a pause of the lab, stays
// stopped.
func (p process) shift(offset time.Duration) error {
	now, ok := readProcess(p.pid)
	if !ok || now.start != p.start {
		return nil
	}
	if now.stopped() {
		return faketime.Shift(p.pid, offset)
	}
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	defer func() { _ = p.signal(syscall.SIGCONT) }() // fails only if the process has ended
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := retry.Until(ctx, time.Millisecond, func() (bool, error) {
		now, ok := readProcess(p.pid)
		return !ok || now.stopped(), nil
	})
	if err == nil {
		return faketime.Shift(p.pid, offset)
	}
	return fmt.Errorf("%w: process %d (%s) cannot be stopped: it waits in the kernel, as for a disk that hangs; heal that first", faketime.ErrBusy, p.pid, p.comm)
}

// keepClocks starts the process that watches for new programs, unless it runs.
func (l *Lab) keepClocks() error {
	if kept, err := l.clockKeeper(); err != nil || kept != nil {
		return err
	}
	cmd, err := l.helper(clockName, labDir{l.dir}, nil)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start what keeps the clocks: %w", err)
	}
	l.servers.Go(func() { _ = cmd.Wait() })
	return nil
}

// resumeClocks starts the keeper again after it was killed, if a clock is wrong.
func (l *Lab) resumeClocks() error {
	clocks, err := l.clocks()
	if err != nil || !wrong(clocks) {
		return err
	}
	return l.keepClocks()
}

func wrong(clocks map[string]time.Duration) bool {
	for _, d := range clocks {
		if d != 0 {
			return true
		}
	}
	return false
}

func (l *Lab) clockKeeper() (*process, error) {
	ps, err := processes()
	if err != nil {
		return nil, err
	}
	for i, p := range ps {
		if p.uid == os.Getuid() && p.serves(clockName, l.dir) {
			return &ps[i], nil
		}
	}
	return nil, nil //nolint:nilnil // none is an answer
}

// endClocks ends every shift: the keeper of clocks has nothing to do when the nodes end.
func (l *Lab) endClocks() error {
	if err := os.Remove(l.clocksFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	p, err := l.clockKeeper()
	if err != nil || p == nil {
		return err
	}
	return errors.Join(p.signal(syscall.SIGTERM), awaitGone([]process{*p}, 10*time.Second))
}

// keepWrongClocks looks for programs of the nodes which have another time than their node. It returns when no clock is
// wrong any more and every process has the true time, the lab does not exist any more, or ctx is done.
func keepWrongClocks(ctx context.Context, dir string) error {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	err = retry.Until(ctx, clockTurn, l.keepClocksOnce)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// keepClocksOnce is one turn of the keeper of clocks. It reports whether nothing is left to do.
func (l *Lab) keepClocksOnce() (over bool, err error) {
	over = true
	for _, n := range l.Nodes() {
		offset, err := l.keepClock(n)
		if errors.Is(err, errClocks) {
			return true, err
		}
		over = over && err == nil && offset == 0
	}
	return over, nil
}

// errClocks means that the offsets of a lab cannot be read.
var errClocks = errors.New("the clocks of the lab")

// keepClock gives the node's processes its offset, which it returns.
func (l *Lab) keepClock(n Node) (time.Duration, error) {
	release, err := l.lockClocks()
	if err != nil {
		return 0, errors.Join(errClocks, err)
	}
	defer release()
	clocks, err := l.clocks()
	if err != nil {
		return 0, errors.Join(errClocks, err)
	}
	offset, ok := clocks[n.Name]
	if !ok {
		return 0, nil
	}
	return offset, l.setClocks(n, offset, clockGlance)
}

// clockStatus counts the node's processes by their clocks.
func (l *Lab) clockStatus(n Node, offset time.Duration) (ClockStatus, error) {
	t, err := l.find(n)
	if err != nil {
		return ClockStatus{}, err
	}
	return clockOf(t, offset), nil
}

func clockOf(t tree, offset time.Duration) ClockStatus {
	s := ClockStatus{Offset: offset, Processes: len(t.all)}
	for _, p := range t.all {
		if is, err := faketime.Offset(p.pid); err == nil && is == offset {
			s.Shifted++
		}
	}
	return s
}

package keeper

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// alarm rings on CLOCK_BOOTTIME: unlike a Go timer it is on time after the machine was suspended.
type alarm struct {
	file  *os.File
	rings chan struct{}
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create timer: %w", err)
	}
	return &alarm{file: os.NewFile(uintptr(fd), "timer"), rings: make(chan struct{}, 1)}, nil
}

// serve forwards the rings until the alarm is closed.
func (a *alarm) serve() {
	var b [8]byte
	for {
		if _, err := a.file.Read(b[:]); err != nil {
			return
		}
		select {
		case a.rings <- struct{}{}:
		default:
		}
	}
}

// set makes the alarm ring at that time, or at once if it has passed.
func (a *alarm) set(at time.Duration) {
	if at == never {
		at = boottime.Now() + time.Hour
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, 1)))}
	var setErr error
	raw, err := a.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { setErr = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &spec, nil) })
	}
	if err = errors.Join(err, setErr); err != nil {
		panic(fmt.Sprintf("set timer: %v", err)) // without a timer no deadline is kept: die, and let PDEATHSIG fence
	}
}

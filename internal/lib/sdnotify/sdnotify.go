package sdnotify

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The variables by which the manager says where it listens, and how often it wants to hear of the process.
const (
	socketName   = "NOTIFY_SOCKET"
	watchdogTime = "WATCHDOG_USEC"
	watchdogPID  = "WATCHDOG_PID"
)

// Messages of sd_notify(3). Status is followed by a text.
const (
	Ready    = "READY=1"
	Alive    = "WATCHDOG=1"
	Stopping = "STOPPING=1"
	Status   = "STATUS="
)

// sendLimit bounds one message: a manager that does not read is not waited for.
const sendLimit = time.Second

// Manager is the service manager of this process.
type Manager struct {
	socket string
	// Watchdog is how long the manager waits for Alive before it ends the process; 0: it does not.
	Watchdog time.Duration
}

// Open returns the manager that the environment names; nil: there is none.
func Open() *Manager {
	socket := os.Getenv(socketName)
	if !strings.HasPrefix(socket, "/") && !strings.HasPrefix(socket, "@") {
		return nil
	}
	m := &Manager{socket: socket}
	if pid := os.Getenv(watchdogPID); pid == "" || pid == strconv.Itoa(os.Getpid()) {
		if us, err := strconv.ParseInt(os.Getenv(watchdogTime), 10, 64); err == nil && us > 0 {
			m.Watchdog = time.Duration(us) * time.Microsecond
		}
	}
	return m
}

// Tell sends messages to the manager, as one datagram. A line break in a message would begin another one; it becomes a
// space.
func (m *Manager) Tell(messages ...string) error {
	lines := slices.Clone(messages)
	for i, l := range lines {
		lines[i] = strings.ReplaceAll(l, "\n", " ")
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// Without returns an environment in which a child process finds no manager: PostgreSQL would speak to it, too.
func Without(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return name == socketName || name == watchdogTime || name == watchdogPID
	})
}

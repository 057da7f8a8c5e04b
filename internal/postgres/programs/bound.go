package programs

import (
	"os/exec"
	"runtime"
	"syscall"
)

// RunBound runs a command that is killed when this process ends, however that ends: left to itself, a program that
// writes to a data directory would go on beside what the next process does there. The signal comes with the end of the
// thread that starts the command, so that thread is kept until the command has ended.
func RunBound(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

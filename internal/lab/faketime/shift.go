package faketime

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// MaxOffset is the largest offset, in either direction.
const MaxOffset = 10 * 365 * 24 * time.Hour

// ErrBusy is returned when a thread of the process is not stopped yet, or stopped at the very instructions that would
// be changed: let it run for a moment and try again.
var ErrBusy = errors.New("a thread is asking for the time just now")

// room is where the code lies, counted from the end of the vDSO.
const room = 128

// vdso is the vDSO of one process.
type vdso struct {
	mem        *os.File
	start, end uint64
}

// Possible returns why clocks cannot be shifted on this machine; nil: they can, where /proc/PID/mem may be written.
func Possible() error {
	if machine == "" {
		return errors.New("shifting the wall clock of processes works on x86-64 only")
	}
	return nil
}

// Check returns what is wrong with the offset.
func Check(offset time.Duration) error {
	switch {
	case offset%time.Second != 0:
		return fmt.Errorf("an offset of %v: choose whole seconds", offset)
	case offset.Abs() > MaxOffset:
		return fmt.Errorf("an offset of %v: choose one up to ten years", offset)
	}
	return nil
}

// Offset reads by how much the process's clock is shifted. Zero for a process that is going.
func Offset(pid int) (time.Duration, error) {
	if err := Possible(); err != nil {
		return 0, err
	}
	v, err := open(pid, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer func() { _ = v.mem.Close() }()
	there, err := v.installed()
	if err != nil || !there {
		return 0, err
	}
	b := make([]byte, 8)
	if _, err := v.mem.ReadAt(b, at(v.end-room+8)); err != nil {
		return 0, err
	}
	s := int64(binary.LittleEndian.Uint64(b))
	if s > math.MaxInt64/int64(time.Second) || s < math.MinInt64/int64(time.Second) {
		return 0, fmt.Errorf("process %d has an offset of %d s", pid, s)
	}
	return time.Duration(s) * time.Second, nil
}

// Shift sets the offset of a process from the true time, in whole seconds; zero gives the true time back. The process
// must be stopped (SIGSTOP, every thread in state T): its code is changed. A user other than root needs the right to
// trace it.
func Shift(pid int, offset time.Duration) error {
	if err := errors.Join(Possible(), Check(offset)); err != nil {
		return err
	}
	v, err := open(pid, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("shift the clock of process %d: %w", pid, err)
	}
	defer func() { _ = v.mem.Close() }()
	there, err := v.installed()
	if err == nil && !there {
		err = v.install(pid)
	}
	if err == nil {
		b := binary.LittleEndian.AppendUint64(nil, uint64(int64(offset/time.Second)))
		_, err = v.mem.WriteAt(b, at(v.end-room+8))
	}
	if err != nil {
		return fmt.Errorf("shift the clock of process %d: %w", pid, err)
	}
	return nil
}

// open finds the vDSO of a process.
func open(pid, flag int) (*vdso, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(dir, "auxv"))
	if err != nil {
		return nil, err
	}
	v := &vdso{}
	const sysinfoEHDR = 33
	for i := 0; i+16 <= len(b); i += 16 {
		if binary.LittleEndian.Uint64(b[i:]) == sysinfoEHDR {
			v.start = binary.LittleEndian.Uint64(b[i+8:])
		}
	}
	if v.start == 0 {
		return nil, os.ErrNotExist // a process that is ending, or a thread of the kernel
	}
	if v.mem, err = os.OpenFile(filepath.Join(dir, "mem"), flag, 0); err != nil {
		return nil, err
	}
	if v.end, err = v.size(); err != nil {
		_ = v.mem.Close()
		return nil, err
	}
	return v, nil
}

// size finds where the vDSO's last page ends, from its ELF header: the section headers are the last thing in it.
func (v *vdso) size() (uint64, error) {
	h := make([]byte, 64)
	if _, err := v.mem.ReadAt(h, at(v.start)); err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(h, []byte(elf.ELFMAG)) {
		return 0, errors.New("its vDSO is not an ELF file")
	}
	last := binary.LittleEndian.Uint64(h[40:]) + uint64(binary.LittleEndian.Uint16(h[58:]))*uint64(binary.LittleEndian.Uint16(h[60:]))
	const page, most = 4096, 16 * 4096
	pages := (last + page - 1) / page * page
	if last == 0 || pages > most {
		return 0, errors.New("its vDSO has no section headers")
	}
	if pages-last < room {
		return 0, errors.New("its vDSO is full to the end of its last page")
	}
	return v.start + pages, nil
}

func (v *vdso) installed() (bool, error) {
	b := make([]byte, 8)
	if _, err := v.mem.ReadAt(b, at(v.end-room)); err != nil {
		return false, err
	}
	return bytes.Equal(b, code[:8]), nil
}

// install writes the code, and then the jumps to it.
func (v *vdso) install(pid int) error {
	image := make([]byte, v.end-v.start)
	if _, err := v.mem.ReadAt(image, at(v.start)); err != nil {
		return err
	}
	if len(bytes.Trim(image[len(image)-room:], "\x00")) > 0 {
		return errors.New("the end of its vDSO is in use")
	}
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return err
	}
	jumps := map[uint64][]byte{}
	for _, s := range symbols {
		if to, ok := entries[s.Name]; ok && s.Size >= jumpSize {
			from := v.start + s.Value
			jumps[from] = jump(from, v.end-room+to)
		}
	}
	if len(jumps) != len(entries) {
		return fmt.Errorf("its vDSO has %d of the %d functions that tell the time", len(jumps), len(entries))
	}
	if err := clear(pid, jumps); err != nil {
		return err
	}
	if _, err := v.mem.WriteAt(code, at(v.end-room)); err != nil {
		return err
	}
	for from, b := range jumps {
		if _, err := v.mem.WriteAt(b, at(from)); err != nil {
			return err
		}
	}
	return nil
}

// clear fails with ErrBusy while a thread is at an instruction that a jump is to replace.
func clear(pid int, jumps map[uint64][]byte) error {
	files, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "syscall"))
	if err != nil {
		return err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		f := strings.Fields(string(b)) // "running", or the system call with its arguments, the stack pointer and, last, the program counter
		if len(f) < 2 {
			return fmt.Errorf("%w: %s", ErrBusy, bytes.TrimSpace(b))
		}
		pc, err := strconv.ParseUint(strings.TrimPrefix(f[len(f)-1], "0x"), 16, 64)
		if err != nil {
			return err
		}
		for from := range jumps {
			if pc > from && pc < from+jumpSize {
				return ErrBusy
			}
		}
	}
	return nil
}

func at(address uint64) int64 { return int64(address) }

package offload

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// The program looks at the size of the server's log each time it passes an answer on. The log is a file in memory, so
// its size is a field of an inode that stays where it is as long as a descriptor is open. Its address is found once,
// by a program that follows the descriptor of this process.

// license is that of the programs. The kernel lets no others read its memory (bpf_probe_read_kernel).
const license = "Dual MIT/GPL"

// offsets are where the kernel keeps what leads from a task to an open file, in bytes.
type offsets struct{ files, table, list, inode, size int32 }

// kernelOffsets reads them from the kernel's description of its types, once.
var kernelOffsets = sync.OnceValues(func() (o offsets, err error) {
	spec, err := btf.LoadSpec("/sys/kernel/btf/vmlinux") // btf.LoadKernelSpec would keep it for good
	if err != nil {
		return o, fmt.Errorf("%w: types of the kernel: %w", ErrUnsupported, err)
	}
	for _, f := range []struct {
		to           *int32
		name, member string
	}{
		{&o.files, "task_struct", "files"},
		{&o.table, "files_struct", "fdt"},
		{&o.list, "fdtable", "fd"},
		{&o.inode, "file", "f_inode"},
		{&o.size, "inode", "i_size"},
	} {
		var s *btf.Struct
		if err := spec.TypeByName(f.name, &s); err != nil {
			return o, fmt.Errorf("type %s of the kernel: %w", f.name, err)
		}
		at, ok := offsetOf(s.Members, f.member)
		if !ok {
			return o, fmt.Errorf("%w: this kernel's %s has no member %s", ErrUnavailable, f.name, f.member)
		}
		*f.to = at
	}
	return o, nil
})

// offsetOf finds a member, also in structs and unions without a name.
func offsetOf(list []btf.Member, name string) (int32, bool) {
	for _, m := range list {
		at := int32(m.Offset.Bytes())
		if m.Name == name {
			return at, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if in, ok := offsetOf(inner, name); ok {
			return at + in, true
		}
	}
	return 0, false
}

// sizeAddress returns the kernel's address of the size of an open file.
func sizeAddress(fd int) (uint64, error) {
	o, err := kernelOffsets()
	if err != nil {
		return 0, err
	}
	list := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.FnGetCurrentTask.Call(), asm.Mov.Reg(asm.R3, asm.R0)}
	for _, at := range []int32{o.files, o.table, o.list, int32(8 * fd), o.inode} { // each holds the address of the next
		list = append(list,
			asm.Add.Imm(asm.R3, at),
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, -8),
			asm.Mov.Imm(asm.R2, 8),
			asm.FnProbeReadKernel.Call(),
			asm.JNE.Imm(asm.R0, 0, "out"),
			asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord),
		)
	}
	list = append(list, asm.StoreMem(asm.R6, 0, asm.R3, asm.DWord), asm.Mov.Imm(asm.R0, 0), asm.Return().WithSymbol("out"))
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "coterie_inode", Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, Instructions: list, License: license})
	if err != nil {
		return 0, fmt.Errorf("loading the program that finds the log: %w", err)
	}
	defer func() { _ = p.Close() }()
	found := make([]byte, 8)
	failed, err := p.Run(&ebpf.RunOptions{Context: found, ContextOut: found})
	inode := binary.NativeEndian.Uint64(found)
	if err != nil {
		return 0, fmt.Errorf("running the program that finds the log: %w", err)
	}
	if failed != 0 || inode == 0 {
		return 0, fmt.Errorf("%w: the server's log was not found in the kernel (%d)", ErrUnavailable, int32(failed))
	}
	return inode + uint64(o.size), nil
}

// watchLog leaves an answer of a guarded session to the loop if the server has logged anything that is not known to be
// harmless. A backend logs a cancelled wait before it sends the answer, so the log has grown when the program runs for
// it. The listener moves the mark over a warning only when no run for a session that was under way can still pass an
// answer on (Reader.OnSuspicion).
func (p *assembly) watchLog(common int) {
	p.add(
		asm.LoadMem(asm.R1, rSlot, slotFlags, asm.Word),
		asm.And.Imm(asm.R1, FlagGuarded),
		asm.JEq.Imm(asm.R1, 0, "harmless"),
		asm.LoadMapValue(asm.R3, common, 0),
		asm.LoadMem(asm.R3, asm.R3, commonLogSizeAt, asm.DWord),
		asm.JEq.Imm(asm.R3, 0, p.back(WhyLog)),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, atOffset),
		asm.Mov.Imm(asm.R2, 8),
		asm.FnProbeReadKernel.Call(),
		asm.JNE.Imm(asm.R0, 0, p.back(WhyLog)),
		asm.LoadMem(asm.R1, asm.RFP, atOffset, asm.DWord),
		asm.LoadMapValue(asm.R3, common, 0),
		asm.LoadMem(asm.R3, asm.R3, commonLogReached, asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R3, p.back(WhyLog)),
	)
	p.at("harmless")
}

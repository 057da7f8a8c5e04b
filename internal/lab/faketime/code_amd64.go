package faketime

import "encoding/binary"

// machine is the ELF machine that the code is for.
const machine = "x86-64"

// The added code, as it lies in the vDSO. It begins with eight bytes by which it is recognised and the offset in
// seconds, and has one routine for each function. All of it is position-independent, touches only what a callee may,
// and uses no stack.
//
//	magic:         "COTERIE", 1
//	offset:        8 bytes
//	clock_gettime: mov eax,228; syscall; test eax,eax; jnz 2f
//	               test edi,edi; jz 1f; cmp edi,5; jz 1f; cmp edi,11; jnz 2f     (REALTIME, REALTIME_COARSE, TAI)
//	            1: mov rcx,[rip+offset]; add [rsi],rcx
//	            2: ret
//	gettimeofday:  mov eax,96; syscall; test eax,eax; jnz 2f; test rdi,rdi; jz 2f
//	               mov rcx,[rip+offset]; add [rdi],rcx
//	            2: ret
//	time:          mov eax,201; syscall; add rax,[rip+offset]; test rdi,rdi; jz 2f; mov [rdi],rax
//	            2: ret
var code = []byte{
	'C', 'O', 'T', 'E', 'R', 'I', 'E', 1,
	0, 0, 0, 0, 0, 0, 0, 0,

	0xb8, 0xe4, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x85, 0xc0, 0x75, 0x18, 0x85, 0xff, 0x74, 0x0a, 0x83,
	0xff, 0x05, 0x74, 0x05, 0x83, 0xff, 0x0b, 0x75, 0x0a, 0x48, 0x8b, 0x0d, 0xd8, 0xff, 0xff, 0xff,
	0x48, 0x01, 0x0e, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,

	0xb8, 0x60, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x85, 0xc0, 0x75, 0x0f, 0x48, 0x85, 0xff, 0x74, 0x0a,
	0x48, 0x8b, 0x0d, 0xb1, 0xff, 0xff, 0xff, 0x48, 0x01, 0x0f, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,

	0xb8, 0xc9, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x48, 0x03, 0x05, 0x9a, 0xff, 0xff, 0xff, 0x48, 0x85,
	0xff, 0x74, 0x03, 0x48, 0x89, 0x07, 0xc3,
}

// entries holds the byte of code at which each function of the vDSO continues.
var entries = map[string]uint64{"__vdso_clock_gettime": 0x10, "__vdso_gettimeofday": 0x40, "__vdso_time": 0x60}

// jumpSize is how many bytes a jump needs.
const jumpSize = 5

// jump is the instruction at from that goes to to: a near jump, relative to its own end.
func jump(from, to uint64) []byte {
	return binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(to-from-jumpSize))
}

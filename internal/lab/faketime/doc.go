// Package faketime makes running processes believe another time of day.
//
// No kernel lets two processes see two wall clocks: time namespaces move the monotonic and the boot-time clock only,
// and a preloaded library reaches no program in Go. But every program on Linux asks for the time through the vDSO, code
// that the kernel maps into it and that a debugger may change. Shift puts a jump at the beginning of the vDSO's
// clock_gettime, gettimeofday and time. It leads to a few instructions, in the unused end of the same page, that call
// the kernel and add an offset. The fault injectors of large clusters work in the same way.
//
// Shifted are CLOCK_REALTIME, its coarse form and CLOCK_TAI. CLOCK_MONOTONIC and CLOCK_BOOTTIME are not shifted, and so
// no lease and no timeout. The times of files are not shifted either, which the kernel takes from its own clock, nor is
// a program that calls the kernel without the vDSO. A process that is forked inherits the offset; a program that is
// executed begins with the true time.
//
// It must not know whose processes these are. Start reading at Shift.
package faketime

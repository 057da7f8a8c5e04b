// Package fault names the places where a process has written one thing and not yet the other, and lets a test end the
// process there.
//
// It owns how such a place is armed. A process can be armed only if its program was linked for that (see linked) and
// the test that started it names a directory. In every other program a point compares one string's length with zero:
// nothing from outside, neither an environment variable nor a client, has any effect. The package must not know what
// the places are about. Start reading at Point.
package fault

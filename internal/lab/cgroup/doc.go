// Package cgroup starts a program that may use no more than a share of the processors and an amount of memory, together
// with everything it starts. It uses control groups of the version that has the controllers on this machine.
//
// It owns the control groups of the names it is given. It must not know what runs in them. Start reading at Create.
package cgroup

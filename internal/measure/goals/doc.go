// Package goals holds the checked-in goals and compares measured figures with them.
//
// It owns goals.json, in which every figure that is published has a goal or is marked as stated, and the lines in which
// a figure is printed beside its goal. It must not know how a figure is measured.
//
// Start reading at Goal, then Report.
package goals

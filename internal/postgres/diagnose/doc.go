// Package diagnose looks for faults of a server and its data: whether it answers and commits, whether its databases can
// be read, where its files are, and why it ended.
//
// It must not judge its findings: package health does. Start reading at Checks.
package diagnose

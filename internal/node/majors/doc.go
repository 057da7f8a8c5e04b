// Package majors carries a major upgrade of PostgreSQL out on a node: it looks whether one can be made, has the agent
// make room for it, and takes the steps of package major while the agent starts and before any server does.
//
// It owns the state of the upgrade on disk and the new data directory. It must not decide which step comes next:
// package major does. Start reading at Service.Begin, then Resume.
package majors

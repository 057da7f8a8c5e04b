// Package check is the registry of findings behind coterie check: what could be wrong with a node or its group, each with why it matters
// and what to run.
//
// It owns the form of a finding and the order of a report. It knows no area: each adds its own probes from cmd/coterie, and no other
// adapter. Start reading at Registry.
package check

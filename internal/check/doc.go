// Package check has the findings of coterie check: possible problems of a node or its group, each with its importance
// and the command that helps.
//
// It owns the form of a finding, the order of a report and the probes of most areas. The commands decide which probes
// run: they add them to a Registry. Start reading at Registry.
package check

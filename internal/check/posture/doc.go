// Package posture has the probes of coterie check security: which of the limits that SECURITY.md names apply to this
// node, and what its administrator may change.
//
// It owns the judgement of addresses, rules, files, processes, certificates and roles. It changes nothing, and must not
// know how the findings are printed. Start reading at Find.
package posture

// Package continuitybench measures what sessions see in failovers: which of them keep their connection and their state,
// how long their requests are held, which transactions succeed, and whether the answer to a COMMIT in doubt is right.
//
// It owns the load, the faults, the samples and the figures made of them. It must not know how a group works: it is a
// client of the listener and of the lab, and a ledger judges every transaction by its row.
//
// Start reading at Measure, then Samples.Figures.
package continuitybench

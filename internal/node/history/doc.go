// Package history keeps what /metrics of this node showed in the last hour and the last day, of the few values that
// charts are made of.
//
// It owns which metrics become a series, and how: as they are, as a rate, or as a mean of what was counted between two
// looks. It asks nothing of its own: the facts are those of /metrics. It must not know the page that draws them.
//
// Start reading at Recorder.
package history

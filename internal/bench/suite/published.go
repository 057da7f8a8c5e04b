package suite

import (
	"github.com/coteriedb/coterie/internal/bench/experiment"
)

// Links of the experiments, unless told otherwise.
const (
	CommitLink = "rtt=0.5ms,rate=1gbit"
	TunnelLink = "rtt=20ms,rate=20mbit"
)

// publishedMemory is what a node may use under the published conditions, which say that memory was capped and not to what: less than a million
// customers need, so that they are read from the disk. The rows that routing asks for are shorter: there are three times as many.
const (
	PublishedMemory      = 384 << 20
	PublishedRoutingRows = 3 * experiment.PublishedRows
)

// Of the published TPROC-C: the transactions of each user, the warehouses of its second table (the first states none), and the fewest that
// hold the million customers that were read on the same servers.
const (
	PublishedTransactions = 50_000
	PublishedWarehouses   = 100
	LeastWarehouses       = 34
)

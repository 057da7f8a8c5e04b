package suite

import (
	"github.com/coteriedb/coterie/internal/bench/experiment"
)

// Links of the experiments, unless --link chooses others.
const (
	CommitLink = "rtt=0.5ms,rate=1gbit"
	TunnelLink = "rtt=20ms,rate=20mbit"
)

// PublishedMemory is the memory of a node under the published conditions. They say that memory was capped, and not at
// which size. It is less than a million customers need, so that reads come from the disk. The rows of the routing table
// are shorter, so it has three times as many.
const (
	PublishedMemory      = 384 << 20
	PublishedRoutingRows = 3 * experiment.PublishedRows
)

// Sizes of the published TPROC-C: the transactions of each user, and the warehouses of its second table (the first
// states none). LeastWarehouses is the fewest that hold the million customers which are read on the same servers.
const (
	PublishedTransactions = 50_000
	PublishedWarehouses   = 100
	LeastWarehouses       = 34
)

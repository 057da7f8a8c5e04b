package node

import (
	"time"

	"github.com/coteriedb/coterie/internal/node/status"
)

// admin is the node as administrators see it.
type admin struct {
	*status.Service
	n *node
}

// failoverBudget bounds the wait for a failover beside its drain: a checkpoint may take most of it.
const failoverBudget = 12 * time.Minute

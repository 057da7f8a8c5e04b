package web

import (
	"context"
	"sync"

	"github.com/coteriedb/coterie/internal/admin/console"
)

// Bounds of the answers that are in memory until a browser has read them.
const (
	maxQueries  = 8       // at once, their answers being written included
	userQueries = 2       // of one role
	maxAnswer   = 8 << 20 // bytes of the rows of a request, with what a value takes beside its text
	valueBytes  = 24      // that a value takes beside its text
)

// queries counts those under way.
type queries struct {
	mu  sync.Mutex // guards the fields below
	all int
	of  map[string]int // by role
}

// enter begins a query of a role. It reports false if there are too many. The caller calls leave at its end.
func (q *queries) enter(user string) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all >= maxQueries || q.of[user] >= userQueries {
		return nil, false
	}
	q.all++
	q.of[user]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.all--
		if q.of[user]--; q.of[user] == 0 {
			delete(q.of, user)
		}
	}, true
}

// bounded is a backend whose rows have a size together.
type bounded struct {
	console.Backend
	left int
}

// Query runs a query, and ends it once its rows are too large.
func (b *bounded) Query(ctx context.Context, who console.Principal, q console.Question, to console.Rows) error {
	return b.Backend.Query(ctx, who, q, &boundedRows{to, b})
}

// boundedRows are the rows of a query of a bounded backend.
type boundedRows struct {
	console.Rows
	of *bounded
}

// Row passes a row on, unless the rows are too large.
func (r *boundedRows) Row(values []any) error {
	for _, v := range values {
		r.of.left -= valueBytes
		if s, ok := v.(string); ok {
			r.of.left -= len(s)
		}
	}
	if r.of.left < 0 {
		err := console.Errorf("54000", "the answer has more than %d bytes", maxAnswer)
		err.Hint = "Add LIMIT, or name fewer columns."
		return err
	}
	return r.Rows.Row(values)
}

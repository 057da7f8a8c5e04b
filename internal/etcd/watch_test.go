package etcd

import (
	"fmt"
	"strings"
	"testing"
)

// TestReportsAreBounded holds that reports in invented names, which every member of the quorum can write, fill no
// memory, however long nobody takes the events.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	k := newKeys(testGroup, "n1")
	var later Event
	var many []kv
	for i := range 10 * maxStatuses {
		c := kv{key: fmt.Sprintf("%sx%d", k.status, i), value: []byte("{}"), rev: 1}
		many = append(many, c)
		later.add(k.event([]kv{c}))
	}
	for what, e := range map[string]Event{"one after the other": later, "at once": k.event(many)} {
		if len(e.Reports) > maxStatuses || !e.Status {
			t.Errorf("%s: %d reports, and to be read: %t", what, len(e.Reports), e.Status)
		}
	}
	long := kv{key: k.status + strings.Repeat("x", 1<<20), value: []byte("{}"), rev: 1}
	if e := k.event([]kv{long}); len(e.Reports) > 0 || !e.Status {
		t.Errorf("a name of a megabyte is kept; to be read: %t", e.Status)
	}
}

package admission

import (
	"container/list"
	"maps"
	"slices"
)

// Recent is a map of bounded size. Beyond it, the entry that was not used for longest is forgotten. Callers exclude
// each other. Use NewRecent.
type Recent[K comparable, V any] struct {
	most  int
	order list.List // of *entry[K, V], the one used last in front
	at    map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// NewRecent returns a Recent with room for that many entries.
func NewRecent[K comparable, V any](most int) *Recent[K, V] {
	return &Recent[K, V]{most: most, at: make(map[K]*list.Element)}
}

// At returns the value of a key, the zero value if it is new. The pointer is good until the next call of At.
func (r *Recent[K, V]) At(key K) *V {
	if e := r.at[key]; e != nil {
		r.order.MoveToFront(e)
		return &e.Value.(*entry[K, V]).value
	}
	if len(r.at) >= r.most {
		last := r.order.Back()
		delete(r.at, r.order.Remove(last).(*entry[K, V]).key)
	}
	e := &entry[K, V]{key: key}
	r.at[key] = r.order.PushFront(e)
	return &e.value
}

// Drop forgets a key.
func (r *Recent[K, V]) Drop(key K) {
	if e := r.at[key]; e != nil {
		r.order.Remove(e)
		delete(r.at, key)
	}
}

// Keys returns the keys in no order.
func (r *Recent[K, V]) Keys() []K { return slices.Collect(maps.Keys(r.at)) }

// Has reports whether the key is remembered. It does not count as a use.
func (r *Recent[K, V]) Has(key K) bool { return r.at[key] != nil }

package admission

import "container/list"

// recent is a map of bounded size. Beyond it, the entry that was not used for longest is forgotten.
type recent[V any] struct {
	most  int
	order list.List // of *entry[V], the one used last in front
	at    map[string]*list.Element
}

type entry[V any] struct {
	key   string
	value V
}

// get returns the value of a key, the zero value if it is new. The pointer is good until the next call of get.
func (r *recent[V]) get(key string) *V {
	if e := r.at[key]; e != nil {
		r.order.MoveToFront(e)
		return &e.Value.(*entry[V]).value
	}
	if r.at == nil {
		r.at = make(map[string]*list.Element)
	}
	if len(r.at) >= r.most {
		last := r.order.Back()
		delete(r.at, r.order.Remove(last).(*entry[V]).key)
	}
	e := &entry[V]{key: key}
	r.at[key] = r.order.PushFront(e)
	return &e.value
}

// has reports whether the key is remembered. It does not count as a use.
func (r *recent[V]) has(key string) bool { return r.at[key] != nil }

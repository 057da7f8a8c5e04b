package listener

import "testing"

func TestConsoleKeys(t *testing.T) {
	var c consoles
	k, ask := c.add(5)
	if k.node() != 5 {
		t.Errorf("the key names node %d", k.node())
	}
	other, _ := c.add(5)
	if other == k {
		t.Error("two sessions have one key")
	}
	for range 2 { // asked twice: once is enough
		if !c.cancel(k) {
			t.Error("the session is not found")
		}
	}
	<-ask
	select {
	case <-ask:
		t.Error("one request is kept, not two")
	default:
	}
	c.remove(k)
	if c.cancel(k) || !c.cancel(other) {
		t.Error("the wrong session was forgotten")
	}
}

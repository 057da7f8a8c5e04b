package cancelkey

import "testing"

func TestConsoleKeys(t *testing.T) {
	var c Consoles
	k, ask := c.Add(5)
	if k.Node() != 5 {
		t.Errorf("the key names node %d", k.Node())
	}
	other, _ := c.Add(5)
	if other == k {
		t.Error("two sessions have one key")
	}
	for range 2 { // asked twice: once is enough
		if !c.Cancel(k) {
			t.Error("the session is not found")
		}
	}
	<-ask
	select {
	case <-ask:
		t.Error("one request is kept, not two")
	default:
	}
	c.Remove(k)
	if c.Cancel(k) || !c.Cancel(other) {
		t.Error("the wrong session was forgotten")
	}
}

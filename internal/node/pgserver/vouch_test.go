package pgserver

import "testing"

// TestUnvouchedParametersInAnyCase holds that a setting that can run programs is recognised in any case, as the server
// does.
func TestUnvouchedParametersInAnyCase(t *testing.T) {
	p, g, said, _ := parametersBed(t)
	g.Parameters = map[string]string{"Archive_Command": "evil", "SESSION_PRELOAD_LIBRARIES": "evil"}
	if p.apply(t.Context()); len(*said) != 0 {
		t.Errorf("said %q", *said)
	}
}

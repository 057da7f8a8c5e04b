package nodecmd

import "testing"

// TestUnitOf has each directory that a packaged unit serves name that unit, and no other directory name one.
func TestUnitOf(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{
		"/var/lib/coterie":            "coterie",
		"/var/lib/coterie-billing":    "coterie@billing",
		"/var/lib/coterie-eu_1.b-2":   "coterie@eu_1.b-2",
		"/var/lib/coterie-":           "",
		"/var/lib/coterie--x":         "", // a unit's name of "-x" would be an option of systemctl elsewhere
		"/var/lib/coterie-a/b":        "",
		"/var/lib/coterie-a b":        "",
		"/var/lib/coterie-a;reboot":   "",
		"/var/lib/coterie2":           "",
		"/srv/coterie":                "",
		"/srv/var/lib/coterie-orders": "",
	} {
		if got := unitOf(dir); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}

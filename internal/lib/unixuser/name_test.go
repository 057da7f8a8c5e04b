package unixuser

import "testing"

// TestName holds that a user is named as people name it, and one without a name by its number.
func TestName(t *testing.T) {
	t.Parallel()
	for uid, want := range map[int]string{0: "root", 1<<31 - 7: "2147483641"} {
		if got := Name(uid); got != want {
			t.Errorf("%d: %s, want %s", uid, got, want)
		}
	}
}

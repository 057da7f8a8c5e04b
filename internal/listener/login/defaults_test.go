package login

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestSprayedNamesLeaveTheOthers holds that names which clients make up do not push the defaults of real roles out of
// the cache: these are used meanwhile.
func TestSprayedNamesLeaveTheOthers(t *testing.T) {
	asked := map[string]int{}
	s := &Logins{Config: Config{Defaults: func(_ context.Context, user, _ string) (map[string]string, error) {
		asked[user]++
		return nil, nil
	}}}
	for i := range 3 * maxDefaults {
		if i%100 == 0 {
			_, _ = s.defaults.ask(t.Context(), s, "app", "app")
			at := s.defaults.known.At([2]string{"app", "app"})
			at.at = time.Now() // as if no time passed
		}
		_, _ = s.defaults.ask(t.Context(), s, fmt.Sprint("sprayed ", i), "app")
	}
	if asked["app"] != 1 {
		t.Errorf("the server was asked %d times about a role in use", asked["app"])
	}
}

package bed

import (
	"testing"
)

func TestWithIntent(t *testing.T) {
	for in, want := range map[string]string{
		"postgresql://a@h/d":     "postgresql://a@h/d?coterie.intent=READ_ONLY",
		"postgres://a@h/d?x=y":   "postgres://a@h/d?x=y&coterie.intent=READ_ONLY",
		"host=h dbname=d user=a": "host=h dbname=d user=a coterie.intent=READ_ONLY",
	} {
		if got := withIntent(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}

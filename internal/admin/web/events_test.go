package web

import (
	"strings"
	"testing"
)

// TestEveryAnswerIsJSON holds that a view or a query with a number that JSON does not have is answered with a document,
// and not with an empty body.
func TestEveryAnswerIsJSON(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	code, text, _ := b.do("POST", "/api/v1/query", `{"sql":"SELECT infinite"}`)
	if code != 200 || !strings.Contains(string(text), `"rows":[["Infinity",1.5]]`) {
		t.Errorf("%d %q", code, text)
	}
}

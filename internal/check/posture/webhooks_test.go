package posture

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
)

// TestWebhooks holds what is found of receivers of events: one in order, one without a secret, one whose secret others
// may read, one in clear text. No finding tells the path of an address, or a secret.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const key = "0123456789abcdef0123456789abcdef"
	secret := filepath.Join(l.Dir, "secret")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString([]byte(key))), 0o600); err != nil {
		t.Fatal(err)
	}
	says := func(w config.Webhook, level check.Level, want string) {
		t.Helper()
		w.Name, w.SecretFile = "pager", secret
		found := judgeWebhooks(l, config.Config{Webhooks: []config.Webhook{w}})
		said := false
		for _, f := range found {
			said = said || f.Level == level && strings.Contains(f.What, want)
			if text := f.What + f.Why + f.Run; strings.Contains(text, "TOKEN") || strings.Contains(text, "whsec") {
				t.Errorf("it tells a secret: %s", text)
			}
		}
		if !said {
			t.Errorf("no %s with %q in %v", level, want, found)
		}
	}
	const at = "https://alerts.example.com/TOKEN"
	says(config.Webhook{URL: at}, check.OK, "pager, https://alerts.example.com, signed: leadership, commits")
	says(config.Webhook{URL: "http://alerts.example.com/TOKEN"}, check.Warning, "in clear text: http://alerts.example.com")
	if clearText(config.Webhook{URL: "http://127.0.0.1:9/"}) || clearText(config.Webhook{URL: "http://[::1]:9/"}) || clearText(config.Webhook{URL: "http://localhost/"}) || !clearText(config.Webhook{URL: "http://10.0.0.1/"}) {
		t.Error("clear text within this machine is a finding, or beyond it is none")
	}
	says(config.Webhook{URL: at, CA: secret}, check.Problem, "pager gets nothing: ca: ")
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	says(config.Webhook{URL: at}, check.Problem, "may be used by other users")
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	says(config.Webhook{URL: at}, check.Problem, "no such file")
}

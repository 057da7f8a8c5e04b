package hba

import (
	"strings"
	"testing"
)

// TestDigest holds that rules have one digest however they are written, and another one when any field differs.
func TestDigest(t *testing.T) {
	t.Parallel()
	of := func(text string) string {
		t.Helper()
		rules, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return Digest(rules)
	}
	same := of("host all all 10.0.0.0/8 scram-sha-256\nlocal all all peer\n")
	if other := of("# the office\n\n  host\tall   all 10.0.0.0 255.0.0.0 scram-sha-256 # all of it\r\nlocal all all \\\npeer"); other != same {
		t.Errorf("the same rules: %s and %s", same, other)
	}
	seen := map[string]string{}
	for _, text := range []string{
		"host all all all scram-sha-256", "hostssl all all all scram-sha-256", "host shop all all scram-sha-256", "host \"all\" all all scram-sha-256",
		"host all shop all scram-sha-256", "host all +shop all scram-sha-256", "host all all 10.0.0.0/8 scram-sha-256", "host all all 10.0.0.0/9 scram-sha-256",
		"host all all samehost scram-sha-256", "host all all samenet scram-sha-256", "host all all all md5", "hostssl all all all scram-sha-256 clientcert=verify-ca",
		"hostssl all all all scram-sha-256 clientcert=verify-full", "host all a,b all md5", "host a,b all all md5", "host all /^a all md5",
		"local all all peer\nhost all all 10.0.0.0/8 scram-sha-256", "host all all 10.0.0.0/8 scram-sha-256\nlocal all all peer",
	} {
		d := of(text)
		if before, ok := seen[d]; ok {
			t.Errorf("%q and %q have the same digest", before, text)
		}
		seen[d] = text
	}
}

// TestAdmits holds which rules let nobody in from the network.
func TestAdmits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"local all all peer": false, "host all all all reject\nlocal all all peer": false, "host all all all reject\nhost all all ::1/128 md5": true,
	} {
		rules, err := Parse(strings.NewReader(text))
		if err != nil || Admits(rules) != want {
			t.Errorf("%q: %t, %v", text, Admits(rules), err)
		}
	}
}

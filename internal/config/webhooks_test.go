package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestWebhooks holds which receivers of events are refused, with their key, and that no refusal tells an address.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	const node = "node: n1\nkind: witness\ngroup: g\nendpoint:\n  listen: :5022\nwebhooks:\n"
	one := func(keys ...string) string { return "  - " + strings.Join(keys, "\n    ") + "\n" }
	const name, url, secret = "name: pager", "url: https://alerts.example.com/TOKEN", "secret_file: /etc/coterie/pager.secret"
	many := ""
	for i := range maxWebhooks + 1 {
		many += one(fmt.Sprintf("name: p%d", i), fmt.Sprintf("url: https://h/%d", i), secret)
	}
	for text, want := range map[string]string{
		one(name, url, secret): "",
		one(name, url, secret, "ca: /etc/ca.pem", "events: [leadership, link]"): "",
		one(name, "url: http://127.0.0.1:9000/TOKEN", secret):                   "",
		one("name: Pager", url, secret):                                         `webhooks[0].name "Pager"`,
		one(url, secret):                                                        `webhooks[0].name ""`,
		one(name, url, secret) + one(name, "url: https://h/", secret):           `webhooks[1].name "pager": another`,
		one(name, url, secret) + one("name: b", url, secret):                    `webhooks[1].url: another`,
		one(name, secret):                                                            "webhooks[0].url: use https",
		one(name, "url: ftp://h/TOKEN", secret):                                      "webhooks[0].url: use https",
		one(name, "url: https:///TOKEN", secret):                                     "webhooks[0].url: use https",
		one(name, `url: "https://h:x/TOKEN"`, secret):                                "webhooks[0].url: use https",
		one(name, `url: "https://h:70000/TOKEN"`, secret):                            "webhooks[0].url: its port",
		one(name, `url: "https://h:0/TOKEN"`, secret):                                "webhooks[0].url: its port",
		one(name, "url: https://TOKEN:pw@h/", secret):                                "webhooks[0].url: this file has no secrets",
		one(name, `url: "https://h/TOKEN#x"`, secret):                                "webhooks[0].url: it has a part after #",
		one(name, "url: https://h/TOKEN"+strings.Repeat("x", maxWebhookURL), secret): "webhooks[0].url: it has more than",
		one(name, url):                                             "webhooks[0].secret_file is missing",
		one(name, url, "secret_file: s"):                           `webhooks[0].secret_file: "s" must begin with /`,
		one(name, url, secret, "ca: c"):                            `webhooks[0].ca: "c" must begin with /`,
		one(name, "url: http://localhost/TOKEN", secret, "ca: /c"): "webhooks[0].ca: the url",
		one(name, url, secret, "events: [failover]"):               `webhooks[0].events: "failover" is none of`,
		one(name, url, secret, "token: x"):                         "token",
		one(name, "url: htps://h/TOKEN", "token: x", secret):       "unknown field \"token\"",
		one(name, "url:", "  - https://h/TOKEN", secret):           "(an address)",
		many: "webhooks: 9 are more than 8",
	} {
		c, err := Parse([]byte(node + text))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "TOKEN") {
			t.Errorf("the refusal tells the address: %v", err)
		}
		if err == nil && (len(c.Webhooks) != 1 || strings.Contains(c.Webhooks[0].Place(), "TOKEN")) {
			t.Errorf("%+v", c.Webhooks)
		}
	}
	if got := strings.Join((Webhook{}).Kinds(), " "); got != "leadership commits copy health statement" {
		t.Errorf("without events it gets %s", got)
	}
}

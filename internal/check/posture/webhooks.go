package posture

import (
	"net"
	"net/url"
	"strings"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/webhooks"
)

// judgeWebhooks returns to which receivers the agent posts events, which get nothing, and which get them in clear text
// over a network.
func judgeWebhooks(l config.Layout, c config.Config) (out []check.Finding) {
	for _, w := range c.Webhooks {
		if err := webhooks.Check(w, l.Owner()); err != nil {
			out = append(out, check.Finding{
				Level: check.Problem, What: "the webhook " + w.Name + " gets nothing: " + err.Error(), Why: "its receiver is not told of events",
				Run: "mend the file; the agent reads it again at the next try",
			})
		}
		if clearText(w) {
			out = append(out, check.Finding{
				Level: check.Warning, What: "the webhook " + w.Name + " gets events in clear text: " + w.Place(), Why: "names, statements and states can be read on the network, and withheld; they cannot be changed, as they are signed",
				Run: "let the receiver serve TLS, set an https:// url in coterie.yaml, and run coterie restart",
			})
		}
		out = append(out, ok("the agent posts events to the webhook %s, %s, signed: %s", w.Name, w.Place(), strings.Join(w.Kinds(), ", ")))
	}
	return out
}

// clearText reports whether events leave this machine without TLS.
func clearText(w config.Webhook) bool {
	u, err := url.Parse(w.URL)
	if err != nil || u.Scheme == "https" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

package api

import (
	"net/http"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// pathsAre is where the paths of the HTTP port are described.
const pathsAre = "docs/how-to/haproxy.md and docs/how-to/monitor.md have the paths"

// elsewhere are paths of Patroni's API, and others that people try, with what does that here.
var elsewhere = map[string]string{
	"/switchover": failOver, "/failover": failOver, "/promote": failOver, "/api/v1/failover": failOver,
	"/restart": "coterie restart --postgres NAME, on a node", "/reload": "coterie settings set, or coterie listener restart, on a node",
	"/reinitialize": "coterie replica seed NAME --full, on a node", "/config": "coterie settings and coterie group set, on a node",
	"/status": "GET /api/v1/status", "/api": "GET /api/v1/status", "/api/v1": "GET /api/v1/status", "/version": "GET /patroni", "/dashboard": consoleIs, "/console": consoleIs, "/ui": consoleIs,
	"/api/v1/sql": "coterie sql on a node, or the database coterie of the listener", "/api/v1/token": "coterie member add-token, on a node",
}

const (
	failOver  = "coterie failover --to NAME, on a node"
	consoleIs = "the console in the browser has a port of its own: docs/how-to/console.md"
)

// otherPaths answers what the HTTP port does not have: 405 to a request that would change something, and 404. Both say
// what to use. Nothing of the request is in the answer.
func otherPaths(w http.ResponseWriter, r *http.Request) {
	hint, ok := elsewhere[strings.TrimRight(r.URL.Path, "/")]
	if !ok {
		hint = pathsAre
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		write(w, http.StatusNotFound, failure{Kind: fail.Usage, Message: "there is no such path: " + hint})
	default:
		w.Header().Set("Allow", "GET, HEAD, OPTIONS")
		write(w, http.StatusMethodNotAllowed, failure{Kind: fail.Usage, Message: "nothing on this port changes anything: " + hint})
	}
}

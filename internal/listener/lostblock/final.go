package lostblock

import (
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// Final returns the final error of a session that ends for the reason why, by the outcome of its client's last request.
// That is stmt.Idle for one that ends between two requests.
func Final(v stmt.Verdict, why string) *pgwire.Error {
	switch v {
	case stmt.Unknown:
		bad := pgwire.Fatal("", pgwire.StateUnknownOutcome, "terminating connection with a request in flight: %s", why)
		bad.Detail = "If the request would have committed a transaction, it may or may not have been committed."
		bad.Hint = "Reconnect and check before running it again."
		return bad
	case stmt.Aborted:
		bad := pgwire.Fatal("", pgwire.StateSerialization, "terminating connection with a transaction open: %s", why)
		bad.Detail = "It was not committed: no request that could have committed it was forwarded."
		bad.Hint = "Reconnect and run the transaction again."
		return bad
	case stmt.Idle:
	}
	bad := pgwire.Fatal("", pgwire.StateAdminShutdown, "terminating connection: %s", why)
	bad.Hint = "Reconnect; the listener finds the replica that serves the session."
	return bad
}

// NotBegun returns the final error of a session that ends while it holds a request of which nothing was forwarded.
func NotBegun(why string) *pgwire.Error {
	bad := pgwire.Fatal("", pgwire.StateSerialization, "terminating connection before the transaction was begun: %s", why)
	bad.Hint = "Nothing of it was executed: reconnect and run it again."
	return bad
}

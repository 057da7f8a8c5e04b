package listener

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The listener's own questions do not wait for the transactions of other sessions: not where SERIALIZABLE, READ ONLY
// and DEFERRABLE are a session's defaults, nor at the COMMIT of such a transaction that has taken no snapshot.
func TestQuestionsAreNotDeferred(t *testing.T) {
	_, near := farPrimary(t)
	other, err := near.servers["a"].connect(t.Context(), "postgres")
	must(t, err)
	defer func() { _ = other.Close(context.Background()) }()
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.unasked()
	sqlOn(t, other, "begin isolation level serializable", "create table pending (x int)")
	soon := func(conn *pgx.Conn, text string) {
		t.Helper()
		select {
		case err := <-later(conn, text):
			must(t, err)
		case <-time.After(20 * time.Second):
			t.Fatalf("%s waits for the transaction of another session", text)
		}
	}
	for _, text := range []string{"begin isolation level serializable, read only, deferrable", "savepoint s", "show work_mem", "commit"} {
		soon(conn, text)
	}
	deferred := near.mustDial(near.rw, "user=postgres")
	near.do(deferred, "set default_transaction_isolation = serializable", "set default_transaction_read_only = on", "set default_transaction_deferrable = on")
	near.known()
	near.unasked()
	for _, text := range []string{"begin", "show transaction_deferrable", "commit", "begin read write", "select 1", "commit"} {
		soon(deferred, text)
	}
	sqlOn(t, other, "rollback")
	near.shows(deferred, map[string]string{"show transaction_deferrable": "on", "show transaction_isolation": "serializable"})
}

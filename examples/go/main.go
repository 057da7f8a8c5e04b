// Command go makes one order for each line of standard input, and prints the line once the order is safe. It goes on
// through a failover: examples/README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	patience = 2 * time.Minute        // for one order, with all its attempts
	limit    = 30 * time.Second       // for one attempt: a machine without power answers nothing
	pause    = 200 * time.Millisecond // between two attempts
)

// notDone are the SQLSTATEs after which no commit can have happened, not even of a COMMIT that was sent.
var notDone = []string{"57P01", "57P03", "40001", "40P01", "53300"}

// database is the one connection of this program. A pool serves as well: it makes a new connection after each failure.
type database struct{ conn *pgx.Conn }

func main() {
	var db database
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := db.order(context.Background(), lines.Text()); err != nil {
			fmt.Fprintln(os.Stderr, "gave up:", err)
			os.Exit(1)
		}
		fmt.Println(lines.Text())
	}
}

// order makes an order exactly once, however many attempts that takes.
func (db *database) order(ctx context.Context, key string) error {
	unknown := false // whether an earlier attempt may have been committed
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		committing, err := db.attempt(ctx, key, unknown)
		if err == nil {
			return nil
		}
		if db.conn != nil { // it is closed already, or in a state that is not worth finding out
			_ = db.conn.Close(ctx)
			db.conn = nil
		}
		var said *pgconn.PgError
		answered := errors.As(err, &said)
		switch {
		case time.Now().After(end):
			return fmt.Errorf("order %s: given up after %v: %w", key, patience, err)
		case answered && slices.Contains(notDone, said.Code): // try again
		case committing, answered && said.Code == "08007", answered && said.Code == "23505": // look for it first
			unknown = true
		case answered: // a mistake in the statement, or no permission: the next attempt would end in the same way
			return fmt.Errorf("order %s: %w", key, err)
		}
		fmt.Fprintf(os.Stderr, "order %s again, unknown %t: %v\n", key, unknown, err)
	}
}

// attempt makes the order in one transaction, unless it is there. It reports whether the COMMIT had been sent.
func (db *database) attempt(ctx context.Context, key string, look bool) (committing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if db.conn == nil {
		// The rest is in PGUSER, PGPASSWORD and PGDATABASE. What a durable read shows, no failover takes away.
		db.conn, err = pgx.Connect(ctx, "postgres://"+os.Getenv("APP_HOSTS")+"/?connect_timeout=5&options=-c%20coterie.reads%3Ddurable")
		if err != nil {
			return false, err
		}
	}
	there := false
	if look {
		err = db.conn.QueryRow(ctx, "select exists (select from orders where key = $1)", key).Scan(&there)
	}
	if err != nil || there {
		return false, err
	}
	tx, err := db.conn.Begin(ctx)
	if err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, "insert into orders (key) values ($1)", key); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, "update stock set taken = taken + 1 where item = 'book'"); err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}

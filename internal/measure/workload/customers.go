package workload

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// CustomerBytes is about what one row of the table customer needs on disk.
const CustomerBytes = 700

// LoadCustomers fills the table customer, as TPC-C has it, with n rows or a few more, part by part: an interrupted load
// continues where it was. It returns how many it had to make.
func LoadCustomers(ctx context.Context, dsn string, n int, progress func(done, total int)) (made int, err error) {
	conn, err := Open(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, "create table if not exists customer "+tpcc.CustomerTable()); err != nil {
		return 0, fmt.Errorf("make table customer: %w", err)
	}
	const size = tpcc.CustomersPerPart
	for p := 0; p*size < n; p++ {
		did, err := loadCustomers(ctx, conn, p)
		if err != nil {
			return made, fmt.Errorf("load table customer: %w", err)
		}
		if did {
			made += size
		}
		if progress != nil {
			progress(min((p+1)*size, n), n)
		}
	}
	if made > 0 {
		if _, err := conn.Exec(ctx, "vacuum (analyze) customer"); err != nil {
			return made, fmt.Errorf("analyze table customer: %w", err)
		}
	}
	return made, nil
}

// loadCustomers makes one part, unless it exists.
func loadCustomers(ctx context.Context, conn *pgx.Conn, p int) (did bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "insert into loaded values ('customer', $1) on conflict do nothing", p)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		did = true
		columns, rows := tpcc.Customers(1, p)
		_, err = conn.PgConn().CopyFrom(ctx, rows, "copy customer "+columns+" from stdin")
		return err
	})
	return did, err
}

package tpcc

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Mode is how a transaction reaches the server.
type Mode string

// The modes. They answer different questions: a function pays the way to the server once per transaction, client SQL
// once per statement.
const (
	Functions Mode = "functions" // one call of a server-side function
	ClientSQL Mode = "sql"       // BEGIN, one statement after another, COMMIT
	Pipeline  Mode = "pipeline"  // client SQL, with the statements of all order lines sent at once
)

// errInvalidItem is what a New-Order with an item that does not exist rolls back with, in every mode.
var errInvalidItem = &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: invalidItem, Message: "item number is not valid"}

// order is the input of a New-Order; lines are sorted by supplying warehouse and item.
type order struct {
	w, d, c int
	lines   []line
}

const (
	sqlWarehouseTax = `select w_tax::float8 from tpcc.warehouse where w_id = $1`
	sqlNextOrder    = `update tpcc.district set d_next_o_id = d_next_o_id + 1 where d_w_id = $1 and d_id = $2 returning d_tax::float8, d_next_o_id - 1`
	sqlDiscount     = `select c_discount::float8, c_last, c_credit from tpcc.customer where c_w_id = $1 and c_d_id = $2 and c_id = $3`
	sqlOrder        = `insert into tpcc.orders (o_w_id, o_d_id, o_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local) values ($1, $2, $3, $4, now(), null, $5, $6)`
	sqlNewOrder     = `insert into tpcc.new_order (no_w_id, no_d_id, no_o_id) values ($1, $2, $3)`
	sqlItem         = `select i_price::text, i_data from tpcc.item where i_id = $1`
	sqlStock        = `update tpcc.stock set s_quantity = case when s_quantity >= $3 + 10 then s_quantity - $3 else s_quantity - $3 + 91 end,
		s_ytd = s_ytd + $3, s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + $4 where s_w_id = $1 and s_i_id = $2
		returning s_data, (array[s_dist_01, s_dist_02, s_dist_03, s_dist_04, s_dist_05, s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10])[$5]`
	sqlLine = `insert into tpcc.order_line (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity, ol_amount, ol_dist_info)
		values ($1, $2, $3, $4, $5, $6, null, $7::int, $7::int * $8::text::numeric, $9)`
)

// newOrderSQL is clause 2.4 as a client sends it.
func newOrderSQL(ctx context.Context, conn *pgx.Conn, o order, pipeline bool) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var wTax, dTax, discount float64
		var last, credit string
		var id int
		if err := tx.QueryRow(ctx, sqlWarehouseTax, o.w).Scan(&wTax); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, sqlNextOrder, o.w, o.d).Scan(&dTax, &id); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, sqlDiscount, o.w, o.d, o.c).Scan(&discount, &last, &credit); err != nil {
			return err
		}
		local := 1
		for _, l := range o.lines {
			if l.supply != o.w {
				local = 0
			}
		}
		if _, err := tx.Exec(ctx, sqlOrder, o.w, o.d, id, o.c, len(o.lines), local); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, sqlNewOrder, o.w, o.d, id); err != nil {
			return err
		}
		if pipeline {
			return linesAtOnce(ctx, tx, o, id)
		}
		for i := range o.lines {
			if err := oneLine(ctx, tx, o, id, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// stockArgs are the parameters of sqlStock for a line.
func (o order) stockArgs(l line) []any {
	remote := 0
	if l.supply != o.w {
		remote = 1
	}
	return []any{l.supply, l.item, l.quantity, remote, o.d}
}

func oneLine(ctx context.Context, tx pgx.Tx, o order, id, i int) error {
	l := o.lines[i]
	var price, itemData, stockData, dist string
	err := tx.QueryRow(ctx, sqlItem, l.item).Scan(&price, &itemData)
	if errors.Is(err, pgx.ErrNoRows) {
		return errInvalidItem
	}
	if err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, sqlStock, o.stockArgs(l)...).Scan(&stockData, &dist); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sqlLine, o.w, o.d, id, i+1, l.item, l.supply, l.quantity, price, dist)
	return err
}

// linesAtOnce takes two round trips for all lines: one for their items and stock, one for the lines themselves.
func linesAtOnce(ctx context.Context, tx pgx.Tx, o order, id int) error {
	first := &pgx.Batch{}
	prices, dists := make([]string, len(o.lines)), make([]string, len(o.lines))
	missing := false
	for i, l := range o.lines {
		first.Queue(sqlItem, l.item).QueryRow(func(row pgx.Row) error {
			var data string
			err := row.Scan(&prices[i], &data)
			if errors.Is(err, pgx.ErrNoRows) {
				missing = true
				return nil
			}
			return err
		})
		if l.item > items { // its stock does not exist either
			continue
		}
		first.Queue(sqlStock, o.stockArgs(l)...).QueryRow(func(row pgx.Row) error {
			var data string
			return row.Scan(&data, &dists[i])
		})
	}
	if err := tx.SendBatch(ctx, first).Close(); err != nil {
		return err
	}
	if missing {
		return errInvalidItem
	}
	second := &pgx.Batch{}
	for i, l := range o.lines {
		second.Queue(sqlLine, o.w, o.d, id, i+1, l.item, l.supply, l.quantity, prices[i], dists[i])
	}
	return tx.SendBatch(ctx, second).Close()
}

// customerInTheMiddle is clause 2.5.2.2: by last name, the customer in the middle when ordered by first name.
const customerInTheMiddle = `select coalesce($3::int, tpcc.customer_by_name($1, $2, $4))`

// district is a district of a warehouse.
type district struct{ w, d int }

// customerKey names a customer by number or by last name; the other is nil.
type customerKey struct {
	id   *int
	last *string
}

// paymentInput is the input of a Payment: where it is made, whose customer pays, and how much.
type paymentInput struct {
	at, of   district
	customer customerKey
	cents    int
}

// paymentSQL is clause 2.5 as a client sends it.
func paymentSQL(ctx context.Context, conn *pgx.Conn, in paymentInput) error {
	w, d, cw, cd, cents := in.at.w, in.at.d, in.of.w, in.of.d, in.cents
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var wName, dName string
		var c int
		if err := tx.QueryRow(ctx, `update tpcc.warehouse set w_ytd = w_ytd + $2::int / 100.0 where w_id = $1 returning w_name`, w, cents).Scan(&wName); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `update tpcc.district set d_ytd = d_ytd + $3::int / 100.0 where d_w_id = $1 and d_id = $2 returning d_name`, w, d, cents).Scan(&dName); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, customerInTheMiddle, cw, cd, in.customer.id, in.customer.last).Scan(&c); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `update tpcc.customer set c_balance = c_balance - $4::int / 100.0, c_ytd_payment = c_ytd_payment + $4::int / 100.0, c_payment_cnt = c_payment_cnt + 1,
			c_data = case when c_credit = 'BC' then left(concat_ws(' ', c_id, c_d_id, c_w_id, $5::int, $6::int, $4::int / 100.0, c_data), 500) else c_data end
			where c_w_id = $1 and c_d_id = $2 and c_id = $3`, cw, cd, c, cents, d, w); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `insert into tpcc.history (h_c_w_id, h_c_d_id, h_c_id, h_w_id, h_d_id, h_date, h_amount, h_data)
			values ($1, $2, $3, $4, $5, now(), $6::int / 100.0, $7)`, cw, cd, c, w, d, cents, wName+"    "+dName)
		return err
	})
}

// orderStatusSQL is clause 2.6 as a client sends it.
func orderStatusSQL(ctx context.Context, conn *pgx.Conn, at district, customer customerKey, e *event) error {
	w, d := at.w, at.d
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var c, o, lines int
		var balance string
		if err := tx.QueryRow(ctx, customerInTheMiddle, w, d, customer.id, customer.last).Scan(&c); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `select c_balance::text, tpcc.server() from tpcc.customer where c_w_id = $1 and c_d_id = $2 and c_id = $3`, w, d, c).Scan(&balance, &e.server); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `select coalesce(max(o_id), 0) from tpcc.orders where o_w_id = $1 and o_d_id = $2 and o_c_id = $3`, w, d, c).Scan(&o); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select count(*) from tpcc.order_line where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3`, w, d, o).Scan(&lines)
	})
}

// deliverySQL is clause 2.7 as a client sends it.
func deliverySQL(ctx context.Context, conn *pgx.Conn, w, carrier int, e *event) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		e.skipped = 0
		for d := 1; d <= districts; d++ {
			if err := deliverDistrict(ctx, tx, district{w, d}, carrier, e); err != nil {
				return err
			}
		}
		return nil
	})
}

func deliverDistrict(ctx context.Context, tx pgx.Tx, at district, carrier int, e *event) error {
	w, d := at.w, at.d
	var o, c int
	var amount string
	err := tx.QueryRow(ctx, `select no_o_id from tpcc.new_order where no_w_id = $1 and no_d_id = $2 order by no_o_id limit 1 for update`, w, d).Scan(&o)
	if errors.Is(err, pgx.ErrNoRows) {
		e.skipped++
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `delete from tpcc.new_order where no_w_id = $1 and no_d_id = $2 and no_o_id = $3`, w, d, o); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `update tpcc.orders set o_carrier_id = $4 where o_w_id = $1 and o_d_id = $2 and o_id = $3 returning o_c_id`, w, d, o, carrier).Scan(&c); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, `with lines as (update tpcc.order_line set ol_delivery_d = now() where ol_w_id = $1 and ol_d_id = $2 and ol_o_id = $3 returning ol_amount)
		select sum(ol_amount)::text from lines`, w, d, o).Scan(&amount); err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `update tpcc.customer set c_balance = c_balance + $4::text::numeric, c_delivery_cnt = c_delivery_cnt + 1
		where c_w_id = $1 and c_d_id = $2 and c_id = $3`, w, d, c, amount)
	return err
}

// stockLevelSQL is clause 2.8 as a client sends it.
func stockLevelSQL(ctx context.Context, conn *pgx.Conn, at district, threshold int, e *event) error {
	w, d := at.w, at.d
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var next, short int
		if err := tx.QueryRow(ctx, `select d_next_o_id, tpcc.server() from tpcc.district where d_w_id = $1 and d_id = $2`, w, d).Scan(&next, &e.server); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `select count(distinct s_i_id) from tpcc.order_line join tpcc.stock on s_w_id = $1 and s_i_id = ol_i_id
			where ol_w_id = $1 and ol_d_id = $2 and ol_o_id >= $3::int - 20 and ol_o_id < $3 and s_quantity < $4`, w, d, next, threshold).Scan(&short)
	})
}

package tpcc

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// rule is one of clause 4.3.3.1: a query that holds for the rows of a right generator, and a change that a wrong one
// would make.
type rule struct {
	name  string
	holds string
	wrong string // by mistakes that other generators make
}

var rules = []rule{
	{
		"cardinalities", `select (select count(*) from tpcc.item) = 100000 and (select count(*) from tpcc.stock) = 100000 and (select count(*) from tpcc.district) = 10
		and (select count(*) from tpcc.customer) = 30000 and (select count(*) from tpcc.history) = 30000 and (select count(*) from tpcc.orders) = 30000
		and (select count(*) from tpcc.new_order) = 9000 and (select count(*) from tpcc.order_line) = (select sum(o_ol_cnt) from tpcc.orders)`,
		`delete from tpcc.history where ctid = (select min(ctid) from tpcc.history)`,
	},
	{
		"a tenth of the customers has bad credit", `select count(*) filter (where c_credit = 'BC') between 2700 and 3300 and bool_and(c_credit in ('BC', 'GC')) from tpcc.customer`,
		`update tpcc.customer set c_credit = case when c_id % 2 = 0 then 'BC' else 'GC' end`,
	},
	{
		"every customer of a district has one order", `select bool_and(n = 3000) from (select count(distinct o_c_id) as n from tpcc.orders group by o_w_id, o_d_id) d`,
		`update tpcc.orders set o_c_id = 17 where o_id between 5 and 6`,
	},
	{
		"last names of the first thousand are all there are, once", `select bool_and(n = 1000) from (select count(distinct c_last) as n from tpcc.customer where c_id <= 1000 group by c_d_id) d`,
		`update tpcc.customer set c_last = 'BARBARBAR' where c_id = 371`,
	},
	{
		"the others' last names are not uniform", `select max(n) > 2.5 * avg(n) from (select count(*) as n from tpcc.customer where c_id > 1000 group by c_last) l`,
		`update tpcc.customer c set c_last = f.c_last from tpcc.customer f where f.c_w_id = c.c_w_id and f.c_d_id = c.c_d_id and f.c_id = c.c_id % 1000 + 1 and c.c_id > 1000`,
	},
	{
		"a tenth of the items is ORIGINAL, in capitals", `select count(*) filter (where i_data like '%ORIGINAL%') between 9000 and 11000 and count(*) filter (where i_data like '%original%') = 0 from tpcc.item`,
		`update tpcc.item set i_data = replace(i_data, 'ORIGINAL', 'original')`,
	},
	{
		"the last 900 orders of a district are not delivered", `select bool_and((o_carrier_id is null) = (o_id > 2100)) from tpcc.orders`,
		`update tpcc.orders set o_carrier_id = 1 where o_id = 2500`,
	},
	{
		"lines of delivered orders cost nothing", `select bool_and((ol_amount = 0) = (ol_o_id <= 2100)) and min(ol_quantity) = 5 and max(ol_quantity) = 5 from tpcc.order_line`,
		`update tpcc.order_line set ol_amount = 1 where ol_o_id = 7 and ol_number = 1`,
	},
	{
		"five to fifteen lines, ten on average", `select min(o_ol_cnt) = 5 and max(o_ol_cnt) = 15 and avg(o_ol_cnt) between 9.9 and 10.1 from tpcc.orders`,
		`update tpcc.orders set o_ol_cnt = 10`,
	},
}

// wrongGeneratorIsCaught holds that freshly loaded rows keep the rules of the population, and that each rule finds the
// mistake that it is made for.
func wrongGeneratorIsCaught(t *testing.T, dsn string) {
	conn := connect(t, dsn)
	ask := func(tx pgx.Tx, r rule) bool {
		var ok bool
		if err := tx.QueryRow(t.Context(), r.holds).Scan(&ok); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		return ok
	}
	for _, r := range rules {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ask(tx, r) {
			t.Errorf("what is loaded breaks the rule: %s", r.name)
		}
		if tag, err := tx.Exec(t.Context(), r.wrong); err != nil || tag.RowsAffected() == 0 {
			t.Fatalf("%s: %d rows, %v", r.name, tag.RowsAffected(), err)
		}
		if ask(tx, r) {
			t.Errorf("nobody noticed that the generator was wrong: %s", r.name)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

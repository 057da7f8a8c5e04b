package tpcc

// condition is one of clause 3.3.2. Its query returns the rows that break it, with a column what to show of them.
type condition struct {
	number int
	name   string
	query  string
}

// conditions hold in every snapshot, on every server. They prove that transactions were
// applied whole; a tail that is cleanly missing breaks none of them, which is what the ledger is for.
var conditions = []condition{
	{1, "W_YTD = sum(D_YTD)", `
		select format('warehouse %s: %s, districts %s', w_id, w_ytd, sum(d_ytd)) as what
		from tpcc.warehouse left join tpcc.district on d_w_id = w_id
		group by w_id, w_ytd having w_ytd is distinct from sum(d_ytd)`},
	{2, "D_NEXT_O_ID - 1 = max(O_ID) = max(NO_O_ID)", `
		select format('district %s/%s: next %s, orders to %s, new orders to %s', d_w_id, d_id, d_next_o_id, o.last, n.last) as what
		from tpcc.district
		left join (select o_w_id, o_d_id, max(o_id) as last from tpcc.orders group by 1, 2) o on o_w_id = d_w_id and o_d_id = d_id
		left join (select no_w_id, no_d_id, max(no_o_id) as last from tpcc.new_order group by 1, 2) n
			on no_w_id = d_w_id and no_d_id = d_id
		where d_next_o_id - 1 is distinct from o.last or (n.last is not null and n.last <> d_next_o_id - 1)`},
	{3, "NO_O_ID has no holes", `
		select format('district %s/%s: %s to %s, %s rows', no_w_id, no_d_id, min(no_o_id), max(no_o_id), count(*)) as what
		from tpcc.new_order group by no_w_id, no_d_id having max(no_o_id) - min(no_o_id) + 1 <> count(*)`},
	{4, "sum(O_OL_CNT) = count(ORDER_LINE) per district", `
		select format('district %s/%s: %s announced, %s lines', o.w, o.d, o.n, l.n) as what
		from (select o_w_id as w, o_d_id as d, sum(o_ol_cnt) as n from tpcc.orders group by 1, 2) o
		full join (select ol_w_id as w, ol_d_id as d, count(*) as n from tpcc.order_line group by 1, 2) l on l.w = o.w and l.d = o.d
		where o.n is distinct from l.n`},
	{5, "O_CARRIER_ID is null if and only if there is a NEW_ORDER row", `
		select format('order %s/%s/%s: carrier %s, new order %s', coalesce(o_w_id, no_w_id), coalesce(o_d_id, no_d_id),
			coalesce(o_id, no_o_id), coalesce(o_carrier_id::text, 'null'), coalesce(no_o_id::text, 'none')) as what
		from tpcc.orders full join tpcc.new_order on no_w_id = o_w_id and no_d_id = o_d_id and no_o_id = o_id
		where o_id is null or (o_carrier_id is null) <> (no_o_id is not null)`},
	{6, "O_OL_CNT = count(ORDER_LINE) per order", `
		select format('order %s/%s/%s: %s announced, %s lines', coalesce(o_w_id, l.w), coalesce(o_d_id, l.d), coalesce(o_id, l.o),
			o_ol_cnt, l.n) as what
		from tpcc.orders
		full join (select ol_w_id as w, ol_d_id as d, ol_o_id as o, count(*) as n from tpcc.order_line group by 1, 2, 3) l
			on l.w = o_w_id and l.d = o_d_id and l.o = o_id
		where o_ol_cnt is distinct from l.n`},
	{7, "OL_DELIVERY_D is null if and only if O_CARRIER_ID is", `
		select format('line %s/%s/%s/%s: delivered %s, carrier %s', ol_w_id, ol_d_id, ol_o_id, ol_number,
			coalesce(ol_delivery_d::text, 'null'), coalesce(o_carrier_id::text, 'null')) as what
		from tpcc.order_line left join tpcc.orders on o_w_id = ol_w_id and o_d_id = ol_d_id and o_id = ol_o_id
		where (ol_delivery_d is null) <> (o_carrier_id is null)`},
	{8, "W_YTD = sum(H_AMOUNT)", `
		select format('warehouse %s: %s, history %s', w_id, w_ytd, h.amount) as what
		from tpcc.warehouse
		left join (select h_w_id, sum(h_amount) as amount from tpcc.history group by 1) h on h_w_id = w_id
		where w_ytd is distinct from h.amount`},
	{9, "D_YTD = sum(H_AMOUNT)", `
		select format('district %s/%s: %s, history %s', d_w_id, d_id, d_ytd, h.amount) as what
		from tpcc.district
		left join (select h_w_id, h_d_id, sum(h_amount) as amount from tpcc.history group by 1, 2) h
			on h_w_id = d_w_id and h_d_id = d_id
		where d_ytd is distinct from h.amount`},
	{10, "C_BALANCE = sum(delivered OL_AMOUNT) - sum(H_AMOUNT)", `
		select format('customer %s/%s/%s: %s, delivered %s, paid %s', c_w_id, c_d_id, c_id, c_balance, l.amount, h.amount) as what
		from tpcc.customer
		left join (` + deliveredPerCustomer + `) l on l.w = c_w_id and l.d = c_d_id and l.c = c_id
		left join (select h_c_w_id as w, h_c_d_id as d, h_c_id as c, sum(h_amount) as amount from tpcc.history group by 1, 2, 3) h
			on h.w = c_w_id and h.d = c_d_id and h.c = c_id
		where c_balance <> coalesce(l.amount, 0) - coalesce(h.amount, 0)`},
	// The clause demands 2100, which is true until the first Delivery. Each Delivery raises C_DELIVERY_CNT of one
	// customer of the district, so this holds for ever.
	{11, "count(ORDER) - count(NEW_ORDER) = 2100 + sum(C_DELIVERY_CNT)", `
		select format('district %s/%s: %s orders, %s new, %s delivered', d_w_id, d_id, o.n, n.n, c.n) as what
		from tpcc.district
		left join (select o_w_id as w, o_d_id as d, count(*) as n from tpcc.orders group by 1, 2) o on o.w = d_w_id and o.d = d_id
		left join (select no_w_id as w, no_d_id as d, count(*) as n from tpcc.new_order group by 1, 2) n on n.w = d_w_id and n.d = d_id
		left join (select c_w_id as w, c_d_id as d, sum(c_delivery_cnt) as n from tpcc.customer group by 1, 2) c
			on c.w = d_w_id and c.d = d_id
		where coalesce(o.n, 0) - coalesce(n.n, 0) <> 2100 + coalesce(c.n, 0)`},
	{12, "C_BALANCE + C_YTD_PAYMENT = sum(delivered OL_AMOUNT)", `
		select format('customer %s/%s/%s: %s + %s, delivered %s', c_w_id, c_d_id, c_id, c_balance, c_ytd_payment, l.amount) as what
		from tpcc.customer
		left join (` + deliveredPerCustomer + `) l on l.w = c_w_id and l.d = c_d_id and l.c = c_id
		where c_balance + c_ytd_payment <> coalesce(l.amount, 0)`},
}

const deliveredPerCustomer = `
	select o_w_id as w, o_d_id as d, o_c_id as c, sum(ol_amount) as amount
	from tpcc.orders join tpcc.order_line on ol_w_id = o_w_id and ol_d_id = o_d_id and ol_o_id = o_id
	where ol_delivery_d is not null group by 1, 2, 3`

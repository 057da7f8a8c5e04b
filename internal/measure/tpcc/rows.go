package tpcc

import (
	"io"
	"strconv"
	"strings"
	"sync/atomic"
)

// loadTime stands for every "time of load" of the population, so that it does not differ between two loads.
const loadTime = "2026-01-01 00:00:00+00"

// chunk is a piece of one table, made and copied on its own.
type chunk struct {
	table string // with its columns, as COPY takes it
	rows  int
	row   func(b []byte, i int) []byte // appends row i, 0-based, in COPY's text format
}

// row appends fields separated by tabs.
type row struct{ b []byte }

func (r *row) sep() {
	if n := len(r.b); n > 0 && r.b[n-1] != '\n' {
		r.b = append(r.b, '\t')
	}
}

func (r *row) int(v int)     { r.sep(); r.b = strconv.AppendInt(r.b, int64(v), 10) }
func (r *row) str(v string)  { r.sep(); r.b = append(r.b, v...) }
func (r *row) null()         { r.str(`\N`) }
func (r *row) end() []byte   { return append(r.b, '\n') }
func (r *row) cents(v int)   { r.fixed(v, 2) }
func (r *row) tenths4(v int) { r.fixed(v, 4) }

// text appends a random string; f is one of stream's appenders.
func (r *row) text(f func(b []byte) []byte) { r.sep(); r.b = f(r.b) }

// fixed appends v / 10^places.
func (r *row) fixed(v, places int) {
	r.sep()
	if v < 0 {
		r.b = append(r.b, '-')
		v = -v
	}
	scale := 1
	for range places {
		scale *= 10
	}
	r.b = strconv.AppendInt(r.b, int64(v/scale), 10)
	r.b = append(r.b, '.')
	for v %= scale; scale > 1; v %= scale {
		scale /= 10
		r.b = append(r.b, byte('0'+v/scale))
	}
}

func (r *row) address(s stream) {
	for range 3 { // street 1, street 2, city
		r.text(func(b []byte) []byte { return s.text(b, 10, 20) })
	}
	r.str(string([]byte{byte('A' + s.in(0, 25)), byte('A' + s.in(0, 25))}))
	r.text(func(b []byte) []byte { return append(s.digits(b, 4), "11111"...) })
}

// population lists every chunk of a database, the largest tables first so that parallel workers end together.
func population(seed uint64, warehouses int) []chunk {
	const pieces = 10 // of the tables that are not cut by district
	var all []chunk
	for w := 1; w <= warehouses; w++ {
		for d := 1; d <= districts; d++ {
			all = append(all, orderLines(seed, w, d))
		}
		for p := range pieces {
			all = append(all, stock(seed, w, p*items/pieces, items/pieces))
		}
		for d := 1; d <= districts; d++ {
			all = append(all, customers(seed, w, d), history(seed, w, d), orders(seed, w, d), newOrders(w, d))
		}
	}
	for p := range pieces {
		all = append(all, itemRows(seed, p*items/pieces, items/pieces))
	}
	return append(all, warehouseRows(seed, warehouses), districtRows(seed, warehouses))
}

func itemRows(seed uint64, from, n int) chunk {
	s := newStream(seed, "item", from)
	return chunk{"item (i_id, i_im_id, i_name, i_price, i_data)", n, func(b []byte, i int) []byte {
		r := row{b}
		r.int(from + i + 1)
		r.int(s.in(1, 10_000))
		r.text(func(b []byte) []byte { return s.text(b, 14, 24) })
		r.cents(s.in(100, 10_000))
		r.text(s.data)
		return r.end()
	}}
}

func warehouseRows(seed uint64, n int) chunk {
	s := newStream(seed, "warehouse")
	return chunk{"warehouse (w_id, w_name, w_street_1, w_street_2, w_city, w_state, w_zip, w_tax, w_ytd)", n, func(b []byte, i int) []byte {
		r := row{b}
		r.int(i + 1)
		r.text(func(b []byte) []byte { return s.text(b, 6, 10) })
		r.address(s)
		r.tenths4(s.in(0, 2000))
		r.cents(districts * customersPerDistrict * historyAmount)
		return r.end()
	}}
}

func districtRows(seed uint64, warehouses int) chunk {
	s := newStream(seed, "district")
	return chunk{
		"district (d_w_id, d_id, d_name, d_street_1, d_street_2, d_city, d_state, d_zip, d_tax, d_ytd, d_next_o_id)",
		warehouses * districts,
		func(b []byte, i int) []byte {
			r := row{b}
			r.int(i/districts + 1)
			r.int(i%districts + 1)
			r.text(func(b []byte) []byte { return s.text(b, 6, 10) })
			r.address(s)
			r.tenths4(s.in(0, 2000))
			r.cents(customersPerDistrict * historyAmount)
			r.int(ordersPerDistrict + 1)
			return r.end()
		},
	}
}

func stock(seed uint64, w, from, n int) chunk {
	s := newStream(seed, "stock", w, from)
	const columns = "stock (s_w_id, s_i_id, s_quantity, s_ytd, s_order_cnt, s_remote_cnt, s_dist_01, s_dist_02, s_dist_03, " +
		"s_dist_04, s_dist_05, s_dist_06, s_dist_07, s_dist_08, s_dist_09, s_dist_10, s_data)"
	return chunk{columns, n, func(b []byte, i int) []byte {
		r := row{b}
		r.int(w)
		r.int(from + i + 1)
		r.int(s.in(10, 100))
		r.int(0)
		r.int(0)
		r.int(0)
		for range districts {
			r.text(func(b []byte) []byte { return s.text(b, 24, 24) })
		}
		r.text(s.data)
		return r.end()
	}}
}

func customers(seed uint64, w, d int) chunk {
	s := newStream(seed, "customer", w, d)
	c := loadConstants(seed)
	const columns = "customer (c_w_id, c_d_id, c_id, c_first, c_middle, c_last, c_street_1, c_street_2, c_city, c_state, c_zip, c_phone, " +
		"c_since, c_credit, c_credit_lim, c_discount, c_balance, c_ytd_payment, c_payment_cnt, c_delivery_cnt, c_data)"
	return chunk{columns, customersPerDistrict, func(b []byte, i int) []byte {
		r := row{b}
		r.int(w)
		r.int(d)
		r.int(i + 1)
		r.text(func(b []byte) []byte { return s.text(b, 8, 16) })
		r.str("OE")
		if i < 1000 {
			r.str(lastName(i))
		} else {
			r.str(lastName(s.nuRand(255, c.last, 0, 999)))
		}
		r.address(s)
		r.text(func(b []byte) []byte { return s.digits(b, 16) })
		r.str(loadTime)
		if s.chance(1, 10) {
			r.str("BC")
		} else {
			r.str("GC")
		}
		r.cents(50_000_00)
		r.tenths4(s.in(0, 5000))
		r.cents(-historyAmount)
		r.cents(historyAmount)
		r.int(1)
		r.int(0)
		r.text(func(b []byte) []byte { return s.text(b, 300, 500) })
		return r.end()
	}}
}

func history(seed uint64, w, d int) chunk {
	s := newStream(seed, "history", w, d)
	const columns = "history (h_c_w_id, h_c_d_id, h_c_id, h_w_id, h_d_id, h_date, h_amount, h_data)"
	return chunk{columns, customersPerDistrict, func(b []byte, i int) []byte {
		r := row{b}
		r.int(w)
		r.int(d)
		r.int(i + 1)
		r.int(w)
		r.int(d)
		r.str(loadTime)
		r.cents(historyAmount)
		r.text(func(b []byte) []byte { return s.text(b, 12, 24) })
		return r.end()
	}}
}

// lineCounts returns O_OL_CNT of each order of a district: three tables and the progress depend on them.
func lineCounts(seed uint64, w, d int) []int {
	s := newStream(seed, "line count", w, d)
	n := make([]int, ordersPerDistrict)
	for i := range n {
		n[i] = s.in(5, 15)
	}
	return n
}

func orders(seed uint64, w, d int) chunk {
	s := newStream(seed, "orders", w, d)
	counts := lineCounts(seed, w, d)
	who := make([]int, ordersPerDistrict)
	for i := range who {
		who[i] = i + 1
	}
	s.shuffle(who)
	const columns = "orders (o_w_id, o_d_id, o_id, o_c_id, o_entry_d, o_carrier_id, o_ol_cnt, o_all_local)"
	return chunk{columns, ordersPerDistrict, func(b []byte, i int) []byte {
		r := row{b}
		r.int(w)
		r.int(d)
		r.int(i + 1)
		r.int(who[i])
		r.str(loadTime)
		if i+1 < firstNewOrder {
			r.int(s.in(1, 10))
		} else {
			r.null()
		}
		r.int(counts[i])
		r.int(1)
		return r.end()
	}}
}

func newOrders(w, d int) chunk {
	return chunk{"new_order (no_w_id, no_d_id, no_o_id)", ordersPerDistrict - firstNewOrder + 1, func(b []byte, i int) []byte {
		r := row{b}
		r.int(w)
		r.int(d)
		r.int(firstNewOrder + i)
		return r.end()
	}}
}

func orderLines(seed uint64, w, d int) chunk {
	s := newStream(seed, "order_line", w, d)
	counts := lineCounts(seed, w, d)
	total := 0
	for _, n := range counts {
		total += n
	}
	const columns = "order_line (ol_w_id, ol_d_id, ol_o_id, ol_number, ol_i_id, ol_supply_w_id, ol_delivery_d, ol_quantity, ol_amount, ol_dist_info)"
	order, line := 1, 0
	return chunk{columns, total, func(b []byte, _ int) []byte {
		if line++; line > counts[order-1] {
			order, line = order+1, 1
		}
		r := row{b}
		r.int(w)
		r.int(d)
		r.int(order)
		r.int(line)
		r.int(s.in(1, items))
		r.int(w)
		if order < firstNewOrder {
			r.str(loadTime)
			r.int(5)
			r.cents(0)
		} else {
			r.null()
			r.int(5)
			r.cents(s.in(1, 999_999))
		}
		r.text(func(b []byte) []byte { return s.text(b, 24, 24) })
		return r.end()
	}}
}

// CustomersPerPart is how many rows of table customer a part has: those of one district.
const CustomersPerPart = customersPerDistrict

// CustomerTable returns what stands behind "create table NAME" for a table like customer, which has no key yet.
func CustomerTable() string {
	_, rest, _ := strings.Cut(schemaSQL, "create table tpcc.customer ")
	columns, _, _ := strings.Cut(rest, ";")
	return columns
}

// Customers returns the rows of a part of table customer, counted from 0, the same for the same seed, as COPY reads
// them into such columns.
func Customers(seed uint64, part int) (columns string, rows io.Reader) {
	c := customers(seed, part/districts+1, part%districts+1)
	_, columns, _ = strings.Cut(c.table, " ")
	return columns, &chunkReader{chunk: c, done: new(atomic.Int64)}
}

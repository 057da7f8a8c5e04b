package tpcc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// kind is one of the five transactions.
type kind uint8

const (
	newOrder kind = iota
	payment
	orderStatus
	delivery
	stockLevel
	kinds
)

var kindNames = [kinds]string{"New-Order", "Payment", "Order-Status", "Delivery", "Stock-Level"}

func (k kind) readOnly() bool { return k == orderStatus || k == stockLevel }

// deck is clause 5.2.4.2: 23 cards that give the required mix exactly.
func deck() []int {
	var cards []int
	for k, n := range [kinds]int{10, 10, 1, 1, 1} {
		for range n {
			cards = append(cards, k)
		}
	}
	return cards
}

// invalidItem is the SQLSTATE of the New-Order that must roll back (2.4.1.4): it did what it was meant to do.
const invalidItem = "TPC01"

// terminal is one client: a home district, its own random numbers, a session for writes and perhaps one for reads.
type terminal struct {
	w, d       int // home warehouse and district
	warehouses int
	constants  constants
	rand       stream
	cards      []int
	drawn      int
	left       int64 // transactions to run; negative: any number
	mode       Mode
	waits      Waits
	write      *session.Session
	read       *session.Session // the same as write without a read address
	lastWrite  time.Time        // when the last read-write transaction was acknowledged
	gap        time.Duration    // longest between two of them
}

func newTerminal(o RunOptions, c constants, i int) (*terminal, error) {
	t := &terminal{
		w: i/districts%o.Warehouses + 1, d: i%districts + 1,
		warehouses: o.Warehouses, constants: c, rand: newStream(o.Seed, "terminal", i), cards: deck(), mode: o.Mode, waits: o.Waits,
	}
	t.drawn = len(t.cards)
	t.left = o.Transactions
	if t.left <= 0 {
		t.left = -1
	}
	var err error
	t.write, err = session.New(session.Options{DSN: o.DSN, Start: i, Timeout: o.Timeout, Name: appName, Dial: o.Dial})
	if err != nil {
		return nil, err
	}
	t.read = t.write
	if o.ReadDSN != "" {
		t.read, err = session.New(session.Options{DSN: o.ReadDSN, Start: i, Timeout: o.Timeout, Name: appName, Dial: o.Dial})
	}
	return t, err
}

func (t *terminal) close() {
	t.write.Close()
	if t.read != t.write {
		t.read.Close()
	}
}

func (t *terminal) reconnects() int {
	n := max(t.write.Connects()-1, 0)
	if t.read != t.write {
		n += max(t.read.Connects()-1, 0)
	}
	return n
}

// connect connects every session of the terminal that has no connection. The end of ctx is not an error.
func (t *terminal) connect(ctx context.Context) error {
	for _, s := range []*session.Session{t.write, t.read} {
		if s.Conn() != nil {
			continue
		}
		if err := s.Connect(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("connect: %w", err)
		}
	}
	return nil
}

// maxRetries of one transaction.
const maxRetries = 10

// run draws cards until ctx ends. It returns an error only if it could never connect.
func (t *terminal) run(ctx context.Context, rec *recorder) error {
	for ctx.Err() == nil && t.left != 0 {
		k := t.draw()
		s := t.write
		if k.readOnly() {
			s = t.read
		}
		if s.Conn() == nil {
			if err := s.Connect(ctx); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return fmt.Errorf("connect: %w", err)
			}
		}
		e := event{kind: k}
		op := t.transaction(k, &e)
		if t.key(ctx, k); ctx.Err() != nil {
			return nil
		}
		counted := rec.counting.Load()
		start := time.Now()
		e.again(ctx, s, op)
		end := time.Now()
		e.took = end.Sub(start)
		if counted {
			rec.add(e)
			t.left = max(t.left-1, -1)
		}
		if e.outcome == session.OK && !k.readOnly() {
			t.wrote(end)
		}
		if e.outcome == session.Fail && e.state != invalidItem {
			session.Pause(ctx) // a server that refuses everything is not to be hammered
		}
		t.think(ctx, k)
	}
	return nil
}

// wrote notes when a read-write transaction was acknowledged.
func (t *terminal) wrote(at time.Time) {
	if !t.lastWrite.IsZero() {
		t.gap = max(t.gap, at.Sub(t.lastWrite))
	}
	t.lastWrite = at
}

// again runs a transaction, and runs it again, with the same inputs, where the server reports a conflict with other
// transactions.
func (e *event) again(ctx context.Context, s *session.Session, op func(context.Context, *pgx.Conn) error) {
	for {
		e.outcome, e.state, _ = s.Do(ctx, op) // the state says what the error was
		if e.outcome != session.Fail || !session.Retryable(e.state) || s.Conn() == nil || len(e.retried) == maxRetries {
			return
		}
		e.retried = append(e.retried, e.state)
	}
}

func (t *terminal) key(ctx context.Context, k kind) { pause(ctx, t.waits.Keying[k]) }

func (t *terminal) think(ctx context.Context, k kind) {
	if mean := t.waits.Thinking[k]; mean > 0 {
		pause(ctx, t.rand.thinking(mean))
	}
}

func (t *terminal) draw() kind {
	if t.drawn == len(t.cards) {
		t.rand.shuffle(t.cards)
		t.drawn = 0
	}
	t.drawn++
	return kind(t.cards[t.drawn-1])
}

// transaction draws the inputs of one transaction.
func (t *terminal) transaction(k kind, e *event) func(context.Context, *pgx.Conn) error {
	switch k {
	case newOrder:
		return t.newOrder()
	case payment:
		return t.payment()
	case orderStatus:
		return t.orderStatus(e)
	case delivery:
		return t.delivery(e)
	case stockLevel:
		return t.stockLevel(e)
	case kinds:
	}
	panic(fmt.Sprintf("no such transaction: %d", k))
}

func (t *terminal) clientSQL() bool { return t.mode == ClientSQL || t.mode == Pipeline }

func (t *terminal) customer() int {
	return t.rand.nuRand(1023, t.constants.customer, 1, customersPerDistrict)
}

// customerKey is a customer by number (40 %) or by last name (60 %); the other is nil.
func (t *terminal) customerKey() (id *int, last *string) {
	if t.rand.chance(60, 100) {
		name := lastName(t.rand.nuRand(255, t.constants.last, 0, 999))
		return nil, &name
	}
	c := t.customer()
	return &c, nil
}

// other draws a warehouse that is not the home one, or home if there is only one.
func (t *terminal) other() int {
	if t.warehouses == 1 {
		return t.w
	}
	w := t.rand.in(1, t.warehouses-1)
	if w >= t.w {
		w++
	}
	return w
}

type line struct{ item, supply, quantity int }

func (t *terminal) newOrder() func(context.Context, *pgx.Conn) error {
	d, c := t.rand.in(1, districts), t.customer()
	lines := make([]line, t.rand.in(5, 15))
	for i := range lines {
		lines[i] = line{t.rand.nuRand(8191, t.constants.item, 1, items), t.w, t.rand.in(1, 10)}
		if t.rand.chance(1, 100) {
			lines[i].supply = t.other()
		}
	}
	slices.SortFunc(lines, func(a, b line) int { // stock rows are locked in this order by everyone
		if a.supply != b.supply {
			return a.supply - b.supply
		}
		return a.item - b.item
	})
	if t.rand.chance(1, 100) {
		lines[len(lines)-1].item = items + 1
	}
	w := t.w
	if mode := t.mode; t.clientSQL() {
		return func(ctx context.Context, conn *pgx.Conn) error {
			return newOrderSQL(ctx, conn, order{w, d, c, lines}, mode == Pipeline)
		}
	}
	item, supply, quantity := make([]int, len(lines)), make([]int, len(lines)), make([]int, len(lines))
	for i, l := range lines {
		item[i], supply[i], quantity[i] = l.item, l.supply, l.quantity
	}
	return func(ctx context.Context, conn *pgx.Conn) error {
		var id int
		const call = `select r_o_id from tpcc.new_order($1, $2, $3, $4::int[], $5::int[], $6::int[])`
		return conn.QueryRow(ctx, call, w, d, c, item, supply, quantity).Scan(&id)
	}
}

func (t *terminal) payment() func(context.Context, *pgx.Conn) error {
	d := t.rand.in(1, districts)
	cw, cd := t.w, d
	if t.rand.chance(15, 100) {
		cw, cd = t.other(), t.rand.in(1, districts)
	}
	id, last := t.customerKey()
	cents := t.rand.in(100, 500_000)
	w := t.w
	if t.clientSQL() {
		return func(ctx context.Context, conn *pgx.Conn) error {
			return paymentSQL(ctx, conn, paymentInput{at: district{w, d}, of: district{cw, cd}, customer: customerKey{id, last}, cents: cents})
		}
	}
	return func(ctx context.Context, conn *pgx.Conn) error {
		var c int
		const call = `select r_c_id from tpcc.payment($1, $2, $3, $4, $5, $6, $7::int / 100.0)`
		return conn.QueryRow(ctx, call, w, d, cw, cd, id, last, cents).Scan(&c)
	}
}

func (t *terminal) orderStatus(e *event) func(context.Context, *pgx.Conn) error {
	d := t.rand.in(1, districts)
	id, last := t.customerKey()
	w := t.w
	if t.clientSQL() {
		return func(ctx context.Context, conn *pgx.Conn) error {
			return orderStatusSQL(ctx, conn, district{w, d}, customerKey{id, last}, e)
		}
	}
	return func(ctx context.Context, conn *pgx.Conn) error {
		var lines int
		const call = `select r_lines, r_server from tpcc.order_status($1, $2, $3, $4)`
		return conn.QueryRow(ctx, call, w, d, id, last).Scan(&lines, &e.server)
	}
}

func (t *terminal) delivery(e *event) func(context.Context, *pgx.Conn) error {
	carrier := t.rand.in(1, 10)
	w := t.w
	if t.clientSQL() {
		return func(ctx context.Context, conn *pgx.Conn) error { return deliverySQL(ctx, conn, w, carrier, e) }
	}
	return func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `select tpcc.delivery($1, $2)`, w, carrier).Scan(&e.skipped)
	}
}

func (t *terminal) stockLevel(e *event) func(context.Context, *pgx.Conn) error {
	threshold := t.rand.in(10, 20)
	w, d := t.w, t.d
	if t.clientSQL() {
		return func(ctx context.Context, conn *pgx.Conn) error {
			return stockLevelSQL(ctx, conn, district{w, d}, threshold, e)
		}
	}
	return func(ctx context.Context, conn *pgx.Conn) error {
		var short int
		const call = `select r_short, r_server from tpcc.stock_level($1, $2, $3)`
		return conn.QueryRow(ctx, call, w, d, threshold).Scan(&short, &e.server)
	}
}

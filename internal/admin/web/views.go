package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/samples"
)

// viewAge is how old the rows of a view may be that several browsers get: each question has a node ask all others.
// maxViews is how many views are kept.
const (
	viewAge  = time.Second
	maxViews = 100
)

// reader is the user under which this port reads the views for all its sessions.
var reader = console.Principal{User: "console in the browser", May: ddl.MayLook}

// viewName is what a view is called; all others do not exist.
var viewName = regexp.MustCompile(`^(sys|coterie)\.[a-z_]{1,60}$`)

// Table is the document of a view, or of the answer to a query.
type Table struct {
	Name    string   `json:"name,omitempty"`
	At      string   `json:"at"`
	Columns []Column `json:"columns"`
	Rows    [][]any  `json:"rows"`
	Notices []string `json:"notices,omitempty"`
}

// Column is a column of a Table.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"` // as PostgreSQL calls it
}

// typeNames are PostgreSQL's names of the types of the console.
var typeNames = map[console.Type]string{
	console.Bool: "boolean", console.Int8: "bigint", console.Int4: "integer", console.Text: "text", console.OID: "oid", console.Float8: "double precision",
	console.Timestamptz: "timestamp with time zone", console.UUID: "uuid", console.Date: "date", console.Numeric: "numeric",
}

// tableOf returns the document of a result.
func tableOf(name string, r console.Result, at time.Time) Table {
	t := Table{Name: name, At: at.UTC().Format(time.RFC3339Nano), Columns: make([]Column, len(r.Columns)), Rows: console.Finite(r.Rows)}
	if t.Rows == nil {
		t.Rows = [][]any{}
	}
	for i, c := range r.Columns {
		t.Columns[i] = Column{c.Name, typeNames[c.Type]}
		if t.Columns[i].Type == "" {
			t.Columns[i].Type = "text"
		}
	}
	for _, n := range r.Notices {
		t.Notices = append(t.Notices, n.Message)
	}
	return t
}

// views keeps the rows of views for a moment, and asks for those of each once at a time.
type views struct {
	ask func(ctx context.Context, name string) (Table, error)

	mu   sync.Mutex // guards kept
	kept map[string]*kept
}

// kept is the answer of a view. Its fields are final when done is closed.
type kept struct {
	done  chan struct{}
	at    time.Time
	table Table
	err   error
	left  bool // the request that asked has ended, and the answer may be an error for that
}

func newViews(ask func(context.Context, string) (Table, error)) *views {
	return &views{ask: ask, kept: map[string]*kept{}}
}

// get returns the rows of a view, at most viewAge old. The first that asks has them read, within its own context.
func (v *views) get(ctx context.Context, name string) (Table, error) {
	for {
		v.mu.Lock()
		k := v.kept[name]
		mine := k == nil || k.old()
		if mine {
			if len(v.kept) >= maxViews {
				clear(v.kept)
			}
			k = &kept{done: make(chan struct{})}
			v.kept[name] = k
		}
		v.mu.Unlock()
		if mine {
			v.fill(ctx, name, k)
			return k.table, k.err
		}
		select {
		case <-k.done:
			if !k.left {
				return k.table, k.err
			}
		case <-ctx.Done():
			return Table{}, ctx.Err()
		}
	}
}

// fill asks for the rows of a view. Every request that waits for them goes on, however that ends.
func (v *views) fill(ctx context.Context, name string, k *kept) {
	k.err = errors.New("the view could not be read")
	defer func() {
		k.at, k.left = time.Now(), ctx.Err() != nil
		close(k.done)
	}()
	k.table, k.err = v.ask(ctx, name)
}

// old reports whether the answer is there and is not current.
func (k *kept) old() bool {
	select {
	case <-k.done:
		return time.Since(k.at) > viewAge || k.err != nil
	default:
		return false
	}
}

// askView reads a view as the console does, within its time and its limits.
func (s *Server) askView(ctx context.Context, name string) (Table, error) {
	at := time.Now()
	r, err := console.NewSession(&bounded{s.c.Backend(), maxAnswer}, reader).Run(ctx, "SELECT * FROM "+name)
	return tableOf(name, r, at), err
}

func (s *Server) view(w http.ResponseWriter, r *http.Request, _ *session) {
	name := r.PathValue("name")
	if !viewName.MatchString(name) {
		refuse(w, http.StatusNotFound, &console.Error{State: "42P01", Message: "there is no such view", Hint: "GET /api/v1/views lists them"})
		return
	}
	t, err := s.views.get(r.Context(), name)
	if err != nil {
		refuseQuery(w, err)
		return
	}
	answer(w, http.StatusOK, t)
}

// listViews answers with the names of the views and what they are about.
func (s *Server) listViews(w http.ResponseWriter, r *http.Request, _ *session) {
	t, err := s.run(r.Context(), reader, "SELECT table_schema || '.' || table_name AS name FROM information_schema.tables WHERE table_schema IN ('sys', 'coterie') ORDER BY 1")
	if err != nil {
		refuseQuery(w, err)
		return
	}
	answer(w, http.StatusOK, t)
}

// Option is the document of an option that is in effect and may be changed. Its values are in coterie.options.
type Option struct {
	Name    string   `json:"name"`
	Place   string   `json:"place"`
	Form    string   `json:"form"`
	Words   []string `json:"words,omitempty"`
	Min     int64    `json:"min,omitempty"`
	Max     int64    `json:"max,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	Default string   `json:"default,omitempty"`
	About   string   `json:"about"`
}

// forms are the names of the forms of options.
var forms = map[ddl.Form]string{ddl.Flag: "flag", ddl.Word: "word", ddl.Number: "number", ddl.Text: "text", ddl.Codec: "codec", ddl.Routes: "routes"}

// listOptions answers with the options that the changes options and routing take.
func (s *Server) listOptions(w http.ResponseWriter, _ *http.Request, _ *session) {
	var list []Option
	for _, o := range ddl.Options() {
		if o.Verdict == ddl.InEffect && !o.OnlyNew {
			list = append(list, Option{o.Name, string(o.Place), forms[o.Form], o.Words, o.Min, o.Max, o.Unit, o.Default, o.About})
		}
	}
	answer(w, http.StatusOK, list)
}

// changesElsewhere is the hint at where a statement belongs that a query must not be.
const changesElsewhere = "A change has a path of its own, such as POST /api/v1/failover; /api/v1/openapi.json lists them. Statements run in coterie sql, and in psql on the database coterie."

// query runs one query of a session's user, with the rights of a viewer.
func (s *Server) query(w http.ResponseWriter, r *http.Request, n *session) {
	var in struct {
		SQL string `json:"sql"`
	}
	if !readJSON(w, r, &in) {
		return
	}
	if console.IsScript(in.SQL) {
		refuse(w, http.StatusBadRequest, &console.Error{State: "42601", Message: "a request runs one statement, without variables and control flow", Hint: "Scripts run in coterie sql, and in psql on the database coterie."})
		return
	}
	leave, ok := s.queries.enter(n.who.User)
	if !ok {
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests, &console.Error{State: "53300", Message: fmt.Sprintf("this role has %d queries under way, or this node has %d", userQueries, maxQueries)})
		return
	}
	defer leave() // once the answer is written: it is in memory until then
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	t, err := s.run(r.Context(), console.Principal{User: n.who.User, May: ddl.MayLook, Via: console.ViaAPI, From: from, Reads: changesElsewhere}, in.SQL)
	if err != nil {
		refuseQuery(w, err)
		return
	}
	answer(w, http.StatusOK, t)
}

func (s *Server) run(ctx context.Context, who console.Principal, text string) (Table, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	at := time.Now()
	r, err := console.NewSession(&bounded{s.c.Backend(), maxAnswer}, who).Run(ctx, text)
	return tableOf("", r, at), err
}

// History is the document of what the metrics of a node were: series of points of the same length, the oldest first.
type History struct {
	Node        string    `json:"node"`
	End         time.Time `json:"end"` // of the newest point
	StepSeconds float64   `json:"step_seconds"`
	Points      int       `json:"points"` // of each series
	Series      []Series  `json:"series"` // those that have a value
}

// Series is a series of a History. A point without a value is null.
type Series struct {
	Name    string         `json:"name"`
	Replica string         `json:"replica,omitempty"`
	Metric  string         `json:"metric"`         // of which it is made
	Unit    string         `json:"unit,omitempty"` // "": it counts things
	Mean    samples.Values `json:"mean"`
	Highest samples.Values `json:"highest"`
}

// past keeps the document of a History for a moment, so that many browsers cost what one does.
type past struct {
	span samples.Span

	mu       sync.Mutex // guards what follows
	at       time.Time
	document []byte
}

// newPasts returns the spans of a History by their names.
func newPasts() map[string]*past {
	return map[string]*past{"hour": {span: samples.Hour}, "day": {span: samples.Day}}
}

// get returns the document, at most viewAge old.
func (p *past) get(read func(samples.Span) History) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at.IsZero() || time.Since(p.at) > viewAge {
		b, err := json.Marshal(read(p.span))
		if err != nil {
			return nil, err
		}
		p.at, p.document = time.Now(), b
	}
	return p.document, nil
}

// history answers with what the metrics of this node were.
func (s *Server) history(w http.ResponseWriter, r *http.Request, _ *session) {
	p, ok := s.pasts[r.URL.Query().Get("span")]
	if !ok {
		refuse(w, http.StatusBadRequest, &console.Error{State: "22023", Message: "span is hour or day"})
		return
	}
	b, err := p.get(s.c.History)
	if err != nil {
		refuseQuery(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // it fails only if the client has gone
}

// queryTime is how long the statements of one request may take together.
const queryTime = 15 * time.Second

// refuseQuery answers a query that failed.
func refuseQuery(w http.ResponseWriter, err error) {
	var known *console.Error
	if !errors.As(err, &known) {
		known = &console.Error{State: "57014", Message: err.Error()}
	}
	code := http.StatusBadRequest
	switch known.State {
	case "42P01":
		code = http.StatusNotFound
	case "42501":
		code = http.StatusForbidden
	case "53300":
		code = http.StatusTooManyRequests
	case "57014", "57P01":
		code = http.StatusServiceUnavailable
	}
	refuse(w, code, known)
}

// statusDocument returns the status without the directories and processes of this host, and with the addresses of the
// other consoles.
func (s *Server) statusDocument() []byte {
	st := s.c.Status()
	st.Replicas, st.Uptime = slices.Clone(st.Replicas), 0
	for i := range st.Replicas {
		st.Replicas[i].Local, st.Replicas[i].Console = nil, s.consoles.at(st.Replicas[i].Name)
	}
	b, err := json.Marshal(st)
	if err != nil {
		return []byte("{}")
	}
	return b
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request, _ *session) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(s.statusDocument()) // it fails only if the client has gone
}

// Bounds of the answers that are in memory until a browser has read them.
const (
	maxQueries  = 8       // at once, their answers being written included
	userQueries = 2       // of one role
	maxAnswer   = 8 << 20 // bytes of the rows of a request, with what a value takes beside its text
	valueBytes  = 24      // that a value takes beside its text
)

// queries counts those under way.
type queries struct {
	mu  sync.Mutex // guards the fields below
	all int
	of  map[string]int // by role
}

// enter begins a query of a role. It reports false if there are too many. The caller calls leave at its end.
func (q *queries) enter(user string) (leave func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.all >= maxQueries || q.of[user] >= userQueries {
		return nil, false
	}
	q.all++
	q.of[user]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.all--
		if q.of[user]--; q.of[user] == 0 {
			delete(q.of, user)
		}
	}, true
}

// bounded is a backend whose rows have a size together.
type bounded struct {
	console.Backend
	left int
}

// Query runs a query, and ends it once its rows are too large.
func (b *bounded) Query(ctx context.Context, who console.Principal, q console.Question, to console.Rows) error {
	return b.Backend.Query(ctx, who, q, &boundedRows{to, b})
}

// boundedRows are the rows of a query of a bounded backend.
type boundedRows struct {
	console.Rows
	of *bounded
}

// Row passes a row on, unless the rows are too large.
func (r *boundedRows) Row(values []any) error {
	for _, v := range values {
		r.of.left -= valueBytes
		if s, ok := v.(string); ok {
			r.of.left -= len(s)
		}
	}
	if r.of.left < 0 {
		err := console.Errorf("54000", "the answer has more than %d bytes", maxAnswer)
		err.Hint = "Add LIMIT, or name fewer columns."
		return err
	}
	return r.Rows.Row(values)
}

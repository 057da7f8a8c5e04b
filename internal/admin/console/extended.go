package console

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/batch"
)

// extended handles the messages of the extended protocol.
func (w *wire) extended(ctx context.Context, m pgproto3.FrontendMessage) error {
	switch m := m.(type) {
	case *pgproto3.Parse:
		return w.parse(ctx, m)
	case *pgproto3.Bind:
		return w.bind(m)
	case *pgproto3.Describe:
		return w.describe(m)
	case *pgproto3.Execute:
		return w.execute(ctx, m)
	case *pgproto3.Close:
		if m.ObjectType == 'S' {
			delete(w.statements, m.Name)
		} else {
			delete(w.portals, m.Name)
		}
		w.send(&pgproto3.CloseComplete{})
		return nil
	}
	return Errorf("08P01", "unexpected message %T", m)
}

func (w *wire) parse(ctx context.Context, m *pgproto3.Parse) error {
	parts, err := batch.Split(m.Query)
	switch {
	case err != nil:
		return err
	case len(parts) > 1:
		return Errorf("42601", "cannot insert multiple commands into a prepared statement")
	case len(parts) == 1 && batch.Compound(parts[0].Text):
		return Errorf("0A000", "a batch with variables or control flow cannot be prepared").WithHint("send it by the simple query protocol, as psql does")
	case m.Name != "" && w.statements[m.Name] != nil:
		return Errorf("42P05", "prepared statement %q already exists", m.Name)
	case len(w.statements) >= maxPrepared:
		return Errorf("54000", "a session keeps at most %d prepared statements", maxPrepared)
	}
	if used := w.keeps(); used+2*len(m.Query)+typeBytes*len(m.ParameterOIDs) > maxKept {
		return w.tooMuch(used)
	}
	p := &prepared{}
	if len(parts) == 1 {
		p.text = parts[0].Text
		given := make([]Type, len(m.ParameterOIDs))
		for i, oid := range m.ParameterOIDs {
			given[i] = Type(oid)
		}
		if p.columns, p.params, err = w.s.describe(ctx, p.text, given); err != nil {
			return err
		}
	}
	w.statements[m.Name] = p
	w.send(&pgproto3.ParseComplete{})
	return nil
}

func (w *wire) bind(m *pgproto3.Bind) error {
	st := w.statements[m.PreparedStatement]
	switch {
	case st == nil:
		return Errorf("26000", "prepared statement %q does not exist", m.PreparedStatement)
	case len(m.Parameters) != len(st.params):
		return Errorf("08P01", "bind message supplies %d parameters, but the statement requires %d", len(m.Parameters), len(st.params))
	case len(w.portals) >= maxPrepared:
		return Errorf("54000", "a session keeps at most %d portals", maxPrepared)
	}
	size := argBytes*len(m.Parameters) + formatBytes*len(m.ResultFormatCodes)
	for _, b := range m.Parameters {
		size += len(b)
	}
	if used := w.keeps(); used+size > maxKept {
		return w.tooMuch(used)
	}
	p := &portal{prepared: st, args: make([]any, 0, len(m.Parameters)), formats: append([]int16(nil), m.ResultFormatCodes...), bytes: size}
	for i, b := range m.Parameters {
		v, err := decode(b, st.params[i], format(m.ParameterFormatCodes, i) == 1)
		if err != nil {
			return err
		}
		p.args = append(p.args, v)
	}
	w.portals[m.DestinationPortal] = p
	w.send(&pgproto3.BindComplete{})
	return nil
}

func (w *wire) describe(m *pgproto3.Describe) error {
	if m.ObjectType == 'S' {
		st := w.statements[m.Name]
		if st == nil {
			return Errorf("26000", "prepared statement %q does not exist", m.Name)
		}
		d := &pgproto3.ParameterDescription{}
		for _, t := range st.params {
			d.ParameterOIDs = append(d.ParameterOIDs, uint32(t))
		}
		w.send(d)
		w.rows(st.columns, nil)
		return nil
	}
	p := w.portals[m.Name]
	if p == nil {
		return Errorf("34000", "portal %q does not exist", m.Name)
	}
	w.rows(p.columns, p.formats)
	return nil
}

func (w *wire) rows(columns []Column, formats []int16) {
	if columns == nil {
		w.send(&pgproto3.NoData{})
		return
	}
	w.send(rowDescription(columns, formats))
}

func (w *wire) execute(ctx context.Context, m *pgproto3.Execute) error {
	p := w.portals[m.Portal]
	if p == nil {
		return Errorf("34000", "portal %q does not exist", m.Portal)
	}
	if p.text == "" {
		w.send(&pgproto3.EmptyQueryResponse{})
		return nil
	}
	if p.result == nil && m.MaxRows == 0 {
		return w.executeAtOnce(ctx, p)
	}
	if p.result == nil {
		used := w.keeps()
		if used >= maxKept {
			return w.tooMuch(used)
		}
		k := &whole{most: maxKept - used}
		r, err := w.s.run(ctx, p.text, p.args, k)
		w.s.executed(err, len(k.Rows))
		if err != nil {
			return err
		}
		if k.Result.Columns != nil {
			r = k.Result
		}
		if len(r.Columns) != len(p.columns) {
			return errChanged
		}
		p.result, p.bytes = &r, p.bytes+k.bytes
		w.notices(r)
	}
	sent := 0
	for ; p.at < len(p.result.Rows); p.at++ {
		if m.MaxRows > 0 && sent == int(m.MaxRows) {
			w.send(&pgproto3.PortalSuspended{})
			return nil
		}
		row, err := p.row(p.result.Rows[p.at])
		if err != nil {
			return err
		}
		w.send(row)
		sent++
	}
	w.complete(*p.result, len(p.result.Rows))
	return nil
}

var errChanged = Errorf("0A000", "cached plan must not change result type")

// executeAtOnce runs a portal all of whose rows are wanted. They are sent as they come, and none is kept.
func (w *wire) executeAtOnce(ctx context.Context, p *portal) error {
	to := w.newSender(p)
	r, err := w.s.run(ctx, p.text, p.args, to)
	w.s.executed(err, to.sent)
	if err != nil {
		return err
	}
	w.notices(r)
	if err := to.result(r); err != nil {
		return err
	}
	if to.columns == nil && p.columns != nil {
		return errChanged
	}
	p.result = &Result{Columns: r.Columns, Tag: r.Tag} // a further Execute finds no rows
	if to.columns != nil {
		p.result.Columns = to.columns
	}
	w.complete(*p.result, to.sent)
	return nil
}

// Bytes that a session needs beside texts: for the type of a parameter, an argument (NULL too), a format, a column.
const (
	typeBytes   = 4
	argBytes    = 16
	formatBytes = 2
	columnBytes = 24
)

// size returns about how many bytes a prepared statement takes.
func (p *prepared) size() int {
	return 2*len(p.text) + typeBytes*len(p.params) + columnBytes*len(p.columns)
}

// keeps returns about how many bytes the session keeps for its client.
func (w *wire) keeps() (n int) {
	for _, st := range w.statements {
		n += st.size()
	}
	for _, p := range w.portals {
		n += p.size() + p.bytes
	}
	return n
}

func (w *wire) tooMuch(used int) error {
	return Errorf("54000", "a session keeps at most %d bytes of prepared statements, arguments and rows, and has %d", maxKept, used).
		WithHint("close prepared statements and portals that are not needed any more")
}

// row encodes a row in the portal's formats and the announced types.
func (p *portal) row(values []any) (*pgproto3.DataRow, error) {
	out := &pgproto3.DataRow{Values: make([][]byte, len(values))}
	for i, v := range values {
		if format(p.formats, i) == 0 {
			out.Values[i] = encodeText(v, p.columns[i].Type)
			continue
		}
		b, err := encodeBinary(v, p.columns[i].Type)
		if err != nil {
			return nil, err
		}
		out.Values[i] = b
	}
	return out, nil
}

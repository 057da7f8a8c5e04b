package console

import (
	"context"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/ddl"
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
		w.b.Send(&pgproto3.CloseComplete{})
		return nil
	}
	return Errorf("08P01", "unexpected message %T", m)
}

func (w *wire) parse(ctx context.Context, m *pgproto3.Parse) error {
	parts, err := ddl.Split(m.Query)
	switch {
	case err != nil:
		return err
	case len(parts) > 1:
		return Errorf("42601", "cannot insert multiple commands into a prepared statement")
	case m.Name != "" && w.statements[m.Name] != nil:
		return Errorf("42P05", "prepared statement %q already exists", m.Name)
	case len(w.statements) >= maxPrepared:
		return Errorf("54000", "a session keeps at most %d prepared statements", maxPrepared)
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
	w.b.Send(&pgproto3.ParseComplete{})
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
	p := &portal{prepared: st, formats: append([]int16(nil), m.ResultFormatCodes...)}
	for i, b := range m.Parameters {
		v, err := decode(b, st.params[i], format(m.ParameterFormatCodes, i) == 1)
		if err != nil {
			return err
		}
		p.args = append(p.args, v)
	}
	w.portals[m.DestinationPortal] = p
	w.b.Send(&pgproto3.BindComplete{})
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
		w.b.Send(d)
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
		w.b.Send(&pgproto3.NoData{})
		return
	}
	w.b.Send(rowDescription(columns, formats))
}

func (w *wire) execute(ctx context.Context, m *pgproto3.Execute) error {
	p := w.portals[m.Portal]
	if p == nil {
		return Errorf("34000", "portal %q does not exist", m.Portal)
	}
	if p.text == "" {
		w.b.Send(&pgproto3.EmptyQueryResponse{})
		return nil
	}
	if p.result == nil {
		r, err := w.s.run(ctx, p.text, p.args)
		if err != nil {
			return err
		}
		if len(r.Columns) != len(p.columns) {
			return Errorf("0A000", "cached plan must not change result type")
		}
		p.result = &r
		w.notices(r)
	}
	sent := 0
	for ; p.at < len(p.result.Rows); p.at++ {
		if m.MaxRows > 0 && sent == int(m.MaxRows) {
			w.b.Send(&pgproto3.PortalSuspended{})
			return nil
		}
		row, err := p.row(p.result.Rows[p.at])
		if err != nil {
			return err
		}
		w.b.Send(row)
		sent++
	}
	w.complete(*p.result)
	return nil
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

package console

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestEmptyTextIsNotNull holds that a client tells an empty text from NULL, by both protocols and in both forms.
func TestEmptyTextIsNotNull(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), dsn(serve(t, newWorld(t), Principal{User: "me", May: ddl.MayLook})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	good := func(row [][]byte) bool { return row[0] != nil && len(row[0]) == 0 && row[1] == nil }
	for _, text := range []string{"SELECT '', NULL", "SELECT LEFT('abc', 0), NULL", "SELECT REPLACE(name, name, ''), NULLIF(name, name) FROM sys.availability_groups"} {
		list, err := conn.PgConn().Exec(t.Context(), text).ReadAll()
		if err != nil || !good(list[0].Rows[0]) {
			t.Errorf("simple protocol: %s: %v, %v", text, list, err)
		}
		for _, form := range []int16{pgx.TextFormatCode, pgx.BinaryFormatCode} {
			r := conn.PgConn().ExecParams(t.Context(), text, nil, nil, nil, []int16{form}).Read()
			if r.Err != nil || !good(r.Rows[0]) {
				t.Errorf("extended protocol, form %d: %s: %v, %v", form, text, r.Rows, r.Err)
			}
		}
	}
	var given *string
	if err := conn.QueryRow(t.Context(), "SELECT $1::text", "").Scan(&given); err != nil || given == nil || *given != "" {
		t.Errorf("an empty parameter is %v, %v", given, err)
	}
}

// TestBinaryNumbersAndDates holds that a client reads decimals and dates in their binary form as they are written.
func TestBinaryNumbersAndDates(t *testing.T) {
	m := pgtype.NewMap()
	for _, s := range []string{"0", "1", "1.67", "-2.35", "10000", "12345678.90", "0.0001", "0.00010", "99999999999999999999.5", "100000000"} {
		b, err := encodeBinary(s, Numeric)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		var n pgtype.Numeric
		if err := m.Scan(uint32(Numeric), pgtype.BinaryFormatCode, b, &n); err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got, err := m.Encode(uint32(Numeric), pgtype.TextFormatCode, n, nil); err != nil || string(got) != s {
			t.Errorf("%s is read as %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"2000-01-01", "2026-11-21", "1999-12-31"} {
		b, err := encodeBinary(s, Date)
		var d pgtype.Date
		if err != nil || m.Scan(uint32(Date), pgtype.BinaryFormatCode, b, &d) != nil || d.Time.Format("2006-01-02") != s {
			t.Errorf("%s is read as %v, %v", s, d, err)
		}
	}
	for _, s := range []string{"x", "", "1.2.3"} {
		if b, err := encodeBinary(s, Numeric); err == nil {
			t.Errorf("%q became %v", s, b)
		}
	}
}

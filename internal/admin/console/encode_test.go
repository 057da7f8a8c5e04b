package console

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

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

package workload

import "testing"

// TestLastPart makes the last of a million rows, the published number, without the others: every value has to fit.
func TestLastPart(t *testing.T) {
	conn, err := Open(t.Context(), database(t, "parts"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	if _, err := conn.Exec(t.Context(), `create table rows (id int primary key, grp int not null, amount numeric(8,2) not null, pad text not null)`); err != nil {
		t.Fatal(err)
	}
	did, err := loadPart(t.Context(), conn, 1_000_000/part-1, part)
	var last int
	if err == nil {
		err = conn.QueryRow(t.Context(), "select max(id) from rows").Scan(&last)
	}
	if err != nil || !did || last != 1_000_000 {
		t.Errorf("made %v, up to %d: %v", did, last, err)
	}
}

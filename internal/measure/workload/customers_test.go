package workload

import (
	"context"
	"testing"
)

// TestLoadCustomers: whole parts, made once, that look like TPC-C's.
func TestLoadCustomers(t *testing.T) {
	dsn := database(t, "customers")
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := LoadCustomers(ctx, dsn, 7000, func(done, _ int) {
		if done == 3000 {
			cancel()
		}
	}); err == nil {
		t.Fatal("the load was not interrupted")
	}
	if made, err := LoadCustomers(t.Context(), dsn, 7000, nil); err != nil || made != 6000 {
		t.Errorf("made %d, %v", made, err)
	}
	if made, err := LoadCustomers(t.Context(), dsn, 5000, nil); err != nil || made != 0 {
		t.Errorf("made %d of what is there, %v", made, err)
	}
	const odd = `select count(*) from (select c_w_id, c_d_id from coterie_bench.customer group by 1, 2
		having count(*) <> 3000 or min(c_id) <> 1 or max(c_id) <> 3000 or count(distinct c_last) < 500) x`
	if n := number(t, dsn, odd); n != 0 {
		t.Errorf("%d districts are not like TPC-C's", n)
	}
	if n := number(t, dsn, "select count(*) from coterie_bench.customer"); n != 9000 {
		t.Errorf("%d rows", n)
	}
	if n := number(t, dsn, "select pg_relation_size('coterie_bench.customer') / 9000"); n > CustomerBytes || n < CustomerBytes/2 {
		t.Errorf("%d bytes a row, told to be %d", n, CustomerBytes)
	}
}

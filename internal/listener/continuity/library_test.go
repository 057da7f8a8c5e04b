package continuity

import "testing"

func TestStatefulLibraries(t *testing.T) {
	const begin = "7f00-7f01 r-xp 00000000 08:01 42    /usr/lib/dblink/lib/"
	for file, want := range map[string]string{
		"plpgsql.so": "", "libpljava-so-1.6.4.so": "pljava", "plv8-3.1.4.so": "plv8", "plperl.so": "plperl", "dblink.so": "dblink",
		"pltcl.so (deleted)": "pltcl", "libpq.so.5.15": "", "orafce.so": "orafce", "libplrx.so": "",
	} {
		if got := statefulIn([]byte("0-1 rw-p 0 0 0\n" + begin + file + "\n")); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}

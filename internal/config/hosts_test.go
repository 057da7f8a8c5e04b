package config

import "testing"

// TestConsoleAddress holds where other nodes are told that the console is.
func TestConsoleAddress(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ listen, advertise, want string }{
		{"", "", ""},
		{"", "db1:8443", ""},

		{":8443", "db1.example:9443", "db1.example:9443"},
		{"10.0.0.5:8443", "", "10.0.0.5:8443"},
		{":8443", "", "inner:8443"},
		{"0.0.0.0:8443", "", "inner:8443"},
		{"[::]:8443", "", "inner:8443"},
		{"nonsense", "", ""},
	} {
		cfg := Config{Endpoint: Address{Listen: ":5022", Advertise: "inner:5022"}, HTTPS: Address{Listen: c.listen, Advertise: c.advertise}}
		if got := cfg.ConsoleAddress(); got != c.want {
			t.Errorf("https %q, %q: %q, want %q", c.listen, c.advertise, got, c.want)
		}
	}
}

package config

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestListenAddresses holds that a client port binds several IPv4 and IPv6 addresses and sockets, and the other ports
// one address.
func TestListenAddresses(t *testing.T) {
	const both, socket = "127.0.0.1:5432,[::1]:5432", "/var/run/postgresql/.s.PGSQL.5432"
	for _, c := range []struct{ endpoint, readWrite, readOnly, http, want string }{
		{":5022", both + ", " + socket, "0.0.0.0:5433,[::]:5433", "127.0.0.1:8008", ""},
		{":5022", socket, "", "", ""},
		{":5022", "", "", "", ""},
		{"", ":5432", "", "", "endpoint.listen is missing"},
		{both, ":5432", "", "", "endpoint.listen: "},
		{":5022", ":5432", "", both, "http.listen: "},
		{":5022", "127.0.0.1:5432,::1:5432", "", "", "read_write.listen: "},
		{":5022", ":5432", "5433", "", "read_only.listen: "},
		{":5022", ":5022", "", "", "read_write.listen: :5022 is also bound by endpoint.listen (:5022)"},
		{":5022", "127.0.0.1:5432", "0.0.0.0:5432", "", "read_only.listen: 0.0.0.0:5432 is also bound by read_write.listen (127.0.0.1:5432)"},
		{":5022", ":5432", "", "[::1]:5432", "http.listen: [::1]:5432 is also bound by read_write.listen"},
		{":5022", "127.0.0.1:5432,127.0.0.1:5432", "", "", "read_write.listen: 127.0.0.1:5432 is also bound by"},
		{"127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0", "", ""},
		{"127.0.0.1:5022", "127.0.0.2:5022", "[::]:5022", "", ""},
	} {
		err := Config{
			Node: "n1", Kind: "witness", Group: "g", Endpoint: Address{Listen: c.endpoint}, ReadWrite: Address{Listen: c.readWrite},
			ReadOnly: Address{Listen: c.readOnly}, HTTP: Address{Listen: c.http},
		}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	addresses, sockets := Address{Listen: both + ", /a/b ,:1433,/c"}.Places()
	if !slices.Equal(addresses, []string{"127.0.0.1:5432", "[::1]:5432", ":1433"}) || !slices.Equal(sockets, []string{"/a/b", "/c"}) {
		t.Errorf("%q %q", addresses, sockets)
	}
}

// TestSuperuser holds that a replica whose file names no bootstrap superuser has the same one everywhere: the server
// would take postgres, and the streams of the members nobody.
func TestSuperuser(t *testing.T) {
	const node = "node: n1\nkind: replica\ngroup: g\nendpoint:\n  listen: :5022\npostgresql:\n  bin_dir: /bin\n  data: /data\n"
	for text, want := range map[string]string{"": "postgres", "  superuser: dba\n": "dba"} {
		if c, err := Parse([]byte(node + text)); err != nil || c.PostgreSQL.Superuser != want {
			t.Errorf("%q: %+v, %v", text, c.PostgreSQL, err)
		}
	}
}

// TestLimits holds that an invalid limit is refused with its key, and that limits which are not given have their
// defaults.
func TestLimits(t *testing.T) {
	const node = "node: n1\nkind: witness\ngroup: g\nendpoint:\n  listen: :5022\n"
	for text, want := range map[string]string{
		"": "",
		"limits:\n  connections: 500\n  connections_per_address: 20\n  logins: 50\n  login_time: 30s\n" +
			"  console_sessions: 40\n  console_sessions_per_role: 10\n  console_idle: 2h\n  console_statement: 20s\n": "",
		"limits:\n  connections: -1\n":             "limits.connections: -1",
		"limits:\n  connections_per_address: -2\n": "limits.connections_per_address: -2",
		"limits:\n  logins: -3\n":                  "limits.logins: -3",
		"limits:\n  login_time: -4s\n":             "limits.login_time: -4s",
		"limits:\n  console_sessions: -5\n":        "limits.console_sessions: -5",
		"limits:\n  console_idle: -6s\n":           "limits.console_idle: -6s",
		"limits:\n  max_connections: 5\n":          "max_connections",
	} {
		c, err := Parse([]byte(node + text))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
		if want == "" && text != "" && c.Limits != (Limits{500, 20, 50, 30 * time.Second, 40, 10, 2 * time.Hour, 20 * time.Second}) {
			t.Errorf("%+v", c.Limits)
		}
	}
}

// TestSaveReplacesWhole holds that a configuration that is saved can be loaded again, and that nothing else stays in
// the directory.
func TestSaveReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	want := Config{Node: "n1", Kind: "witness", Group: "g", Endpoint: Address{Listen: ":5022"}}
	for _, group := range []string{"g", "h"} {
		want.Group = group
		if err := want.Save(dir); err != nil {
			t.Fatal(err)
		}
		if got, err := Load(dir); err != nil || got.Group != group {
			t.Errorf("%+v, %v", got, err)
		}
	}
	want.Kind = "neither"
	if err := want.Save(dir); err == nil {
		t.Error("a configuration that cannot be loaded was saved")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestPathsAreAbsolute holds that every value that is a path is refused, with its key, unless it begins with a slash:
// the agent and its keeper work elsewhere than the command that checks the file.
func TestPathsAreAbsolute(t *testing.T) {
	const node = "node: n1\nkind: replica\ngroup: g\nendpoint:\n  listen: :5022\n"
	const server = "postgresql:\n  bin_dir: /usr/bin\n  data: /data\n"
	for text, want := range map[string]string{
		server: "",
		"postgresql:\n  bin_dir: bin\n  data: /data\n":                           `postgresql.bin_dir: "bin" must begin with /`,
		"postgresql:\n  bin_dir: /usr/bin\n  data: data\n":                       `postgresql.data: "data" must`,
		server + "  config_file: etc/postgresql.conf\n":                          `postgresql.config_file: "etc/postgresql.conf" must`,
		server + "hba: pg_hba.conf\n":                                            `hba: "pg_hba.conf" must`,
		server + "client_ca: ./ca.pem\n":                                         `client_ca: "./ca.pem" must`,
		server + "client_ca: /ca.pem\nclient_crl: crl\n":                         `client_crl: "crl" must`,
		server + "tablespaces:\n  /srv/fast: fast\n":                             `tablespaces./srv/fast: "fast" must`,
		server + "tablespaces:\n  fast: /srv/fast\n":                             `tablespaces: "fast" must`,
		server + "quorum:\n  endpoints: [https://a:2379]\n  ca: ca.pem\n":        `quorum.ca: "ca.pem" must`,
		server + "quorum:\n  endpoints: [https://a:2379]\n  cert: c\n":           `quorum.cert: "c" must`,
		server + "quorum:\n  endpoints: [https://a:2379]\n  key: k\n":            `quorum.key: "k" must`,
		server + "read_write:\n  listen: run/.s.PGSQL.5432\n":                    "read_write.listen: ",
		server + "hba: /etc/hba\ntablespaces:\n  /srv/fast: /mnt/nvme\n":         "",
		server + "client_ca: /ca.pem\nclient_crl: /crl\n":                        "",
		server + "quorum:\n  endpoints: [https://a:2379]\n  ca: /a\n  key: /k\n": "",
		server + "read_write:\n  listen: :5432, /run/postgresql/.s.PGSQL.5432\n": "",
	} {
		_, err := Parse([]byte(node + text))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

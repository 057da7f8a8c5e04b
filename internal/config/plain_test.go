package config

import (
	"strings"
	"testing"
)

// TestConfusedFiles holds that a file with a mistake, or of another program, is answered with the place, what is
// expected there and where it belongs, and without words of the language that the program is written in.
func TestConfusedFiles(t *testing.T) {
	const node = "node: n1\nkind: replica\ngroup: g\nendpoint:\n  listen: :5022\npostgresql:\n  bin_dir: /bin\n  data: /data\n"
	for text, want := range map[string]string{
		"":                                       "the file is empty",
		"# node: n1\n":                           "the file is empty",
		"hello\n":                                "[1:1] keys with values are expected",
		"node n1\nkind: replica\n":               "[1:1] unexpected key name",
		"node: n1\n kind: replica\n":             "[1:7] mapping value is not allowed in this context",
		node + "replicas: 3\n":                   `[9:1] unknown field "replicas": coterie member list`,
		node + "conections: 3\n":                 `[9:1] unknown field "conections": docs/reference/configuration.md`,
		node + "parameters:\n  work_mem: 64MB\n": "coterie settings set has PostgreSQL's settings",
		node + "scope: g\nrestapi:\n  listen: :8008\n":    `[9:1] unknown field "scope": the group's name is group`,
		node + "ttl: 30\nlimits:\n  none: 5\nttx: 1\n":    `[9:1] unknown field "ttl"`,
		node + "name: n1\n":                               "this node's name is node",
		node + "ttl: 30\n":                                "coterie group set lease_profile",
		node + "limits:\n\tlogins: 5\n":                   "a line is indented by a tab: use spaces",
		node + "limits:\n  logins: many\n":                "[10:11] a whole number is expected",
		node + "limits:\n  login_time: 30\n":              "[10:15] a time is expected, as a number with its unit",
		node + "limits:\n  login_time: soon\n":            `"soon" is no time`,
		node + "limits: 5\n":                              "[9:9] keys with values are expected",
		node + "tls_only: yes\n":                          "[9:11] true or false is expected",
		node + "node: n2\n":                               `mapping key "node" already defined at [1:1]`,
		node + "read_write: 5432\n":                       "[9:13] keys with values are expected",
		node + "read_write:\n  listen: 5432\n":            `read_write.listen: "5432" is no address: write HOST:PORT`,
		node + "read_write:\n  listen: localhost\n":       `read_write.listen: "localhost" is no address`,
		node + "read_write:\n  listen: 10.0.0.1:99999\n":  `read_write.listen: "10.0.0.1:99999" has no port`,
		node + "webhooks: http://x\n":                     "a list is expected, each entry on a line of its own behind a -",
		node + "quorum:\n  endpoints: 10.0.0.1:2379\n":    "[10:14] a list is expected",
		node + "hba: ~/rules\n":                           `hba: "~/rules" must begin with /`,
		node + "auth_staleness: -5s\n":                    "auth_staleness: -5s is no age",
		strings.Replace(node, "replica", "master", 1):     `kind "master": replica or witness`,
		strings.Replace(node, "node: n1", "node: N-1", 1): "use a-z, 0-9 and _",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", strings.TrimPrefix(text, node), err, want)
			continue
		}
		for _, bad := range []string{"unmarshal", "Go ", "struct", "time.Duration", "uint64", "time: inv", "missing port in"} {
			if strings.Contains(err.Error(), bad) {
				t.Errorf("%q: %v has %q", strings.TrimPrefix(text, node), err, bad)
			}
		}
	}
}

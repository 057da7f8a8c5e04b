package patroni

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Settings are what differs between two arms of a comparison.
type Settings struct {
	Name         string `json:"name"`
	TTL          int    `json:"ttl"`           // seconds of silence after which another may lead
	LoopWait     int    `json:"loop_wait"`     // seconds between two looks
	RetryTimeout int    `json:"retry_timeout"` // seconds
	Check        string `json:"haproxy_check"` // default-server of HAProxy
}

// The arms: Patroni's defaults, with the health check of its sample HAProxy configuration, and the shortest times
// that it accepts (it refuses a ttl below 20).
var (
	Default = Settings{"default", 30, 10, 10, "inter 3s fall 3 rise 2 on-marked-down shutdown-sessions"}
	Floor   = Settings{"floor", 20, 1, 3, "inter 1s fall 1 rise 1 on-marked-down shutdown-sessions"}
)

// String returns the settings as a report shows them.
func (s Settings) String() string {
	return fmt.Sprintf("ttl %d, loop_wait %d, retry_timeout %d, HAProxy %s", s.TTL, s.LoopWait, s.RetryTimeout, s.Check)
}

func (s Settings) dcs() map[string]any {
	return map[string]any{"ttl": s.TTL, "loop_wait": s.LoopWait, "retry_timeout": s.RetryTimeout}
}

// node is one PostgreSQL with its Patroni.
type node struct {
	name      string
	dir       string
	port      int // of PostgreSQL
	rest      int // of Patroni
	etcd      int // client port of the etcd member beside it
	etcdPeer  int
	container *process // of Patroni; nil: it does not run
}

// layout is the input of the configurations.
type layout struct {
	dir      string
	bin      string // of PostgreSQL
	nodes    []*node
	fronts   map[string]int // HAProxy's port by the name of the settings
	password string
}

func newLayout(dir, bin string) (*layout, error) {
	ports, err := freePorts(3*4 + 2)
	if err != nil {
		return nil, err
	}
	l := &layout{dir: dir, bin: bin, fronts: map[string]int{Default.Name: ports[0], Floor.Name: ports[1]}, password: rand.Text()}
	for i := range 3 {
		p := ports[2+4*i:]
		name := fmt.Sprintf("p%d", i+1)
		l.nodes = append(l.nodes, &node{name: name, dir: filepath.Join(dir, name), port: p[0], rest: p[1], etcd: p[2], etcdPeer: p[3]})
	}
	return l, nil
}

// freePorts finds ports of 127.0.0.1 that nothing listens on. All are held until the last is found, so that no two are
// the same.
func freePorts(n int) ([]int, error) {
	var out []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out, nil
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// patroni is the configuration of one Patroni. YAML takes JSON.
func (l *layout) patroni(n *node) ([]byte, error) {
	var etcd []string
	for _, m := range l.nodes {
		etcd = append(etcd, local(m.etcd))
	}
	user := func(name string) map[string]string {
		return map[string]string{"username": name, "password": l.password}
	}
	dcs := Default.dcs()
	dcs["synchronous_mode"] = true
	dcs["maximum_lag_on_failover"] = 1 << 20
	dcs["postgresql"] = map[string]any{"use_pg_rewind": true, "use_slots": true}
	return json.MarshalIndent(map[string]any{
		"scope": "bench", "name": n.name,
		"restapi": map[string]any{"listen": local(n.rest), "connect_address": local(n.rest)},
		"etcd3":   map[string]any{"hosts": etcd},
		"bootstrap": map[string]any{
			"dcs":    dcs,
			"initdb": []any{map[string]string{"encoding": "UTF8"}, map[string]string{"auth": "scram-sha-256"}, "data-checksums"},
		},
		"postgresql": map[string]any{
			"listen": local(n.port), "connect_address": local(n.port), "bin_dir": l.bin,
			"data_dir": filepath.Join(n.dir, "data"), "pgpass": filepath.Join(n.dir, "pgpass"),
			"authentication": map[string]any{"superuser": user("postgres"), "replication": user("replicator"), "rewind": user("rewinder")},
			"parameters":     map[string]any{"unix_socket_directories": n.dir, "password_encryption": "scram-sha-256"}, //nolint:gosec // a method, no secret
			"pg_hba":         []string{"host all all 127.0.0.1/32 scram-sha-256", "host replication all 127.0.0.1/32 scram-sha-256", "local all all scram-sha-256"},
		},
	}, "", "  ")
}

// haproxy has a port for each of the settings: both send to the primary, and look for it as often as the settings
// demand.
func (l *layout) haproxy() []byte {
	var b strings.Builder
	b.WriteString("global\n  maxconn 200\ndefaults\n  mode tcp\n  maxconn 100\n  retries 2\n  timeout client 30m\n  timeout connect 4s\n  timeout server 30m\n  timeout check 5s\n")
	for _, s := range []Settings{Default, Floor} {
		fmt.Fprintf(&b, "listen %s\n  bind %s\n  option httpchk OPTIONS /primary\n  http-check expect status 200\n  default-server %s\n", s.Name, local(l.fronts[s.Name]), s.Check)
		for _, n := range l.nodes {
			fmt.Fprintf(&b, "  server %s %s maxconn 100 check port %d\n", n.name, local(n.port), n.rest)
		}
	}
	return []byte(b.String())
}

// etcd are the arguments of one member.
func (l *layout) etcd(n *node) []string {
	var all []string
	for _, m := range l.nodes {
		all = append(all, m.name+"=http://"+local(m.etcdPeer))
	}
	client, peer := "http://"+local(n.etcd), "http://"+local(n.etcdPeer)
	return []string{
		"--name", n.name, "--data-dir", filepath.Join(n.dir, "etcd"), "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(all, ","),
		"--initial-cluster-state", "new", "--initial-cluster-token", "coterie-bench",
	}
}

// write makes the directories and the files. They belong to the user of the servers.
func (l *layout) write(uid, gid int) error {
	own := func(path string, b []byte) error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
		return os.Chown(path, uid, gid)
	}
	for _, n := range l.nodes {
		if err := os.Mkdir(n.dir, 0o700); err != nil {
			return err
		}
		if err := os.Chown(n.dir, uid, gid); err != nil {
			return err
		}
		b, err := l.patroni(n)
		if err != nil {
			return err
		}
		if err := own(filepath.Join(n.dir, "patroni.yml"), b); err != nil {
			return err
		}
	}
	return own(filepath.Join(l.dir, "haproxy.cfg"), l.haproxy())
}

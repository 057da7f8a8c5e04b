// Package config is a node's own file, coterie.yaml: the node's name, the addresses on which it listens, the PostgreSQL
// that it runs. It also has the layout of a node directory.
//
// It owns the file's format and its checks. The file contains nothing secret: keys are files of their own. It contains
// nothing about the group, whose configuration is in the quorum's store. Start reading at Config.
package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/coteriedb/coterie/internal/lib/durable"
)

// File is the name of the configuration file in the node directory.
const File = "coterie.yaml"

// DefaultDir is the node directory of a command that names none.
const DefaultDir = "/var/lib/coterie"

// Config holds the node-local facts. Init and join write it, and the agent reads it when it starts: every field may be
// edited in between.
type Config struct {
	// Node is this member's name in the group: a-z, 0-9 and _, beginning with a letter, at most 30 characters.
	Node string `yaml:"node"`
	// Kind is "replica" or "witness".
	Kind string `yaml:"kind"`
	// Group is the UUID of the group.
	Group string `yaml:"group"`
	// GroupName is the name of the group.
	GroupName string `yaml:"group_name"`
	// Quorum is absent if the group's quorum is embedded in its nodes.
	Quorum *Quorum `yaml:"quorum,omitempty"`
	// Endpoint is the only port for communication between nodes.
	Endpoint Address `yaml:"endpoint"`
	// ReadWrite is the port of clients that write. Other nodes and `coterie status` show where it is advertised.
	ReadWrite Address `yaml:"read_write"`
	// ReadOnly is the port of clients that only read, shown in the same way.
	ReadOnly Address `yaml:"read_only"`
	// HTTP is the port of health checks, metrics and the read-only API.
	HTTP Address `yaml:"http"`
	// HTTPS is the port of the console in the browser and of the API, with TLS and a login; absent: there is none.
	HTTPS Address `yaml:"https,omitempty"`
	// PostgreSQL is absent on a witness.
	PostgreSQL *PostgreSQL `yaml:"postgresql,omitempty"`
	// HBA is the file with this node's own rules for logins, in pg_hba.conf syntax; empty: the group's (coterie hba),
	// and without those scram-sha-256 for every client.
	HBA string `yaml:"hba,omitempty"`
	// ClientCA is the file with the authorities, in PEM, that issue client certificates; empty: rules that require one
	// refuse every client.
	ClientCA string `yaml:"client_ca,omitempty"`
	// ClientCRL is the file, or the directory of files, with the revocation lists of client certificates, in PEM;
	// empty: none is revoked. With it every authority of a chain needs a list that is valid.
	ClientCRL string `yaml:"client_crl,omitempty"`
	// TLSOnly refuses clients without TLS.
	TLSOnly bool `yaml:"tls_only,omitempty"`
	// NameClients appends the client's address to the application_name of every session, in pg_stat_activity and the
	// server's log.
	NameClients bool `yaml:"application_name_add_host,omitempty"`
	// NoKernelPath makes the listener relay every request itself, even if the kernel could pass simple ones from socket
	// to socket.
	NoKernelPath bool `yaml:"no_kernel_path,omitempty"`
	// NoVirtualAddresses keeps this node from changing the addresses of its host: the group's virtual addresses are
	// never put up here, also where the agent has the right to.
	NoVirtualAddresses bool `yaml:"no_virtual_addresses,omitempty"`
	// Limits are the limits of this node's listener.
	Limits Limits `yaml:"limits,omitempty"`
	// AuthStaleness is the maximum age of a copy whose roles may decide about a reader's login while the primary does
	// not answer, such as 10s or 1h; 0: 60s.
	AuthStaleness time.Duration `yaml:"auth_staleness,omitempty"`
	// Tablespaces maps the location of a tablespace on another node to its location on this one; others are at the same
	// path.
	Tablespaces map[string]string `yaml:"tablespaces,omitempty"`
	// SeedingsAtOnce is the number of large copies that may be made from this node at a time; 0: one. Others wait for
	// their turn.
	SeedingsAtOnce int `yaml:"seedings_at_once,omitempty"`
	// Webhooks are the receivers to which this node posts its events, signed; at most 8.
	Webhooks []Webhook `yaml:"webhooks,omitempty"`
}

// Webhook is a receiver of this node's events.
type Webhook struct {
	Name       string   `yaml:"name"`             // what logs, metrics and coterie status call it: a-z, 0-9, _ and -, at most 30 characters; needed
	URL        string   `yaml:"url"`              // where events are posted, https://HOST/PATH; http:// only to a receiver on this machine; needed
	SecretFile string   `yaml:"secret_file"`      // file with the secret that signs, whsec_ and base64; only root and this node's user may have rights to it; needed
	CA         string   `yaml:"ca,omitempty"`     // file of the authorities, in PEM, that issue the receiver's certificate; "": the system's
	Events     []string `yaml:"events,omitempty"` // the kinds that it gets, of leadership, commits, copy, health, link and statement; absent: all but link
}

// Quorum describes an etcd that an administrator runs, and how this node reaches it. Whether a group uses one is
// decided when the group is founded.
type Quorum struct {
	Endpoints []string `yaml:"endpoints"`      // client URLs, https://host:2379, the preferred ones first
	CA        string   `yaml:"ca,omitempty"`   // file of the authorities that issue the servers' certificates; "": the system's
	Cert      string   `yaml:"cert,omitempty"` // file of this node's client certificate, if the etcd requires one
	Key       string   `yaml:"key,omitempty"`  // file of its key, readable only by this node's user
}

// Limits bound the use of this node's listener and console by clients. A limit of 0 means its default.
type Limits struct {
	Connections int           `yaml:"connections,omitempty"`             // sessions at once; default 2,000
	PerAddress  int           `yaml:"connections_per_address,omitempty"` // sessions of one client address, or of one /64 of IPv6; default: no limit
	Logins      int           `yaml:"logins,omitempty"`                  // connections during login; default 200
	LoginTime   time.Duration `yaml:"login_time,omitempty"`              // the client's share of the time of a login; default 10s

	Consoles         int           `yaml:"console_sessions,omitempty"`          // sessions of the console at once; default 32
	ConsolesPerRole  int           `yaml:"console_sessions_per_role,omitempty"` // of one role; default 8
	ConsoleIdle      time.Duration `yaml:"console_idle,omitempty"`              // between two messages of a client; default 1h
	ConsoleStatement time.Duration `yaml:"console_statement,omitempty"`         // of a query; default 10s
}

func (l Limits) validate() (errs []error) {
	for key, n := range map[string]int{
		"connections": l.Connections, "connections_per_address": l.PerAddress, "logins": l.Logins,
		"console_sessions": l.Consoles, "console_sessions_per_role": l.ConsolesPerRole,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("limits.%s: %d is no number of them", key, n))
		}
	}
	for key, d := range map[string]time.Duration{"login_time": l.LoginTime, "console_idle": l.ConsoleIdle, "console_statement": l.ConsoleStatement} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("limits.%s: %s is no time", key, d))
		}
	}
	return errs
}

// Address is a port this node serves.
type Address struct {
	// Host:port to bind; ":5022" binds every address. A client port may have several, separated by commas, and paths of
	// Unix sockets.
	Listen    string `yaml:"listen"`
	Advertise string `yaml:"advertise,omitempty"` // host:port as others reach it
}

// Places returns the addresses that a client port binds: network addresses as host:port, and paths of Unix sockets.
func (a Address) Places() (addresses, sockets []string) {
	for at := range strings.SplitSeq(a.Listen, ",") {
		if at = strings.TrimSpace(at); strings.HasPrefix(at, "/") {
			sockets = append(sockets, at)
		} else if at != "" {
			addresses = append(addresses, at)
		}
	}
	return addresses, sockets
}

// PostgreSQL describes the server that this node runs.
type PostgreSQL struct {
	BinDir     string `yaml:"bin_dir"`               // of initdb, postgres, pg_rewind, ...
	Data       string `yaml:"data"`                  // the data directory
	ConfigFile string `yaml:"config_file,omitempty"` // if it is outside the data directory, as on Debian
	Superuser  string `yaml:"superuser"`             // the bootstrap superuser of the cluster; empty: postgres
}

var nodeName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)

// CheckName returns an error for a node name that cannot be used in slots, application names and certificates.
func CheckName(name string) error {
	if strings.HasPrefix(name, "seed_") || strings.HasPrefix(name, "query_") {
		return fmt.Errorf("node name %q: seed_ and query_ begin the names of sessions of the group's own", name)
	}
	if !nodeName.MatchString(name) {
		return fmt.Errorf("node name %q: use a-z, 0-9 and _, beginning with a letter, at most 30 characters", name)
	}
	return nil
}

// Load reads and checks the configuration in dir. An unknown key is an error that names its line.
func Load(dir string) (Config, error) {
	path := filepath.Join(dir, File)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return Config{}, fmt.Errorf("%s is not a node directory: it has no %s; make one with coterie init, or coterie join TOKEN, or name another with --node DIR", dir, File)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	c, err := Parse(b)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads and checks a configuration.
func Parse(b []byte) (Config, error) {
	var c Config
	if err := firstUnknown(b, decode(b, &c)); err != nil {
		return c, errors.New(withoutAddresses(plain(strings.TrimSpace(yaml.FormatError(err, false, true)))))
	}
	if c.Node == "" && c.Kind == "" && c.Group == "" && c.Endpoint.Listen == "" {
		return c, errors.New("the file is empty, or none of its lines is a key of a node: coterie init and coterie join write it; " + keysAre)
	}
	if c.PostgreSQL != nil && c.PostgreSQL.Superuser == "" {
		c.PostgreSQL.Superuser = "postgres" // as the server takes it; the streams of the members log in by it, too
	}
	return c, c.Validate()
}

// Validate checks the fields and their relations.
func (c Config) Validate() error {
	var errs []error
	if err := CheckName(c.Node); err != nil {
		errs = append(errs, err)
	}
	switch c.Kind {
	case "replica":
		if c.PostgreSQL == nil || c.PostgreSQL.Data == "" || c.PostgreSQL.BinDir == "" {
			errs = append(errs, errors.New("postgresql: a replica needs bin_dir and data"))
		}
	case "witness":
		if c.PostgreSQL != nil {
			errs = append(errs, errors.New("postgresql: a witness has none"))
		}
	default:
		errs = append(errs, fmt.Errorf("kind %q: replica or witness", c.Kind))
	}
	if q := c.Quorum; q != nil {
		if len(q.Endpoints) == 0 {
			errs = append(errs, errors.New("quorum: no endpoints"))
		}
	}
	errs = append(errs, c.checkPaths()...)
	if c.ClientCRL != "" && c.ClientCA == "" {
		errs = append(errs, errors.New("client_crl: client_ca is missing, without which no client certificate is asked for"))
	}
	if c.AuthStaleness < 0 {
		errs = append(errs, fmt.Errorf("auth_staleness: %s is no age", c.AuthStaleness))
	}
	if c.Group == "" {
		errs = append(errs, errors.New("group is missing"))
	}
	errs = append(errs, c.Limits.validate()...)
	errs = append(errs, c.checkWebhooks()...)
	return errors.Join(append(errs, c.checkPorts()...)...)
}

// checkPaths refuses relative paths. The agent, the keeper and a command that checks the file have working directories
// of their own, so that each would look elsewhere.
func (c Config) checkPaths() (errs []error) {
	check := func(key, path string) {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("%s: %q must begin with /", key, path))
		}
	}
	if q := c.Quorum; q != nil {
		check("quorum.ca", q.CA)
		check("quorum.cert", q.Cert)
		check("quorum.key", q.Key)
	}
	if p := c.PostgreSQL; p != nil {
		check("postgresql.bin_dir", p.BinDir)
		check("postgresql.data", p.Data)
		check("postgresql.config_file", p.ConfigFile)
	}
	check("hba", c.HBA)
	check("client_ca", c.ClientCA)
	check("client_crl", c.ClientCRL)
	for i, w := range c.Webhooks {
		check(fmt.Sprintf("webhooks[%d].secret_file", i), w.SecretFile)
		check(fmt.Sprintf("webhooks[%d].ca", i), w.CA)
	}
	for _, there := range slices.Sorted(maps.Keys(c.Tablespaces)) {
		check("tablespaces", there)
		check("tablespaces."+there, c.Tablespaces[there])
	}
	return errs
}

// Save writes the configuration into dir, durably.
func (c Config) Save(dir string) error {
	if err := c.Validate(); err != nil {
		return err
	}
	b, err := yaml.MarshalWithOptions(c, yaml.Indent(2))
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	head := "# This node's own facts. Everything about the group is in its record: see coterie status.\n# Check an edit with: coterie config check --node " + dir + "\n"
	if err := durable.Replace(filepath.Join(dir, File), append([]byte(head), b...), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

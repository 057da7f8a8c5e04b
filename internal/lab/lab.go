package lab

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lab/mirror"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// role is the superuser that the lab's connection strings name.
const role = "lab"

// file describes the lab, in its directory; it holds the password of the role.
const file = "lab.json"

// defaultPort is the first of the first node's.
const defaultPort = 6432

// maxReplicas is a primary and eight secondaries.
const maxReplicas = 9

// connectTimeout lets a client turn to the next address when a node is paused: such a node accepts connections and
// sends nothing.
const connectTimeout = 5

// Options describe a lab. The zero value is a lab of three replicas in the default place.
type Options struct {
	Dir      string        // default: DefaultDir
	Replicas int           // the primary counts; default 3
	Witness  bool          // with a witness, too
	Empty    bool          // make the empty lab only; the reader forms the group by hand
	NoGroup  bool          // nodes that have joined each other, and no group yet: CREATE AVAILABILITY GROUP makes it
	Net      string        // NetLoopback, the default, or NetNamespaces; of an existing lab, empty keeps what it has
	Links    linkem.Shape  // of every link between two nodes at first; of NetNamespaces only
	Port     int           // of the first node's read-write listener; default 6432; of NetLoopback only
	Profile  string        // lease profile: default, fast or wan
	Keep     bool          // leave what there is when Up fails
	Bound    bool          // end the lab that Up makes with this process, however that ends, and remove it
	Disks    bool          // put every node on a disk of its own that can be full, slow, stalled or failing
	Storage  string        // StorageMirror: put every node on a mirror of its own, whose sides can be lost
	Caps     cgroup.Limits // of every node
	Quorum   []string      // flags of coterie init for an external quorum; none: it is embedded
	Exe      string        // the coterie program; default: this one
	Timeout  time.Duration // of Up; default 3 min
	Progress func(string)  // is called with the current step, at least every three seconds; one call at a time; may be nil
}

// Node is a member of a lab.
type Node struct {
	Name    string
	Dir     string // an ordinary node directory
	Witness bool
	host    string // its address; empty before the network was up
	port    int    // of NetLoopback: its first
	ports   [5]int // read-write, read-only, endpoint, http, https
	disk    string // the directory below the node's disk; empty: the node has no disk of its own
}

// Address is the node's address.
func (n Node) Address() string { return n.host }

// The addresses of a node's ports. A witness has no listeners.

func (n Node) readWrite() string { return n.address(0) }
func (n Node) readOnly() string  { return n.address(1) }
func (n Node) endpoint() string  { return n.address(2) }
func (n Node) http() string      { return n.address(3) }
func (n Node) https() string     { return n.address(4) }

// HTTPS returns host:port that is free for the node's console. A witness has one only if its coterie.yaml names it.
func (n Node) HTTPS() string { return n.https() }

func (n Node) address(i int) string { return net.JoinHostPort(n.host, strconv.Itoa(n.ports[i])) }

// Lab is a group of nodes in one directory. Its methods may be called from several goroutines.
type Lab struct {
	dir      string
	d        description
	progress *progress
	lifeline *lifeline      // of a lab that ends with this process
	agents   sync.WaitGroup // collects the agents that this process started
	servers  sync.WaitGroup // and what serves their disks and keeps their clocks
}

// description is what lab.json holds.
type description struct {
	Replicas   int           `json:"replicas"`
	Witness    bool          `json:"witness"`
	Net        string        `json:"net"`
	Subnet     netip.Prefix  `json:"subnet,omitzero"` // of NetNamespaces, once the network was up: the nodes remember their addresses
	Links      linkem.Shape  `json:"links,omitzero"`
	Port       int           `json:"port,omitempty"`
	Profile    string        `json:"profile"`
	NoGroup    bool          `json:"no_group,omitempty"` // as it was made; whether there is one by now its nodes know
	Exe        string        `json:"exe"`
	Password   string        `json:"password"`
	DiskFaults bool          `json:"disk_faults,omitempty"`
	Storage    string        `json:"storage,omitempty"`
	Caps       cgroup.Limits `json:"caps,omitzero"`
	Quorum     []string      `json:"quorum,omitempty"`
}

func (d description) write(dir string) error { return durable.ReplaceJSON(filepath.Join(dir, file), d) }

// DefaultDir returns where a lab is by default: in /var/tmp for root, whose home the user of the servers cannot enter.
func DefaultDir() string {
	if os.Getuid() == 0 {
		return "/var/tmp/coterie-lab"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return filepath.Join(os.TempDir(), fmt.Sprintf("coterie-lab-%d", os.Getuid()))
	}
	return filepath.Join(home, ".local", "state", "coterie-lab")
}

// Open finds the lab that Up made in dir.
func Open(dir string) (*Lab, error) {
	if dir == "" {
		dir = DefaultDir()
	}
	dir, err := realPath(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, file)
	b, err := readOwned(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, usage("there is no lab in %s; make one with coterie lab up, or name its directory with --dir", dir)
	case errors.Is(err, os.ErrPermission):
		return nil, usage("the lab in %s belongs to another user; run this as its owner", dir)
	case err != nil:
		return nil, fmt.Errorf("open the lab: %w", err)
	}
	l := &Lab{dir: dir, progress: newProgress(nil)}
	if err := json.Unmarshal(b, &l.d); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	l.d.Net = cmp.Or(l.d.Net, NetLoopback) // older labs had nothing else
	if err := l.d.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if !trustedExe(l.d.Exe) { // or rebuilt elsewhere, or a copy that was pruned
		if l.d.Exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// readOwned returns what lab.json in dir holds, if nobody else can have written it. Each of the two is opened once, and
// the open file is looked at: a name may be given to another file in between, as the parent may be everybody's.
func readOwned(dir string) ([]byte, error) {
	d, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	st, err := d.Stat(".")
	if err == nil {
		err = notWritableByOthers(dir, st)
	}
	if err != nil {
		return nil, err
	}
	f, err := d.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if st, err = f.Stat(); err == nil {
		err = notWritableByOthers(f.Name(), st)
	}
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxDescription))
}

// maxDescription is the longest lab.json that is read, in bytes.
const maxDescription = 1 << 20

// notWritableByOthers refuses a file that another user owns or may write.
func notWritableByOthers(path string, st os.FileInfo) error {
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	switch {
	case owner != os.Getuid():
		return fail.Refusedf("%s belongs to user %s and not to you; run this as its owner, or choose another directory with --dir", path, unixuser.Name(owner))
	case st.Mode().Perm()&0o002 != 0:
		return fail.Refusedf("%s may be written by every user; run chmod o-w %s if you know what is in it, or choose another directory with --dir", path, path)
	}
	return nil
}

// trustedExe reports whether the program that lab.json names exists, and is root's own where root would run it.
func trustedExe(path string) bool {
	st, err := os.Stat(path)
	return err == nil && (os.Getuid() != 0 || st.Sys().(*syscall.Stat_t).Uid == 0 && st.Mode().Perm()&0o002 == 0)
}

// create makes the lab's directory and its description. Nothing is made if a port is taken.
func create(o Options) (*Lab, error) {
	exe := o.Exe
	if exe == "" {
		var err error
		if exe, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	exe, err := filepath.Abs(exe)
	if err != nil {
		return nil, err
	}
	l := &Lab{d: description{
		Replicas: o.Replicas, Witness: o.Witness, Net: cmp.Or(o.Net, NetLoopback), Links: o.Links, Port: o.Port, Profile: o.Profile, NoGroup: o.NoGroup, Exe: exe,
		Password: rand.Text(), DiskFaults: o.Disks, Storage: o.Storage, Caps: o.Caps, Quorum: o.Quorum,
	}}
	if !l.Namespaced() {
		l.d.Port = cmp.Or(o.Port, defaultPort)
	}
	if err := l.d.check(); err != nil {
		return nil, err
	}
	if l.dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if entries, err := os.ReadDir(l.dir); err == nil && len(entries) > 0 {
		return nil, fail.Refusedf("%s is not empty and holds no lab; choose another directory with --dir", l.dir)
	}
	if l.Namespaced() {
		err = canNamespaces()
	} else {
		err = l.portsFree()
	}
	if err := errors.Join(err, l.tryCaps()); err != nil {
		return nil, err
	}
	if o.Disks {
		if err := faultfs.Possible(); err != nil {
			return nil, fail.Refusedf("%w; nothing was made", err)
		}
	}
	if o.Storage == StorageMirror {
		if err := mirror.Possible(); err != nil {
			return nil, fail.Refusedf("%w; nothing was made", err)
		}
	}
	if err := makeDir(l.dir); err != nil {
		return nil, fmt.Errorf("make the lab's directory: %w", err)
	}
	if l.dir, err = realPath(l.dir); err != nil {
		return nil, err
	}
	return l, l.d.write(l.dir)
}

func (d description) check() error {
	if d.Replicas < 1 || d.Replicas > maxReplicas {
		return usage("%d replicas: a group has 1 to %d", d.Replicas, maxReplicas)
	}
	if err := d.checkNet(); err != nil {
		return err
	}
	if _, ok := ag.Profiles[d.Profile]; !ok {
		return usage("profile %q: default, fast or wan", d.Profile)
	}
	return d.checkDisks()
}

func (d description) checkNet() error {
	last := d.Port + 10*(maxReplicas+1)
	switch d.Net {
	case NetNamespaces:
		if d.Port != 0 {
			return usage("--port %d: with --net netns every node has an address of its own, and the ports 5432, 5433, 5022, 8008 and 8443", d.Port)
		}
		if err := d.Links.Validate(); err != nil {
			return usage("%v", err)
		}
	case NetLoopback:
		if d.Port < 1 || last > 65535 {
			return usage("port %d: choose one from 1 to %d", d.Port, 65535-10*(maxReplicas+1))
		}
		if d.Links != (linkem.Shape{}) {
			return usage("--links needs --net netns: on the loopback interface there are no links to shape")
		}
	default:
		return usage("--net %q: %s or %s", d.Net, NetLoopback, NetNamespaces)
	}
	return nil
}

func usage(format string, a ...any) error {
	return fail.Usagef(format, a...)
}

// makeDir makes dir so that the user of the servers can enter it, whatever the umask. It belongs to the lab's user:
// root trusts the contents of lab.json, so no other user may write it.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return ownedByUs(dir)
	}
	if parent := filepath.Dir(dir); parent != dir {
		if _, err := os.Stat(parent); errors.Is(err, os.ErrNotExist) {
			if err := makeDir(parent); err != nil {
				return err
			}
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // another user's servers are in it; secret files in it are 0600
		return err
	}
	return os.Chmod(dir, 0o755) //nolint:gosec // the same
}

func ownedByUs(path string) error {
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != os.Getuid() {
		return fail.Refusedf("%s belongs to user %s and not to you; run this as its owner, or choose another directory with --dir", path, unixuser.Name(owner))
	}
	return nil
}

func realPath(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		return real, nil
	}
	return abs, nil
}

// nodeUser is the user that runs the nodes.
func nodeUser() (uid, gid int, err error) {
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid(), nil
	}
	u, err := daemon.ServerUser()
	return u.UID, u.GID, err
}

// Dir is the lab's directory.
func (l *Lab) Dir() string { return l.dir }

// Nodes lists the replicas n1, n2, ... and then the witness w.
func (l *Lab) Nodes() []Node {
	var out []Node
	for i := range l.d.Replicas {
		name := fmt.Sprintf("n%d", i+1)
		out = append(out, Node{Name: name, Dir: filepath.Join(l.dir, name), port: l.d.Port + 10*i})
	}
	if l.d.Witness {
		out = append(out, Node{Name: "w", Dir: filepath.Join(l.dir, "w"), Witness: true, port: l.d.Port + 10*l.d.Replicas})
	}
	for i := range out {
		l.place(&out[i], i)
		if l.d.DiskFaults {
			out[i].disk = filepath.Join(l.disksDir(), out[i].Name)
		}
	}
	return out
}

func (l *Lab) node(name string) (Node, error) {
	var names []string
	for _, n := range l.Nodes() {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return Node{}, usage("the lab has no node %s; it has %s", name, strings.Join(names, ", "))
}

// made reports whether the node's directory has been made by init, join or witness. It asks below the node's disk,
// which may be away.
func (n Node) made() bool {
	_, err := os.Stat(filepath.Join(n.files(), config.File))
	return err == nil
}

// files is where the node's files are read without a wait for its disk.
func (n Node) files() string {
	if n.disk != "" {
		return n.disk
	}
	return n.Dir
}

// ReadWrite is the connection string of the primary: it lists every node's listener, so it outlives any of them.
func (l *Lab) ReadWrite() string { return l.uri(Node.readWrite, l.Nodes()...) }

// ReadOnly is the connection string of a readable secondary, through any node's listener.
func (l *Lab) ReadOnly() string { return l.uri(Node.readOnly, l.Nodes()...) }

// DSN is the read-write connection string of one node's own listener; empty for a node without one.
func (l *Lab) DSN(node string) string {
	n, err := l.node(node)
	if err != nil || n.Witness {
		return ""
	}
	return l.uri(Node.readWrite, n)
}

func (l *Lab) uri(address func(Node) string, nodes ...Node) string {
	var hosts []string
	for _, n := range nodes {
		if !n.Witness {
			hosts = append(hosts, address(n))
		}
	}
	u := url.URL{
		Scheme: "postgresql", User: url.UserPassword(role, l.d.Password), Host: strings.Join(hosts, ","), Path: "/postgres",
		RawQuery: fmt.Sprintf("connect_timeout=%d", connectTimeout),
	}
	return u.String()
}

// DemoDir returns the directory for a lab that Up makes and binds: it holds nothing, or an abandoned lab, which Up
// removes.
func DemoDir(dir, what string) (string, error) {
	if dir == "" {
		dir = DefaultDir() + "-" + what
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		return dir, nil
	}
	if pid, command, ok := Maker(dir); ok {
		return "", fail.Refusedf("%s holds the lab of a command that still runs, process %d (%s): wait for its end, or give this one a place of its own with --dir%s", dir, pid, command, orPort(dir))
	}
	l, err := Open(dir)
	if err != nil {
		return "", fail.Refusedf("%s is not empty and holds no lab: choose another directory with --dir", dir)
	}
	if is, err := l.abandoned(); is || err != nil {
		return dir, err
	}
	return "", fail.Refusedf("%s holds a lab of an earlier command; see it with: coterie lab status --dir %[1]s, end and remove it with: coterie lab down --dir %[1]s", dir)
}

// orPort is what a second lab beside the one in dir needs besides a directory: those on the loopback interface share
// its ports.
func orPort(dir string) string {
	if l, err := Open(dir); err == nil && !l.Namespaced() {
		return ", and ports with --port"
	}
	return ""
}

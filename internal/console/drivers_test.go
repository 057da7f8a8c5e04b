package console

import (
	"crypto/sha1" // what Maven Central publishes beside each file
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ddl"
)

// runDriver runs a program of another language and returns what it printed.
func runDriver(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return strings.TrimSpace(string(out))
}

const psycopgProgram = `
import sys, psycopg
with psycopg.connect(sys.argv[1]) as c:
    with c.cursor(binary=True) as cur:
        cur.execute("SELECT replica_server_name, session_timeout, now() FROM sys.availability_replicas WHERE session_timeout > %s AND replica_server_name = %s", (3, "a"))
        r = cur.fetchone()
        print(r[0], r[1], r[2].year)
    for i in range(8):                                   # prepared by the server from the sixth on
        r = c.execute("SELECT count(*) FROM sys.availability_replicas WHERE session_timeout > %s", (i,)).fetchone()
    print(r[0])
    c.rollback()
    c.autocommit = True
    notices = []
    c.add_notice_handler(lambda d: notices.append(d.message_primary))
    c.execute("ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON N'b' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = N'TCP://b:1433'))")
    print(len(notices))
    try:
        c.execute("ALTER AVAILABILITY GROUP shop FROB")
    except psycopg.Error as e:
        print(e.sqlstate, e.diag.statement_position)
    print(c.execute("SELECT 1").fetchone()[0])
`

func TestPsycopg(t *testing.T) {
	if exec.Command("python3", "-c", "import psycopg").Run() != nil {
		t.Skip("psycopg is not installed: what it sends is replayed by TestSessions only")
	}
	addr := serve(t, newWorld(t), Principal{"me", ddl.MayAdminister})
	if got, want := runDriver(t, "python3", "-c", psycopgProgram, dsn(addr)), "a 10 2026\n2\n1\n42601 31\n1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The driver, as Maven Central has it.
const (
	pgjdbc     = "https://repo1.maven.org/maven2/org/postgresql/postgresql/42.7.4/postgresql-42.7.4.jar"
	pgjdbcSHA1 = "264310fd7b2cd76738787dc0b9f7ea2e3b11adc1"
)

const pgjdbcProgram = `
import java.sql.*;

public class Probe {
    public static void main(String[] a) throws Exception {
        try (Connection c = DriverManager.getConnection(a[0], "me", "")) {
            DatabaseMetaData m = c.getMetaData();
            System.out.println(m.getDatabaseProductName());
            try (ResultSet r = m.getTables(null, "coterie", "repl%", null)) {
                while (r.next()) System.out.println(r.getString("TABLE_SCHEM") + "." + r.getString("TABLE_NAME"));
            }
            try (PreparedStatement p = c.prepareStatement("SELECT replica_server_name, session_timeout, now() FROM sys.availability_replicas WHERE replica_server_name = ? AND session_timeout > ?")) {
                for (int i = 0; i < 8; i++) {   // binary and named from the fifth on
                    p.setString(1, "a");
                    p.setInt(2, 3);
                    try (ResultSet r = p.executeQuery()) {
                        r.next();
                        if (i == 7) System.out.println(r.getString(1) + " " + r.getInt(2) + " " + r.getTimestamp(3).toInstant().toString().substring(0, 4));
                    }
                }
            }
            c.setAutoCommit(false);
            try (Statement s = c.createStatement()) {
                s.setFetchSize(1);              // a portal, rows a few at a time
                int n = 0;
                try (ResultSet r = s.executeQuery("SELECT replica_server_name FROM sys.availability_replicas")) { while (r.next()) n++; }
                System.out.println(n);
                c.commit();
                c.setAutoCommit(true);
                s.execute("ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (BACKUP_PRIORITY = 9)");
                try { s.execute("ALTER AVAILABILITY GROUP shop FROB"); } catch (SQLException e) { System.out.println(e.getSQLState()); }
            }
            System.out.println(c.isValid(5));
        }
    }
}
`

// TestPgjdbc runs the driver itself. It is fetched once.
func TestPgjdbc(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("fetches a driver; make test-long runs it (COTERIE_LONG=1)")
	}
	for _, p := range []string{"java", "javac"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("NOT RUN: there is no %s here; what pgjdbc sends is replayed by TestSessions only", p)
		}
	}
	jar := fetchPgjdbc(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Probe.java"), []byte(pgjdbcProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, newWorld(t), Principal{"me", ddl.MayAdminister})
	host, port, _ := net.SplitHostPort(addr)
	got := runDriver(t, "java", "-cp", jar, filepath.Join(dir, "Probe.java"), "jdbc:postgresql://"+net.JoinHostPort(host, port)+"/coterie?sslmode=disable")
	if want := "PostgreSQL\ncoterie.replicas\na 10 2026\n2\n42601\ntrue"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func fetchPgjdbc(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	path := filepath.Join(cache, "coterie-test", filepath.Base(pgjdbc))
	sum := func(b []byte) string { s := sha1.Sum(b); return hex.EncodeToString(s[:]) }
	if b, err := os.ReadFile(path); err == nil && sum(b) == pgjdbcSHA1 {
		return path
	}
	client := http.Client{Timeout: time.Minute}
	r, err := client.Get(pgjdbc)
	if err != nil {
		t.Skipf("NOT RUN: the driver cannot be fetched: %v", err)
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	if err != nil || r.StatusCode != http.StatusOK {
		t.Skipf("NOT RUN: the driver cannot be fetched: %s %v", r.Status, err)
	}
	if got := sum(b); got != pgjdbcSHA1 {
		t.Fatalf("the driver is not the one that is expected: %s", got)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

package session

import (
	"errors"
	"syscall"
	"testing"
)

// TestConnConfigIgnoresTheEnvironment holds that no variable for clients of PostgreSQL in the environment of the agent
// says how it reaches its own server, or keeps it from that.
func TestConnConfigIgnoresTheEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"PGSERVICE": "elsewhere", "PGTARGETSESSIONATTRS": "read-write", "PGREQUIREAUTH": "scram-sha-256", "PGCHANNELBINDING": "require", "PGSSLNEGOTIATION": "direct",
		"PGHOST": "elsewhere", "PGPASSWORD": "x", "PGMAXPROTOCOLVERSION": "3.2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			c, err := Server{SocketDir: "/run/x", Superuser: "postgres", Major: 17}.ConnConfig("postgres")
			if err != nil {
				t.Fatal(err)
			}
			if c.Host != "/run/x" || c.ValidateConnect != nil || c.RequireAuth != "" || c.ChannelBinding == "require" || c.Password != "" || c.MaxProtocolVersion == "3.2" {
				t.Errorf("%+v", c.Config)
			}
		})
	}
}

// TestNoServer holds that a session with a server that does not run says so, instead of naming system calls.
func TestNoServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := Server{SocketDir: dir, Superuser: "postgres"}.Connect(t.Context(), nil)
	if err == nil || err.Error() != "PostgreSQL does not run, or has only begun to: there is no socket in "+dir || !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

package session

import "testing"

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

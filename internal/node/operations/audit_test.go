package operations

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestActsAreAudited holds that every statement that changes something is in the audit, whichever way it came and
// however it ended, also one that is denied; that reports are not; and that no secret is.
func TestActsAreAudited(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		who  console.Principal
		text string
		want catalog.Act // Operation: what it begins with
	}{
		{
			console.Principal{User: "olaf", May: ddl.MayOperate, Via: console.ViaAPI, From: "10.0.0.7"},
			alter + "SUSPEND REPLICA ON N'b' WITH NOWAIT",
			catalog.Act{User: "olaf", Privilege: "coterie_operator", Via: "API", From: "10.0.0.7", Operation: alter + "SUSPEND", Result: catalog.ActDone},
		},
		{
			console.Principal{User: "olaf", May: ddl.MayOperate, Via: console.ViaSQL},
			alter + "FAILOVER TO N'nobody'",
			catalog.Act{User: "olaf", Privilege: "coterie_operator", Via: "SQL", Operation: alter + "FAILOVER", Result: catalog.ActFailed, Number: 41167},
		},
		{
			console.Principal{User: "vera", May: ddl.MayLook, Via: console.ViaSQL},
			alter + "FAILOVER TO N'b'",
			catalog.Act{User: "vera", Privilege: "coterie_viewer", Via: "SQL", Operation: alter + "FAILOVER", Result: catalog.ActDenied},
		},
		{
			console.Principal{User: "coterie", May: ddl.MayConfigureServers, Via: console.ViaSocket},
			alter + "SET PARAMETER primary_conninfo = 'password=secret'",
			catalog.Act{User: "coterie", Privilege: "superuser", Via: "CLI", Operation: alter + "SET PARAMETER", Result: catalog.ActDone},
		},
		{ // a mistyped name, which PostgreSQL does not know
			console.Principal{User: "coterie", May: ddl.MayConfigureServers, Via: console.ViaSocket},
			alter + "SET PARAMETER ssl_passphrase_comand = 'echo secret'",
			catalog.Act{User: "coterie", Privilege: "superuser", Via: "CLI", Operation: alter + "SET PARAMETER", Result: catalog.ActFailed},
		},
		{console.Principal{User: "vera", May: ddl.MayLook}, "EXPLAIN FAILOVER", catalog.Act{}},
		{console.Principal{User: "vera", May: ddl.MayLook}, alter + "FAILOVER TO", catalog.Act{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.server.refuses = map[string]error{"ssl_passphrase_comand": fail.Usagef("PostgreSQL 16.9 does not take ssl_passphrase_comand = 'echo secret': unrecognized configuration parameter")}
			_, _ = console.NewSession(Executor{b.Service}, x.who).Run(t.Context(), x.text)
			if x.want.Result == "" {
				if len(b.status.acts) != 0 {
					t.Errorf("%s: %+v", x.text, b.status.acts)
				}
				return
			}
			if len(b.status.acts) != 1 {
				t.Fatalf("%s: %+v", x.text, b.status.acts)
			}
			got := b.status.acts[0]
			if !strings.HasPrefix(got.Operation, x.want.Operation) || strings.Contains(got.Operation+got.Message, "secret") || got.Result != catalog.ActDone && got.Message == "" {
				t.Errorf("%s: %+v", x.text, got)
			}
			got.Operation, got.Message, got.Took = x.want.Operation, "", 0
			if got != x.want {
				t.Errorf("%s: %+v, want %+v", x.text, got, x.want)
			}
		})
	}
}

// TestDenialsWithoutAProof holds that a change which was denied for want of the password counts as a denial.
func TestDenialsWithoutAProof(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.Note(console.Principal{User: "anna", May: ddl.MayAdminister, Via: console.ViaAPI}, "token", 0, &console.Error{State: "28000", Message: "give your password once more"})
		if acts := b.status.acts; len(acts) != 1 || acts[0].Result != catalog.ActDenied || acts[0].Message == "" {
			t.Errorf("%+v", acts)
		}
	})
}

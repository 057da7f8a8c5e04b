package stmt

import "testing"

func TestEndingOf(t *testing.T) {
	for want, texts := range map[Ending][]string{
		EndsByCommit: {
			"commit", "COMMIT;", " end ; ;", "commit work", "end transaction", "commit and chain", "commit work and no chain", "/* a /* b */ */ commit",
			"-- a\ncommit -- b", "prepare transaction 'x'", "PREPARE/**/TRANSACTION 'x'", "commit\x00",
		},
		EndsByRollback: {"rollback", "abort;", "rollback work", "ROLLBACK TRANSACTION AND NO CHAIN", "/* a */ rollback /* b */;"},
		EndsNothing: {
			"", ";", "select 1", "commit; select 1", "select 1; commit", "rollback; begin", "rollback to s", "rollback to savepoint s", "rollback work to s", "rollback and chain",
			"rollback prepared 'x'", "commit prepared 'x'", "begin", "prepare p as select 1", "prepare transaction", "prepare transaction 'x' 'y'", "prepare transaction E'x'",
			"commit '", "commit1", "commitx", "com mit", "commit and", "commit \"work\"", "commit /* a", "rollback\u00a0", "röllback", "commit 'x'", "rollback /", "prepare transaction 'a\\'",
			"commit and chain and chain", "end if", "abort prepared 'x'", "rollback -- a\n; select 1", "commit\v",
		},
	} {
		for _, text := range texts {
			if got := EndingOf([]byte(text)); got != want {
				t.Errorf("%q: %d, want %d", text, got, want)
			}
		}
	}
}

func TestCommits(t *testing.T) {
	for text, want := range map[string][2]bool{
		"commit": {true, false}, "END;": {true, false}, "/* a */ commit work and no chain": {true, false}, "commit and chain": {true, true}, "end transaction AND  CHAIN ;\x00": {true, true},
		"commit; select 1": {}, "prepare transaction 'x'": {}, "rollback and chain": {}, "commit prepared 'x'": {}, "": {}, "select 1": {}, "commit and chain; commit": {},
	} {
		if commits, chains := Commits([]byte(text)); commits != want[0] || chains != want[1] {
			t.Errorf("%q: %v, %v", text, commits, chains)
		}
	}
}

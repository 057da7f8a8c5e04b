package bluegreen

import "testing"

// TestTexts holds which statement of a dump is left out, and how the name of a database is given to a tool.
func TestTexts(t *testing.T) {
	dump := "CREATE ROLE postgres;\nALTER ROLE postgres WITH SUPERUSER;\nCREATE ROLE \"a \"\"b\";\nCREATE ROLE postgres2;\n"
	if got := withoutRole(dump, "postgres"); got != "ALTER ROLE postgres WITH SUPERUSER;\nCREATE ROLE \"a \"\"b\";\nCREATE ROLE postgres2;\n" {
		t.Errorf("%q", got)
	}
	if got := withoutRole(dump, `a "b`); got != "CREATE ROLE postgres;\nALTER ROLE postgres WITH SUPERUSER;\nCREATE ROLE postgres2;\n" {
		t.Errorf("%q", got)
	}
	if got := conninfo(`it's \ a=b host=elsewhere`); got != `dbname='it\'s \\ a=b host=elsewhere'` {
		t.Errorf("%s", got)
	}
}

package ddl

import (
	"errors"
	"strings"
	"testing"
)

// TestDropOfAnotherGroup holds that a refused DROP speaks of dropping.
func TestDropOfAnotherGroup(t *testing.T) {
	s, err := Parse("DROP AVAILABILITY GROUP nosuch")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Change(demo(), onPrimary); err == nil || !strings.Contains(err.Error(), "cannot drop the availability group N'nosuch'") {
		t.Error(err)
	}
}

// TestRefusedListNamesAllDatabases holds that the hint of a statement which is refused, and so removes nothing, names
// every database of the group.
func TestRefusedListNamesAllDatabases(t *testing.T) {
	g, _ := run(t, demo(), onPrimary, "ALTER AVAILABILITY GROUP DemoAG ADD DATABASE a, b")
	s, err := Parse("ALTER AVAILABILITY GROUP DemoAG REMOVE DATABASE a, nosuch")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Change(g, onPrimary)
	var known *Error
	if !errors.As(err, &known) || known.Number != 35281 || known.Hint != "its databases are: a, b" {
		t.Errorf("%v, %+v", err, known)
	}
}

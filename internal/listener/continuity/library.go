package continuity

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// stateful are libraries that keep state in a session which no view shows. Their files may begin with lib, and go on
// with a version.
var stateful = strings.Fields(`plperl plpython3 plpython2 pltcl plv8 plr pljava dblink hypopg orafce pg_variables pgtt set_user
	session_variable`)

// StatefulLibrary returns why a session with the libraries of that process cannot be moved; "" if it can.
func StatefulLibrary(pid uint32) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "the libraries of its process are not known"
	}
	if name := statefulIn(maps); name != "" {
		return "it has used " + name + ", which keeps state of its own"
	}
	return ""
}

// StatefulExtension returns why a session in a database with these extensions cannot be moved, if nothing else is known
// of the libraries of its process; "" if it can.
func StatefulExtension(extensions []string) string {
	for _, e := range extensions {
		for _, name := range stateful {
			if strings.HasPrefix(e, name) {
				return "its database has " + e + ", which keeps state of its own"
			}
		}
	}
	if len(extensions) == 0 { // each has plpgsql
		return "the extensions of its database are not known"
	}
	return ""
}

// statefulIn returns one of the stateful libraries in the memory map of a process; "" if there is none.
func statefulIn(maps []byte) string {
	for line := range bytes.Lines(maps) {
		file := string(bytes.TrimPrefix(line[bytes.LastIndexByte(line, '/')+1:], []byte("lib")))
		for _, name := range stateful {
			if after, ok := strings.CutPrefix(file, name); ok && strings.Contains(after, ".") && strings.IndexByte("-.", after[0]) >= 0 {
				return name
			}
		}
	}
	return ""
}

package adopt

import (
	"errors"
	"fmt"
	"os"
)

// Rule is one line of pg_hba.conf and the result of judging it.
type Rule struct {
	Line    int
	Text    string
	Problem string // why the listener cannot honour it; if empty, it becomes a rule of the listener
}

const maxHBA = 1 << 20

// checkRules judges pg_hba.conf line by line.
func (x *inspection) checkRules() {
	st, err := os.Stat(x.HBAFile)
	if err == nil && st.Size() > maxHBA {
		err = errors.New("it is too large")
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(x.HBAFile)
	}
	if err != nil {
		x.refuse(fmt.Sprintf("hba_file cannot be read: %v", err), "make %s readable to the user who runs the server", x.HBAFile)
		return
	}
	x.Rules = x.opt.JudgeRules(string(b))
	for _, r := range x.Rules {
		if r.Problem != "" {
			x.refuse(fmt.Sprintf("%s, line %d: %s", x.HBAFile, r.Line, r.Problem), "change or remove that line; it reads: %s", r.Text)
		}
	}
	if len(x.Rules) == 0 {
		x.refuse(x.HBAFile+" has no rule, so that nobody could log in", "add one")
	}
}

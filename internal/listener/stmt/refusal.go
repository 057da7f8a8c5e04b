package stmt

import (
	"fmt"
	"slices"
)

// Refusal is why a statement is not forwarded, in the words of an error.
type Refusal struct{ Message, Detail, Hint string }

// flushed are the values of synchronous_commit with which a commit waits until a secondary has flushed it.
var flushed = []string{"on", "remote_apply", "true", "yes", "1"}

// Refuse returns why a session may not make a change that outlives it: the setting belongs to the group, or commits of
// other sessions would wait for less than the group wants; nil: it may. reserved says what to use instead of a setting
// that belongs to the group. relaxed allows a default of synchronous_commit below on.
func Refuse(c Change, reserved func(name string) (instead string, is bool), relaxed bool) *Refusal {
	system := c.Scope == ScopeSystem
	switch instead, is := reserved(c.Setting); {
	case system && c.All:
		return &Refusal{
			Message: "ALTER SYSTEM RESET ALL is not allowed: it resets settings that belong to the availability group",
			Detail:  "Commits would no longer wait for a secondary.",
			Hint:    "Reset the other settings one by one: ALTER SYSTEM RESET name.",
		}
	case system && c.Setting == "":
		return &Refusal{
			Message: "ALTER SYSTEM is not allowed with a name in that spelling: it cannot be told from a setting of the availability group",
			Hint:    "Write the name of the setting in plain letters.",
		}
	case system && is:
		return &Refusal{
			Message: fmt.Sprintf("%s cannot be changed by ALTER SYSTEM: it belongs to the availability group", c.Setting),
			Detail:  "The agents of the group set it, so that acknowledged commits are not lost.",
			Hint:    instead,
		}
	case relaxed, c.All, c.Setting != "" && (c.Setting != "synchronous_commit" || c.Reset), slices.Contains(flushed, c.Value):
		return nil
	}
	return &Refusal{
		Message: fmt.Sprintf("a default of synchronous_commit that waits for less than the availability group is not allowed in ALTER %s", c.Scope),
		Detail:  "Commits of sessions that did not ask for it would be lost by a failover.",
		Hint:    "A session or transaction may set it for itself: SET LOCAL synchronous_commit = off. ALTER AVAILABILITY GROUP name SET (ALLOW_RELAXED_COMMIT = ON) allows the default.",
	}
}

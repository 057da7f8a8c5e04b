package backup

import (
	"errors"
	"fmt"
)

// Place is where a backup may run.
type Place struct {
	Preference string         // AUTOMATED_BACKUP_PREFERENCE
	Priority   map[string]int // BACKUP_PRIORITY of each replica
	Primary    string         // "": there is none
}

// On returns the replica on which a backup runs. The tools that there are copy the files of the primary, so it is the
// primary or none.
func (p Place) On() (string, error) {
	switch n, known := p.Priority[p.Primary]; {
	case p.Primary == "":
		return "", errors.New("the group has no primary at the moment, and the backup copies the primary's files")
	case p.Preference == "SECONDARY_ONLY":
		return "", errors.New("AUTOMATED_BACKUP_PREFERENCE is SECONDARY_ONLY, and this tool copies the primary's files: coterie group set AUTOMATED_BACKUP_PREFERENCE=PRIMARY")
	case known && n == 0:
		return "", fmt.Errorf("the primary %s has BACKUP_PRIORITY 0, and this tool copies the primary's files: give it another one, or fail over to a replica that has", p.Primary)
	}
	return p.Primary, nil
}

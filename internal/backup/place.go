package backup

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Replica is a replica as a place where a backup may be made.
type Replica struct {
	Name     string
	Priority int    // BACKUP_PRIORITY; with 0 no backup is ever made there
	Primary  bool   // it is the primary
	Unfit    string // why no backup can be made there now; "": one can
}

// unfit returns why no backup is made there; "": one may be.
func (r Replica) unfit() string {
	if r.Priority == 0 {
		return "its BACKUP_PRIORITY is 0"
	}
	return r.Unfit
}

// Place is where backups may be made.
type Place struct {
	Preference string // AUTOMATED_BACKUP_PREFERENCE
	Replicas   []Replica
}

// On returns the replica on which a backup is made: of those that the preference allows and that are fit the one with
// the highest priority, and of several such the first by name. The error says why there is none. One on a secondary
// needs a primary as well: its server is where a backup begins and ends.
func (p Place) On() (Replica, error) {
	i := slices.IndexFunc(p.Replicas, func(r Replica) bool { return r.Primary })
	if i < 0 {
		return Replica{}, errors.New("the group has no primary at the moment, and each backup begins and ends there")
	}
	primary := p.Replicas[i]
	switch p.Preference {
	case "PRIMARY":
		return p.best([]Replica{primary})
	case "NONE":
		return p.best(p.Replicas)
	}
	on, err := p.best(slices.DeleteFunc(slices.Clone(p.Replicas), func(r Replica) bool { return r.Primary }))
	if err != nil && p.Preference != "SECONDARY_ONLY" {
		if on, lead := p.best([]Replica{primary}); lead == nil {
			return on, nil
		}
		return p.best(p.Replicas)
	}
	return on, err
}

// best returns the fit replica with the highest priority.
func (p Place) best(of []Replica) (Replica, error) {
	var fit []Replica
	var why []string
	for _, r := range of {
		if u := r.unfit(); u != "" {
			why = append(why, r.Name+": "+u)
		} else {
			fit = append(fit, r)
		}
	}
	if len(fit) == 0 {
		if len(why) == 0 {
			why = []string{"there is no other replica"}
		}
		return Replica{}, fmt.Errorf("AUTOMATED_BACKUP_PREFERENCE is %s, and none of the replicas that it allows can make a backup (%s)", cmp.Or(p.Preference, "SECONDARY"), strings.Join(why, "; "))
	}
	return slices.MinFunc(fit, func(a, b Replica) int { return cmp.Or(b.Priority-a.Priority, strings.Compare(a.Name, b.Name)) }), nil
}

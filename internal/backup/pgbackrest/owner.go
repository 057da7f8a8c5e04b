package pgbackrest

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ownerFile returns the path of the owner's mark in the repository. It is beside the directories of the program, which
// lists them and would report a file that it does not know.
func (t *Tool) ownerFile() string { return path.Join("coterie", t.plan.Stanza+".group") }

// Owner returns the id of the group whose mark the stanza has.
func (t *Tool) Owner(ctx context.Context) (string, error) {
	const missing = 1 // the code of repo-get for a file that does not exist
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	out, err := t.run(ctx, command{args: t.with("repo-get", "--raw", "--ignore-missing", t.ownerFile())})
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.ExitCode() == missing {
		return "", nil
	}
	out = strings.TrimSpace(out)
	if err == nil && !id.MatchString(out) {
		return "", errors.New("the mark of the stanza's owner in the repository, " + t.ownerFile() + ", is no id of a group; if no other group archives there, remove it and run coterie backup enable again")
	}
	return out, err
}

// claims returns the path of the directory of the repository in which groups announce that they claim the stanza.
func (t *Tool) claims() string { return path.Join("coterie", t.plan.Stanza+".claims") }

// claimLife is after what time an announcement is one of a command that was interrupted. Claiming takes seconds.
const claimLife = time.Hour

// Announce says in the repository that the group is about to claim the stanza, and returns other groups that say so.
func (t *Tool) Announce(ctx context.Context) (others []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	if _, err := t.run(ctx, command{args: t.with("repo-put", "--raw", path.Join(t.claims(), t.plan.Group)), in: t.plan.Group}); err != nil {
		return nil, err
	}
	out, err := t.run(ctx, command{args: t.with("repo-ls", "--output=json", t.claims())})
	if err != nil {
		return nil, err
	}
	var files map[string]struct {
		Type string
		Time int64
	}
	if err := json.Unmarshal([]byte(out), &files); err != nil {
		return nil, errors.New("pgbackrest repo-ls: its answer is not understood")
	}
	for name, f := range files {
		if f.Type == "file" && name != t.plan.Group && id.MatchString(name) && time.Since(time.Unix(f.Time, 0)) < claimLife {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return others, nil
}

// Withdraw removes what Announce has written.
func (t *Tool) Withdraw(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	_, err := t.run(ctx, command{args: t.with("repo-rm", path.Join(t.claims(), t.plan.Group))})
	return err
}

// id is what a group's id looks like. The mark is printed, and every user of the repository can put another text in its
// place.
var id = regexp.MustCompile(`^[[:alnum:]-]{1,100}$`)

// Claim marks the stanza as that of the group. The mark is not encrypted: a group's id is no secret, and another group
// with another passphrase must be able to read it.
func (t *Tool) Claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	_, err := t.run(ctx, command{args: t.with("repo-put", "--raw", t.ownerFile()), in: t.plan.Group})
	return err
}

package pgbackrest

import (
	"context"
	"errors"
	"os/exec"
	"path"
	"regexp"
	"strings"
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

package backupcmd

import (
	"context"
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/trial"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// recovered is the part of a *trial.Server that tells how its recovery went.
type recovered interface {
	Ended(ctx context.Context) (lsn string, err error)
	Fetch() string
}

var _ recovered = (*trial.Server)(nil)

// reached returns an error if a recovery to the end of the archive has ended before the last segment that the archive
// had when it began. PostgreSQL takes a segment that cannot be read for the end of the archive: the rest would be
// missing, and nobody would learn of it. doubt is a word about an end that no error explains, as within a record that
// is longer than a segment.
func reached(ctx context.Context, s recovered, f found, catalog func(context.Context) (backup.Catalog, error)) (doubt string, err error) {
	if f.reach == "" {
		return "", nil
	}
	text, err := s.Ended(ctx)
	if err != nil {
		return "", err
	}
	end, err := backup.ParseLSN(text)
	if err != nil || end > f.reachAt {
		return "", err
	}
	said := fmt.Sprintf("the recovery ended at %s, before the segment %s that the archive has", text, f.reach)
	if why := s.Fetch(); why != "" {
		return "", fail.Unhealthyf("%s, because WAL could not be read: %s. Run it again; coterie backup verify reads the whole archive", said, why)
	}
	now, err := catalog(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", said, err)
	}
	if !slices.Contains(now.WAL, f.reach) || !slices.ContainsFunc(now.Backups, func(b backup.Backup) bool { return b.Label == f.Label }) {
		return "", fail.Unhealthyf("the recovery ended at %s, before the segment %s that the archive had: the backup or the segment was removed from it meanwhile as kept no longer. Run it again", text, f.reach)
	}
	return said + "; nothing told of an error", nil
}

// removed adds to an error of a restore that its backup was removed from the repository meanwhile.
func removed(ctx context.Context, label string, backups func(context.Context) (backup.Catalog, error), err error) error {
	now, bad := backups(ctx)
	if bad != nil || slices.ContainsFunc(now.Backups, func(b backup.Backup) bool { return b.Label == label }) {
		return err
	}
	return fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the backup %s was removed from the repository while it was restored, as kept no longer; run it again: %w", label, err)}
}

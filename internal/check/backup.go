package check

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/config"
)

// archiving selects what each replica says of the backups.
const archiving = `SELECT node, enabled, problem, is_primary, archiving, archived, last_archived_wal, last_archived, failed, last_failed_wal, last_failed, waiting, timeline, segment_bytes,
waiting_since, waiting_bytes, waiting_bytes_per_second, free_bytes, reason
FROM coterie.backup ORDER BY node`

// FindBackup looks at the group's backups, at its archive, and at how the primary archives.
func FindBackup(ctx context.Context, dir string) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if found, err := absent(l); found != nil || err != nil {
		return found, err
	}
	if isWitness(l) {
		return []Finding{{Level: OK, What: "a witness holds no data, and makes no backups: coterie check backup on a replica looks at them"}}, nil
	}
	p, tool, err := planfile.Open(l)
	if errors.Is(err, planfile.ErrNone) {
		return []Finding{{Level: OK, What: "no backups are enabled on this node", Run: "coterie backup enable, if no other tool makes them"}}, nil
	}
	if err != nil {
		return nil, err
	}
	f := backup.Facts{Now: time.Now(), Plan: p}
	rows, err := rowsOf(ctx, api.NewClient(l.AgentSock(), l.Owner()), archiving)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		f.Archiver, f.Lacking = archiverOf(r, f)
	}
	var out []Finding
	if f.Catalog, err = tool.Catalog(ctx); err != nil {
		out = append(out, Finding{
			Level: Problem, What: fmt.Sprintf("the repository %s cannot be used from this node: %v", p.Repository, err),
			Why: "nothing can be archived or restored from here", Run: "see that the repository is there and takes the key; coterie backup enable again",
		})
		if f.Archiver != nil {
			if x, bad := f.Archiver.Trouble(f.Now); bad {
				out = append(out, Finding{Level: Level(x.Level), What: x.What, Why: x.Why, Run: x.Run})
			}
		}
		return out, nil
	}
	for _, x := range backup.Judge(f) {
		out = append(out, Finding{Level: Level(x.Level), What: x.What, Why: x.Why, Run: x.Run})
	}
	return out, nil
}

// archiverOf adds a row of archiving to what is known of the primary's archiving and of what others lack.
func archiverOf(r []any, f backup.Facts) (*backup.Archiver, []string) {
	node := fmt.Sprint(r[0])
	switch {
	case !isTrue(r[1]):
		f.Lacking = append(f.Lacking, node+" has no backups enabled")
	case r[2] != nil:
		f.Lacking = append(f.Lacking, fmt.Sprintf("%s cannot use the repository: %v", node, r[2]))
	}
	if !isTrue(r[3]) {
		return f.Archiver, f.Lacking
	}
	return &backup.Archiver{
		Node: node, On: isTrue(r[4]), Archived: number(r[5]), LastArchived: orNothing(r[6]), ArchivedAt: at(r[7]),
		Failed: number(r[8]), LastFailed: orNothing(r[9]), FailedAt: at(r[10]), Waiting: int(number(r[11])), Timeline: uint32(number(r[12])), SegmentSize: number(r[13]),
		Since: at(r[14]), Kept: number(r[15]), Rate: number(r[16]), Free: number(r[17]), Reason: orNothing(r[18]),
	}, f.Lacking
}

// ArchiverOf returns how a primary archives. The row has the columns node, last_archived_wal, last_archived,
// last_failed_wal, last_failed, waiting, waiting_since, waiting_bytes, waiting_bytes_per_second, free_bytes and reason
// of coterie.backup.
func ArchiverOf(r []any) backup.Archiver {
	return backup.Archiver{
		Node: fmt.Sprint(r[0]), On: true, LastArchived: orNothing(r[1]), ArchivedAt: at(r[2]), LastFailed: orNothing(r[3]), FailedAt: at(r[4]), Waiting: int(number(r[5])),
		Since: at(r[6]), Kept: number(r[7]), Rate: number(r[8]), Free: number(r[9]), Reason: orNothing(r[10]),
	}
}

// number returns a number of the console; 0 for NULL.
func number(v any) int64 {
	var n int64
	if f, ok := v.(float64); ok {
		return int64(f)
	}
	_, _ = fmt.Sscan(fmt.Sprint(v), &n) // 0: not a number
	return n
}

func orNothing(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// TimeOf returns a time of the console; zero for NULL.
func TimeOf(v any) time.Time { return at(v) }

// at returns a time of the console; zero for NULL.
func at(v any) time.Time {
	for _, form := range []string{"2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999Z07:00", time.RFC3339Nano} {
		if t, err := time.Parse(form, fmt.Sprint(v)); err == nil {
			return t
		}
	}
	return time.Time{}
}

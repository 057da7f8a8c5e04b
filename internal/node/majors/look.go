package majors

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// Bounds of a look: of pg_upgrade --check, which dumps the definitions of all databases, and of a question to a
// replica.
const (
	lookLimit = 30 * time.Minute
	askLimit  = 20 * time.Second
)

// look is one look at an upgrade that may be made.
type look struct {
	s    *Service
	req  api.MajorRequest
	plan api.MajorPlan
	u    major.Upgrade
	job  pgupgrade.Job
	old  pgupgrade.Cluster
}

// obstacle adds a reason why the upgrade is not made.
func (l *look) obstacle(format string, a ...any) {
	l.plan.Obstacles = append(l.plan.Obstacles, fmt.Sprintf(format, a...))
}

func (l *look) note(format string, a ...any) {
	l.plan.Notes = append(l.plan.Notes, fmt.Sprintf(format, a...))
}

// examine looks whether the upgrade can be made. Its error is one of the looking; what stands in the way is in the
// plan.
func (s *Service) examine(ctx context.Context, req api.MajorRequest) (*look, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if s.filling.Load() {
		return nil, fail.Refusedf("an upgrade by blue/green is under way on %s; see coterie upgrade major --status", s.Self)
	}
	if req.Link && req.BlueGreen {
		return nil, fail.Usagef("--link and --blue-green are two ways; choose one")
	}
	l := &look{s: s, req: req, plan: api.MajorPlan{Node: s.Self, Followers: []ag.ReplicaID{}, Obstacles: []string{}, Notes: []string{}, Steps: []string{}}}
	v, err := s.leads()
	if err != nil {
		return nil, err
	}
	if err := l.sides(ctx, v); err != nil {
		return nil, err
	}
	l.group(v)
	l.disk()
	if err := l.contents(ctx); err != nil {
		return nil, err
	}
	l.others(ctx)
	if l.u.Mode == major.Green {
		if err := l.green(ctx); err != nil {
			return nil, err
		}
		return l, nil
	}
	if len(l.plan.Obstacles) == 0 { // it takes the longest, and needs what was looked at before
		if err := l.job.Check(ctx); err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			l.obstacle("%s", err.Error())
		}
	}
	l.steps()
	return l, nil
}

// leads returns this node's view if it is the primary, which takes writes.
func (s *Service) leads() (*ag.View, error) {
	if s.Node.PostgreSQL == nil {
		return nil, fail.Refusedf("%s is a witness: it has no PostgreSQL; run this on the primary's node", s.Self)
	}
	v := s.View()
	if v == nil || !v.Quorum {
		return nil, fail.Unhealthyf("this node does not know its group at the moment: no majority of the quorum answers, or it has just begun; see coterie status")
	}
	if e := v.Record.Epoch; v.Role() != ag.RolePrimary || e.Phase != ag.PhaseLead || v.Local.Server != ag.ServerWritable {
		return nil, fail.Refusedf("a major upgrade begins on the primary's node, and %s is not the primary (%s leads); run it there, or make this one the primary first: coterie failover", s.Self, e.Leader)
	}
	return v, nil
}

// sides finds the programs and directories of both versions.
func (l *look) sides(ctx context.Context, v *ag.View) error {
	pg := l.s.Node.PostgreSQL
	now, err := programs.Inspect(ctx, pg.BinDir)
	if err != nil {
		return err
	}
	if l.req.To <= now.Major || l.req.To > programs.MaxMajor {
		return fail.Usagef("--to %d: the group has PostgreSQL %d; choose a later version up to %d", l.req.To, now.Major, programs.MaxMajor)
	}
	id, err := l.s.Server.SystemID()
	if err != nil {
		return err
	}
	l.u = major.Upgrade{Phase: major.Asked, Self: l.s.Self, Mode: major.Copy, Epoch: v.Record.Epoch.Epoch}
	switch {
	case l.req.Link:
		l.u.Mode = major.Link
	case l.req.BlueGreen:
		l.u.Mode, l.u.Phase = major.Green, major.Copying
		l.u.Return = &major.Return{Within: returnWithin(l.req.Return)}
	}
	l.u.From = major.Cluster{
		Major: now.Major, Version: now.Version, BinDir: now.BinDir, Data: filepath.Clean(pg.Data), SystemID: id, Copy: v.Record.State.Copy,
		Timelines: v.Record.State.Timelines,
	}
	l.u.To = major.Cluster{Major: l.req.To, Data: beside(pg.Data, now.Major, l.req.To)}
	to, missing, err := find(ctx, now, api.MajorNeeds{To: l.req.To, BinDir: l.req.BinDir})
	switch {
	case err != nil:
		return err
	case to.BinDir == "":
		l.obstacle("PostgreSQL %d is not installed on %s; install its packages on every replica", l.req.To, l.s.Self)
	case len(missing) > 0:
		l.obstacle("the programs of PostgreSQL %d on %s are not complete: %s", l.req.To, l.s.Self, strings.Join(missing, ", "))
	}
	if why := pgupgrade.Unsafe(to); why != "" {
		l.obstacle("%s on %s", why, l.s.Self)
	}
	l.u.To.Version, l.u.To.BinDir = to.Version, to.BinDir
	l.plan.From = api.MajorSide{Major: now.Major, Version: now.Version, BinDir: now.BinDir, Data: l.u.From.Data}
	l.plan.To = api.MajorSide{Major: l.req.To, Version: to.Version, BinDir: to.BinDir, Data: l.u.To.Data}
	l.plan.Mode = string(l.u.Mode)
	return nil
}

// find returns the programs of a major version here: those from which pg_upgrade can be run if there are any.
func find(ctx context.Context, from programs.Install, needs api.MajorNeeds) (found programs.Install, missing []string, err error) {
	if needs.BinDir != "" {
		if !filepath.IsAbs(needs.BinDir) { // this process works elsewhere than the command
			return found, nil, fail.Usagef("--pg-bindir %s: give an absolute path", needs.BinDir)
		}
		in, err := programs.Inspect(ctx, needs.BinDir)
		if err == nil && in.Major != needs.To {
			err = fmt.Errorf("%s has PostgreSQL %s, not %d", needs.BinDir, in.Version, needs.To)
		}
		if err != nil {
			return found, nil, fail.Error{Kind: fail.Usage, Err: err}
		}
		return in, pgupgrade.Missing(from, in), nil
	}
	all, err := programs.Find(ctx)
	if err != nil {
		return found, nil, err
	}
	for _, in := range all {
		if in.Major != needs.To {
			continue
		}
		lacks := pgupgrade.Missing(from, in)
		if found.BinDir == "" || len(lacks) == 0 && len(missing) > 0 {
			found, missing = in, lacks
		}
	}
	return found, missing, nil
}

// group looks at the replicas, and at what else is under way.
func (l *look) group(v *ag.View) {
	if _, err := adopt.Load(l.s.Layout.State()); err == nil || l.s.Node.PostgreSQL.ConfigFile != "" {
		l.obstacle("the cluster of %s was adopted, and its settings may be outside its data directory; upgrade it by a second group", l.s.Self)
	}
	if was, err := Read(l.s.Layout); err == nil && was.Phase == major.Done && was.Return != nil && was.Return.Open {
		l.obstacle("the cluster of PostgreSQL %d follows that of the group, for the way back; end that: coterie upgrade major --finish", was.From.Major)
	}
	if v.Op.ID != "" {
		l.obstacle("a failover was asked for; wait until it is over")
	}
	if v.Outgoing() != "" {
		l.obstacle("a leader that was deposed by force may still answer clients; wait until coterie status says otherwise")
	}
	if l.req.Link && len(l.s.Members.Others()) == 0 {
		l.note("with --link the only copy of this group cannot be started by PostgreSQL %d any more: have a backup", l.u.From.Major)
	}
	for _, r := range l.s.Status().Replicas {
		if r.Name == l.s.Self || r.Mode == ag.ConfigurationOnly {
			continue
		}
		l.plan.Followers = append(l.plan.Followers, r.Name)
		want := ag.Synchronized
		if r.Mode != ag.SynchronousCommit {
			want = ag.Synchronizing
		}
		switch {
		case r.Join != "":
			l.obstacle("%s has not joined the group yet", r.Name)
		case r.Suspended:
			l.obstacle("%s is suspended; resume it, or remove it", r.Name)
		case r.Sync != want && r.Sync != ag.Synchronized:
			l.obstacle("%s is %s; go on when it is %s, or remove it", r.Name, r.Sync, want)
		}
	}
}

// The room for a new cluster without its data, and the rate of a copy that the estimate of the outage assumes.
const (
	emptyRoom  = 512 << 20
	copyRate   = 100 << 20
	fixedTime  = 30 * time.Second // shutdown, definitions, start; more with many tables
	roomFactor = 1.05
)

// disk looks at the place of the new directory.
func (l *look) disk() {
	parent := filepath.Dir(l.u.To.Data)
	var there, parents unix.Stat_t
	if exists(l.u.To.Data) {
		l.obstacle("%s exists already: the new cluster is to be made there; move it away", l.u.To.Data)
	}
	if err := fixed(l.s.Layout.Dir); err != nil {
		l.obstacle("%v", err)
	}
	l.wal()
	err := errors.Join(unix.Stat(l.u.From.Data, &there), unix.Stat(parent, &parents))
	if err == nil {
		err = unix.Access(parent, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		l.obstacle("the new cluster cannot be made in %s: %v", parent, err)
		return
	}
	if l.req.Link && there.Dev != parents.Dev {
		l.obstacle("%s is a file system of its own, and hard links do not lead out of it; leave --link away", l.u.From.Data)
	}
	l.plan.Free = free(parent)
}

// free returns the bytes that are free in a directory; 0 if that is not known.
func free(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	return int64(min(st.Bavail*uint64(st.Bsize), math.MaxInt64))
}

// roomForWAL looks whether the WAL of the new cluster, which pg_upgrade writes beside that of the old one, has room.
func (l *look) roomForWAL(need int64) {
	if dir := filepath.Dir(l.u.To.WAL); l.u.To.WAL != "" && free(dir) < need {
		l.obstacle("the WAL of the new cluster needs %s, and %s has %s free", units.Bytes(need), dir, units.Bytes(free(dir)))
	}
}

// wal looks at the place of the WAL. Where pg_wal is a link to a directory, that of the new cluster is one to another
// directory beside it.
func (l *look) wal() {
	old := filepath.Join(l.u.From.Data, "pg_wal")
	real, err := filepath.EvalSymlinks(old)
	var data, wal, parent unix.Stat_t
	if err == nil {
		err = errors.Join(unix.Stat(l.u.From.Data, &data), unix.Stat(old, &wal), unix.Stat(filepath.Dir(real), &parent))
	}
	if err != nil {
		l.obstacle("the place of the WAL is not known: %v", err)
		return
	}
	if e, err := os.Lstat(old); err != nil || e.Mode()&fs.ModeSymlink == 0 {
		if wal.Dev != data.Dev {
			l.obstacle("a file system is mounted at %s, and the new cluster would have its WAL elsewhere; mount it in another place, move the WAL into a directory there, and make pg_wal a link to that", old)
		}
		return
	}
	l.u.From.WAL, l.u.To.WAL = real, beside(real, l.u.From.Major, l.u.To.Major)
	dir := filepath.Dir(real)
	switch data, err := filepath.EvalSymlinks(l.u.From.Data); {
	case err != nil || strings.HasPrefix(real, data+"/"):
		l.obstacle("%s is a link to %s, which is in the data directory itself; put the WAL there or elsewhere", old, real)
	case wal.Dev != parent.Dev:
		l.obstacle("%s is a link to %s, at which a file system is mounted, and the WAL of the new cluster would be beside it; move the WAL into a directory in that file system, and make pg_wal a link to that", old, real)
	case exists(l.u.To.WAL):
		l.obstacle("%s exists already: the new cluster is to have its WAL there; move it away", l.u.To.WAL)
	default:
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			l.obstacle("the WAL of the new cluster is to be in %s, which cannot be made: %v", l.u.To.WAL, err)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// contents looks at the databases.
func (l *look) contents(ctx context.Context) (err error) {
	ctl, err := l.s.Server.Control(ctx)
	if err != nil {
		return err
	}
	open := func(ctx context.Context, database string) (*pgx.Conn, error) {
		return l.s.Server.SessionIn(ctx, database)
	}
	if l.old, err = pgupgrade.Describe(ctx, open, ctl, l.req.To); err != nil {
		return err
	}
	l.plan.Size, l.u.To.Initdb = l.old.Size, l.old.Initdb
	l.plan.Obstacles = append(l.plan.Obstacles, l.old.Obstacles...)
	l.archive()
	l.owners()
	need := int64(emptyRoom)
	l.plan.Outage = fixedTime
	if !l.req.Link {
		need += int64(float64(l.plan.Size) * roomFactor)
		l.plan.Outage += time.Duration(l.plan.Size/copyRate) * time.Second
	}
	if n := l.s.Status().Required; n > 0 && l.u.Mode != major.Green { // writes wait for that many new copies
		l.plan.Outage += fixedTime + time.Duration(n)*time.Duration(l.plan.Size/copyRate)*time.Second
	}
	if l.plan.Free < need {
		l.obstacle("the new cluster needs %s, and %s has %s free", units.Bytes(need), filepath.Dir(l.u.To.Data), units.Bytes(l.plan.Free))
	}
	l.roomForWAL(emptyRoom + 2*int64(ctl.WalSegmentSize))
	if l.u.To.BinDir != "" {
		lacks, known := pgupgrade.Lacks(ctx, programs.Install{BinDir: l.u.To.BinDir}, l.old.Extensions, l.old.Libraries)
		l.lacks(l.s.Self, lacks, known)
	}
	l.job = l.s.job(l.u)
	l.job.Old.Data = l.u.From.Data
	if made := l.job.Emptied; l.u.Archive {
		l.job.Emptied = func(ctx context.Context, data string) error {
			if err := l.s.Archive.Reads(ctx, data, filepath.Join(l.job.Work, "archive")); err != nil {
				return fmt.Errorf("the tool of the backups could not archive the WAL of PostgreSQL %d: install a version that can on every replica, or disable the backups (coterie backup disable): %w", l.req.To, err)
			}
			return made(ctx, data)
		}
	}
	return nil
}

// owners says whose functions the superuser may run. No way is known to take definitions over without that.
func (l *look) owners() {
	const most = 50
	names := l.old.Owners
	if len(names) == 0 {
		return
	}
	more := ""
	if n := len(names) - most; n > 0 {
		names, more = names[:most], fmt.Sprintf(" and %d more", n)
	}
	l.note("the superuser of the new cluster takes the definitions over, and functions and domains that others have made may run as the superuser then. Go on only if you trust their owners with every database: %s%s", strings.Join(names, ", "), more)
}

// archive looks at the archive. That of this group's backups stays: its tool refuses WAL of another cluster, until it
// is told of it. Any other one could mix the WAL of both.
func (l *look) archive() {
	switch a := l.old.Archive; {
	case a.Pending:
		l.obstacle("a change of archive_mode or archive_library waits for a restart, and the new cluster would begin with it: coterie restart --postgres --pending")
	case a.Mode == "off":
	case a.Mode == "on" && a.Command == l.s.Archive.ArchiveCommand() && a.Command != "":
		l.u.Archive = true
		l.note("the archive of the backups takes no WAL of the new cluster, which keeps it in pg_wal, until coterie backup enable is run on the primary; make a full backup then: those of today restore PostgreSQL %d", l.u.From.Major)
	default:
		l.obstacle("an archive (archive_mode = %s) with a command that is not that of coterie backup enable: WAL of the new version must not go to the archive of the old one; switch it off "+
			"(coterie settings set archive_mode=off and a restart), and enable one anew afterwards", a.Mode)
	}
}

func (l *look) lacks(id ag.ReplicaID, names []string, known bool) {
	if len(names) > 0 {
		l.obstacle("PostgreSQL %d on %s lacks what the databases use: %s; install it there", l.req.To, id, strings.Join(names, ", "))
	}
	if !known && len(l.old.Extensions)+len(l.old.Libraries) > 0 {
		l.note("whether PostgreSQL %d on %s has %s was not looked at: its pg_config does not say where its extensions are", l.req.To, id,
			strings.Join(append(append([]string{}, l.old.Extensions...), l.old.Libraries...), ", "))
	}
}

// others asks the other replicas for their programs.
func (l *look) others(ctx context.Context) {
	needs := api.MajorNeeds{To: l.req.To, BinDir: l.req.BinDir, Extensions: l.old.Extensions, Libraries: l.old.Libraries}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	answers, failed := rpc.Each(ctx, l.s.Members.Others(), func(ctx context.Context, r ag.Replica) (api.MajorPrograms, error) {
		return rpc.Call(ctx, l.s.Calls, r, rpc.MajorPrograms, needs)
	})
	for _, id := range l.plan.Followers {
		a, ok := answers[id]
		switch {
		case !ok:
			l.obstacle("%s does not say whether it has PostgreSQL %d: %v", id, l.req.To, rpc.Plainly(failed[id]))
		case a.Why != "":
			l.obstacle("%s: %s", id, a.Why)
		default:
			l.lacks(id, a.Lacks, !a.Unknown)
		}
	}
}

// Programs answers another replica which programs of a major version this node has.
func (s *Service) Programs(ctx context.Context, _ certs.Identity, needs api.MajorNeeds) (a api.MajorPrograms, err error) {
	if s.Node.PostgreSQL == nil {
		return a, fail.Refusedf("%s is a witness: it has no PostgreSQL", s.Self)
	}
	if _, err := adopt.Load(s.Layout.State()); err == nil || s.Node.PostgreSQL.ConfigFile != "" {
		a.Why = "its cluster was adopted, and its settings may be outside its data directory; upgrade by a second group"
		return a, nil
	}
	in, _, err := find(ctx, programs.Install{BinDir: s.Node.PostgreSQL.BinDir}, needs)
	if err != nil {
		return a, err
	}
	if in.BinDir == "" {
		a.Why = fmt.Sprintf("PostgreSQL %d is not installed there", needs.To)
		return a, nil
	}
	a.Version, a.BinDir = in.Version, in.BinDir
	lacks, known := pgupgrade.Lacks(ctx, in, needs.Extensions, needs.Libraries)
	a.Lacks, a.Unknown = lacks, !known
	return a, nil
}

// steps fills in the steps of the plan.
func (l *look) steps() {
	add := func(format string, a ...any) { l.plan.Steps = append(l.plan.Steps, fmt.Sprintf(format, a...)) }
	l.plan.Until = time.Now().Add(l.within()).Round(time.Second)
	add("the group is under maintenance until the upgrade is made or given up, %s at the latest: no automatic failover begins", l.plan.Until.UTC().Format(time.RFC3339))
	add("the server of %s ends in order; writes end", l.s.Self)
	how := "copies"
	if l.req.Link {
		how = "links"
	}
	if add("pg_upgrade %s %s to %s", how, l.u.From.Data, l.u.To.Data); l.u.To.WAL != "" {
		add("its WAL is in %s, to which pg_wal is a link, as it is to %s now", l.u.To.WAL, l.u.From.WAL)
	}
	add("the group passes to the new cluster, in one transaction: copies of PostgreSQL %d do not count any more", l.u.From.Major)
	if required := l.s.Status().Required; required > 0 {
		add("PostgreSQL %s starts on %s; it takes writes when %d of the others have a copy of the new cluster", cmp.Or(l.u.To.Version, strconv.Itoa(l.req.To)), l.s.Self, required)
	} else {
		add("PostgreSQL %s starts on %s and takes writes, without another copy of them at first", l.u.To.Version, l.s.Self)
	}
	for _, id := range l.plan.Followers {
		add("%s drops its copy for one of the new cluster; pages that are the same are not sent", id)
	}
}

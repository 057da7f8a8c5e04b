package backupruns

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/underway"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// How often the files of what is under way are read, and how long a process that is told to end may take.
const (
	everyFile = 500 * time.Millisecond
	toEnd     = 15 * time.Second
)

// maxSaid bounds what is kept of the words of a process.
const maxSaid = 4 << 10

// Config is what Jobs needs.
type Config struct {
	Self    string // the name of this node
	Node    string // the node directory
	Backups string // the node's directory of backups
	Exe     string // this program
	Log     *slog.Logger
}

// Jobs are the backups that this node makes. Make it with NewJobs.
type Jobs struct {
	Config
	seen atomic.Pointer[backup.Activity]

	mu      sync.Mutex // guards the rest
	life    context.Context
	running sync.WaitGroup
	job     backup.Run // the last one that was started here for another node
}

// NewJobs returns jobs of which none runs. Nothing can be started before Run.
func NewJobs(c Config) *Jobs {
	j := &Jobs{Config: c}
	j.seen.Store(&backup.Activity{})
	return j
}

// Run watches what is under way until ctx is done. Then it ends the backups that were started for other nodes.
func (j *Jobs) Run(ctx context.Context) error {
	j.mu.Lock()
	j.life = ctx
	j.mu.Unlock()
	defer j.running.Wait()
	retry.Every(ctx, everyFile, func() {
		j.seen.Store(&backup.Activity{Run: underway.Read(j.Backups), Restores: underway.Restores(j.Backups)})
	})
	return nil
}

// Activity returns what is under way on this node, without the newest backup of the repository. It answers from memory.
func (j *Jobs) Activity() backup.Activity {
	a := *j.seen.Load()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.job.ID != "" && j.job.ID != a.Run.ID && !a.Run.Started.After(j.job.Started) { // its process has not said anything yet, or never did
		a.Run = j.job
	}
	return a
}

// Start starts a backup of this node's server, and returns without waiting for its end. It is refused while one is
// under way here.
func (j *Jobs) Start(r backup.RunRequest) (backup.Run, error) {
	if err := r.Check(); err != nil {
		return backup.Run{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.life == nil || j.life.Err() != nil {
		return backup.Run{}, fail.Unhealthyf("the agent of %s is starting or stopping: run it again", j.Self)
	}
	for _, now := range []backup.Run{j.job, underway.Read(j.Backups)} {
		if now.UnderWay() {
			return backup.Run{}, fail.Unhealthyf("a backup is under way on %s already (%s): one at a time is made of a group", j.Self, now)
		}
	}
	j.job = backup.Run{ID: rand.Text(), Kind: r.Kind, Started: time.Now().UTC(), Phase: "starting"}
	args := []string{"backup", "run", "--here", "--type", string(r.Kind), "--replay-limit", r.ReplayLimit.String(), "--id", j.job.ID, "--json", "--node", j.Node}
	job, life := j.job, j.life
	j.running.Go(func() { j.wait(job, j.execute(life, args)) })
	j.Log.Info("starting a backup for another node", "type", string(r.Kind), "id", job.ID)
	return job, nil
}

// execute runs the command to its end, or to that of ctx.
func (j *Jobs) execute(ctx context.Context, args []string) error {
	c := exec.CommandContext(ctx, j.Exe, args...)
	said := &tail{}
	c.Dir, c.Stderr, c.WaitDelay = "/", said, toEnd
	c.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/bin:/usr/bin:/bin"), "LANG=C.UTF-8"}
	for _, k := range []string{"HOME", "TMPDIR", "TZ"} {
		if v, ok := os.LookupEnv(k); ok {
			c.Env = append(c.Env, k+"="+v)
		}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it ends the tool, and what it has open at the primary
	err := c.Start()
	if err == nil {
		// The agent's own score, which it would inherit, has the kernel end PostgreSQL before it when memory runs out.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.Process.Pid), []byte("0"), 0)
		err = c.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return fail.Unhealthyf("the agent of %s stopped, and with it the backup that it had started", j.Self)
	case err != nil:
		return fail.Unhealthyf("%s", cmp.Or(said.last(), err.Error()))
	}
	return nil
}

// wait notes the end of a job for which its own process may have told nothing.
func (j *Jobs) wait(job backup.Run, err error) {
	now := underway.Read(j.Backups)
	if now.ID != job.ID {
		if now = job; err == nil {
			err = fail.Unhealthyf("the command of the backup on %s ended without telling how", j.Self)
		}
		now.End(time.Now().UTC(), backup.Backup{}, err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.job = now
	if err := now.Err(); err != nil {
		j.Log.Warn("the backup for another node failed", "id", job.ID, "err", err)
		return
	}
	j.Log.Info("the backup for another node has ended", "id", job.ID, "label", now.Made.Label)
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-maxSaid):]
	return len(b), nil
}

// last returns the last line, without the name of the program with which its errors begin.
func (t *tail) last() string {
	lines := strings.Split(string(bytes.TrimSpace(t.text)), "\n")
	return strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "coterie: ")
}

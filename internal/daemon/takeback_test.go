package daemon

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// TestMain lets this test be the helper that it starts.
func TestMain(m *testing.M) {
	name, run := TakeBackHelper()
	ran, err := reexec.Helpers{name: run}.Run(context.Background(), os.Args[1:], reexec.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if ran {
		return
	}
	flag.String("node", "", "") // root's command names it to the one that it becomes
	os.Exit(m.Run())
}

// placeOf returns an empty directory whose parents every user may enter, and what is at a path: owner and mode.
func placeOf(t *testing.T) (base string, state func(path string) string) {
	t.Helper()
	base = t.TempDir()
	for d := base; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return base, func(path string) string {
		st, err := os.Lstat(path)
		if err != nil {
			return "none"
		}
		return fmt.Sprintf("%d %o", st.Sys().(*syscall.Stat_t).Uid, st.Mode().Perm())
	}
}

// commandEnv says, to the process that plays a command, what it does with the directory that --node names.
const commandEnv = "COTERIE_DAEMON_COMMAND"

// TestCommandChild is what root becomes: a command of the server's user, which makes a node or is refused.
func TestCommandChild(t *testing.T) {
	does := os.Getenv(commandEnv)
	if does == "" {
		t.Skip("it is a part of TestARefusedCommandLeavesNothing")
	}
	dir := flag.Lookup("node").Value.String()
	if err := BecomeServerUser(dir); err != nil { // the first time, this does not return
		t.Fatal(err)
	}
	exe, err := os.Executable()
	fmt.Printf("user %d %s %v\n", os.Getuid(), exe, err)
	if does == "makes it" {
		if err := os.WriteFile(filepath.Join(dir, "coterie.yaml"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if does == "dies" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	TakeBack()
	if os.Getenv(takerEnv) != "" {
		t.Error("the environment of what it starts names the helper")
	}
	if _, err := os.Lstat(dir); (err == nil) != (does == "makes it" || filepath.Base(dir) == "there") {
		t.Errorf("when the command goes on: %v", err)
	}
}

// TestARefusedCommandLeavesNothing holds that root's command, which becomes another user's, leaves the disk as it was
// if no node was made, however the command ends: that user could not remove the directory.
func TestARefusedCommandLeavesNothing(t *testing.T) {
	if _, err := ServerUser(); os.Getuid() != 0 || err != nil {
		t.Skip("NOT RUN: only root becomes the server's user, which must be there")
	}
	for _, does := range []string{"is refused", "dies", "makes it"} {
		for _, path := range []string{"there", "new/deep/n1"} {
			t.Run(does+" "+path, func(t *testing.T) {
				base, state := placeOf(t)
				if err := os.Mkdir(filepath.Join(base, "there"), 0o750); err != nil {
					t.Fatal(err)
				}
				dir := filepath.Join(base, path)
				was := state(dir)
				cmd := exec.Command(os.Args[0], "-test.run", "^TestCommandChild$", "-test.v", "--node", dir)
				cmd.Env = append(os.Environ(), commandEnv+"="+does)
				out, err := cmd.CombinedOutput()
				parent := filepath.Join(base, "new")
				for end := time.Now().Add(10 * time.Second); does == "dies" && (state(dir) != was || state(parent) != "none") && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond) // the helper sees that the command is gone
				}
				var user int
				var exe string
				_, said, _ := strings.Cut(string(out), "user ")
				if n, _ := fmt.Sscan(said, &user, &exe); n != 2 || user == 0 || (err == nil) != (does != "dies") {
					t.Fatalf("%v: %s", err, out)
				}
				if copied := filepath.Dir(exe); filepath.Dir(copied) == "/var/cache/coterie" {
					_ = os.RemoveAll(copied)
				}
				if is := state(dir); (is == was) != (does != "makes it") {
					t.Errorf("it was %s, and is %s", was, is)
				}
				if state(parent) != "none" && (does != "makes it" || path == "there") {
					t.Error("its parents are left")
				}
			})
		}
	}
}

// TestADirectoryIsTakenBack holds that a directory which was made or given for a command that failed is taken back,
// with its parents, and that nothing is that has something in it by then.
func TestADirectoryIsTakenBack(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can give directories away")
	}
	const to = 65533
	u := User{UID: to, GID: to, Name: "server"}
	base, state := placeOf(t)
	there := filepath.Join(base, "there")
	if err := os.Mkdir(there, 0o750); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(base, "new", "deep", "n1")
	for _, dir := range []string{there, deep} {
		was := state(dir)
		takeBack, err := MakeDirectory(dir, u, "--new-group")
		if err != nil || state(dir) == was {
			t.Fatalf("%s: %s, %v", dir, state(dir), err)
		}
		if dir == deep && state(filepath.Dir(dir)) != "0 755" {
			t.Errorf("its parent is %s", state(filepath.Dir(dir)))
		}
		if err := os.Chmod(dir, 0o700); err != nil { // as a new node makes it
			t.Fatal(err)
		}
		if takeBack(); state(dir) != was || dir == deep && state(filepath.Join(base, "new")) != "none" {
			t.Errorf("%s is %s, and was %s", dir, state(dir), was)
		}
		if takeBack, err = MakeDirectory(dir, u, "--new-group"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if takeBack(); state(dir) == was {
			t.Errorf("%s, which is not empty, is %s", dir, state(dir))
		}
	}
	private := filepath.Join(base, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeDirectory(filepath.Join(private, "n1"), u, "--new-group"); err == nil || !strings.Contains(err.Error(), "chmod o+x "+private) || state(filepath.Join(private, "n1")) != "none" {
		t.Errorf("where the user cannot enter: %v", err)
	}
}

package ports

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// TestNoPortTwice draws from several blocks. A port that a process listens on is left out.
func TestNoPortTwice(t *testing.T) {
	seen := map[int]bool{}
	for i := range 250 {
		n := 1 + i%3
		if i == 100 {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(drawn.own[drawn.block]+drawn.used)))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			seen[l.Addr().(*net.TCPAddr).Port] = true
		}
		for port, last := Range(t, n), 0; last < n; last++ {
			if seen[port+last] || port+last < first || port+last >= first+blocks*blockSize {
				t.Fatalf("port %d is given twice, or is not one of ours", port+last)
			}
			seen[port+last] = true
		}
	}
}

// TestBlocksBelongToProcesses holds that another process does not get a block that this process holds.
func TestBlocksBelongToProcesses(t *testing.T) {
	const child = "COTERIE_TESTPORT_CHILD"
	if os.Getenv(child) != "" {
		_, _ = os.Stdout.WriteString(strconv.Itoa(One(t)) + "\n")
		return
	}
	One(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBlocksBelongToProcesses$")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	port, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	for _, own := range drawn.own {
		if own <= port && port < own+blockSize {
			t.Errorf("port %d of the block %d, which this process holds", port, own)
		}
	}
}

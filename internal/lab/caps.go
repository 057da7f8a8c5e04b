package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
)

// CapStatus is what a node may use of the machine, and how often it was stopped there.
type CapStatus struct {
	cgroup.Limits
	cgroup.Usage
}

// capName is the name of the node's control group: two labs on one machine have different ones.
func (l *Lab) capName(n Node) string {
	sum := sha256.Sum256([]byte(l.dir))
	return fmt.Sprintf("coterie-lab-%s-%s", hex.EncodeToString(sum[:4]), n.Name)
}

// tryCaps refuses caps that this machine cannot set, before anything is made.
func (l *Lab) tryCaps() error {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	if err := l.d.Caps.Check(); err != nil {
		return usage("%s", err)
	}
	name := l.capName(Node{Name: "try"})
	if _, err := cgroup.Create(name, l.d.Caps); err != nil {
		return api.Refused(fmt.Sprintf("limits of processor and memory cannot be set here: %s; nothing was made", err))
	}
	return cgroup.Remove(name)
}

// startCapped starts a program of the node within the node's caps.
func (l *Lab) startCapped(n Node, cmd *exec.Cmd) error {
	if l.d.Caps == (cgroup.Limits{}) {
		return cmd.Start()
	}
	g, err := cgroup.Create(l.capName(n), l.d.Caps)
	if err != nil {
		return fmt.Errorf("set the limits of %s: %w", n.Name, err)
	}
	return g.Start(cmd)
}

// removeCaps removes the nodes' control groups once nothing runs in them.
func (l *Lab) removeCaps() error {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	var errs []error
	for _, n := range l.Nodes() {
		errs = append(errs, cgroup.Remove(l.capName(n)))
	}
	return errors.Join(errs...)
}

func (l *Lab) capStatus(n Node) *CapStatus {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	return &CapStatus{l.d.Caps, cgroup.Read(l.capName(n))}
}

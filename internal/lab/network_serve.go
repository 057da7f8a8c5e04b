package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// ServeNetwork is what the network process does: it makes the lab's network, with its links as they are to be, and changes them
// on request until ctx is done or the lab's directory is gone. The namespaces stay as long as the lab does.
func ServeNetwork(ctx context.Context, dir string, log *slog.Logger) (err error) {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	if err := l.needNamespaces(); err != nil {
		return err
	}
	if err := linkem.Dedicate(); err != nil {
		log.Warn("links are late when processors are busy", "err", err)
	}
	o := linkem.Options{Lab: networkOf(l.dir), Subnet: l.d.Subnet, KeepNamespaces: true, Log: log, Seed: 1}
	for _, n := range l.Nodes() {
		o.Nodes = append(o.Nodes, n.Name)
	}
	network, err := linkem.Start(o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, network.Close())
		if _, gone := os.Lstat(filepath.Join(l.dir, file)); errors.Is(gone, os.ErrNotExist) { // nobody else is left to do it
			err = errors.Join(err, linkem.Sweep(o.Lab))
		}
	}()
	plan, err := l.readPlan()
	if err != nil {
		return err
	}
	for _, d := range plan.directions(l) {
		if err := network.Set(d.From, d.To, d.Shape); err != nil {
			return err
		}
	}
	home, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer home.Close()
	s, err := l.listen(home)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		awaitEndOf(ctx, filepath.Join(l.dir, file))
		cancel()
	}()
	return serveLinks(ctx, s, network, log)
}

// listen makes the socket. What a killed process left of it is removed: who got here owns the lab's device, and is alone.
func (l *Lab) listen(home *os.File) (net.Listener, error) {
	if err := os.Remove(filepath.Join(l.dir, networkSocket)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socketIn(home))
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(l.dir, networkSocket), 0o600); err != nil { // the directory is root's, too
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// awaitEndOf returns when ctx is done or the file is gone: a lab that somebody removed by hand needs no network.
func awaitEndOf(ctx context.Context, path string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
}

// serveLinks answers commands until ctx is done.
func serveLinks(ctx context.Context, s net.Listener, network *linkem.Network, log *slog.Logger) error {
	var running sync.WaitGroup
	defer running.Wait()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	for {
		c, err := s.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			_ = c.SetDeadline(time.Now().Add(networkTimeout)) // commands are quick, and one that hangs keeps nobody
			if err := network.Serve(c); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				log.Warn("a command's connection broke", "err", err)
			}
		})
	}
}

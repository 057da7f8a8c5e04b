package ports

import (
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
)

// newSet returns a set whose named ports are accepted, as long as refused is nil.
func newSet(t *testing.T) (s *Set, accepted *[]string, refuse func(error)) {
	t.Helper()
	var list []string
	var bad error
	s = &Set{Log: slog.New(slog.DiscardHandler), Accept: func(p Port) error {
		if bad == nil {
			list = append(list, p.Addr().String())
		}
		return bad
	}}
	t.Cleanup(s.Close)
	return s, &list, func(err error) { bad = err }
}

// answers reports whether something listens at a socket.
func answers(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func TestAddresses(t *testing.T) {
	s, _, _ := newSet(t)
	if err := errors.Join(s.Listen(t.Context(), "127.0.0.1:0, 127.0.0.1:0", false), s.Listen(t.Context(), "127.0.0.1:0", true), s.Listen(t.Context(), "", true)); err != nil {
		t.Fatal(err)
	}
	readWrite, readOnly := s.Addrs()
	if len(readWrite) != 2 || len(readOnly) != 1 || len(s.Fixed()) != 3 || readWrite[0].(*net.TCPAddr).Port == 0 {
		t.Errorf("%v and %v", readWrite, readOnly)
	}
	if err := s.Listen(t.Context(), readOnly[0].String(), false); err == nil {
		t.Error("an address is opened twice")
	}
	s.Close()
	if conn, err := net.Dial("tcp", readOnly[0].String()); err == nil {
		_ = conn.Close()
		t.Error("a closed port takes a client")
	}
	s.Close()
}

// Named ports are exactly those of the last call that could be opened. One that stays is not opened again.
func TestNamed(t *testing.T) {
	s, accepted, refuse := newSet(t)
	dir := t.TempDir()
	one, two, three := filepath.Join(dir, "1"), filepath.Join(dir, "2"), filepath.Join(dir, "3")
	if failed := s.SetNamed(t.Context(), []string{one, two, "nowhere at all"}); len(failed) != 1 || failed["nowhere at all"] == nil {
		t.Errorf("%v", failed)
	}
	if len(*accepted) != 2 || !answers(one) || !answers(two) {
		t.Errorf("accepted on %v", *accepted)
	}
	if failed := s.SetNamed(t.Context(), []string{two}); len(failed) != 0 || len(*accepted) != 2 || answers(one) || !answers(two) {
		t.Errorf("%v; accepted on %v", failed, *accepted)
	}
	stopping := errors.New("stopping")
	refuse(stopping)
	if failed := s.SetNamed(t.Context(), []string{two, three}); !errors.Is(failed[three], stopping) || answers(three) || !answers(two) {
		t.Errorf("%v", failed)
	}
	if readWrite, readOnly := s.Addrs(); len(readWrite)+len(readOnly) != 0 {
		t.Errorf("%v and %v are not of the configuration", readWrite, readOnly)
	}
	if s.Close(); answers(two) {
		t.Error("a closed port takes a client")
	}
}

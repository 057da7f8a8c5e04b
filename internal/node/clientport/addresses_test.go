package clientport

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
)

func TestListenAt(t *testing.T) {
	four, six := "10.0.0.9/24", "fd00::9/64"
	for _, c := range []struct {
		own, want string
		l         ag.Listener
	}{
		{":5432", "", ag.Listener{}},
		{":5432", "", ag.Listener{Addresses: []string{four}}}, // served already
		{":5432", "", ag.Listener{Port: 5432}},
		{"10.0.0.1:5432", "10.0.0.9:5432 [fd00::9]:5432", ag.Listener{Addresses: []string{four, six}}},
		{"10.0.0.1:5432,/var/run/postgresql/.s.PGSQL.5432", "10.0.0.9:1433", ag.Listener{Addresses: []string{four}, Port: 1433}},
		{":5432", ":1433", ag.Listener{Port: 1433}},
		{":5432", "10.0.0.9:1433", ag.Listener{Addresses: []string{four}, Port: 1433}},
		{"10.0.0.9:5432", "", ag.Listener{Addresses: []string{four}}},
		{"127.0.0.1:5432,10.0.0.1:1433", "", ag.Listener{Port: 1433}},
		{"0.0.0.0:5432,[::]:5432", "", ag.Listener{Addresses: []string{four, six}}},
		{"10.0.0.1:5432,[fd00::1]:5432", "10.0.0.9:5432 [fd00::9]:5432", ag.Listener{Addresses: []string{four, six}}},
		{"", "", ag.Listener{Addresses: []string{four}}},
	} {
		own, _ := config.Address{Listen: c.own}.Places()
		if got := strings.Join(listenAt(c.l, own), " "); got != c.want {
			t.Errorf("%+v beside %q: %q, want %q", c.l, c.own, got, c.want)
		}
	}
}

package main

import (
	"encoding/xml"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestFirewallFiles holds that firewalld and ufw get the usual ports, and the one without a login by a name of its own.
func TestFirewallFiles(t *testing.T) {
	read := func(name string) []byte {
		t.Helper()
		text, err := os.ReadFile("../../packaging/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, want := range map[string]string{"coterie": "5022/tcp 5022/udp 5432/tcp 5433/tcp", "coterie-monitoring": "8008/tcp"} {
		var service struct {
			Ports []struct {
				Protocol string `xml:"protocol,attr"`
				Port     string `xml:"port,attr"`
			} `xml:"port"`
		}
		if err := xml.Unmarshal(read("firewalld/"+name+".xml"), &service); err != nil {
			t.Fatal(err)
		}
		var ports []string
		for _, p := range service.Ports {
			ports = append(ports, p.Port+"/"+p.Protocol)
		}
		if slices.Sort(ports); strings.Join(ports, " ") != want {
			t.Errorf("%s.xml has %v, want %s", name, ports, want)
		}
	}
	if got := string(read("ufw/coterie")); !strings.Contains(got, "\nports=5432,5433/tcp|5022\n") || !strings.Contains(got, "\nports=8008/tcp\n") {
		t.Errorf("ufw: %s", got)
	}
}

package linkem

import "testing"

func TestSmoke(t *testing.T) {
	n, err := Start(Options{Lab: "smoke", Nodes: []string{"n1", "n2"}, Shape: Profiles["wan-good"]})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(n.Subnet(), n.Addr("n1"), n.Stats())
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}

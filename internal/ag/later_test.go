package ag

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestWhatALaterVersionWroteStays changes a configuration of a version that knows more: what this one does not know
// stays as it was, in each object, and goes with the member that it is about.
func TestWhatALaterVersionWroteStays(t *testing.T) {
	const written = `{"id":"g","name":"n","system_identifier":"","replicas":[` +
		`{"id":"n1","availability_mode":"SYNCHRONOUS_COMMIT","failover_mode":"AUTOMATIC","endpoint":"","key_pin":"","voter":true,"options":{"region":"a"},"zone":{"x":[1,2]}},` +
		`{"id":"n2","availability_mode":"SYNCHRONOUS_COMMIT","failover_mode":"AUTOMATIC","endpoint":"","key_pin":"","voter":true,"zone":7}],` +
		`"commit_rule":"QUORUM","session_timeout":0,"profile":"","options":{"fence_by":"watchdog"},"rotation":{"pin":"p","certificate":"c","phase":"TRUST","stage":3},"signed_writes":true,"signature":"of the stored value"}`
	var g Group
	if err := json.Unmarshal([]byte(written), &g); err != nil {
		t.Fatal(err)
	}
	g.CommitRule, g.Replicas = RuleAll, g.Replicas[:1]
	g.Replicas[0].Suspended = true
	g.Options.Databases = []string{"d"}
	g.RotationStep("n2", "p", RotationTrust)
	text, err := json.Marshal(g)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"signed_writes":true`, `"zone":{"x":[1,2]}`, `"region":"a"`, `"fence_by":"watchdog"`, `"stage":3`, `"commit_rule":"ALL"`, `"suspended":true`, `"databases":["d"]`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is lost: %s", want, text)
		}
	}
	if strings.Contains(string(text), `"zone":7`) || strings.Contains(string(text), "of the stored value") {
		t.Errorf("it is kept though what it was about is gone: %s", text)
	}
	var again Group
	if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, g) {
		t.Errorf("%v: %+v", err, again)
	}
	if err := json.Unmarshal([]byte(`{"id":"g","options":{}}`), &again); err != nil || again.later != nil {
		t.Errorf("%v: %+v stays of another configuration", err, again.later)
	}
}

// TestAConfigurationOfThisVersion: what no other version has written is coded as its fields say, and nothing of it is
// taken for unknown.
func TestAConfigurationOfThisVersion(t *testing.T) {
	one := 1
	g := Group{
		ID: "g", Required: &one, Serial: 4, SignedOnly: true, Maintenance: &Maintenance{Reason: "r"}, Rotation: &Rotation{Pin: "p"}, Parameters: map[string]string{"a": "b"},
		Replicas: []Replica{{ID: "n1", EtcdID: 5, Options: ReplicaOptions{BackupPriority: &one, RoutingList: [][]ReplicaID{{"n1"}}}}}, Options: Options{Listeners: []Listener{{Name: "l"}}},
	}
	text, err := json.Marshal(g)
	var again Group
	if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, g) {
		t.Errorf("%v: %s", err, text)
	}
	type plain Group
	if want, _ := json.Marshal(plain(g)); err != nil || string(want) != string(text) {
		t.Errorf("%v\n got %s\nwant %s", err, text, want)
	}
	var empty map[string]any
	if text, err = json.Marshal(Replica{}); err != nil || json.Unmarshal(text, &empty) != nil || empty["options"] != nil {
		t.Errorf("%s, %v: empty options are written", text, err)
	}
}

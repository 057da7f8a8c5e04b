package ag

import "testing"

// TestWhatOperatorsWantOfACopy decides on copies that are asked for, withheld, or not permitted.
func TestWhatOperatorsWantOfACopy(t *testing.T) {
	t.Parallel()
	options := func(v *View, o ReplicaOptions) {
		all := append([]Replica{}, v.Group.Replicas...)
		for i := range all {
			if all[i].ID == v.Self {
				all[i].Options = o
			}
		}
		v.Group.Replicas = all
	}
	for _, c := range []struct {
		name string
		edit func(*View)
		want Rule
	}{
		{"nothing is there", func(v *View) { v.Local.Data, v.Local.Server = DataEmpty, ServerDown }, RuleSeed},
		{"MANUAL", func(v *View) {
			v.Local.Data, v.Local.Server = DataEmpty, ServerDown
			options(v, ReplicaOptions{ManualSeeding: true})
		}, RuleStandBy},
		{"MANUAL, and somebody asks", func(v *View) {
			v.Local.Data, v.Local.Server, v.Local.Renew = DataEmpty, ServerDown, "asked"
			options(v, ReplicaOptions{ManualSeeding: true})
		}, RuleSeed},
		{"denied, and somebody asks", func(v *View) {
			v.Local.Data, v.Local.Server, v.Local.Renew = DataEmpty, ServerDown, "asked"
			options(v, ReplicaOptions{NoSeeding: true})
		}, RuleStandBy},
		{"cancelled", func(v *View) { v.Local.Data, v.Local.Server, v.Local.Withheld = DataPartial, ServerDown, "cancelled" }, RuleStandBy},
		{"cancelled, with a copy that is whole", func(v *View) { v.Local.Server, v.Local.Withheld = ServerDown, "cancelled" }, RuleStart},
		{"diverged and to be made anew, cancelled", func(v *View) {
			v.Local.Renew, v.Local.Withheld, v.Record.State.V = "asked", "cancelled", nil
		}, RuleStandBy},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			v := following()
			c.edit(&v)
			if p := Decide(v); p.Rule != c.want {
				t.Errorf("%s (%s), want %s", p.Rule, p.Because, c.want)
			}
		})
	}
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// withoutPreset has an experiment refuse --preset, and say why: the others have it, and a name that is only unknown would read as a slip.
func withoutPreset(c *cobra.Command, why string) {
	c.Flags().Var(noPreset(why), "preset", "")
	if err := c.Flags().MarkHidden("preset"); err != nil {
		panic(err) // it was added above
	}
}

// noPreset is a flag that takes no value, and the reason.
type noPreset string

func (p noPreset) String() string { return "" }
func (p noPreset) Type() string   { return "string" }
func (p noPreset) Set(string) error {
	return fmt.Errorf("%s: there are no sizes to choose; leave it out", string(p))
}

// presets are the values that an experiment's --preset takes; none: it has no such choice.
func presets(command string) []string {
	c, _, err := benchCommand().Find([]string{command})
	if err != nil {
		return nil
	}
	if f := c.Flags().Lookup("preset"); f == nil || f.Hidden {
		return nil
	}
	return []string{presetScaled, presetPublished}
}

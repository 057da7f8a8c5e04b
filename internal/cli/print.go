package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

// PrintJSON prints v as indented JSON on standard output.
func PrintJSON(c *cobra.Command, v any) error {
	e := json.NewEncoder(c.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Say prints a message for the user on standard error. Standard output is for data.
func Say(c *cobra.Command, format string, a ...any) {
	_, _ = fmt.Fprintf(c.ErrOrStderr(), format+"\n", a...)
}

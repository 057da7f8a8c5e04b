package cli

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func PrintJSON(c *cobra.Command, v any) error {
	e := json.NewEncoder(c.OutOrStdout())
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Say tells the person what is going on; data goes to standard output, talk to standard error.
func Say(c *cobra.Command, format string, a ...any) {
	_, _ = fmt.Fprintf(c.ErrOrStderr(), format+"\n", a...)
}

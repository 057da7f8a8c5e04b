package main

import "github.com/spf13/cobra"

func labCommands() []*cobra.Command  { return nil }
func demoCommands() []*cobra.Command { return nil }

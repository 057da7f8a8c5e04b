package main

import "github.com/spf13/cobra"

func demoCommands() []*cobra.Command { return nil }

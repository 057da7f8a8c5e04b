// Package supportcmd is coterie support-bundle: one file with which a person outside can help.
//
// It asks the agent. Package support reads the disk and removes the secrets. Start reading at Bundle.
package supportcmd

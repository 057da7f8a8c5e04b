// Package mancmd is coterie man: the manual pages of all commands, written from the commands themselves.
//
// It must not know any command. Start reading at Man.
package mancmd

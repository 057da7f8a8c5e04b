// Package diagnose looks for what may be wrong with a server and its data: whether it answers and commits, whether its
// databases can be read, where its files are, and why it ended.
//
// It must not judge what it finds: package health does. Start reading at Checks.
package diagnose

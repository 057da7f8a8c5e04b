// Package session is how the agent logs in to its own server: with settings that no administrator can change, and in
// sessions that are opened again after the server was restarted.
//
// It must not know what is asked in a session. Start reading at Server and Session.
package session

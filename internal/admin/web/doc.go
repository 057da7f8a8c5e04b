// Package web is the console in the browser and the HTTP API, on a port of its own with TLS.
//
// It owns that port, its sessions and its limits, the paths below /api/v1 and the files of the page. It judges nothing:
// the status is the node's, rows of the views come from sessions of the console with the privilege of coterie_viewer,
// and a change is a statement of the language that such a session executes with the privilege that the role has then.
// It does not know how a password is checked. Start reading at Config, then routes, then Server.change.
package web

// Package web is the console in the browser and the reading half of the HTTP API, on a port of its own with TLS.
//
// It owns that port, its sessions and its limits, the paths below /api/v1 and the files of the page. It judges nothing:
// the status is the node's, and rows of the views come from sessions of the console, whose privilege here is never more
// than that of coterie_viewer. It does not know how a password is checked. Start reading at Config, then routes.
package web

// Package sdnotify tells the service manager that started this process how it is: systemd's protocol of sd_notify(3).
//
// It owns the socket's name and the form of a message. It must not know when a process is ready or alive. Start at
// Open.
package sdnotify

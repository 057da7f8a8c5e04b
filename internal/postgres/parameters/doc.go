// Package parameters puts the settings that a group has for its servers in force in one of them. Before a value is
// written to the configuration, it says whether this server could have it.
//
// It owns the rule by which a setting in postgresql.auto.conf is the group's. It knows nothing of the group: callers
// give the settings by name. Start reading at Server.Apply.
package parameters

// Package settingscmd is coterie settings: the settings of PostgreSQL that a group has for its servers.
//
// It owns the spelling of the command; the nodes decide which settings are possible. Start reading at Settings.
package settingscmd

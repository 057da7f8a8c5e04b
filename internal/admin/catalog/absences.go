package catalog

import "strings"

// absences are the columns that are NULL always, with the reason. They are there so that queries written for SQL Server run.
var absences = func() map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(absenceText) {
		if name, why, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			out[name] = why
		}
	}
	return out
}()

const absenceText = `
resource_id: a resource of the Windows cluster; the quorum is embedded
resource_group_id: a resource of the Windows cluster; the quorum is embedded
cluster_connection_options: nodes meet by mutual TLS of their own
replica_metadata_id: an id of SQL Server's own catalog
owner_sid: replicas have no owner: roles decide
create_date: the configuration keeps no dates; coterie.events has the statements of late
modify_date: the configuration keeps no dates; coterie.events has the statements of late
last_connect_error_number: connections fail with texts, not with numbers
last_connect_error_timestamp: the state of this moment is shown; coterie.events has what went before
current_configuration_commit_start_time_utc: configuration changes are one compare-and-swap
last_redone_time: a secondary tells how far it has replayed, not when; last_commit_time is the nearest
filestream_send_rate: there is no FILESTREAM
low_water_mark_for_ghosts: there are no ghost records
signal_wait_time_ms: a commit is woken by the server itself, which does not tell when
last_commit_lsn: the server tells when the last commit was, not where; last_hardened_lsn is the nearest
quorum_commit_lsn: of Azure SQL Database
quorum_commit_time: of Azure SQL Database
ag_db_id: a copy is of all databases of the instance
local_database_id: a copy is of all databases of the instance
network_subnet_ip: addresses are not checked against interfaces
network_subnet_prefix_length: addresses are not checked against interfaces
network_subnet_ipv4_mask: addresses are not checked against interfaces
`

-- name: overview of the group
SELECT AG.name AS [AvailabilityGroupName], ISNULL(agstates.primary_replica, '') AS [PrimaryReplicaServerName],
    ISNULL(arstates.role, 3) AS [LocalReplicaRole], arstates.role_desc
FROM master.sys.availability_groups AS AG
LEFT OUTER JOIN master.sys.dm_hadr_availability_group_states AS agstates ON AG.group_id = agstates.group_id
INNER JOIN master.sys.availability_replicas AS AR ON AG.group_id = AR.group_id
INNER JOIN master.sys.dm_hadr_availability_replica_states AS arstates ON AR.replica_id = arstates.replica_id AND arstates.is_local = 1
ORDER BY [AvailabilityGroupName] ASC
-- name: replicas with modes and states
SELECT ag.name AS ag_name, ar.replica_server_name, ar.availability_mode_desc, ar.failover_mode_desc, ars.role_desc, ars.connected_state_desc,
       ars.synchronization_health_desc
FROM sys.availability_replicas AS ar WITH (NOLOCK)
INNER JOIN sys.dm_hadr_availability_replica_states AS ars WITH (NOLOCK) ON ars.replica_id = ar.replica_id
INNER JOIN sys.availability_groups AS ag WITH (NOLOCK) ON ag.group_id = ar.group_id
ORDER BY ag.name, ars.role, ar.replica_server_name OPTION (RECOMPILE)
-- name: status of each database, with twenty columns
SELECT ag.name AS [AG Name], ar.replica_server_name, ar.availability_mode_desc, adc.[database_name], drs.is_local, drs.is_primary_replica,
       drs.synchronization_state_desc, drs.is_commit_participant, drs.synchronization_health_desc, drs.recovery_lsn, drs.truncation_lsn,
       drs.last_sent_lsn, drs.last_received_lsn, drs.last_hardened_lsn, drs.last_redone_lsn, drs.log_send_queue_size, drs.log_send_rate,
       drs.redo_queue_size, drs.redo_rate, drs.end_of_log_lsn, drs.database_state_desc
FROM sys.dm_hadr_database_replica_states AS drs WITH (NOLOCK)
INNER JOIN sys.availability_databases_cluster AS adc WITH (NOLOCK) ON drs.group_id = adc.group_id AND drs.group_database_id = adc.group_database_id
INNER JOIN sys.availability_groups AS ag WITH (NOLOCK) ON ag.group_id = drs.group_id
INNER JOIN sys.availability_replicas AS ar WITH (NOLOCK) ON drs.group_id = ar.group_id AND drs.replica_id = ar.replica_id
WHERE adc.database_name = N'shop'
ORDER BY ag.name, ar.replica_server_name, adc.[database_name] OPTION (RECOMPILE);
-- name: names of databases by their ids
SELECT DISTINCT DB_NAME(drs.database_id) AS database_name, drs.database_id FROM sys.dm_hadr_database_replica_states drs ORDER BY 1
-- name: lag in seconds with the role
SELECT TOP (10) ar.replica_server_name, DB_NAME(drs.database_id) AS [Database],
       ISNULL(DATEDIFF(SECOND, drs.last_commit_time, GETDATE()), 0) AS seconds_behind,
       CASE drs.is_primary_replica WHEN 1 THEN 'primary' ELSE 'secondary' END AS [role]
FROM sys.dm_hadr_database_replica_states AS drs JOIN sys.availability_replicas AS ar ON ar.replica_id = drs.replica_id
WHERE drs.database_id = DB_ID('shop')
ORDER BY seconds_behind DESC, ar.replica_server_name
-- name: recovery point by common table expressions
WITH AG_Stats AS (
    SELECT AR.replica_server_name, HARS.role_desc, Db_name(DRS.database_id) AS DBName, DRS.last_commit_time
    FROM sys.dm_hadr_database_replica_states DRS
    INNER JOIN sys.availability_replicas AR ON DRS.replica_id = AR.replica_id
    INNER JOIN sys.dm_hadr_availability_replica_states HARS ON AR.group_id = HARS.group_id AND AR.replica_id = HARS.replica_id),
Pri_CommitTime AS (SELECT replica_server_name, DBName, last_commit_time FROM AG_Stats WHERE role_desc = 'PRIMARY'),
Sec_CommitTime AS (SELECT replica_server_name, DBName, last_commit_time FROM AG_Stats WHERE role_desc = 'SECONDARY')
SELECT p.replica_server_name AS [primary_replica], p.DBName AS [DatabaseName], s.replica_server_name AS [secondary_replica],
       DATEDIFF(ss, s.last_commit_time, p.last_commit_time) AS [Sync_Lag_Secs]
FROM Pri_CommitTime p LEFT JOIN Sec_CommitTime s ON s.DBName = p.DBName ORDER BY 2, 3
-- name: recovery time from the redo queue
SELECT ar.replica_server_name, DB_NAME(drs.database_id) AS db, drs.redo_queue_size, drs.redo_rate,
       CASE WHEN drs.redo_rate = 0 THEN NULL ELSE CAST(drs.redo_queue_size * 1.0 / drs.redo_rate AS decimal(9, 4)) END AS estimated_redo_seconds
FROM sys.dm_hadr_database_replica_states drs JOIN sys.availability_replicas ar ON ar.replica_id = drs.replica_id
WHERE drs.is_primary_replica = 0 AND drs.redo_queue_size IS NOT NULL ORDER BY 1, 2
-- name: recovery time with NULLIF
SELECT ar.replica_server_name, CAST(drs.redo_queue_size AS float) / NULLIF(drs.redo_rate, 0) AS seconds
FROM sys.dm_hadr_database_replica_states drs JOIN sys.availability_replicas ar ON ar.replica_id = drs.replica_id
WHERE DB_NAME(drs.database_id) = 'shop' AND drs.is_primary_replica = 0 ORDER BY 1
-- name: seconds since the last redo
SELECT ar.replica_server_name, drs.last_redone_time, DATEDIFF(ms, drs.last_redone_time, GETDATE()) AS redo_lag_ms
FROM sys.dm_hadr_database_replica_states drs INNER JOIN sys.availability_replicas ar ON ar.replica_id = drs.replica_id
WHERE drs.database_id = DB_ID(N'shop') ORDER BY ar.replica_server_name
-- name: columns named by assignment
SELECT [Server] = ar.replica_server_name, [Role] = rs.role_desc, Health = rs.synchronization_health_desc
FROM sys.availability_replicas ar, sys.dm_hadr_availability_replica_states rs WHERE rs.replica_id = ar.replica_id ORDER BY [Server]
-- name: a sentence for each replica
SELECT ar.replica_server_name + ' is ' + LOWER(rs.role_desc) + ' in ' + ag.name AS status
FROM sys.availability_replicas ar JOIN sys.dm_hadr_availability_replica_states rs ON rs.replica_id = ar.replica_id
JOIN sys.availability_groups ag ON ag.group_id = ar.group_id ORDER BY 1
-- name: am I the primary
SELECT CASE WHEN EXISTS (SELECT 1 FROM sys.dm_hadr_availability_group_states WHERE primary_replica = @@SERVERNAME) THEN 'yes' ELSE 'no' END AS is_primary
-- name: functions for jobs
SELECT sys.fn_hadr_is_primary_replica('shop') AS p, sys.fn_hadr_backup_is_preferred_replica(N'shop') AS b, sys.fn_hadr_is_primary_replica('none') AS n
-- name: properties of the server
SELECT @@SERVERNAME AS [server], SERVERPROPERTY('IsHadrEnabled') AS hadr, SERVERPROPERTY('HadrManagerStatus') AS manager,
       SERVERPROPERTY('ServerName') AS name, CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)) AS version
-- name: read-only routing lists
SELECT ag.name AS [Availability Group], ar.replica_server_name AS [When Primary Replica Is], rl.routing_priority AS [Routing Priority],
       ar2.replica_server_name AS [RO Routed To], ar.secondary_role_allow_connections_desc, ar2.read_only_routing_url
FROM sys.availability_read_only_routing_lists rl
INNER JOIN sys.availability_replicas ar ON rl.replica_id = ar.replica_id
INNER JOIN sys.availability_replicas ar2 ON rl.read_only_replica_id = ar2.replica_id
INNER JOIN sys.availability_groups ag ON ar.group_id = ag.group_id
WHERE ar.replica_server_name = 'a'
ORDER BY ag.name, ar.replica_server_name, rl.routing_priority, 4
-- name: routing lists in one line each
SELECT ar.replica_server_name, STUFF((SELECT ', ' + r2.replica_server_name FROM sys.availability_read_only_routing_lists l
    JOIN sys.availability_replicas r2 ON r2.replica_id = l.read_only_replica_id WHERE l.replica_id = ar.replica_id
    ORDER BY l.routing_priority, r2.replica_server_name FOR XML PATH('')), 1, 2, '') AS routing
FROM sys.availability_replicas ar ORDER BY 1
-- name: routing lists with STRING_AGG
SELECT ar.replica_server_name, STRING_AGG(r2.replica_server_name, ' > ') WITHIN GROUP (ORDER BY l.routing_priority, r2.replica_server_name) AS routing
FROM sys.availability_replicas ar JOIN sys.availability_read_only_routing_lists l ON l.replica_id = ar.replica_id
JOIN sys.availability_replicas r2 ON r2.replica_id = l.read_only_replica_id GROUP BY ar.replica_server_name HAVING COUNT(*) > 1 ORDER BY 1
-- name: listeners and their addresses
SELECT agl.dns_name, agl.port, agl.ip_configuration_string_from_cluster, ip.ip_address, ip.ip_subnet_mask, ip.state_desc
FROM sys.availability_group_listeners agl WITH (NOLOCK) LEFT JOIN sys.availability_group_listener_ip_addresses ip WITH (NOLOCK) ON ip.listener_id = agl.listener_id
ORDER BY agl.dns_name
-- name: endpoints with their ports
SELECT e.name, e.role_desc, e.state_desc, e.connection_auth_desc, e.encryption_algorithm_desc, t.port, t.ip_address
FROM sys.database_mirroring_endpoints AS e JOIN sys.tcp_endpoints AS t ON e.endpoint_id = t.endpoint_id
-- name: endpoints that are not started
SELECT name FROM sys.endpoints WHERE type = 4 AND state <> 0
-- name: URLs of endpoints
SELECT ar.replica_server_name, ar.endpoint_url, SUBSTRING(ar.endpoint_url, CHARINDEX('//', ar.endpoint_url) + 2, 100) AS address,
       RIGHT(ar.endpoint_url, CHARINDEX(':', REVERSE(ar.endpoint_url)) - 1) AS port
FROM sys.availability_replicas ar ORDER BY 1
-- name: threads of the group
SELECT name, num_databases, num_capture_threads, num_redo_threads, num_parallel_redo_threads FROM sys.dm_hadr_ag_threads
-- name: sessions by login
SELECT login_name, COUNT(*) AS [sessions], MIN(login_time) AS oldest, DB_NAME(database_id) AS db FROM sys.dm_exec_sessions
WHERE is_user_process = 1 AND session_id <> @@SPID GROUP BY login_name, DB_NAME(database_id)
-- name: sessions with their connections
SELECT s.session_id, s.login_name, s.status, c.client_net_address, c.encrypt_option FROM sys.dm_exec_sessions s
INNER JOIN sys.dm_exec_connections c ON c.session_id = s.session_id
-- name: quorum
SELECT c.cluster_name, c.quorum_type_desc, c.quorum_state_desc, m.member_name, m.member_type_desc, m.member_state_desc, m.number_of_quorum_votes
FROM sys.dm_hadr_cluster c CROSS JOIN sys.dm_hadr_cluster_members m ORDER BY m.member_name
-- name: votes that are up
SELECT SUM(CASE WHEN member_state_desc = 'UP' THEN number_of_quorum_votes ELSE 0 END) AS up, SUM(number_of_quorum_votes) AS votes,
       CASE WHEN SUM(CASE WHEN member_state = 1 THEN number_of_quorum_votes ELSE 0 END) > SUM(number_of_quorum_votes) / 2 THEN 'quorum' ELSE 'no quorum' END AS verdict
FROM sys.dm_hadr_cluster_members
-- name: states that are no good
SELECT ar.replica_server_name, rs.synchronization_health_desc FROM sys.dm_hadr_availability_replica_states rs
JOIN sys.availability_replicas ar ON ar.replica_id = rs.replica_id WHERE rs.synchronization_health <> 2 OR rs.connected_state = 0
-- name: databases that are not synchronized
SELECT DB_NAME(database_id) AS db, synchronization_state_desc FROM sys.dm_hadr_database_replica_states
WHERE synchronization_state_desc NOT IN ('SYNCHRONIZED', 'SYNCHRONIZING') OR is_suspended = 1
-- name: suspended databases with reasons
SELECT DB_NAME(database_id) AS db, CASE suspend_reason WHEN 0 THEN 'User' WHEN 1 THEN 'Partner' WHEN 2 THEN 'Redo' ELSE 'none' END AS reason, COUNT(*) AS copies
FROM sys.dm_hadr_database_replica_states GROUP BY database_id, suspend_reason ORDER BY db
-- name: send queue in megabytes
SELECT ar.replica_server_name, CAST(SUM(drs.log_send_queue_size) / 1024.0 AS DECIMAL(10, 3)) AS send_queue_mb,
       CONVERT(varchar(20), CAST(MAX(drs.redo_queue_size) / 1024.0 AS DECIMAL(10, 3))) + ' MB' AS redo_queue
FROM sys.dm_hadr_database_replica_states drs JOIN sys.availability_replicas ar ON ar.replica_id = drs.replica_id
WHERE drs.is_primary_replica = 0 GROUP BY ar.replica_server_name ORDER BY ar.replica_server_name
-- name: waits of synchronous commits
SELECT wait_type, waiting_tasks_count, wait_time_ms,
       CASE WHEN waiting_tasks_count > 0 THEN wait_time_ms / waiting_tasks_count ELSE 0 END AS avg_ms,
       CAST(wait_time_ms * 1.0 / NULLIF(waiting_tasks_count, 0) AS DECIMAL(18, 2)) AS avg_exact
FROM sys.dm_os_wait_stats WHERE wait_type = 'HADR_SYNC_COMMIT'
-- name: waits by pattern
SELECT wait_type FROM sys.dm_os_wait_stats WHERE wait_type LIKE 'HADR[_]%' AND wait_type NOT LIKE '%[0-9]%'
-- name: counters of replicas
SELECT RTRIM(object_name) AS [object], RTRIM(counter_name) AS counter, RTRIM(instance_name) AS instance, cntr_value FROM sys.dm_os_performance_counters
WHERE object_name LIKE '%Availability Replica%' AND counter_name IN ('Bytes Sent to Replica/sec', 'Resent Bytes/sec') ORDER BY 2
-- name: transaction delay per write
SELECT a.instance_name, a.cntr_value AS delay_ms, b.cntr_value AS writes, CONVERT(decimal(10, 2), a.cntr_value * 1.0 / b.cntr_value) AS ms_per_write
FROM sys.dm_os_performance_counters a JOIN sys.dm_os_performance_counters b ON a.instance_name = b.instance_name
WHERE a.counter_name = 'Transaction Delay' AND b.counter_name = 'Mirrored Write Transactions/sec' ORDER BY 1
-- name: seeding under way
SELECT s.start_time, s.current_state, s.failure_state_desc, ag.name FROM sys.dm_hadr_automatic_seeding s JOIN sys.availability_groups ag ON ag.group_id = s.ag_id
-- name: progress of seeding
SELECT local_database_name, CONVERT(DECIMAL(5, 2), transferred_size_bytes * 100.0 / NULLIF(database_size_bytes, 0)) AS pct,
       CONVERT(VARCHAR(19), start_time_utc, 120) AS started, CAST(transfer_rate_bytes_per_second / 1048576.0 AS decimal(10, 2)) AS mb_per_s
FROM sys.dm_hadr_physical_seeding_stats ORDER BY start_time_utc DESC
-- name: required secondaries
SELECT name, required_synchronized_secondaries_to_commit AS required,
       (SELECT COUNT(*) FROM sys.availability_replicas r WHERE r.group_id = g.group_id AND r.availability_mode = 1) - 1 AS synchronous_secondaries
FROM sys.availability_groups g
-- name: group settings
SELECT name, failure_condition_level, health_check_timeout / 1000 AS health_check_seconds, automated_backup_preference_desc,
       IIF(db_failover = 1, 'on', 'off') AS db_failover, IIF(is_distributed = 1, 'yes', 'no') AS distributed, cluster_type_desc FROM sys.availability_groups
-- name: backup priorities
SELECT replica_server_name, backup_priority, RANK() OVER (ORDER BY backup_priority DESC) AS place, seeding_mode_desc, session_timeout FROM sys.availability_replicas ORDER BY place, 1
-- name: databases outside of the group
SELECT d.name, CASE WHEN d.replica_id IS NULL THEN 'no' ELSE 'yes' END AS in_group, d.state_desc, DATABASEPROPERTYEX(d.name, 'Updateability') AS updateability
FROM sys.databases d WHERE d.name NOT IN ('master', 'model', 'msdb', 'tempdb') AND d.state = 0 ORDER BY d.name
-- name: replicas of each database by CROSS APPLY
SELECT d.database_name, x.copies, x.synchronized FROM sys.availability_databases_cluster d
CROSS APPLY (SELECT COUNT(*) AS copies, SUM(CASE WHEN s.synchronization_state = 2 THEN 1 ELSE 0 END) AS synchronized
             FROM sys.dm_hadr_database_replica_states s WHERE s.group_database_id = d.group_database_id) AS x ORDER BY 1
-- name: the furthest secondary by OUTER APPLY
SELECT ag.name, best.replica_server_name, best.last_hardened_lsn FROM sys.availability_groups ag
OUTER APPLY (SELECT TOP (1) ar.replica_server_name, s.last_hardened_lsn FROM sys.dm_hadr_database_replica_states s
             JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id
             WHERE s.group_id = ag.group_id AND s.is_primary_replica = 0 ORDER BY s.last_hardened_lsn DESC, ar.replica_server_name) AS best
-- name: columns to rows by CROSS APPLY
SELECT ar.replica_server_name, v.setting, v.value FROM sys.availability_replicas ar
CROSS APPLY (VALUES ('mode', ar.availability_mode_desc), ('failover', ar.failover_mode_desc)) AS v(setting, value)
WHERE ar.replica_server_name IN ('a', 'w') ORDER BY 1, 2
-- name: the worst lags with ties
SELECT TOP (1) WITH TIES ar.replica_server_name, DB_NAME(s.database_id) AS db, s.redo_queue_size FROM sys.dm_hadr_database_replica_states s
JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id WHERE s.redo_queue_size IS NOT NULL ORDER BY s.redo_queue_size DESC
-- name: a page of databases
SELECT name FROM sys.databases ORDER BY name OFFSET 1 ROWS FETCH NEXT 1 ROWS ONLY
-- name: matrix of roles
SELECT SUM(CASE WHEN role_desc = 'PRIMARY' THEN 1 ELSE 0 END) AS [Primaries], SUM(CASE WHEN role_desc = 'SECONDARY' THEN 1 ELSE 0 END) AS [Secondaries],
       SUM(IIF(role_desc NOT IN ('PRIMARY', 'SECONDARY'), 1, 0)) AS [Others] FROM sys.dm_hadr_availability_replica_states
-- name: full join of names and states
SELECT COALESCE(cs.replica_server_name, cn.node_name) AS name, cs.join_state_desc, cn.group_name FROM sys.dm_hadr_availability_replica_cluster_states cs
FULL OUTER JOIN sys.dm_hadr_availability_replica_cluster_nodes cn ON cn.replica_server_name = cs.replica_server_name ORDER BY 1
-- name: one row per database with row numbers
SELECT db, replica FROM (SELECT DB_NAME(s.database_id) AS db, ar.replica_server_name AS replica,
    ROW_NUMBER() OVER (PARTITION BY s.database_id ORDER BY s.last_hardened_lsn, ar.replica_server_name) AS rn
    FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id) AS x WHERE rn = 1 ORDER BY db
-- name: synchronous health as JSON-free text
SELECT CONCAT(QUOTENAME(ar.replica_server_name), ': ', rs.role_desc, ' (', ISNULL(rs.operational_state_desc, 'n/a'), ')') AS line
FROM sys.availability_replicas ar JOIN sys.dm_hadr_availability_replica_states rs ON rs.replica_id = ar.replica_id ORDER BY ar.replica_server_name
-- name: failover readiness
SELECT cs.database_name, ar.replica_server_name, cs.is_failover_ready, cs.is_pending_secondary_suspend, cs.is_database_joined
FROM sys.dm_hadr_database_replica_cluster_states cs JOIN sys.availability_replicas ar ON ar.replica_id = cs.replica_id WHERE cs.database_name = 'shop' ORDER BY 2
-- name: potential loss as a time of day
SELECT ar.replica_server_name, CONVERT(varchar(8), DATEADD(ss, ISNULL(s.secondary_lag_seconds, 0), 0 + CAST('2000-01-01' AS datetime)), 108) AS lag
FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id WHERE s.is_primary_replica = 0
-- name: lag as hours, minutes and seconds
SELECT ar.replica_server_name, CONVERT(varchar(8), DATEADD(ss, ISNULL(s.secondary_lag_seconds, 0), '1900-01-01'), 108) AS lag
FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id
WHERE s.is_primary_replica = 0 AND DB_NAME(s.database_id) = 'shop' ORDER BY 1
-- name: an alert when something is wrong
SELECT TOP 1 'ALERT: ' + ar.replica_server_name + ' lags ' + CAST(s.redo_queue_size AS varchar(20)) + ' KB' AS message
FROM sys.dm_hadr_database_replica_states s INNER JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id
WHERE s.redo_queue_size > 0 ORDER BY s.redo_queue_size DESC, s.database_id
-- name: dates of the report
SELECT CONVERT(char(8), GETDATE(), 112) AS d, CONVERT(varchar(16), GETDATE(), 120) AS dt, DATENAME(weekday, GETDATE()) AS wd,
       DATEPART(hour, GETDATE()) AS h, FORMAT(GETDATE(), 'yyyy-MM-dd HH:mm') AS f, CAST(GETDATE() AS date) AS da, CONVERT(varchar(30), GETUTCDATE(), 126) AS iso
-- name: uptime of the instance
SELECT sqlserver_start_time, DATEDIFF(minute, sqlserver_start_time, GETDATE()) AS minutes_up,
       CAST(DATEDIFF(hour, sqlserver_start_time, SYSDATETIME()) / 24 AS varchar(10)) + 'd ' + CAST(DATEDIFF(hour, sqlserver_start_time, SYSDATETIME()) % 24 AS varchar(10)) + 'h' AS uptime
FROM sys.dm_os_sys_info
-- name: union of checks
SELECT 'replicas' AS [check], COUNT(*) AS n FROM sys.availability_replicas UNION ALL SELECT 'databases', COUNT(*) FROM sys.availability_databases_cluster
UNION ALL SELECT 'unhealthy', COUNT(*) FROM sys.dm_hadr_availability_replica_states WHERE synchronization_health < 2 ORDER BY [check]
-- name: average over window
SELECT DISTINCT ar.replica_server_name, AVG(CAST(s.redo_queue_size AS float)) OVER (PARTITION BY s.replica_id) AS mean_redo
FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id WHERE s.is_primary_replica = 0 ORDER BY 1
-- name: states of the local replica
SELECT rs.role_desc, rs.operational_state_desc, rs.recovery_health_desc FROM sys.dm_hadr_availability_replica_states AS rs WHERE rs.is_local = 1
-- name: lower-case role compared without case
SELECT ar.replica_server_name FROM sys.availability_replicas ar JOIN sys.dm_hadr_availability_replica_states rs ON rs.replica_id = ar.replica_id
WHERE rs.role_desc COLLATE SQL_Latin1_General_CP1_CI_AS = 'primary'
-- name: the listener's ports of every node
SELECT node_name, type_desc, port, state_desc FROM sys.dm_tcp_listener_states WHERE type_desc LIKE 'TSQL%' AND node_name < 'c' ORDER BY node_name, port
-- name: ids of the group as SQL Server writes them
SELECT UPPER(CAST(group_id AS varchar(36))) AS id, LEN(CAST(group_id AS nvarchar(36))) AS n FROM sys.availability_groups WHERE group_id = '0D9C6D8E-7E47-4B8A-8A4E-0123456789AB'
-- name: nested derived tables
SELECT q.state, q.n FROM (SELECT x.state, COUNT(*) AS n FROM (SELECT UPPER(LEFT(synchronization_state_desc, 4)) AS state FROM sys.dm_hadr_database_replica_states) AS x GROUP BY x.state) AS q ORDER BY q.n DESC
-- name: databases as an inventory lists them
SELECT d.name, d.database_id, d.recovery_model_desc, d.state_desc, d.user_access_desc, d.is_read_only, d.is_in_standby, d.is_read_committed_snapshot_on,
       d.snapshot_isolation_state_desc, d.is_auto_close_on, d.is_auto_shrink_on, d.is_encrypted, d.is_query_store_on, d.compatibility_level, d.create_date
FROM sys.databases AS d WITH (NOLOCK) WHERE d.source_database_id IS NULL ORDER BY d.name OPTION (RECOMPILE)
-- name: databases that a group could take and that are in none
SELECT d.name FROM sys.databases d WHERE d.database_id > 4 AND d.replica_id IS NULL AND d.recovery_model_desc = 'FULL' AND d.is_auto_close_on = 0
AND d.user_access = 0 AND d.state = 0 AND d.is_read_only = 0
-- name: databases in simple recovery, whose log cannot be backed up
SELECT COUNT(*) AS simple FROM sys.databases WHERE recovery_model = 3 AND name NOT IN ('master', 'model', 'msdb', 'tempdb')
-- name: the event session of availability groups
SELECT s.name, s.startup_state, CASE WHEN r.name IS NULL THEN 'stopped' ELSE 'running' END AS state
FROM sys.server_event_sessions AS s LEFT JOIN sys.dm_xe_sessions AS r ON r.name = s.name WHERE s.name = N'AlwaysOn_health'
-- name: whether the event session of availability groups runs
SELECT CASE WHEN EXISTS (SELECT 1 FROM sys.dm_xe_sessions WHERE name = 'AlwaysOn_health') THEN 1 ELSE 0 END AS running,
       (SELECT COUNT(*) FROM sys.server_event_sessions) AS sessions
-- name: where event sessions write
SELECT s.name, t.target_name, t.execution_count, CAST(t.target_data AS nvarchar(4000)) AS data
FROM sys.dm_xe_session_targets AS t INNER JOIN sys.dm_xe_sessions AS s ON s.address = t.event_session_address WHERE t.target_name IN ('ring_buffer', 'event_file')
-- name: events and targets of a session
SELECT s.name AS session_name, e.package + '.' + e.name AS event_name, t.name AS target FROM sys.server_event_sessions s
JOIN sys.server_event_session_events e ON e.event_session_id = s.event_session_id
JOIN sys.server_event_session_targets t ON t.event_session_id = s.event_session_id
-- name: options of the server
SELECT name, value, value_in_use, description FROM sys.configurations WITH (NOLOCK) WHERE name IN ('max degree of parallelism', 'xp_cmdshell', 'backup compression default') ORDER BY name
-- name: options whose value is not in use
SELECT COUNT(*) AS pending FROM sys.configurations WHERE value <> value_in_use
-- name: databases of the local replica, as a dashboard asks
SELECT AG.name AS AvailabilityGroupName, dbcs.database_name AS DatabaseName, ISNULL(dbrs.synchronization_state, 0) AS SynchronizationState,
       ISNULL(dbrs.is_suspended, 0) AS IsSuspended, ISNULL(dbcs.is_database_joined, 0) AS IsJoined, dbcs.is_failover_ready AS IsFailoverReady
FROM master.sys.availability_groups AS AG
LEFT OUTER JOIN master.sys.dm_hadr_availability_group_states AS agstates ON AG.group_id = agstates.group_id
INNER JOIN master.sys.availability_replicas AS AR ON AG.group_id = AR.group_id
INNER JOIN master.sys.dm_hadr_availability_replica_states AS arstates ON AR.replica_id = arstates.replica_id AND arstates.is_local = 1
INNER JOIN master.sys.dm_hadr_database_replica_cluster_states AS dbcs ON arstates.replica_id = dbcs.replica_id
LEFT OUTER JOIN master.sys.dm_hadr_database_replica_states AS dbrs ON dbcs.replica_id = dbrs.replica_id AND dbcs.group_database_id = dbrs.group_database_id
ORDER BY AG.name ASC, dbcs.database_name
-- name: replicas, as a dashboard asks
SELECT AR.replica_server_name AS Name, AR.availability_mode AS AvailabilityMode, AR.failover_mode AS FailoverMode, ISNULL(arstates.role, 3) AS Role,
       ISNULL(arstates.connected_state, 2) AS ConnectionState, ISNULL(AGcs.join_state, 0) AS JoinState, ISNULL(arstates.synchronization_health, 0) AS RollupSynchronizationState,
       ISNULL(arstates.last_connect_error_number, -1) AS LastConnectErrorNumber, ISNULL(AR.backup_priority, -1) AS BackupPriority,
       CASE WHEN AR.availability_mode = 4 THEN 1 ELSE 0 END AS IsConfigurationOnly
FROM master.sys.availability_replicas AS AR
LEFT OUTER JOIN master.sys.dm_hadr_availability_replica_states AS arstates ON AR.replica_id = arstates.replica_id
LEFT OUTER JOIN master.sys.dm_hadr_availability_replica_cluster_states AS AGcs ON AR.replica_id = AGcs.replica_id ORDER BY Name ASC
-- name: loss and recovery time, as a dashboard estimates them
SELECT ar.replica_server_name AS Replica, cs.database_name AS [Database],
       CASE WHEN cs.is_failover_ready = 1 OR rs.last_commit_time IS NULL OR p.last_commit_time IS NULL THEN 0
            ELSE DATEDIFF(ss, rs.last_commit_time, p.last_commit_time) END AS EstimatedDataLoss,
       ISNULL(CASE rs.redo_rate WHEN 0 THEN -1 ELSE CAST(rs.redo_queue_size AS float) / rs.redo_rate END, -1) AS EstimatedRecoveryTime
FROM sys.dm_hadr_database_replica_states rs
JOIN sys.dm_hadr_database_replica_cluster_states cs ON cs.replica_id = rs.replica_id AND cs.group_database_id = rs.group_database_id
JOIN sys.availability_replicas ar ON ar.replica_id = rs.replica_id
LEFT JOIN sys.dm_hadr_database_replica_states p ON p.group_database_id = rs.group_database_id AND p.is_primary_replica = 1
WHERE cs.database_name = 'shop' ORDER BY Replica
-- name: databases that a backup job on this replica has to back up
SELECT d.name, CASE WHEN d.replica_id IS NULL THEN 1 ELSE sys.fn_hadr_backup_is_preferred_replica(d.name) END AS back_up, d.recovery_model_desc
FROM sys.databases d LEFT JOIN sys.dm_hadr_database_replica_states s ON s.group_database_id = d.group_database_id AND s.is_local = 1
WHERE d.state_desc = 'ONLINE' AND d.is_in_standby = 0 AND d.source_database_id IS NULL AND ISNULL(s.is_suspended, 0) = 0 ORDER BY d.name
-- name: findings with priorities and links, as a health check reports them
SELECT 20 AS Priority, 'Availability Groups' AS FindingsGroup, 'Replica Behind' AS Finding, '' AS URL,
       'Replica ' + ar.replica_server_name + ' has ' + CAST(SUM(s.redo_queue_size) AS nvarchar(20)) + ' KB to redo.' AS Details
FROM sys.dm_hadr_database_replica_states s INNER JOIN sys.availability_replicas ar ON ar.replica_id = s.replica_id
WHERE s.redo_queue_size > 0 GROUP BY ar.replica_server_name
UNION ALL
SELECT 50, 'Availability Groups', 'Database Not In A Group', '', 'Database ' + QUOTENAME(name) FROM sys.databases WHERE replica_id IS NULL
UNION ALL
SELECT 10, 'Reliability', 'Auto-Close Enabled', '', name FROM sys.databases WHERE is_auto_close_on = 1
ORDER BY Priority, Details
-- name: name of the server, with the properties that collectors ask first
SELECT ISNULL(CAST(SERVERPROPERTY('InstanceName') AS sysname), 'DEFAULT') AS instance, CAST(SERVERPROPERTY('ServerName') AS nvarchar(128)) AS server,
       CASE WHEN SERVERPROPERTY('EngineEdition') IN (5, 6, 8) THEN 'cloud' ELSE 'box' END AS kind, SERVERPROPERTY('IsClustered') AS clustered
-- name: addresses of the listener that are not online
SELECT l.dns_name, i.ip_address, i.state_desc FROM sys.availability_group_listeners l
JOIN sys.availability_group_listener_ip_addresses i ON i.listener_id = l.listener_id WHERE i.state <> 1
-- name: one line for each replica with its databases
SELECT ar.replica_server_name, COUNT(DISTINCT s.group_database_id) AS databases, MIN(s.synchronization_state_desc) AS worst,
       STRING_AGG(CONCAT(DB_NAME(s.database_id), '=', s.synchronization_state_desc), ';') WITHIN GROUP (ORDER BY s.database_id) AS detail
FROM sys.availability_replicas ar LEFT JOIN sys.dm_hadr_database_replica_states s ON s.replica_id = ar.replica_id GROUP BY ar.replica_server_name ORDER BY 1
-- name: whether readers are routed while this replica is the primary
SELECT ar.replica_server_name, ar.secondary_role_allow_connections_desc, CASE WHEN l.replica_id IS NULL THEN 'no list' ELSE 'list' END AS routing
FROM sys.availability_replicas ar LEFT JOIN (SELECT DISTINCT replica_id FROM sys.availability_read_only_routing_lists) l ON l.replica_id = ar.replica_id
WHERE ar.availability_mode <> 4 ORDER BY ar.replica_server_name

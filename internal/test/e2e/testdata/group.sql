-- The life of a group, as an administrator of SQL Server types it: psql -v n1=PORT -v n2=PORT -v n3=PORT -v ro1=PORT -v ro2=PORT -f group.sql
-- on three nodes that have joined each other and have no group (coterie lab up --no-group). :n1 is the port of the node that has the data.
-- What it prints is in group.out.
\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset tuples_only on

\echo == create
\connect coterie - 127.0.0.1 :n1
CREATE AVAILABILITY GROUP [DemoAG]
    WITH (AUTOMATED_BACKUP_PREFERENCE = SECONDARY, DB_FAILOVER = ON, FAILURE_CONDITION_LEVEL = 3, HEALTH_CHECK_TIMEOUT = 30000)
    FOR DATABASE [shop]
    REPLICA ON
        N'N1' WITH (ENDPOINT_URL = N'TCP://N1.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SEEDING_MODE = AUTOMATIC,
            PRIMARY_ROLE (ALLOW_CONNECTIONS = ALL, READ_ONLY_ROUTING_LIST = ('N2', 'N1'))),
        N'N2' WITH (ENDPOINT_URL = N'TCP://N2.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SEEDING_MODE = AUTOMATIC),
        N'N3' WITH (ENDPOINT_URL = N'TCP://N3.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SEEDING_MODE = AUTOMATIC)
    LISTENER N'DemoAG-L' (PORT = 1433);
\connect coterie - 127.0.0.1 :n2
ALTER AVAILABILITY GROUP [DemoAG] JOIN;
\connect coterie - 127.0.0.1 :n3
ALTER AVAILABILITY GROUP [DemoAG] JOIN;
ALTER AVAILABILITY GROUP [DemoAG] GRANT CREATE ANY DATABASE;
SELECT r.replica_server_name, s.role_desc, s.synchronization_health_desc, c.join_state_desc
    FROM sys.availability_replicas r JOIN sys.dm_hadr_availability_replica_states s ON s.replica_id = r.replica_id
    JOIN sys.dm_hadr_availability_replica_cluster_states c ON c.replica_id = r.replica_id ORDER BY 1;
SELECT name, dns_name, g.failure_condition_level, g.health_check_timeout FROM sys.availability_groups g JOIN sys.availability_group_listeners l ON l.group_id = g.group_id;

\echo == routing
\connect coterie - 127.0.0.1 :n1
ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N1' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY, READ_ONLY_ROUTING_URL = N'TCP://N1.contoso.com:1433'));
ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('N2','N3'),'N1')));
ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N2' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('N1','N3'),'N2')));
ALTER AVAILABILITY GROUP [DemoAG] MODIFY REPLICA ON N'N3' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('N1','N2'),'N3')));
SELECT o.replica_server_name, l.routing_priority, r.replica_server_name FROM sys.availability_read_only_routing_lists l
    JOIN sys.availability_replicas o ON o.replica_id = l.replica_id JOIN sys.availability_replicas r ON r.replica_id = l.read_only_replica_id
    WHERE o.replica_server_name = 'n1' ORDER BY 2, 3;
\connect postgres - 127.0.0.1 :ro1
SELECT 'read-only port of the primary: recovery ' || pg_is_in_recovery();
\connect postgres - 127.0.0.1 :n2
SELECT 'read-write port of a secondary: recovery ' || pg_is_in_recovery();

\echo == databases
\connect coterie - 127.0.0.1 :n1
ALTER AVAILABILITY GROUP [DemoAG] ADD DATABASE [orders];
SELECT database_name FROM sys.availability_databases_cluster ORDER BY 1;
\connect orders - 127.0.0.1 :n1
CREATE TABLE lines (id int PRIMARY KEY);
INSERT INTO lines VALUES (1), (2);
\connect coterie - 127.0.0.1 :n1
ALTER AVAILABILITY GROUP [DemoAG] REMOVE DATABASE [orders];
SELECT database_name FROM sys.availability_databases_cluster ORDER BY 1;

\echo == replicas
ALTER AVAILABILITY GROUP [DemoAG] REMOVE REPLICA ON N'N3';
SELECT replica_server_name FROM sys.availability_replicas ORDER BY 1;
ALTER AVAILABILITY GROUP [DemoAG] ADD REPLICA ON N'N3' WITH (ENDPOINT_URL = N'TCP://N3.contoso.com:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC,
    PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('N1','N2'),'N3')));
\connect coterie - 127.0.0.1 :n3
ALTER AVAILABILITY GROUP [DemoAG] JOIN;
SELECT r.replica_server_name, s.synchronization_state_desc FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas r ON r.replica_id = s.replica_id ORDER BY 1;

\echo == failover
\connect coterie - 127.0.0.1 :n2
ALTER AVAILABILITY GROUP [DemoAG] FAILOVER;
SELECT primary_replica FROM sys.dm_hadr_availability_group_states;
\connect orders - 127.0.0.1 :n1
SELECT 'lines', count(*), pg_is_in_recovery() FROM lines;
INSERT INTO lines VALUES (3);

\echo == force
\connect coterie - 127.0.0.1 :n3
ALTER AVAILABILITY GROUP [DemoAG] FORCE_FAILOVER_ALLOW_DATA_LOSS;
SELECT primary_replica FROM sys.dm_hadr_availability_group_states;
SELECT r.replica_server_name, s.is_suspended, s.suspend_reason_desc FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas r ON r.replica_id = s.replica_id ORDER BY 1;

\echo == resume
\connect coterie - 127.0.0.1 :n1
ALTER DATABASE [shop] SET HADR RESUME;
\connect coterie - 127.0.0.1 :n3
ALTER AVAILABILITY GROUP [DemoAG] RESUME REPLICA ON N'N2';
SELECT r.replica_server_name, s.is_suspended, s.synchronization_state_desc FROM sys.dm_hadr_database_replica_states s JOIN sys.availability_replicas r ON r.replica_id = s.replica_id ORDER BY 1;
\connect orders - 127.0.0.1 :ro3
SELECT 'read-only port of the primary: recovery ' || pg_is_in_recovery();

\echo == drop
\connect coterie - 127.0.0.1 :n3
DROP AVAILABILITY GROUP [DemoAG];
SELECT count(*) FROM sys.availability_groups;
SELECT member_name FROM sys.dm_hadr_cluster_members ORDER BY 1;
\connect orders - 127.0.0.1 :n3
INSERT INTO lines VALUES (4);
SELECT 'lines', count(*) FROM lines;

\echo == create again, of two of them and with nothing but names
\connect coterie - 127.0.0.1 :n3
CREATE AVAILABILITY GROUP Second FOR REPLICA ON N'N3', N'N1';
\connect coterie - 127.0.0.1 :n1
ALTER AVAILABILITY GROUP Second JOIN;
SELECT r.replica_server_name, s.role_desc, s.synchronization_health_desc
    FROM sys.availability_replicas r JOIN sys.dm_hadr_availability_replica_states s ON s.replica_id = r.replica_id ORDER BY 1;

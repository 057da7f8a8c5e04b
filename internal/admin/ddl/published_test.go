package ddl

import (
	"errors"
	"strings"
	"testing"
)

// published are the forms that SQL Server's reference has for the statements, each once, with what is refused of them.
var published = []struct{ text, refused string }{
	{`CREATE AVAILABILITY GROUP MyAg WITH (AUTOMATED_BACKUP_PREFERENCE = SECONDARY_ONLY, FAILURE_CONDITION_LEVEL = 5, HEALTH_CHECK_TIMEOUT = 600000, DB_FAILOVER = OFF, DTC_SUPPORT = NONE,
		REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1, CLUSTER_TYPE = EXTERNAL, WRITE_LEASE_VALIDITY = 20, CLUSTER_CONNECTION_OPTIONS = N'Encrypt=Strict')
		FOR DATABASE ThisDatabase, ThatDatabase
		REPLICA ON 'COMPUTER01' WITH (ENDPOINT_URL = 'TCP://COMPUTER01:5022', AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, BACKUP_PRIORITY = 30,
			SECONDARY_ROLE (ALLOW_CONNECTIONS = NO, READ_ONLY_ROUTING_URL = 'TCP://COMPUTER01:1433'), PRIMARY_ROLE (ALLOW_CONNECTIONS = READ_WRITE, READ_ONLY_ROUTING_LIST = (COMPUTER03)), SESSION_TIMEOUT = 10),
		'COMPUTER03' WITH (ENDPOINT_URL = 'TCP://COMPUTER03:5022', AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = EXTERNAL, SEEDING_MODE = MANUAL,
			PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = NONE, READ_WRITE_ROUTING_URL = 'TCP://COMPUTER03:1433'))
		LISTENER 'MyAgListener' (WITH IP (('10.120.19.155', '255.255.254.0'), ('2001:4898:e0:f213::4ce2')), PORT = 60173);`, ""},
	{`CREATE AVAILABILITY GROUP a WITH (BASIC) FOR REPLICA ON N'a' WITH (ENDPOINT_URL = N'tcp://a:5022', FAILOVER_MODE = MANUAL, AVAILABILITY_MODE = CONFIGURATION_ONLY)`, ""},
	{`CREATE AVAILABILITY GROUP a WITH (CONTAINED REUSE_SYSTEM_DATABASES) FOR REPLICA ON 'a' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = ALL READ_ONLY_ROUTING_URL = 'TCP://a:1'))`, ""},
	{`CREATE AVAILABILITY GROUP a WITH (CONTAINED AUTOSEEDING_SYSTEM_DATABASES) FOR REPLICA ON 'a' WITH (PRIMARY_ROLE (ALLOW_CONNECTIONS = ALL))`, ""},
	{`CREATE AVAILABILITY GROUP d WITH (DISTRIBUTED) AVAILABILITY GROUP ON 'ag1' WITH (LISTENER_URL = 'tcp://ag1:5022', AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL, SEEDING_MODE = AUTOMATIC)`, "DISTRIBUTED"},
	{`ALTER AVAILABILITY GROUP d JOIN AVAILABILITY GROUP ON 'ag1' WITH (LISTENER_URL = 'tcp://ag1:5022')`, "DISTRIBUTED"},
	{`ALTER AVAILABILITY GROUP d MODIFY AVAILABILITY GROUP ON 'ag1' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT), 'ag2' WITH (SEEDING_MODE = MANUAL)`, "DISTRIBUTED"},
	{`ALTER AVAILABILITY GROUP DemoAG SET (AUTOMATED_BACKUP_PREFERENCE = NONE)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (FAILURE_CONDITION_LEVEL = 1)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (HEALTH_CHECK_TIMEOUT = 60000)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (DB_FAILOVER = ON)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (DTC_SUPPORT = PER_DB)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (CLUSTER_CONNECTION_OPTIONS = 'HostNameInCertificate=x')`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG SET (ROLE = SECONDARY)`, "SET (ROLE = SECONDARY)"},
	{`ALTER AVAILABILITY GROUP DemoAG ADD DATABASE MyDb3`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG ADD REPLICA ON 'srv1' WITH (ENDPOINT_URL = 'TCP://srv1:7022', PRIMARY_ROLE (ALLOW_CONNECTIONS = ALL), SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY), AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL)`, "no node N'srv1' has joined"},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (ENDPOINT_URL = 'TCP://srv154:7022')`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (FAILOVER_MODE = AUTOMATIC)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (SEEDING_MODE = AUTOMATIC)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (BACKUP_PRIORITY = 0)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('srv155', 'srv154')))`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY REPLICA ON 'srv154' WITH (SESSION_TIMEOUT = 15)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG REMOVE REPLICA ON 'srv155'`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG JOIN`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG JOIN WITH (CLUSTER_TYPE = NONE)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG GRANT CREATE ANY DATABASE`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG DENY CREATE ANY DATABASE`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG FAILOVER`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG FORCE_FAILOVER_ALLOW_DATA_LOSS`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH DHCP)`, "WITH DHCP"},
	{`ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH DHCP ON ('10.100.1.0', '255.255.255.0'), PORT = 1433)`, "WITH DHCP"},
	{`ALTER AVAILABILITY GROUP DemoAG ADD LISTENER 'l' (WITH IP (('10.120.19.155', '255.255.254.0')), PORT = 1433)`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY LISTENER 'l' (ADD IP ('10.120.19.156', '255.255.254.0'))`, "availability group N'DemoAG' has no listener"},
	{`ALTER AVAILABILITY GROUP DemoAG MODIFY LISTENER 'l' (PORT = 1434)`, "availability group N'DemoAG' has no listener"},
	{`ALTER AVAILABILITY GROUP DemoAG REMOVE LISTENER 'l'`, "availability group N'DemoAG' has no listener"},
	{`ALTER AVAILABILITY GROUP DemoAG RESTART LISTENER 'l'`, ""},
	{`ALTER AVAILABILITY GROUP DemoAG OFFLINE`, "OFFLINE"},
	{`DROP AVAILABILITY GROUP DemoAG`, ""},
	{`ALTER DATABASE MyDb SET HADR AVAILABILITY GROUP = DemoAG`, "database N'MyDb' is not in availability group"},
	{`ALTER DATABASE MyDb SET HADR SUSPEND`, "SET HADR SUSPEND failed"},
	{`ALTER DATABASE MyDb SET HADR RESUME`, "SET HADR RESUME failed"},
	{`ALTER DATABASE MyDb SET HADR OFF`, "database N'MyDb' is not in availability group"},
	{`CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 5022) FOR DATABASE_MIRRORING (ROLE = ALL)`, ""},
	{`GRANT CONTROL ON AVAILABILITY GROUP::DemoAG TO x`, ""},
}

// TestPublishedStatements holds that every form of the published statements is parsed, and that what is refused of them
// is refused by its name, and not as a fault of the spelling. Forms that never work say what to do instead.
func TestPublishedStatements(t *testing.T) {
	for _, tt := range published {
		s, err := Parse(tt.text)
		if _, creating := s.Action.(Create); err == nil && !creating {
			_, _, err = s.Change(demo(), onPrimary)
		}
		var known *Error
		switch {
		case tt.refused == "" && err != nil:
			t.Errorf("%s: %v", tt.text, err)
		case tt.refused == "":
		case !errors.As(err, &known) || !strings.HasPrefix(known.Message, tt.refused):
			t.Errorf("%s: %v, want a refusal of %s", tt.text, err, tt.refused)
		case known.State == StateNotSupported && known.Hint == "":
			t.Errorf("%s: %v does not say what to do instead", tt.text, err)
		}
	}
}

// careless are statements as they are typed in haste, with the text that they are read as, or the beginning of the
// error and of its hint.
var careless = []struct{ text, want, hint string }{
	{"ALTER AVAILABILITY GROUP g FAILOVER --force", "--force behind 'FAILOVER' is a remark in SQL", "ALTER AVAILABILITY GROUP [group] FORCE_FAILOVER_ALLOW_DATA_LOSS"},
	{"ALTER AVAILABILITY GROUP g FAILOVER --FORCE;", "--FORCE behind", "ALTER AVAILABILITY GROUP [group] FORCE_FAILOVER_ALLOW_DATA_LOSS"},
	{"ALTER AVAILABILITY GROUP g FAILOVER --allow_data_loss --now", "--allow_data_loss behind", "ALTER AVAILABILITY GROUP [group] FORCE_FAILOVER_ALLOW_DATA_LOSS"},
	{"ALTER AVAILABILITY GROUP g --dry-run\nFAILOVER", "--dry-run behind 'g'", "EXPLAIN FAILOVER"},
	{"ALTER AVAILABILITY GROUP [g] FAILOVER --to n2", "--to behind", "FAILOVER TO N'name'"},
	{"DROP AVAILABILITY GROUP g --yes", "--yes behind 'g'", "coterie failover"},
	{"ALTER AVAILABILITY GROUP g FAILOVER -- force", "ALTER AVAILABILITY GROUP [g] FAILOVER", ""},
	{"--force\nALTER AVAILABILITY GROUP g FAILOVER", "ALTER AVAILABILITY GROUP [g] FAILOVER", ""},
	{"ALTER AVAILABILITY GROUP g FAILOVER --to the second site, at night", "ALTER AVAILABILITY GROUP [g] FAILOVER", ""},
	{"ALTER AVAILABILITY GROUP g FAILOVER --forceful", "ALTER AVAILABILITY GROUP [g] FAILOVER", ""},
	{"ALTER AVAILABILITY GROUP g FAILOVER -force", "incorrect syntax near '-'", ""},
	{"ALTER AVAILABILITY GROUP g FAILOVER 'n2'", "incorrect syntax near N'n2'", ""},
	{"alter availability group [g] join with (cluster_type=none);", "ALTER AVAILABILITY GROUP [g] JOIN WITH (CLUSTER_TYPE = NONE)", ""},
	{"ALTER AVAILABILITY GROUP g JOIN WITH CLUSTER_TYPE = NONE", "incorrect syntax near 'CLUSTER_TYPE': expected (CLUSTER_TYPE = ...)", ""},
	{"ALTER AVAILABILITY GROUP g JOIN WITH (CLUSTER_TYPE = 'NONE')", "incorrect syntax near N'NONE': expected WSFC, EXTERNAL or NONE", ""},
	{"ALTER AVAILABILITY GROUP g JOIN WITH (CLUSTER_TYPE = NONE, DB_FAILOVER = ON)", "incorrect syntax near ','", ""},
	{"ALTER AVAILABILITY GROUP g ADD DATABASE a, [b c], \"d\"", "ALTER AVAILABILITY GROUP [g] ADD DATABASE [a], [b c], [d]", ""},
	{"ALTER AVAILABILITY GROUP g ADD DATABASE a,", "incorrect syntax near the end: expected a database's name", ""},
	{"ALTER AVAILABILITY GROUP g REMOVE DATABASE N'a'", "incorrect syntax near N'a': expected a database's name", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON a WITH (BACKUP_PRIORITY = 1), N'b' WITH (BACKUP_PRIORITY = 2)", "ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'a' WITH (BACKUP_PRIORITY = 1), N'b' WITH (BACKUP_PRIORITY = 2)", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (BACKUP_PRIORITY = 1), 'a' WITH (BACKUP_PRIORITY = 2)", "replica N'a' is given twice", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (BACKUP_PRIORITY = 1), REPLICA ON 'b' WITH (BACKUP_PRIORITY = 2)", "incorrect syntax near 'ON'", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (BACKUP_PRIORITY = 101)", "BACKUP_PRIORITY = 101 is out of range", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY LISTENER 'l' (REMOVE IP ('10.0.0.1'))", "ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (REMOVE IP (N'10.0.0.1'))", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY LISTENER 'l' (REMOVE IP ('10.0.0.1', '255.255.255.0'))", "ALTER AVAILABILITY GROUP [g] MODIFY LISTENER N'l' (REMOVE IP (N'10.0.0.1'))", ""},
	{"ALTER AVAILABILITY GROUP g ADD LISTENER 'my listener' (PORT = 5555)", "a listener's name is one of DNS", ""},
	{"ALTER AVAILABILITY GROUP g REMOVE LISTENER 'my listener'", "ALTER AVAILABILITY GROUP [g] REMOVE LISTENER N'my listener'", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY LISTENER 'l' (REMOVE IP ())", "incorrect syntax near ')': expected an address", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = none))", "ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'a' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = NONE))", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (PRIMARY_ROLE (READ_WRITE_ROUTING_URL = NONE))", "ALTER AVAILABILITY GROUP [g] MODIFY REPLICA ON N'a' WITH (PRIMARY_ROLE (READ_WRITE_ROUTING_URL = NONE))", ""},
	{"ALTER AVAILABILITY GROUP g MODIFY REPLICA ON 'a' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = ''))", "READ_ONLY_ROUTING_URL must have 1 to 512 characters", ""},
}

// TestCarelessStatements holds how statements that are typed in haste are read. An option of the shell is refused, as
// it would be a remark: the statement would do something else than its words say.
func TestCarelessStatements(t *testing.T) {
	t.Parallel()
	for _, tt := range careless {
		s, err := Parse(tt.text)
		got, hint := s.String(), ""
		if known := (*Error)(nil); errors.As(err, &known) {
			got, hint = known.Message, known.Hint
		}
		if err == nil && got != tt.want || !strings.HasPrefix(got, tt.want) || !strings.HasPrefix(hint, tt.hint) {
			t.Errorf("%q\n got %s (%s)\nwant %s (%s)", tt.text, got, hint, tt.want, tt.hint)
		}
	}
}

# What psycopg 3 does with the console: probe.py DSN GROUP REPLICA OTHER
import sys, psycopg

dsn, group, replica, other = sys.argv[1:]
with psycopg.connect(dsn) as c:
    with c.cursor(binary=True) as cur:
        cur.execute("SELECT replica_server_name, session_timeout, now() FROM sys.availability_replicas WHERE session_timeout > %s AND replica_server_name = %s", (3, replica))
        r = cur.fetchone()
        print(r[0], r[1], r[2].year > 2025)
    for i in range(8):  # prepared by the server from the sixth on
        r = c.execute("SELECT count(*) FROM sys.availability_replicas WHERE session_timeout > %s", (i,)).fetchone()
    print(r[0])
    c.rollback()
    c.autocommit = True
    notices = []
    c.add_notice_handler(lambda d: notices.append(d.message_primary))
    c.execute(f"ALTER AVAILABILITY GROUP {group} MODIFY REPLICA ON N'{other}' WITH (SECONDARY_ROLE (READ_ONLY_ROUTING_URL = N'TCP://b:1433'))")
    print(len(notices))
    try:
        c.execute(f"ALTER AVAILABILITY GROUP {group} FROB")
    except psycopg.Error as e:
        print(e.sqlstate, int(e.diag.statement_position) - len(group))
    print(c.execute("SELECT 1").fetchone()[0])

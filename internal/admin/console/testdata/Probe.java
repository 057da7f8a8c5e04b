import java.sql.*;

/** What pgjdbc does with the console: Probe URL USER PASSWORD GROUP REPLICA OTHER. */
public class Probe {
    public static void main(String[] a) throws Exception {
        try (Connection c = DriverManager.getConnection(a[0], a[1], a[2])) {
            DatabaseMetaData m = c.getMetaData();
            System.out.println(m.getDatabaseProductName());
            try (ResultSet r = m.getTables(null, "coterie", "repl%", null)) {
                while (r.next()) System.out.println(r.getString("TABLE_SCHEM") + "." + r.getString("TABLE_NAME"));
            }
            try (PreparedStatement p = c.prepareStatement("SELECT replica_server_name, session_timeout, now() FROM sys.availability_replicas WHERE replica_server_name = ? AND session_timeout > ?")) {
                for (int i = 0; i < 8; i++) {   // binary and named from the fifth on
                    p.setString(1, a[4]);
                    p.setInt(2, 3);
                    try (ResultSet r = p.executeQuery()) {
                        r.next();
                        if (i == 7) System.out.println(r.getString(1) + " " + r.getInt(2) + " " + (r.getTimestamp(3).toInstant().toString().compareTo("2026") > 0));
                    }
                }
            }
            c.setAutoCommit(false);
            try (Statement s = c.createStatement()) {
                s.setFetchSize(1);              // a portal, rows a few at a time
                int n = 0;
                try (ResultSet r = s.executeQuery("SELECT replica_server_name FROM sys.availability_replicas")) { while (r.next()) n++; }
                System.out.println(n);
                c.commit();
                c.setAutoCommit(true);
                s.execute("ALTER AVAILABILITY GROUP " + a[3] + " MODIFY REPLICA ON '" + a[5] + "' WITH (BACKUP_PRIORITY = 9)");
                try { s.execute("ALTER AVAILABILITY GROUP " + a[3] + " FROB"); } catch (SQLException e) { System.out.println(e.getSQLState()); }
            }
            System.out.println(c.isValid(5));
        }
    }
}

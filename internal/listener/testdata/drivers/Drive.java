// What pgjdbc makes of the listener. Arguments: host, read-write port, read-only port.
import java.sql.*;

public class Drive {
    static Connection connect(String hosts, String more) throws SQLException {
        return DriverManager.getConnection("jdbc:postgresql://" + hosts + "/postgres?user=postgres&sslmode=disable&prepareThreshold=1" + more);
    }

    static String one(Connection c, String sql) throws SQLException {
        try (Statement s = c.createStatement(); ResultSet r = s.executeQuery(sql)) {
            r.next();
            return r.getString(1);
        }
    }

    static String state(Connection c) {
        try {
            return one(c, "select 1") + " answered";
        } catch (SQLException e) {
            return e.getSQLState();
        }
    }

    public static void main(String[] a) throws Exception {
        String rw = a[0] + ":" + a[1], ro = a[0] + ":" + a[2], dead = a[0] + ":1";
        // Several hosts, the first of which is down; the role is judged by what the session reports.
        try (Connection idle = connect(dead + "," + rw, "&targetServerType=primary"); Connection open = connect(rw, "");
             Connection reader = connect(ro, "")) {
            int n = 0;
            for (int i = 0; i < 3; i++) {
                try (PreparedStatement p = idle.prepareStatement("select ?::int + ?::int")) {
                    p.setInt(1, 40);
                    p.setInt(2, 2);
                    ResultSet r = p.executeQuery();
                    r.next();
                    n = r.getInt(1);
                }
            }
            open.setAutoCommit(false);
            one(open, "select 1");
            System.out.println("ready " + n + " " + one(idle, "show cluster_name") + " " + one(reader, "show cluster_name"));
            System.in.read();
            System.out.println("heard " + state(idle) + " " + state(open));
        }
    }
}

// What HikariCP with pgjdbc makes of a primary that is killed. Arguments: host, read-write port. The retry loop catches
// 40001, and runs the transaction again on a connection of the pool.
import com.zaxxer.hikari.*;
import java.io.*;
import java.sql.*;
import java.util.*;
import org.postgresql.PGConnection;

public class Pool {
    static final List<String> seen = new ArrayList<>();
    static int tries;
    static final BufferedReader in = new BufferedReader(new InputStreamReader(System.in));

    static void say(String text) throws IOException {
        System.out.println(text);
        in.readLine();
    }

    static String where(Connection c) throws SQLException {
        try (Statement s = c.createStatement(); ResultSet r = s.executeQuery("select current_setting('cluster_name')")) {
            r.next();
            return r.getString(1);
        }
    }

    static int pid(Connection c) throws SQLException {
        return c.unwrap(PGConnection.class).getBackendPID();
    }

    static String attempt(HikariDataSource pool) throws Exception {
        try (Connection c = pool.getConnection()) {
            c.setAutoCommit(false);
            tries++;
            try {
                String name = where(c);
                if (tries == 1) {
                    say("open " + name);
                }
                name = where(c);
                c.commit();
                return name;
            } catch (SQLException e) {
                seen.add(e.getSQLState());
                c.rollback();
                return null;
            }
        }
    }

    public static void main(String[] a) throws Exception {
        HikariConfig h = new HikariConfig();
        h.setJdbcUrl("jdbc:postgresql://" + a[0] + ":" + a[1] + "/postgres?user=postgres&sslmode=disable");
        h.setMaximumPoolSize(2);
        h.setMinimumIdle(2);
        try (HikariDataSource pool = new HikariDataSource(h)) {
            Set<Integer> known = new HashSet<>();
            try (Connection x = pool.getConnection(); Connection y = pool.getConnection()) {
                where(x);
                where(y);
                known.addAll(List.of(pid(x), pid(y)));
            }
            say("pooled");
            String name = null;
            for (int i = 0; i < 5 && name == null; i++) {
                name = attempt(pool);
            }
            Set<String> names = new TreeSet<>();
            try (Connection x = pool.getConnection(); Connection y = pool.getConnection()) {
                known.addAll(List.of(pid(x), pid(y)));
                names.addAll(Set.copyOf(List.of(where(x), where(y))));
            }
            System.out.println("heard " + String.join(",", seen) + " then " + name + " both at " + String.join(" ", names)
                + " connections " + known.size());
        }
    }
}

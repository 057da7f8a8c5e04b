import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Properties;
import java.util.Scanner;
import java.util.Set;

/**
 * Makes one order for each line of standard input, and prints the line once the order is safe. It goes on through a
 * failover: examples/README.md. It needs pgjdbc.
 */
public class App {
  static final long PATIENCE = 120_000; // milliseconds for one order, with all its attempts
  static final long PAUSE = 200; // milliseconds between two attempts

  /** SQLSTATEs after which no commit can have happened, not even of a COMMIT that was sent. */
  static final Set<String> NOT_DONE = Set.of("57P01", "57P03", "40001", "40P01", "53300");

  Connection conn; // the one connection of this program; a pool serves as well
  boolean committing;

  public static void main(String[] args) throws Exception {
    App app = new App();
    for (Scanner lines = new Scanner(System.in); lines.hasNextLine(); ) {
      String key = lines.nextLine();
      app.order(key);
      System.out.println(key);
    }
  }

  /** Makes an order exactly once, however many attempts that takes. */
  void order(String key) throws SQLException, InterruptedException {
    boolean unknown = false; // whether an earlier attempt may have been committed
    for (long end = System.currentTimeMillis() + PATIENCE; ; Thread.sleep(PAUSE)) {
      committing = false;
      try {
        attempt(key, unknown);
        return;
      } catch (SQLException err) {
        close(); // it is closed already, or in a state that is not worth finding out
        if (System.currentTimeMillis() > end) throw err;
        String state = err.getSQLState() == null ? "" : err.getSQLState();
        if (NOT_DONE.contains(state)) {
          // try again
        } else if (committing || state.equals("08007") || state.equals("23505")) {
          unknown = true; // look for it first
        } else if (!state.startsWith("08")) { // 08001 and 08006: the driver could not connect, or the connection broke
          throw err; // a mistake in the statement, or no permission: the next attempt would end in the same way
        }
        System.err.println("order " + key + ": again, unknown=" + unknown + ": " + err.getMessage());
      }
    }
  }

  /** Makes the order in one transaction, unless it is there. */
  void attempt(String key, boolean look) throws SQLException {
    if (conn == null) conn = connect();
    if (look) {
      try (PreparedStatement find = conn.prepareStatement("select 1 from orders where key = ?")) {
        find.setString(1, key);
        boolean there = find.executeQuery().next();
        conn.commit(); // this is what waits until the answer may be trusted
        if (there) return;
      }
    }
    try (PreparedStatement insert = conn.prepareStatement("insert into orders (key) values (?)");
        PreparedStatement take = conn.prepareStatement("update stock set taken = taken + 1 where item = 'book'")) {
      insert.setString(1, key);
      insert.executeUpdate();
      take.executeUpdate();
    }
    committing = true;
    conn.commit();
  }

  static Connection connect() throws SQLException {
    Properties p = new Properties();
    p.setProperty("user", System.getenv("PGUSER"));
    p.setProperty("password", System.getenv("PGPASSWORD"));
    p.setProperty("connectTimeout", "5");
    p.setProperty("socketTimeout", "30"); // a machine without power answers nothing
    p.setProperty("options", "-c coterie.reads=durable"); // what such a read shows, no failover takes away
    Connection c = DriverManager.getConnection("jdbc:postgresql://" + System.getenv("APP_HOSTS") + "/" + System.getenv("PGDATABASE"), p);
    c.setAutoCommit(false);
    return c;
  }

  void close() {
    try {
      if (conn != null) conn.close();
    } catch (SQLException ignored) {
    }
    conn = null;
  }
}

// What pgjdbc makes of a client certificate. Arguments: host, port, certificate (PEM), key (PKCS #8), authorities of the server.
import java.sql.*;

public class Certificate {
    public static void main(String[] a) throws Exception {
        String url = "jdbc:postgresql://" + a[0] + ":" + a[1] + "/postgres?user=alice&sslmode=verify-ca&sslcert=" + a[2] + "&sslkey=" + a[3] + "&sslrootcert=" + a[4];
        try (Connection c = DriverManager.getConnection(url); Statement s = c.createStatement(); ResultSet r = s.executeQuery("select session_user")) {
            r.next();
            System.out.println("logged in as " + r.getString(1));
        }
    }
}

"""Makes one order for each line of standard input, and prints the line once the order is safe. It goes on through a
failover: examples/README.md. It needs psycopg 3; PGUSER, PGPASSWORD and PGDATABASE are read by libpq."""
import logging
import os
import sys
import time

import psycopg

PATIENCE = 120  # seconds for one order, with all its attempts
PAUSE = 0.2  # seconds between two attempts

# SQLSTATEs after which no commit can have happened, not even of a COMMIT that was sent.
NOT_DONE = {"57P01", "57P03", "40001", "40P01", "53300"}


class Database:
    """The one connection of this program. A pool serves as well: it makes a new connection after each failure."""

    def __init__(self):
        self.conn = None
        self.committing = False

    def order(self, key):
        """Makes an order exactly once, however many attempts that takes."""
        unknown = False  # whether an earlier attempt may have been committed
        end = time.monotonic() + PATIENCE
        while True:
            self.committing = False
            try:
                return self.attempt(key, unknown)
            except psycopg.Error as err:
                if self.conn:  # it is closed already, or in a state that is not worth finding out
                    self.conn.close()
                    self.conn = None
                if time.monotonic() > end:
                    raise
                state = err.sqlstate  # None: the server said nothing, the connection broke or could not be made
                if state in NOT_DONE:
                    pass  # try again
                elif self.committing or state in ("08007", "23505"):
                    unknown = True  # look for it first
                elif state:
                    raise  # a mistake in the statement, or no permission: the next attempt would end in the same way
                logging.warning("order %s: again, unknown=%s: %s", key, unknown, err)
            time.sleep(PAUSE)

    def attempt(self, key, look):
        """Makes the order in one transaction, unless it is there."""
        if not self.conn:
            self.conn = connect()
        if look:
            there = self.conn.execute("select exists (select from orders where key = %s)", [key]).fetchone()[0]
            self.conn.commit()  # this is what waits until the answer may be trusted
            if there:
                return
        self.conn.execute("insert into orders (key) values (%s)", [key])  # psycopg begins a transaction by itself
        self.conn.execute("update stock set taken = taken + 1 where item = 'book'")
        self.committing = True
        self.conn.commit()


def connect():
    pairs = [pair.rsplit(":", 1) for pair in os.environ["APP_HOSTS"].split(",")]
    return psycopg.connect(
        host=",".join(host for host, _ in pairs),
        port=",".join(port for _, port in pairs),
        connect_timeout=5,
        tcp_user_timeout=10000,  # milliseconds: a machine without power answers nothing
        keepalives_idle=10,
        options="-c coterie.reads=durable",  # what such a read shows, no failover takes away
    )


database = Database()
for line in sys.stdin:
    database.order(line.strip())
    print(line.strip(), flush=True)

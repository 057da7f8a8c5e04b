"""What a pool of a Python driver makes of a primary that is killed: psycopg's, SQLAlchemy's, or Django's connections.
Arguments: driver, host, read-write port. The retry loop is the one of each driver's manual: it catches 40001, and runs
the transaction again on a connection of the pool."""
import sys

driver, host, port = sys.argv[1:]
WHERE = "select current_setting('cluster_name')"
RETRIES = 5
seen = []  # what the loop caught
tries = 0


def say(*words):
    print(*words, flush=True)
    sys.stdin.readline()


def work(ask):
    """The transaction. The first try loses its server between two statements."""
    global tries
    tries += 1
    name = ask(WHERE)
    if tries == 1:
        say("open", name)
    return ask(WHERE)


if driver == "psycopg":
    import psycopg
    from psycopg_pool import ConnectionPool

    pool = ConnectionPool(f"host={host} port={port} user=postgres dbname=postgres sslmode=disable", min_size=2, max_size=2, open=True)
    pool.wait()

    def first(conn):
        return lambda sql: conn.execute(sql).fetchone()[0]

    def attempt():
        with pool.connection() as conn, conn.transaction():
            return work(first(conn))

    def both():
        with pool.connection() as a, pool.connection() as b:
            return [(first(c)(WHERE), c.info.backend_pid) for c in (a, b)]

    def state(e):
        return e.sqlstate
    failure = psycopg.Error
elif driver == "sqlalchemy":
    from sqlalchemy import create_engine, exc, text

    engine = create_engine(f"postgresql+psycopg://postgres@{host}:{port}/postgres?sslmode=disable", pool_size=2, max_overflow=0)

    def first(conn):
        return lambda sql: conn.execute(text(sql)).scalar()

    def pid(conn):
        return conn.connection.dbapi_connection.info.backend_pid

    def attempt():
        with engine.begin() as conn:
            return work(first(conn))

    def both():
        with engine.connect() as a, engine.connect() as b:
            return [(first(c)(WHERE), pid(c)) for c in (a, b)]

    def state(e):
        return e.orig.sqlstate
    failure = exc.DBAPIError
else:
    import django
    from django.conf import settings

    base = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "PORT": port, "NAME": "postgres", "USER": "postgres", "CONN_MAX_AGE": None,
            "OPTIONS": {"sslmode": "disable"}}
    settings.configure(DATABASES={"default": base, "other": base})
    django.setup()
    from django.db import connections as all_of, transaction, utils

    def first(alias):
        def ask(sql):
            with all_of[alias].cursor() as c:
                c.execute(sql)
                return c.fetchone()[0]
        return ask

    def pid(alias):
        all_of[alias].ensure_connection()
        return all_of[alias].connection.info.backend_pid

    def attempt():
        with transaction.atomic():
            return work(first("default"))

    def both():
        return [(first(alias)(WHERE), pid(alias)) for alias in ("default", "other")]

    def state(e):
        return e.__cause__.sqlstate
    failure = utils.Error

before = both()
say("pooled")
for _ in range(RETRIES):
    try:
        name = attempt()
        break
    except failure as e:
        seen.append(state(e) or "none")
else:
    name = "nowhere"
after = both()
print("heard", ",".join(seen), "then", name, "both at", *sorted({name for name, _ in after}), "connections", len({pid for _, pid in before + after}), flush=True)

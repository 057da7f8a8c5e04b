"""What SQLAlchemy makes of the listener. Arguments: host, read-write port, read-only port."""
import sys
from sqlalchemy import create_engine, exc, text

host, rw, ro = sys.argv[1:]
engine = lambda port: create_engine(f"postgresql+psycopg://postgres@{host}:{port}/postgres?sslmode=disable")
idle, opened, reader = engine(rw).connect().execution_options(isolation_level="AUTOCOMMIT"), engine(rw).connect(), engine(ro).connect()
n = [idle.execute(text("select cast(:a as int) + cast(:b as int)"), {"a": 40, "b": 2}).scalar() for _ in range(7)][-1]
opened.execute(text("select 1"))
name = text("show cluster_name")
print("ready", n, idle.execute(name).scalar(), reader.execute(name).scalar(), flush=True)
sys.stdin.readline()


def state(connection):
    try:
        connection.execute(text("select 1"))
        return "answered"
    except exc.DBAPIError as e:
        return e.orig.sqlstate


print("heard", state(idle), state(opened), flush=True)

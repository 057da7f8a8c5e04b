"""What Django makes of the listener. Arguments: host, read-write port, read-only port."""
import sys
import django
from django.conf import settings

host, rw, ro = sys.argv[1:]
base = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "NAME": "postgres", "USER": "postgres", "OPTIONS": {"sslmode": "disable"}}
settings.configure(DATABASES={"default": base | {"PORT": rw}, "open": base | {"PORT": rw}, "reader": base | {"PORT": ro}})
django.setup()
from django.db import connections, transaction, utils


def one(alias, sql, *args):
    with connections[alias].cursor() as c:
        c.execute(sql, args)
        return c.fetchone()[0]


def state(alias):
    try:
        one(alias, "select 1")
        return "answered"
    except utils.Error as e:
        return e.__cause__.sqlstate


n = one("default", "select %s::int + %s::int", 40, 2)
try:
    with transaction.atomic(using="open"):
        one("open", "select 1")
        print("ready", n, one("default", "show cluster_name"), one("reader", "show cluster_name"), flush=True)
        sys.stdin.readline()
        print("heard", state("default"), state("open"), flush=True)
except utils.Error:
    pass  # the rollback of a closed connection

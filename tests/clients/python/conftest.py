"""Fixtures: clients on the server that BIGTABLE_EMULATOR_HOST names, and tables with names of their own."""

import itertools
import os
import uuid

import pytest
from google.cloud import bigtable
from google.cloud.bigtable.data import BigtableDataClient

PROJECT = "tests"
INSTANCE = "python"
PARENT = f"projects/{PROJECT}/instances/{INSTANCE}"

if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
    pytest.exit("BIGTABLE_EMULATOR_HOST is not set: run these tests by `make clients`", returncode=2)

_numbers = itertools.count()
_run = uuid.uuid4().hex[:8]


def fresh_name(kind="t"):
    """A table name that no other test, nor an earlier run on the same server, has used."""
    return f"{kind}-{_run}-{next(_numbers)}"


@pytest.fixture(scope="session")
def client():
    """The classic client, with administration."""
    return bigtable.Client(project=PROJECT, admin=True)


@pytest.fixture(scope="session")
def admin(client):
    """The generated table-admin client, which knows every call."""
    return client.table_admin_client


@pytest.fixture(scope="session")
def data_client():
    """The data client."""
    with BigtableDataClient(project=PROJECT) as c:
        yield c


@pytest.fixture(scope="session")
def make_table(admin, data_client):
    """Makes a table from {family: ColumnFamily as a dict}, and opens it with the data client."""
    opened = []

    def make(families=("f", "g"), splits=()):
        name = fresh_name()
        if not isinstance(families, dict):
            families = {f: {} for f in families}
        admin.create_table(request={
            "parent": PARENT,
            "table_id": name,
            "table": {"column_families": families},
            "initial_splits": [{"key": s} for s in splits],
        })
        table = data_client.get_table(INSTANCE, name)
        opened.append(table)
        return table

    yield make
    for table in opened:
        table.close()


@pytest.fixture
def table(make_table):
    """A table of the test's own with the families f and g."""
    return make_table()

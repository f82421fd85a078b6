"""Fixtures: a server of the test's own, with a directory that is removed afterwards."""

import contextlib
import os
import pathlib
import shutil
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from harness import Server, temp_dir  # noqa: E402


@pytest.fixture
def scratch():
    directory = temp_dir("tepui-process-")
    yield pathlib.Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def make_server(scratch):
    """Makes servers that do not outlive the test."""
    with contextlib.ExitStack() as servers:
        def make(data="data", **options):
            server = Server(str(scratch / data), **options)
            servers.callback(server.kill)
            return server

        yield make


@pytest.fixture
def open_table(monkeypatch):
    """Opens the table `t` (family f) of a server with the Python client, and makes it where it is missing."""
    opened = []

    def open_(host):
        monkeypatch.setitem(os.environ, "BIGTABLE_EMULATOR_HOST", host)
        from google.cloud import bigtable
        from google.cloud.bigtable.data import BigtableDataClient

        classic = bigtable.Client(project="p", admin=True).instance("i").table("t")
        if not classic.exists():
            classic.create(column_families={"f": None})
        client = BigtableDataClient(project="p")
        table = client.get_table(
            "i", "t", default_operation_timeout=20, default_mutate_rows_operation_timeout=20, default_read_rows_operation_timeout=20,
            default_attempt_timeout=20, default_mutate_rows_attempt_timeout=20, default_read_rows_attempt_timeout=20,
        )
        opened.append((client, table))
        return table

    yield open_
    for client, table in opened:
        table.close()
        client.close()

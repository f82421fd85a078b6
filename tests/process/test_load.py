"""What load does to the real binary: memory stays in its budget, refusals say when to come back, others are served."""

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import threading
import time

import grpc
import pytest
from google.cloud.bigtable_v2.types import bigtable as messages
from google.cloud.bigtable_v2.types import data
from google.rpc import error_details_pb2, status_pb2

from observe import SERVE_METRICS, metrics, skip
from threads import in_threads

KIB, MIB = 1 << 10, 1 << 20
TABLE = "projects/p/instances/i/tables/t"
BUDGET = 256 * MIB
# The budget is of the process; a tenth more is what its allocator may be late with.
RESIDENT_MAX = BUDGET * 11 // 10
# Of a small write and a read of it beside all that: a second or two where the machine is slow, and far below what either may take.
OTHERS_SECONDS_MAX = 20
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class Client:
    """One connection, with the messages of the API and without the retries of the client library."""

    def __init__(self, host):
        self.channel = grpc.insecure_channel(host, options=OPTIONS)

        def call(kind, name, request, response):
            return kind(
                f"/google.bigtable.v2.Bigtable/{name}",
                request_serializer=request.serialize, response_deserializer=response.deserialize,
            )

        self.mutate_row = call(self.channel.unary_unary, "MutateRow", messages.MutateRowRequest, messages.MutateRowResponse)
        self.mutate_rows = call(self.channel.unary_stream, "MutateRows", messages.MutateRowsRequest, messages.MutateRowsResponse)
        self.read_rows = call(self.channel.unary_stream, "ReadRows", messages.ReadRowsRequest, messages.ReadRowsResponse)

    def close(self):
        self.channel.close()


@pytest.fixture
def connect():
    """Opens connections that end with the test."""
    clients = []

    def open_(host):
        clients.append(Client(host))
        return clients[-1]

    yield open_
    for client in clients:
        with contextlib.suppress(Exception):
            client.close()


def put(key, value):
    return messages.MutateRowRequest(table_name=TABLE, row_key=key.encode(), mutations=[cell(value)])


def cell(value):
    return data.Mutation(set_cell=data.Mutation.SetCell(family_name="f", column_qualifier=b"q", timestamp_micros=1000, value=value))


def bulk(keys, values):
    entry = messages.MutateRowsRequest.Entry
    entries = [entry(row_key=key.encode(), mutations=[cell(value)]) for key, value in zip(keys, values, strict=True)]
    return messages.MutateRowsRequest(table_name=TABLE, entries=entries)


def read(**how):
    return messages.ReadRowsRequest(table_name=TABLE, **how)


def retry_delay(details: bytes):
    """Seconds that the RetryInfo among a status's details says, or None."""
    status = status_pb2.Status.FromString(details)
    return entry_delay(status)


def entry_delay(status):
    for detail in status.details:
        if detail.type_url.endswith("google.rpc.RetryInfo"):
            info = error_details_pb2.RetryInfo.FromString(detail.value)
            return info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return None


def error_delay(error):
    details = [value for name, value in error.trailing_metadata() or () if name == "grpc-status-details-bin"]
    return retry_delay(details[0]) if details else None


def resident(server, field="VmHWM"):
    """Bytes of the server's memory: the most that it had, or that of now."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) * KIB for line in status.splitlines() if line.startswith(field))


@pytest.fixture
def small(make_server, open_table):
    """A server with a small budget of memory and an empty table."""
    server = make_server(env={"TEPUI_MEMORY": f"{BUDGET // MIB}MiB", **SERVE_METRICS})
    open_table(server.start())
    return server


@pytest.mark.timeout(600)
def test_memory_stays_in_its_budget_under_writes_scans_and_clients_that_do_not_read(small, connect):
    server = small
    stop = threading.Event()
    written, refused, without_hint, slowest = [], [], [], []
    noise = random.Random(1).randbytes(8 * MIB)

    def value(n, size):
        at = n * 7919 % (len(noise) - size)
        return noise[at : at + size]

    def write(worker):
        client = connect(server.host)
        for n in range(30):
            numbers = range(n * 40, n * 40 + 40)
            keys = [f"w{worker}-{i:05}" for i in numbers]
            todo = dict(zip(keys, (value(i * 4 + worker, 50 * KIB) for i in numbers), strict=True))
            while todo:
                keys = list(todo)
                try:
                    for message in client.mutate_rows(bulk(keys, todo.values()), timeout=60):
                        for entry in message.entries:
                            if entry.status.code == 0:
                                todo.pop(keys[entry.index])
                                written.append(keys[entry.index])
                                continue
                            assert entry.status.code == grpc.StatusCode.UNAVAILABLE.value[0], entry.status
                            refused.append(keys[entry.index])
                            if entry_delay(entry.status) is None:
                                without_hint.append(entry.status)
                except grpc.RpcError as error:
                    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
                    refused.append(error)
                    if error_delay(error) is None:
                        without_hint.append(error)
                if todo:
                    stop.wait(0.05)

    def scan():
        client = connect(server.host)
        while not stop.is_set():
            for _ in client.read_rows(read(), timeout=120):
                if stop.is_set():
                    return

    def stall():
        """Streams whose client takes one message, and then no more."""
        client, streams = connect(server.host), []
        while not stop.wait(0.2):
            # As many as the server lets one connection hold, and no more: another would wait for its first message.
            if len(streams) < 20:
                stream = client.read_rows(read(), timeout=100)
                streams.append(stream)
                with contextlib.suppress(StopIteration, grpc.RpcError):
                    next(stream)
        for stream in streams:
            stream.cancel()

    def cancel():
        client = connect(server.host)
        while not stop.is_set():
            stream = client.read_rows(read(), timeout=100)
            with contextlib.suppress(StopIteration, grpc.RpcError):
                next(stream)
            stream.cancel()

    def others():
        """What everybody else sees: small requests that must not wait for all that."""
        client, n = connect(server.host), 0
        while not stop.is_set():
            began = time.monotonic()
            try:
                client.mutate_row(put("other", b"%d" % n), timeout=30)
                n += 1
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and error_delay(error) is not None, error
            rows = list(client.read_rows(read(rows=data.RowSet(row_keys=[b"other"])), timeout=30))
            assert len(rows) <= 1
            slowest.append(time.monotonic() - began)
        assert n, "none of the others' writes was taken"

    def writers():
        try:
            in_threads(*(lambda w=w: write(w) for w in range(3)))
        finally:
            stop.set()

    in_threads(writers, scan, scan, *[stall] * 5, cancel, others)
    figures = metrics(server)
    assert len(written) == 3 * 30 * 40
    assert not without_hint
    peak = resident(server)
    parts = {name: int(v) for name, v in figures.items() if name.startswith("tepui_memory_bytes")}
    print(f"peak {peak / MIB:.0f} MiB, refused {len(refused)}, slowest other {max(slowest):.2f} s, parts {parts}")
    assert peak <= RESIDENT_MAX, parts
    assert max(slowest) < OTHERS_SECONDS_MAX
    assert figures["tepui_memory_budget_bytes"] == BUDGET
    keys = [c.row_key for m in connect(server.host).read_rows(read(filter=data.RowFilter(strip_value_transformer=True))) for c in m.chunks if c.row_key]
    assert set(written) <= {k.decode() for k in keys}
    server.stop()


@pytest.mark.timeout(600)
def test_large_requests_at_once_take_turns_and_those_that_never_fit_are_refused(small, connect):
    server = small
    sizes = [8 * MIB] * 24 + [250 * MIB] * 2
    outcomes, stop, others = [], threading.Event(), []

    def write(n, size):
        client = connect(server.host)
        request = bulk([f"large{n}-{i}" for i in range(8)], [os.urandom(size // 8)] * 8)
        for _ in range(200):
            try:
                codes = [e.status.code for m in client.mutate_rows(request, timeout=120) for e in m.entries]
                if set(codes) == {0}:
                    outcomes.append((size, "ok"))
                    return
                assert set(codes) <= {0, grpc.StatusCode.UNAVAILABLE.value[0]}, codes
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    outcomes.append((size, error.code()))
                    return
                assert error_delay(error) is not None
            time.sleep(random.uniform(0.05, 0.5))
        outcomes.append((size, "never"))

    def small_ones():
        client = connect(server.host)
        while not stop.is_set():
            with contextlib.suppress(grpc.RpcError):
                client.mutate_row(put("small", b"v"), timeout=30)
            others.append(list(client.read_rows(read(rows=data.RowSet(row_keys=[b"small"])), timeout=30)))

    def large_ones():
        try:
            in_threads(*(lambda n=n, size=size: write(n, size) for n, size in enumerate(sizes)))
        finally:
            stop.set()

    in_threads(large_ones, small_ones)
    assert outcomes.count((8 * MIB, "ok")) == 24, outcomes
    assert outcomes.count((250 * MIB, grpc.StatusCode.INVALID_ARGUMENT)) == 2, outcomes
    assert len(others) > 3
    assert resident(server) <= RESIDENT_MAX
    figures = metrics(server)
    assert figures['tepui_refused_total{reason="request_too_large"}'] == 2
    assert figures['tepui_memory_bytes{part="requests"}'] == 0
    server.stop()


def test_requests_that_are_begun_and_never_ended_do_not_keep_others_out(small, connect):
    server = small
    client = connect(server.host)
    client.mutate_row(put("r", b"v"), timeout=30)
    import socket

    host, port = server.host.rsplit(":", 1)
    held = []
    for _ in range(20):
        # The preface, empty settings, a request's headers without end, and a message that says that it is long.
        raw = socket.create_connection((host, int(port)))
        headers = b"".join(
            b"\x00" + bytes([len(name)]) + name + bytes([len(text)]) + text
            for name, text in [
                (b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/google.bigtable.v2.Bigtable/MutateRows"),
                (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
            ]
        )

        def frame(kind, flags, stream, payload):
            return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

        claim = b"\x00" + (8 * MIB).to_bytes(4, "big") + b"\x0a"
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 0, 1, claim))
        held.append(raw)
    for _ in range(50):
        client.mutate_row(put("r", b"v"), timeout=30)
    deadline = time.monotonic() + 60
    while metrics(server)['tepui_refused_total{reason="request_stalled"}'] < 1 and time.monotonic() < deadline:
        time.sleep(0.2)
    figures = metrics(server)
    assert figures['tepui_refused_total{reason="request_stalled"}'] >= 1
    for raw in held:
        raw.close()
    server.stop()


@pytest.fixture
def busy(make_server):
    """A server that is soon behind."""
    # Memtables that a few requests fill, and a disk that takes little: level 0 and memory come to their limits within seconds.
    env = {
        "TEPUI_MEMORY": f"{BUDGET // MIB}MiB", **SERVE_METRICS,
        "TEPUI_ENGINE_MEMTABLE_BYTES": "1MiB", "TEPUI_ENGINE_MEMTABLES_TOTAL_BYTES": "4MiB",
        "TEPUI_ENGINE_BACKGROUND_BYTES_PER_SECOND": "4MiB",
    }
    server = make_server(env=env)
    server.start()
    return server


def shed(server):
    """Requests that a server has refused."""
    return sum(v for name, v in metrics(server).items() if name.startswith("tepui_refused_total"))


@pytest.mark.timeout(600)
def test_the_go_client_gets_through_refusals(busy):
    if shutil.which("go") is None:
        skip("there is no Go toolchain")
    server = busy
    go = pathlib.Path(__file__).resolve().parents[1] / "clients" / "go"
    env = {**os.environ, "BIGTABLE_EMULATOR_HOST": server.host}
    command = ["go", "test", "-count=1", "-run", "TestWritesGetThroughRefusals", "."]
    done = subprocess.run(command, cwd=go, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert shed(server) > 0, "the server was never asked for too much"
    server.stop()


@pytest.mark.timeout(300)
def test_the_python_client_gets_through_refusals_and_sees_when_to_come_back(busy, open_table):
    from google.api_core import exceptions
    from google.cloud.bigtable.data import RowMutationEntry, SetCell
    from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup

    server = busy
    table = open_table(server.host)
    noise = random.Random(2).randbytes(4 * MIB)

    def entry(key, n):
        at = n * 7919 % (len(noise) - 20 * KIB)
        return RowMutationEntry(key, [SetCell("f", b"q", noise[at : at + 20 * KIB], timestamp_micros=1000)])

    def write(worker):
        for n in range(40):
            rows = [entry(f"w{worker}-{n}-{i}".encode(), n * 20 + i) for i in range(20)]
            retried = [exceptions.ResourceExhausted, exceptions.ServiceUnavailable, exceptions.DeadlineExceeded]
            table.bulk_mutate_rows(rows, operation_timeout=120, retryable_errors=retried)

    in_threads(*(lambda w=w: write(w) for w in range(4)))
    assert shed(server) > 0, "the server was never asked for too much"
    written = sum(len(m.chunks) for m in Client(server.host).read_rows(read(filter=data.RowFilter(strip_value_transformer=True))))
    assert written == 4 * 40 * 20

    # Who does not retry is told the delay by the error's details; the client gives these with errors of a whole request.
    delays = []
    deadline = time.monotonic() + 60

    def load(worker):
        n = 0
        while not delays and time.monotonic() < deadline:
            n += 1
            rows = [entry(f"x{worker}-{n}-{i}".encode(), n * 20 + i) for i in range(20)]
            with contextlib.suppress(MutationsExceptionGroup):
                table.bulk_mutate_rows(rows, retryable_errors=[])

    def look():
        value = noise[: 20 * KIB]
        while not delays and time.monotonic() < deadline:
            try:
                table.mutate_row(b"one", SetCell("f", b"q", value, timestamp_micros=1000), retryable_errors=[])
            except exceptions.ResourceExhausted as error:
                delays.extend(d.retry_delay for d in error.details if isinstance(d, error_details_pb2.RetryInfo))

    in_threads(look, *(lambda w=w: load(w) for w in range(4)))
    assert delays and all(d.seconds + d.nanos / 1e9 > 0 for d in delays), delays
    server.stop()

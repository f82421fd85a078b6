"""A consumer of a change stream and the server under it are killed, again and again, under load: no change is missed.

Garbage is collected all the while: whoever replays the stream has what the table has.
"""

import contextlib
import functools
import json
import multiprocessing
import os
import random
import threading
import time

import grpc
import pytest
from google.cloud.bigtable.data import SetCell
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin
from google.cloud.bigtable_admin_v2.types import table as tables
from google.cloud.bigtable_v2.types import bigtable as messages
from google.cloud.bigtable_v2.types import data
from google.longrunning import operations_pb2
from google.protobuf import duration_pb2, timestamp_pb2

from threads import in_threads

INSTANCE = "projects/p/instances/i"
TABLE = f"{INSTANCE}/tables/t"
DATA = "/google.bigtable.v2.Bigtable"
ADMIN = "/google.bigtable.admin.v2.BigtableTableAdmin"

# The bar: so many times the consumer is cut off, and every fourth time the server is killed under it.
KILLS = 20
ROWS = 40
WRITERS = 4
# Of each row, garbage collection keeps so many of its cells.
VERSIONS = 3
TYPE = messages.ReadChangeStreamResponse.DataChange.Type


def enable(channel, splits=()):
    """Creates the table with a change stream."""
    table = tables.Table(
        column_families={"f": tables.ColumnFamily(gc_rule=tables.GcRule(max_num_versions=VERSIONS))},
        change_stream_config=tables.ChangeStreamConfig(retention_period=duration_pb2.Duration(seconds=86_400)),
    )
    splits = [admin.CreateTableRequest.Split(key=key) for key in splits]
    request = admin.CreateTableRequest(parent=INSTANCE, table_id="t", table=table, initial_splits=splits)
    call = channel.unary_unary(
        f"{ADMIN}/CreateTable", request_serializer=admin.CreateTableRequest.serialize, response_deserializer=tables.Table.deserialize
    )
    call(request, timeout=20)


def partitions(channel):
    call = channel.unary_stream(
        f"{DATA}/GenerateInitialChangeStreamPartitions",
        request_serializer=messages.GenerateInitialChangeStreamPartitionsRequest.serialize,
        response_deserializer=messages.GenerateInitialChangeStreamPartitionsResponse.deserialize,
    )
    request = messages.GenerateInitialChangeStreamPartitionsRequest(table_name=TABLE)
    return [answer.partition for answer in call(request, timeout=20)]


def cells_of_table(channel):
    """By row: the numbers of its cells, by timestamp."""
    call = channel.unary_stream(
        f"{DATA}/ReadRows",
        request_serializer=messages.ReadRowsRequest.serialize,
        response_deserializer=messages.ReadRowsResponse.deserialize,
    )
    found, row = {}, b""
    for answer in call(messages.ReadRowsRequest(table_name=TABLE), timeout=20):
        for chunk in answer.chunks:
            row = chunk.row_key or row
            # A qualifier of some kilobytes and a small value: never in parts.
            found.setdefault(row, {})[chunk.timestamp_micros] = int(chunk.value)
    return found


class Consumer:
    """Reads one partition and keeps its checkpoint: what was seen up to the last token counts, the rest is forgotten."""

    def __init__(self, partition, start):
        self.partition = partition
        self.start = start
        self.token = None
        # By row: the numbers that were seen, in order. With a checkpoint, as a program that crashes has.
        self.seen = {}
        self.times = {}
        # By row: the numbers of its cells, by timestamp; what the table has, as far as the stream was read.
        self.cells = {}
        self.collected = 0

    def request(self):
        request = messages.ReadChangeStreamRequest(
            table_name=TABLE, partition=self.partition, heartbeat_duration=duration_pb2.Duration(nanos=200_000_000)
        )
        if self.token is None:
            request.start_time = self.start
        else:
            token = data.StreamContinuationToken(partition=self.partition, token=self.token)
            request.continuation_tokens = data.StreamContinuationTokens(tokens=[token])
        return request

    def read(self, channel, timeout):
        call = channel.unary_stream(
            f"{DATA}/ReadChangeStream",
            request_serializer=messages.ReadChangeStreamRequest.serialize,
            response_deserializer=messages.ReadChangeStreamResponse.deserialize,
        )
        return call(self.request(), timeout=timeout)

    def writes(self):
        """How many writes were seen."""
        return sum(map(len, self.seen.values()))

    def consume(self, host, is_enough):
        """Reads until `is_enough` says so or the server goes: whether an error told of its end."""
        with grpc.insecure_channel(host) as channel:
            call = self.read(channel, timeout=60)
            try:
                for record in call:
                    self.take(record)
                    if is_enough():
                        call.cancel()
                        break
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), error
                return True
            return False

    def take(self, record):
        if "heartbeat" in record:
            self.token = record.heartbeat.continuation_token.token
            return
        assert "data_change" in record, record
        change = record.data_change
        # Small values: each change is one message.
        assert change.done, change
        [chunk] = change.chunks
        row = change.row_key
        start, end = self.partition.row_range.start_key_closed, self.partition.row_range.end_key_open
        assert start <= row and (not end or row < end), row
        stamp = (change.commit_timestamp.timestamp(), change.tiebreaker)
        assert stamp > self.times.get(row, (0, 0)), f"{row}: {stamp} after {self.times[row]}"
        self.times[row] = stamp
        self.token = change.token
        cells = self.cells.setdefault(row, {})
        if change.type_ == TYPE.GARBAGE_COLLECTION:
            times = chunk.mutation.delete_from_column.time_range
            gone = [at for at in cells if times.start_timestamp_micros <= at < times.end_timestamp_micros]
            # Each once, and none of those that the rule keeps.
            assert gone and not change.source_cluster_id, change
            assert not set(gone) & set(sorted(cells)[-VERSIONS:]), (row, gone, sorted(cells))
            for at in gone:
                del cells[at]
            self.collected += len(gone)
            return
        assert change.type_ == TYPE.USER, change
        cell = chunk.mutation.set_cell
        number = int(cell.value)
        cells[cell.timestamp_micros] = number
        self.seen.setdefault(row, []).append(number)


class Load:
    """Writers, each with rows of its own, in which it counts; a write whose answer was lost may be there or not, and is tried
    again with the next number."""

    def __init__(self, host):
        self.host = host
        self.up = threading.Event()
        self.up.set()
        # By row: the numbers, in order.
        self.acknowledged, self.attempted = {}, {}
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def work(self, worker):
        rng = random.Random(worker)
        number = 0
        # The qualifier makes the log grow, so that segments come and go.
        filler = b"x" * 2_000
        while not self.ended.is_set():
            self.up.wait(1)
            with grpc.insecure_channel(self.host) as channel:
                mutate = channel.unary_unary(
                    f"{DATA}/MutateRow",
                    request_serializer=messages.MutateRowRequest.serialize,
                    response_deserializer=messages.MutateRowResponse.deserialize,
                )
                while not self.ended.is_set():
                    row = b"r%02d" % (rng.randrange(ROWS // WRITERS) * WRITERS + worker)
                    number += 1
                    cell = data.Mutation.SetCell(
                        family_name="f", column_qualifier=filler, value=b"%d" % number, timestamp_micros=-1
                    )
                    request = messages.MutateRowRequest(table_name=TABLE, row_key=row, mutations=[data.Mutation(set_cell=cell)])
                    self.attempted.setdefault(row, set()).add(number)
                    try:
                        mutate(request, timeout=5)
                    except grpc.RpcError:
                        time.sleep(0.05)
                        break
                    self.acknowledged.setdefault(row, []).append(number)

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def written_down(path):
    """What a consumer has written into its file; the last line may have been cut off with it."""
    with contextlib.suppress(FileNotFoundError):
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]
    return []


def consume_into(path, host, partition, start):
    """A consumer as a program has it: each change is a line of a file, with the token that goes on behind it."""
    consumer = Consumer(data.StreamPartition.deserialize(partition), timestamp_pb2.Timestamp.FromString(start))
    lines = written_down(path)
    if lines:
        consumer.token = lines[-1]["token"]
    with path.open("ab") as file, grpc.insecure_channel(host) as channel:
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        file.truncate(len(whole) + len(newline))
        for record in consumer.read(channel, timeout=120):
            if "heartbeat" in record:
                continue
            change = record.data_change
            number = int(change.chunks[0].mutation.set_cell.value) if change.type_ == TYPE.USER else None
            line = {"row": change.row_key.decode(), "number": number, "token": change.token}
            os.write(file.fileno(), json.dumps(line).encode() + b"\n")


# It has deadlines of its own, each as long as a test commonly has.
@pytest.mark.timeout(600)
def test_a_consumer_process_killed_twenty_times_goes_on_from_what_it_has_written_down(make_server, tmp_path):
    server = make_server(env={"TEPUI_ENGINE_MEMTABLE_BYTES": "1MiB", "TEPUI_LOG_SEGMENT_BYTES": "1MiB"})
    host = server.start()
    start = timestamp_pb2.Timestamp()
    with grpc.insecure_channel(host) as channel:
        enable(channel)
        start.GetCurrentTime()
        [partition] = partitions(channel)
    path = tmp_path / "changes"
    arguments = (path, host, data.StreamPartition.serialize(partition), start.SerializeToString())
    # Not forked: gRPC's threads would not be there.
    processes = multiprocessing.get_context("spawn")
    load, rng = Load(host), random.Random(11)

    def consume_until(is_enough):
        process = processes.Process(target=consume_into, args=arguments)
        process.start()
        deadline = time.monotonic() + 120
        try:
            while not is_enough():
                assert process.is_alive() and time.monotonic() < deadline, process.exitcode
                time.sleep(0.01)
        finally:
            process.kill()
            process.join()

    try:
        for _ in range(KILLS):
            enough = len(written_down(path)) + rng.randrange(1, 300)
            consume_until(lambda enough=enough: len(written_down(path)) >= enough)
    finally:
        load.end()

    def seen():
        rows = {}
        for line in written_down(path):
            if line["number"] is not None:
                rows.setdefault(line["row"].encode(), []).append(line["number"])
        return rows

    consume_until(lambda: all(set(numbers) <= set(seen().get(row, ())) for row, numbers in load.acknowledged.items()))
    for row, numbers in seen().items():
        assert numbers == sorted(set(numbers)), row
        assert set(load.acknowledged.get(row, ())) <= set(numbers) <= load.attempted[row], row
    server.stop()


@pytest.mark.timeout(600)
def test_a_consumer_killed_twenty_times_under_load_sees_every_change_once_and_in_order(make_server, open_table):
    # Small memtables and segments: what the consumer reads moves from memory to the log and into files meanwhile.
    server = make_server(env={"TEPUI_ENGINE_MEMTABLE_BYTES": "1MiB", "TEPUI_LOG_SEGMENT_BYTES": "1MiB"})
    host = server.start()
    start = timestamp_pb2.Timestamp()
    with grpc.insecure_channel(host) as channel:
        enable(channel, (b"r13", b"r26"))
        start.GetCurrentTime()
        parts = partitions(channel)
    assert len(parts) == 3
    consumers = [Consumer(part, start) for part in parts]

    load, rng = Load(host), random.Random(7)

    def consume_some(consumer, enough):
        enough += consumer.writes()
        assert not consumer.consume(host, lambda: consumer.writes() >= enough)

    def consume_until_killed(consumer, begun):
        before = consumer.writes()

        def is_enough():
            if consumer.writes() > before:
                begun.set()
            return False

        assert consumer.consume(host, is_enough), "the server was killed, and no error ended the stream"

    def kill(begun):
        nonlocal host
        assert all(event.wait(50) for event in begun), "a consumer takes nothing"
        load.up.clear()
        server.kill()
        host = load.host = server.start()
        load.up.set()

    try:
        for round_ in range(KILLS):
            if round_ % 4 == 3:
                begun = [threading.Event() for _ in consumers]
                works = [functools.partial(consume_until_killed, *pair) for pair in zip(consumers, begun, strict=True)]
                in_threads(functools.partial(kill, begun), *works)
            else:
                enough = rng.randrange(50, 400)
                in_threads(*(functools.partial(consume_some, consumer, enough) for consumer in consumers))
    finally:
        load.end()
    acknowledged, attempted = load.acknowledged, load.attempted
    total = sum(map(len, acknowledged.values()))

    # What is left, to the end.
    def is_done():
        return all(set(numbers) <= set(c.seen.get(row, ())) for row, numbers in acknowledged.items()
                   for c in consumers if in_range(c, row))

    def in_range(consumer, row):
        end = consumer.partition.row_range.end_key_open
        return consumer.partition.row_range.start_key_closed <= row and (not end or row < end)

    deadline = time.monotonic() + 120
    for consumer in consumers:
        mine = {row: numbers for row, numbers in acknowledged.items() if in_range(consumer, row)}
        while not all(set(numbers) <= set(consumer.seen.get(row, ())) for row, numbers in mine.items()):
            assert time.monotonic() < deadline, "changes are missing"
            consumer.consume(host, lambda: consumer.writes() >= sum(map(len, mine.values())) or time.monotonic() > deadline)
    assert is_done()
    # Behind everything that was written there is only what garbage collection deletes meanwhile.
    with grpc.insecure_channel(host) as channel:
        while (table := cells_of_table(channel)) != {row: cells for c in consumers for row, cells in c.cells.items() if cells}:
            assert time.monotonic() < deadline, "the replay is not the table"
            for consumer in consumers:
                token = consumer.token
                consumer.consume(host, lambda: consumer.token != token)
    assert table and sum(c.collected for c in consumers) > 100
    assert total > 1_000
    for consumer in consumers:
        for row, numbers in consumer.seen.items():
            # Once and in order: the consumer goes on from the token of the last change that it took.
            assert numbers == sorted(set(numbers)), row
            # Nothing that nobody wrote, and nothing that was acknowledged is missing.
            assert set(acknowledged.get(row, ())) <= set(numbers) <= attempted[row], row
    server.stop()
    server.start()
    server.stop()

"""The server is killed while backups are made and restored under writes: each is whole or absent, and every row in it is right."""

import random
import subprocess
import threading
import time

import grpc
import pytest
from google.cloud.bigtable_admin_v2.types import bigtable_table_admin as admin
from google.cloud.bigtable_admin_v2.types import table as tables
from google.cloud.bigtable_v2.types import bigtable as messages
from google.cloud.bigtable_v2.types import data
from google.longrunning import operations_pb2
from google.protobuf import timestamp_pb2

INSTANCE = "projects/p/instances/i"
TABLE = f"{INSTANCE}/tables/t"
CLUSTER = f"{INSTANCE}/clusters/c"
DATA = "/google.bigtable.v2.Bigtable"
ADMIN = "/google.bigtable.admin.v2.BigtableTableAdmin"
OPERATIONS = "/google.longrunning.Operations"

# The server is killed once in each, while a backup is made or while one is restored.
ROUNDS = 12
WRITERS = 3
ROWS_PER_WRITER = 40
# Enough for memtables of a megabyte to be flushed and compacted while a backup is made, and for values in files of their own.
FILLER = b"x" * 9_000
DONE_SECONDS_MAX = 60


def caller(channel, path, request, response, stream=False):
    make = channel.unary_stream if stream else channel.unary_unary
    return make(path, request_serializer=request.serialize, response_deserializer=response)


def admin_call(channel, name, message, response=operations_pb2.Operation.FromString):
    return caller(channel, f"{ADMIN}/{name}", type(message), response)(message, timeout=20)


class Load:
    """Each row has one writer, which counts: both cells of a row have the number of one write."""

    def __init__(self):
        self.host = None
        self.stop = threading.Event()
        self.up = threading.Event()
        self.lock = threading.Lock()
        self.acknowledged, self.attempted = {}, {}
        self.threads = [threading.Thread(target=self.work, args=(n,)) for n in range(WRITERS)]

    def work(self, worker):
        rng = random.Random(worker)
        number = 0
        while not self.stop.is_set():
            self.up.wait(1)
            with grpc.insecure_channel(self.host) as channel:
                mutate = caller(channel, f"{DATA}/MutateRow", messages.MutateRowRequest, messages.MutateRowResponse.deserialize)
                while self.up.is_set() and not self.stop.is_set():
                    row = b"r%03d" % (rng.randrange(ROWS_PER_WRITER) * WRITERS + worker)
                    number += 1
                    value = b"%s/%d/%s" % (row, number, FILLER)
                    cells = [
                        data.Mutation(set_cell=data.Mutation.SetCell(
                            family_name="f", column_qualifier=column, value=value, timestamp_micros=1_000))
                        for column in (b"a", b"b")
                    ]
                    with self.lock:
                        self.attempted[row] = number
                    try:
                        mutate(messages.MutateRowRequest(table_name=TABLE, row_key=row, mutations=cells), timeout=5)
                    except grpc.RpcError:
                        # It may be there or not; the next has another number.
                        time.sleep(0.02)
                        break
                    with self.lock:
                        self.acknowledged[row] = number

    def seen(self):
        """By row: what is acknowledged, and what was tried at most."""
        with self.lock:
            return dict(self.acknowledged), dict(self.attempted)


def read(channel, table):
    """The numbers of all rows of a table; both cells of each agree, and every byte is as it was written."""
    call = caller(channel, f"{DATA}/ReadRows", messages.ReadRowsRequest, messages.ReadRowsResponse.deserialize, stream=True)
    found, row, cells = {}, None, {}
    for answer in call(messages.ReadRowsRequest(table_name=table), timeout=30):
        for chunk in answer.chunks:
            row = chunk.row_key or row
            column = chunk.qualifier if "qualifier" in chunk else column
            assert not chunk.value_size, "small values come whole"
            cells[column] = chunk.value
            if chunk.commit_row:
                assert set(cells) == {b"a", b"b"} and cells[b"a"] == cells[b"b"], row
                key, number, filler = cells[b"a"].split(b"/", 2)
                assert key == row and filler == FILLER, row
                found[row], cells = int(number), {}
    return found


def finished(channel, name):
    """An operation, once it is done."""
    get = channel.unary_unary(
        f"{OPERATIONS}/GetOperation",
        request_serializer=operations_pb2.GetOperationRequest.SerializeToString,
        response_deserializer=operations_pb2.Operation.FromString,
    )
    deadline = time.monotonic() + DONE_SECONDS_MAX
    while True:
        operation = get(operations_pb2.GetOperationRequest(name=name), timeout=20)
        if operation.done:
            return operation
        assert time.monotonic() < deadline, name
        time.sleep(0.02)


def is_there(channel, name, message, response):
    try:
        return admin_call(channel, name, message, response)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        return None


class Killed:
    """Starts an operation, and kills the server at a random moment around it."""

    def __init__(self, server, load, rng):
        self.server, self.load, self.rng = server, load, rng

    def around(self, name, message, answered):
        """The operation's name where the client heard of it, as it does if the kill is to come after the answer; the server is up again."""
        operation = None
        delay = self.rng.choice((0, 0.002, 0.01, 0.05, 0.2)) * self.rng.random()
        with grpc.insecure_channel(self.load.host) as channel:
            grpc.channel_ready_future(channel).result(20)
            call = caller(channel, f"{ADMIN}/{name}", type(message), operations_pb2.Operation.FromString)
            future = call.future(message, timeout=20)
            if answered:
                # What is not done yet is what the operation stands for.
                operation = future.result().name
            time.sleep(delay)
            self.load.up.clear()
            self.server.kill()
            try:
                operation = future.result().name
            except (grpc.RpcError, grpc.FutureCancelledError):
                pass
        self.load.host = self.server.start()
        self.load.up.set()
        return operation


# Each operation has a deadline of its own.
@pytest.mark.timeout(900)
def test_a_backup_and_a_restore_that_the_server_is_killed_in_are_whole_or_absent(make_server):
    server = make_server(env={"TEPUI_ENGINE_MEMTABLE_BYTES": "1MiB", "TEPUI_LOG_SEGMENT_BYTES": "1MiB"})
    load = Load()
    load.host = server.start()
    with grpc.insecure_channel(load.host) as channel:
        splits = [admin.CreateTableRequest.Split(key=b"r050")]
        table = tables.Table(column_families={"f": tables.ColumnFamily()})
        request = admin.CreateTableRequest(parent=INSTANCE, table_id="t", table=table, initial_splits=splits)
        admin_call(channel, "CreateTable", request, tables.Table.deserialize)
    load.up.set()
    for thread in load.threads:
        thread.start()
    rng = random.Random(11)
    killed = Killed(server, load, rng)
    # Backups that are READY, and tables that were restored, by what each row may have in them at least and at most.
    ready, restored = {}, {}
    try:
        while len(load.seen()[0]) < WRITERS * ROWS_PER_WRITER:
            time.sleep(0.01)
        for number in range(ROUNDS):
            if number % 2 == 0:
                name = f"{CLUSTER}/backups/b{number}"
                least, _ = load.seen()
                expires = timestamp_pb2.Timestamp(seconds=int(time.time()) + 86_400)
                backup = tables.Backup(source_table=TABLE, expire_time=expires)
                request = admin.CreateBackupRequest(parent=CLUSTER, backup_id=f"b{number}", backup=backup)
                operation = killed.around("CreateBackup", request, answered=number % 4 < 2)
                with grpc.insecure_channel(load.host) as channel:
                    if operation:
                        assert not finished(channel, operation).HasField("error"), operation
                    made = is_there(channel, "GetBackup", admin.GetBackupRequest(name=name), tables.Backup.deserialize)
                    deadline = time.monotonic() + DONE_SECONDS_MAX
                    while made and made.state != tables.Backup.State.READY:
                        assert time.monotonic() < deadline, made
                        made = is_there(channel, "GetBackup", admin.GetBackupRequest(name=name), tables.Backup.deserialize)
                assert made or not operation, "it was promised"
                if made:
                    ready[name] = (least, load.seen()[1])
            else:
                name = f"{INSTANCE}/tables/restored{number}"
                backup = rng.choice(sorted(ready))
                request = admin.RestoreTableRequest(parent=INSTANCE, table_id=f"restored{number}", backup=backup)
                operation = killed.around("RestoreTable", request, answered=number % 4 < 2)
                with grpc.insecure_channel(load.host) as channel:
                    if operation:
                        assert not finished(channel, operation).HasField("error"), operation
                    made = is_there(channel, "GetTable", admin.GetTableRequest(name=name), tables.Table.deserialize)
                assert made or not operation, "it was promised"
                if made:
                    restored[name] = backup
    finally:
        load.stop.set()
        load.up.set()
        for thread in load.threads:
            thread.join()

    # All that is left is restored once more, while nobody writes, and compared with what was restored under writes.
    with grpc.insecure_channel(load.host) as channel:
        rows = {}
        for at, (backup, (least, most)) in enumerate(ready.items()):
            request = admin.RestoreTableRequest(parent=INSTANCE, table_id=f"last{at}", backup=backup)
            operation = finished(channel, admin_call(channel, "RestoreTable", request).name)
            assert not operation.HasField("error"), operation
            rows[backup] = read(channel, f"{INSTANCE}/tables/last{at}")
            assert set(rows[backup]) == set(least), backup
            for row, number in rows[backup].items():
                assert least[row] <= number <= most[row], (backup, row)
        for table, backup in restored.items():
            assert read(channel, table) == rows[backup], table
        acknowledged, attempted = load.seen()
        now = read(channel, TABLE)
        assert all(acknowledged[row] <= now[row] <= attempted[row] for row in acknowledged)
    assert len(ready) >= 2 and restored
    server.stop()
    checked = subprocess.run([server.binary, "check", server.data], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ready)} backups" in checked.stdout + checked.stderr, checked.stdout + checked.stderr

"""What an operator meets: starting, stopping, damage and a full disk, on the real binary."""

import concurrent.futures
import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import termios
import threading
import time

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import bigtable
from google.cloud.bigtable.data import ReadRowsQuery, RowMutationEntry, SetCell
from prometheus_client.openmetrics import parser

from harness import STOP_SECONDS_MAX, ServerError
from observe import SERVE_METRICS, await_metrics, metrics, metrics_address, metrics_page, skip

KIB, MIB = 1 << 10, 1 << 20


def run(server, *arguments, prefix=()):
    """Runs the binary to its end, with the environment of a server: (exit code, all that it printed)."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TEPUI_")}
    done = subprocess.run(
        [*prefix, server.binary, *arguments], capture_output=True, text=True, timeout=60, check=False, env={**clean, **server.env}
    )
    return done.returncode, done.stdout + done.stderr


def fill(table, count, size=KIB, first=0):
    """Writes rows r00000.. whose values nobody else would write."""
    for i in range(first, first + count, 100):
        table.bulk_mutate_rows([
            RowMutationEntry(f"r{n:05}", SetCell("f", "q", b"%05d" % n * (size // 5), timestamp_micros=1000))
            for n in range(i, min(i + 100, first + count))
        ])


def check_rows(table, count, size=KIB):
    """Every row is there, with its value."""
    rows = table.read_rows(ReadRowsQuery())
    assert [r.row_key for r in rows] == [b"r%05d" % n for n in range(count)]
    assert all(r.cells[0].value == b"%05d" % n * (size // 5) for n, r in enumerate(rows))


def flip(path: pathlib.Path, offset: int) -> None:
    """Changes one bit of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def largest(directory: pathlib.Path, pattern: str) -> pathlib.Path:
    return max(directory.rglob(pattern), key=lambda f: f.stat().st_size)


def test_rows_survive_an_orderly_stop_and_a_kill(make_server, open_table):
    server = make_server()
    table = open_table(server.start())
    fill(table, 500)
    server.stop()
    table = open_table(server.start())
    check_rows(table, 500)
    fill(table, 500, first=500)
    server.kill()
    check_rows(open_table(server.start()), 1000)
    server.stop()


def test_a_second_server_on_the_same_directory_is_refused(make_server):
    first, second = make_server(), make_server()
    first.start()
    second.log_path += ".second"
    with pytest.raises(ServerError, match="ended with code 1"):
        second.start()
    assert first.data in second.log_tail()
    first.stop()
    second.start()
    second.stop()


def test_other_machines_are_refused_unless_the_configuration_says_otherwise(make_server):
    server = make_server()
    code, text = run(server, "serve", "--data", server.data, "--listen", "0.0.0.0:0")
    assert code != 0 and "allow_remote_plaintext" in text


def test_sigterm_under_load_ends_in_time_and_loses_nothing(make_server, open_table):
    server = make_server()
    table = open_table(server.start())
    acknowledged, enough, stopping = [], threading.Event(), threading.Event()

    def work(worker):
        for number in itertools.count():
            key = f"w{worker}-{number:06}"
            try:
                table.mutate_row(key, SetCell("f", "q", key, timestamp_micros=1000), operation_timeout=10, retryable_errors=[])
            except exceptions.GoogleAPICallError:
                # Refused, or cut off: not acknowledged.
                if stopping.is_set():
                    return
                continue
            acknowledged.append(key.encode())
            if len(acknowledged) >= 200:
                enough.set()

    workers = [threading.Thread(target=work, args=(w,)) for w in range(4)]
    for worker in workers:
        worker.start()
    was_enough = enough.wait(60)
    stopping.set()
    server.stop()  # raises unless the server leaves with code 0 in 10 seconds
    for worker in workers:
        worker.join()
    assert was_enough, len(acknowledged)
    rows = {r.row_key for r in open_table(server.start()).read_rows(ReadRowsQuery())}
    assert not set(acknowledged) - rows
    server.stop()


def test_a_server_whose_log_nobody_takes_any_more_serves_and_stops_in_order(make_server, open_table, scratch):
    log = scratch / "stderr"
    os.mkfifo(log)
    server = make_server(prefix=("sh", "-c", f'exec "$0" "$@" 2>{log}'))
    # Before the server opens it to write, which would wait.
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        host = server.start()
    finally:
        os.close(reader)
    fill(open_table(host), 100)
    server.stop()  # raises unless the server leaves with code 0
    server.prefix = ()
    check_rows(open_table(server.start()), 100)
    server.stop()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_start_that_takes_long(make_server, scratch, number, code):
    server = make_server()
    # A start that never ends: its first file is a pipe that nobody writes to.
    data = pathlib.Path(server.data)
    data.mkdir()
    os.mkfifo(data / "IDENTITY")
    with open(scratch / "log", "wb") as log:
        process = subprocess.Popen(
            [server.binary, "serve", "--data", server.data, "--listen", "127.0.0.1:0"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
        )
    try:
        def takes_signals():
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE).group(1), 16)
            return caught >> (signal.SIGTERM - 1) & 1 and caught >> (signal.SIGINT - 1) & 1

        deadline = time.monotonic() + 30
        while not takes_signals():
            assert process.poll() is None and time.monotonic() < deadline, (scratch / "log").read_text()
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=STOP_SECONDS_MAX) == code
    finally:
        process.kill()
        process.wait()
    assert "during the start" in (scratch / "log").read_text()


def test_health_checks_hear_of_sigterm_before_the_connection_ends(make_server):
    server = make_server()
    with grpc.insecure_channel(server.start()) as channel:
        # On the wire the request for the whole server is empty, and the answer is field 1: a status.
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=60)
        assert next(watch) == b"\x08\x01"  # SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch) == b"\x08\x02"  # NOT_SERVING
    assert server.process.wait(timeout=STOP_SECONDS_MAX) == 0


def test_sigint_on_a_running_server_is_an_orderly_stop(make_server, open_table):
    server = make_server()
    fill(open_table(server.start()), 100)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(timeout=STOP_SECONDS_MAX) == 0
    # What was in memory is in a file by now.
    assert list(pathlib.Path(server.data).rglob("*.sst"))
    server.kill()
    check_rows(open_table(server.start()), 100)
    server.stop()


@contextlib.contextmanager
def stop_that_takes_seconds(make_server, open_table):
    """A server that is to be stopped while a read is under way that its client does not go on with, for which a stop waits."""
    server = make_server()
    table = open_table(server.start())
    fill(table, 300, size=64 * KIB)
    # Without the probes by which a client on a busy machine may come to take all of it.
    with grpc.insecure_channel(server.host, options=[("grpc.http2.bdp_probe", 0)]) as channel:
        # Field 1 of the request: the table.
        name = b"projects/p/instances/i/tables/t"
        read = channel.unary_stream("/google.bigtable.v2.Bigtable/ReadRows")(bytes([0x0A, len(name)]) + name)
        next(read)
        yield server
    server.kill()
    check_rows(open_table(server.start()), 300, size=64 * KIB)
    server.stop()


def await_log(server, text):
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while text not in pathlib.Path(server.log_path).read_text():
        assert server.alive() and time.monotonic() < deadline, server.log_tail()
        time.sleep(0.01)


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
def test_a_second_signal_ends_the_server_at_once(make_server, open_table, first, second):
    with stop_that_takes_seconds(make_server, open_table) as server:
        server.process.send_signal(first)
        await_log(server, "shutting down")
        # The same again counts once it is half a second later.
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while (code := server.process.poll()) is None:
            assert time.monotonic() < deadline, server.log_tail()
            server.process.send_signal(second)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(timeout=0.1)
        assert code == 130, server.log_tail()
    assert "second signal" in pathlib.Path(server.log_path).read_text()


def test_a_signal_that_comes_twice_at_once_is_one(make_server, open_table):
    with stop_that_takes_seconds(make_server, open_table) as server:
        # As `timeout` does, which sends two. Of those that come before the first is taken nobody would see a second one, so more follow, for much
        # less than the half second after which they would count.
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.001)
        assert server.process.wait(timeout=STOP_SECONDS_MAX) == 0, server.log_tail()
        assert "second signal" not in server.log_tail()


@pytest.mark.parametrize(("number", "told"), [(signal.SIGHUP, "nothing to reload"), (signal.SIGUSR1, "SIGUSR1"), (signal.SIGUSR2, "SIGUSR2")])
def test_a_signal_that_has_no_meaning_here_is_told_of_and_the_server_goes_on(make_server, open_table, number, told):
    server = make_server()
    table = open_table(server.start())
    server.process.send_signal(number)
    await_log(server, told)
    fill(table, 100)
    server.stop()


def test_a_server_that_was_told_to_ignore_that_its_terminal_goes_does_so(make_server):
    server = make_server(prefix=("nohup",))
    server.start()
    server.process.send_signal(signal.SIGHUP)
    server.process.send_signal(signal.SIGUSR1)
    await_log(server, "SIGUSR1")
    assert "SIGHUP" not in server.log_tail()
    server.stop()


def test_a_server_whose_terminal_is_closed_stops_in_order(make_server, scratch):
    server = make_server()
    terminal, end = os.openpty()
    try:
        with open(scratch / "log", "wb") as log:
            process = subprocess.Popen(
                [server.binary, "serve", "--data", server.data, "--listen", "127.0.0.1:0"],
                stdin=end, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                # It becomes the terminal of the new session.
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
    finally:
        os.close(end)
    try:
        assert any("BIGTABLE_EMULATOR_HOST" in line for line in iter(process.stdout.readline, ""))
        os.close(terminal)
        assert process.wait(timeout=STOP_SECONDS_MAX) == 0, (scratch / "log").read_text()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "shutting down" in (scratch / "log").read_text()


def test_a_check_shows_its_progress_once_there_is_some(make_server, open_table):
    server = make_server()
    fill(open_table(server.start()), 100)
    server.stop()
    terminal, end = os.openpty()
    with open(terminal, "rb", buffering=0) as shown:
        try:
            check = subprocess.Popen([server.binary, "check", server.data], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=end)
        finally:
            os.close(end)
        text = b""
        # The end of the terminal shows as an error.
        with contextlib.suppress(OSError):
            while part := shown.read(1 << 16):
                text += part
        assert check.wait(timeout=60) == 0
    assert b"check" in text and b"0 B of 0 B" not in text, text


def test_a_limit_on_the_size_of_files_is_a_full_disk(make_server, open_table):
    limit = 6 << 20
    server = make_server(
        prefix=("prlimit", f"--fsize={limit}:unlimited"),
        env={**SERVE_METRICS, "TEPUI_LOG_SEGMENT_BYTES": "4MiB", "TEPUI_ENGINE_MEMTABLE_BYTES": "16MiB"},
    )
    table = open_table(server.start())
    for n in range(400):
        table.mutate_row(f"r{n:05}", SetCell("f", "q", _noise(n), timestamp_micros=1000))
    await_metrics(server, lambda figures: figures["tepui_flush_retries_total"] > 0)
    assert "LimitFSIZE" in pathlib.Path(server.log_path).read_text()
    for n in range(0, 400, 97):
        assert table.read_row(f"r{n:05}").cells[0].value == _noise(n)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await_metrics(server, lambda figures: figures["tepui_flushes_total"] > 0)
    server.stop()


def test_a_flipped_bit_in_an_sst_is_data_loss_for_its_rows_alone(make_server, open_table, scratch):
    server = make_server()
    fill(open_table(server.start()), 5000)
    server.stop()  # flushes
    file = largest(pathlib.Path(server.data), "*.sst")
    flip(file, file.stat().st_size // 10)
    table = open_table(server.start())
    with pytest.raises(exceptions.DataLoss, match=rf"{file.name}: offset \d+"):
        table.read_rows(ReadRowsQuery())
    assert table.read_row("r04999").cells[0].value.startswith(b"04999")
    server.stop()
    code, text = run(server, "check", server.data)
    assert code == 1 and file.name in text


def test_damage_within_the_log_stops_the_start_and_names_the_way_out(make_server, open_table):
    server = make_server()
    fill(open_table(server.start()), 2000)
    server.kill()
    file = largest(pathlib.Path(server.data), "*.log")
    # The file's length may be a reservation: aim at bytes that were written.
    at = file.read_bytes().index(b"00500" * 10)
    flip(file, at)
    with pytest.raises(ServerError, match="before it was ready"):
        server.start()
    assert file.name in server.log_tail() and "repair" in server.log_tail()


def test_a_torn_record_at_the_end_of_the_log_is_cut(make_server, open_table):
    server = make_server()
    fill(open_table(server.start()), 300)
    server.kill()
    file = largest(pathlib.Path(server.data), "*.log")
    written = file.read_bytes().rstrip(b"\0")
    # What a record that was being written would leave: bytes that are no record, after the last one.
    with open(file, "r+b") as log:
        log.seek(len(written))
        log.write(b"\x40\0\0\0 torn")
    check_rows(open_table(server.start()), 300)
    assert "cut off a record of the log" in server.log_tail()
    server.stop()


@pytest.fixture
def small_disk(scratch):
    """Makes the directory `disk` a small disk of the test's own, so many bytes of it taken by the file `ballast`, in a namespace that a
    process holds open: what a command begins with that sees it."""
    with contextlib.ExitStack() as holders:
        def make(size, taken):
            disk = scratch / "disk"
            disk.mkdir()
            holder = holders.enter_context(subprocess.Popen(
                ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size={size} tmpfs {disk} && echo ready && exec sleep 600"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            ))
            holders.callback(holder.kill)
            if holder.stdout.readline().strip() != "ready":
                skip("this system allows no mount in a namespace of one's own")
            inside = ("nsenter", "-U", "-m", "--preserve-credentials", "-t", str(holder.pid))
            subprocess.run([*inside, "sh", "-c", f"head -c {taken} /dev/zero > {disk}/ballast"], check=True)
            return inside

        yield make


def test_a_full_disk_refuses_writes_serves_reads_and_goes_on_once_there_is_room(make_server, open_table, scratch, small_disk):
    inside = small_disk(48 * MIB, 16 * MIB)
    env = {**SERVE_METRICS, "TEPUI_LOG_SEGMENT_BYTES": "4MiB", "TEPUI_ENGINE_MEMTABLE_BYTES": "4MiB"}
    server = make_server("disk/data", prefix=inside, env=env)
    table = open_table(server.start())

    def write(n, **limits):
        table.mutate_row(f"r{n:05}", SetCell("f", "q", _noise(n), timestamp_micros=1000), **limits)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        written = 0
        while True:
            # The one that the log has taken and has no room for: it waits for as long as the rest takes.
            met = pool.submit(write, written, operation_timeout=100, attempt_timeout=100)
            # A slow one is not held, and one that is held may go on once a flush that is under way has made room.
            while concurrent.futures.wait([met], timeout=3).not_done and metrics(server)['tepui_writes_held{reason="log"}'] != 1:
                pass
            if not met.done():
                break
            try:
                met.result()
                written += 1
            except exceptions.ResourceExhausted as refused:
                # On a busy machine flushes have to catch up.
                assert "memory for writes is full" in str(refused)
                time.sleep(0.05)
        assert not met.done() and written > 100
        with pytest.raises(exceptions.ResourceExhausted, match="the disk is full"):
            write(99_998)
        # A table that is deleted keeps its files for a while, and a new one would take more.
        instance = bigtable.Client(project="p", admin=True).instance("i")
        for change in (instance.table("t").delete, instance.table("u").create):
            with pytest.raises(exceptions.ResourceExhausted, match="removals alone"):
                change()
        for n in range(0, written, 97):
            assert table.read_row(f"r{n:05}").cells[0].value == _noise(n)
        # A crash now would lose nothing, and so does going on.
        subprocess.run([*inside, "rm", str(scratch / "disk" / "ballast")], check=True)
        met.result(timeout=15)
    # Of memory there may be too little for another, until what waits for it is flushed.
    deadline = time.monotonic() + 15
    while True:
        try:
            write(99_999)
            break
        except exceptions.ResourceExhausted:
            assert time.monotonic() < deadline, server.log_tail()
            time.sleep(0.05)
    server.kill()
    table = open_table(server.start())
    rows = {r.row_key: r.cells[0].value for r in table.read_rows(ReadRowsQuery())}
    assert all(rows.get(b"r%05d" % n) == _noise(n) for n in [*range(written + 1), 99_999])
    assert b"r99998" not in rows
    server.stop()


def test_an_export_that_fills_the_disk_names_the_file_and_goes_on_once_there_is_room(make_server, open_table, scratch, small_disk, monkeypatch):
    server = make_server()
    host = server.start()
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", host)
    instance = bigtable.Client(project="p", admin=True).instance("i")
    instance.table("t").create([b"r00250", b"r00500", b"r00750"], {"f": None})
    fill(open_table(host), 1000, size=4 * KIB)
    whole, disk = scratch / "whole", scratch / "disk"

    def export(to, *more, prefix=()):
        of = ["--endpoint", host, "--project=p", "--instance=i", "--table=t", "--format=csv", "--columns=f:q", "--files=4", "--workers=1"]
        return run(server, "export", *of, str(to / "part"), *more, prefix=prefix)

    code, text = export(whole)
    assert code == 0 and "into 4 files" in text, text
    # Two of four files have room.
    inside = small_disk(8 * MIB, 5 * MIB + 512 * KIB)
    for more in ((), ("--resume",)):
        code, text = export(disk, *more, prefix=inside)
        assert code == 1 and f"{disk}/part-00002-of-00004.csv" in text and "No space left" in text, text
    subprocess.run([*inside, "rm", str(disk / "ballast")], check=True)
    code, text = export(disk, "--resume", prefix=inside)
    assert code == 0 and "exported 1000 rows, 1000 cells into 4 files" in text, text
    # Nothing else is left, either.
    subprocess.run([*inside, "diff", "-r", str(whole), str(disk)], check=True)
    server.stop()


def test_an_import_whose_rejected_records_fill_the_disk_says_so_and_goes_on_once_there_is_room(make_server, scratch, small_disk):
    server = make_server()
    host = server.start()
    rows, disk = scratch / "rows.csv", scratch / "disk"
    # Every other record has a value too many.
    lines = [f"r{n:05},v{n}@1000\nw{n:05},v{n}@1000,{'x' * 2000}\n" for n in range(1000)]
    rows.write_text(",f\n,q\n" + "".join(lines))

    def transfer(command, table, *more, prefix=()):
        of = ["--endpoint", host, "--project=p", "--instance=i", "--table", table, "--timestamp=value-encoded"]
        return run(server, command, *of, *more, prefix=prefix)

    def import_(table, where, *more, prefix=()):
        kept = [f"--state={where}/state.json", f"--rejected={where}/rejected.jsonl", "--max-rejected=1000000", "--batch-size=50"]
        return transfer("import", table, str(rows), "--create", *kept, *more, prefix=prefix)

    whole = scratch / "whole"
    whole.mkdir()
    code, text = import_("whole", whole)
    assert code == 3 and "imported 1000 rows" in text and "1000 records were rejected" in text, text
    inside = small_disk(8 * MIB, 7 * MIB)
    for more in ((), ("--resume",)):
        code, text = import_("t", disk, *more, prefix=inside)
        assert code == 1 and f"{disk}/rejected.jsonl" in text and "No space left" in text, text
    subprocess.run([*inside, "rm", str(disk / "ballast")], check=True)
    code, text = import_("t", disk, "--resume", prefix=inside)
    assert code == 3 and "imported 1000 rows" in text and "1000 records were rejected" in text, text
    subprocess.run([*inside, "diff", "-r", str(whole), str(disk)], check=True)
    for table in ("whole", "t"):
        code, text = transfer("export", table, "--format=csv", "--files=1", str(scratch / "out" / table))
        assert code == 0, text
    exported = [(scratch / "out" / f"{table}-00000-of-00001.csv").read_text() for table in ("whole", "t")]
    assert exported[0] == exported[1] and exported[0].count("\n") == 2 + 1000
    server.stop()


def _noise(n):
    """64 KiB that do not compress, the same for the same number."""
    return random.Random(n).randbytes(64 * KIB)


def _with_ulimit(limit):
    """Starts a server under another limit of open files."""
    return ("sh", "-c", f'ulimit {limit}; exec "$0" "$@"')


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(make_server, open_table, monkeypatch):
    server = make_server(prefix=_with_ulimit("-Sn 256"), env=SERVE_METRICS)
    host = server.start()
    limits = pathlib.Path(f"/proc/{server.process.pid}/limits").read_text()
    soft, hard = re.search(r"^Max open files +(\S+) +(\S+)", limits, re.MULTILINE).groups()
    assert soft == hard
    assert hard == "unlimited" or f"may have {hard} files open" in server.log_tail(), server.log_tail()
    if hard != "unlimited" and int(hard) < 2000:
        skip("this system allows too few open files")
    # Each tablet has a file of rows and a manifest, which the server holds open.
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", host)
    splits = [b"r%05d" % n for n in range(1, 300)]
    bigtable.Client(project="p", admin=True).instance("i").table("t").create(splits, {"f": None})
    fill(open_table(host), 300)
    server.stop()
    table = open_table(server.start())
    fill(table, 300)
    server.stop()
    table = open_table(server.start())
    assert metrics(server)["tepui_open_files"] > 300
    check_rows(table, 300)
    server.stop()


def test_more_connections_than_there_may_be_leave_the_server_what_it_writes_with(make_server, open_table):
    env = {**SERVE_METRICS, "TEPUI_ENGINE_MEMTABLE_BYTES": "4MiB", "TEPUI_LOG_SEGMENT_BYTES": "4MiB"}
    server = make_server(prefix=_with_ulimit("-n 256"), env=env)
    table = open_table(server.start())
    assert "may have 256 files open, which is little" in server.log_tail()
    fill(table, 100)
    host, port = server.host.rsplit(":", 1)
    with contextlib.ExitStack() as crowd:
        for _ in range(400):
            crowd.enter_context(socket.create_connection((host, int(port)), timeout=30))
        figures = await_metrics(server, lambda f: f["tepui_connections_refused_total"] >= 400 - 128)
        assert figures["tepui_connections"] == figures["tepui_connections_max"] == 128
        assert figures["tepui_open_files_max"] == 256
        fill(table, 9_900, first=100)
        figures = await_metrics(server, lambda f: f["tepui_flushes_total"] >= 2)
        assert figures["tepui_open_files"] < 256
        assert figures['tepui_read_only{reason=""}'] == 0
    # Those that went make room for others.
    await_metrics(server, lambda f: f["tepui_connections"] < 64)
    check_rows(open_table(server.host), 10_000)
    server.stop()


def test_config_check_names_an_unknown_key(make_server, scratch):
    server = make_server()
    good, bad = scratch / "good.toml", scratch / "bad.toml"
    good.write_text('listen = "127.0.0.1:0"\n[log]\nsync = "10ms"\n')
    bad.write_text("[log]\nsink = 3\n")
    code, text = run(server, "config", "check", "--config", str(good))
    assert code == 0 and "10ms" in text
    code, text = run(server, "config", "check", "--config", str(bad))
    assert code == 1 and "sink" in text


def test_the_environment_names_the_file_where_the_flag_does_not(make_server, scratch):
    named, flagged = scratch / "named.toml", scratch / "flagged.toml"
    named.write_text('[metrics]\nlisten = "127.0.0.1:0"\n[log]\nsync = "11ms"\n')
    flagged.write_text('[log]\nsync = "12ms"\n')
    server = make_server(env={"TEPUI_CONFIG": str(named)})
    code, text = run(server, "config", "check")
    assert code == 0 and "11ms" in text, text
    code, text = run(server, "config", "check", "--config", str(flagged))
    assert code == 0 and "12ms" in text and "11ms" not in text, text
    server.start()
    assert metrics_address(server).startswith("127.0.0.1:")
    server.stop()
    server.env = {"TEPUI_CONFIG": str(scratch / "none.toml")}
    with pytest.raises(ServerError, match="before it was ready"):
        server.start()
    assert "none.toml" in server.log_tail()


def test_a_log_in_json_is_an_object_a_line(make_server):
    # A variable that nobody knows is warned of by its name, whatever is in it.
    server = make_server(env={"TEPUI_LOGGING_FORMAT": "json", 'TEPUI_NO"\nSUCH': "1"})
    server.start()
    server.stop()
    lines = [json.loads(line) for line in pathlib.Path(server.log_path).read_text().splitlines()]
    assert all(isinstance(line, dict) and line["level"] in ("INFO", "WARN") and line["timestamp"] for line in lines), lines
    told = [line["message"] for line in lines]
    assert "serving" in told and "shutting down" in told
    assert any("NO" in message and "SUCH" in message for message in told)


def test_the_page_of_metrics_is_as_openmetrics_has_it_and_its_histograms_count_what_is_beyond_every_bound(make_server, open_table):
    server = make_server(env=SERVE_METRICS)
    fill(open_table(server.start()), 100)
    # Refuses, among others, a histogram without a bucket of `+Inf`.
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics_page(server))}
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert {"tepui_request_duration_seconds", "tepui_log_sync_duration_seconds"} <= {family.name for family in histograms}
    for family in histograms:
        beyond = [s.value for s in family.samples if s.labels.get("le") == "+Inf"]
        counts = [s.value for s in family.samples if s.name.endswith("_count")]
        assert beyond == counts and sum(counts) > 0, family
    server.stop()


@pytest.mark.parametrize(("memory", "has_huge_pages"), [("2047MiB", "0"), ("2GiB", "1")])
def test_a_server_with_little_memory_does_without_huge_pages(make_server, memory, has_huge_pages):
    if not pathlib.Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        skip("this kernel has no huge pages")
    server = make_server(env={"TEPUI_MEMORY": memory})
    server.start()
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    assert re.search(r"^THP_enabled:\s*(\d)$", status, re.MULTILINE).group(1) == has_huge_pages
    server.stop()


def test_memory_that_memtables_take_counts_as_theirs(make_server, open_table):
    server = make_server(env={**SERVE_METRICS, "TEPUI_MEMORY": "1GiB", "TEPUI_ENGINE_MEMTABLE_BYTES": "128MiB"})
    table = open_table(server.start())
    fill(table, 100)
    before = metrics(server)
    fill(table, 5_000, size=8 * KIB)
    after = metrics(server)
    memtables, other = (after[name] - before[name] for name in ('tepui_memory_bytes{part="memtables"}', 'tepui_memory_bytes{part="other"}'))
    # What the requests and their answers leave in the allocator is little beside it.
    assert memtables > 5_000 * 8 * KIB
    assert other < memtables / 2
    assert after["tepui_resident_memory_bytes"] > before["tepui_resident_memory_bytes"] + memtables / 2
    server.stop()


def test_a_tiered_table_stays_in_level_zero_over_a_restart_and_goes_down_once_it_is_leveled(make_server, open_table):
    leveled = {**SERVE_METRICS, "TEPUI_ENGINE_MEMTABLE_BYTES": "1MiB"}
    server = make_server(env={**leveled, "TEPUI_ENGINE_TIERED_TABLES": "*/tables/other,*/instances/i/tables/t"})
    rows = {}

    def overwrite(table, rounds):
        """Each row anew, in another order each time: what is flushed lies over what was flushed before."""
        retried = [exceptions.ResourceExhausted, exceptions.ServiceUnavailable]
        for number in rounds:
            # Begun elsewhere each time, so that requests end elsewhere, too.
            order = [(n + number * 130) * 397 % 1000 for n in range(1000)]
            for i in range(0, 1000, 50):
                part = {b"r%03d" % n: random.Random(number * 1000 + n).randbytes(4 * KIB) for n in order[i : i + 50]}
                entries = [RowMutationEntry(key, SetCell("f", "q", value, timestamp_micros=1000)) for key, value in part.items()]
                table.bulk_mutate_rows(entries, retryable_errors=retried)
                rows.update(part)

    def files(figures, levels):
        return sum(figures[f'tepui_level_files{{level="{level}"}}'] for level in levels)

    table = open_table(server.start())
    overwrite(table, range(3))
    merged = await_metrics(server, lambda f: f["tepui_compactions_total"] >= 1 and f["tepui_sublevels_max"] < 8)
    assert merged["tepui_flushes_total"] >= 8
    assert files(merged, [0]) >= 1 and files(merged, range(1, 7)) == 0, merged
    assert {r.row_key: r.cells[0].value for r in table.read_rows(ReadRowsQuery())} == rows
    server.stop()
    table = open_table(server.start())
    assert {r.row_key: r.cells[0].value for r in table.read_rows(ReadRowsQuery())} == rows
    assert files(await_metrics(server, lambda f: files(f, [0]) >= 1), range(1, 7)) == 0
    server.stop()
    server.env = leveled
    table = open_table(server.start())
    overwrite(table, range(3, 5))
    await_metrics(server, lambda f: files(f, range(1, 7)) >= 1)
    assert {r.row_key: r.cells[0].value for r in table.read_rows(ReadRowsQuery())} == rows
    server.stop()


def test_a_tiered_table_that_cannot_be_is_refused_at_the_start(make_server):
    server = make_server(env={"TEPUI_ENGINE_TIERED_TABLES": "tables/events"})
    with pytest.raises(ServerError, match="before it was ready"):
        server.start()
    log = server.log_tail()
    assert "tables/events" in log and "projects/*/instances/*/tables/*" in log, log

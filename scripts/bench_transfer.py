#!/usr/bin/env python3
"""Measures `tepui export` and `tepui import` of each format, on servers of the same binary on the same machine.

    make bench-transfer ROWS=1000000

Rows are YCSB's: ten columns of 100 bytes that do not compress. In each round each format is exported into one file, and into
as many as `tepui export` makes by itself, and each export is imported into a table made anew, on a server over a directory
made anew: none overwrites what another one has left, or pays for it. A command begins when no server has anything left to do.
Prints a line of Markdown for each, with the medians of the rounds: rows a second, and the processor time that a row takes of the
command, and of its server until that has settled: its compactions are those of the command.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import typing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from harness import Server, temp_dir  # noqa: E402

TABLE = ["--project", "bench", "--instance", "bench", "--table"]  # those of `tepui bench server`
FORMATS = ("avro", "parquet", "sequencefile", "csv")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Two servers stand side by side; by default each would take 60 % of the machine.
SERVER = {"TEPUI_MEMORY": "30%"}
# As for `tepui bench`: a server that has written nothing for so long has settled.
QUIET_SECONDS = 3


class Figures(typing.NamedTuple):
    """Of one command."""

    files: int
    seconds: float
    command_cpu: float
    server_cpu: float
    memory_mib: float
    bytes: int


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, of the system and its own."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def written_bytes(pid: int) -> int:
    """What a process has caused to be written to storage."""
    lines = pathlib.Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))


def settle(server: Server) -> None:
    """Waits until flushes and compactions are done."""
    last, quiet = written_bytes(server.process.pid), 0
    while quiet < QUIET_SECONDS:
        time.sleep(1)
        now = written_bytes(server.process.pid)
        last, quiet = now, quiet + 1 if now == last else 0


def timed(server: Server, command: list[str], out: pathlib.Path) -> Figures:
    """Runs a command on a server that has settled, and waits until it has again."""
    settle(server)
    server_before, began = cpu_seconds(server.process.pid), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = time.monotonic() - began
    settle(server)
    sizes = [file.stat().st_size for file in out.iterdir()]
    server_cpu = cpu_seconds(server.process.pid) - server_before
    return Figures(len(sizes), seconds, used.ru_utime + used.ru_stime, server_cpu, used.ru_maxrss / 1024, sum(sizes))


def imported(scratch: pathlib.Path, binary: str, out: pathlib.Path, csv: list[str]) -> Figures:
    """Imports what `out` has on a server of its own."""
    server = Server(str(scratch / "copy"), binary, SERVER)
    try:
        command = [binary, "import", "--endpoint", server.start(), *TABLE, "copy", str(out), "--create",
                   "--state", str(scratch / "state"), "--rejected", str(scratch / "rejected"), *csv]
        figures = timed(server, command, out)
        server.stop()
    finally:
        server.kill()
        shutil.rmtree(scratch / "copy", ignore_errors=True)
    return figures


def line(name: tuple[str, ...], rows: int, rounds: list[Figures]) -> str:
    """A line of the table: the medians."""
    of = Figures(*(statistics.median(figures) for figures in zip(*rounds, strict=True)))
    return (f"| {name[0]} | {name[1]} | {of.files:.0f} | {rows / of.seconds:,.0f} | {of.command_cpu / rows * 1e6:.1f} us "
            f"| {of.server_cpu / rows * 1e6:.1f} us | {of.memory_mib:.0f} MiB | {of.bytes / 1e9:.2f} GB |")


def main() -> None:
    """Loads, exports, imports."""
    parser = argparse.ArgumentParser(description="Exports and imports, timed; see the file's head.")
    parser.add_argument("--binary", required=True, help="the tepui binary")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    if options.rows < 1 or options.rounds < 1:
        parser.error("no rows, or no rounds: nothing would be measured")
    scratch = pathlib.Path(temp_dir("tepui-transfer-"))
    server = Server(str(scratch / "data"), options.binary, SERVER)
    found: dict[tuple[str, ...], list[Figures]] = {}
    try:
        host = server.start()
        subprocess.run((options.binary, "bench", "server", "--endpoint", host, "--rows", str(options.rows), "--workload", "none",
                        "--pid", str(server.process.pid)), check=True, stdout=subprocess.DEVNULL)
        # What disturbs the machine for longer than a round disturbs all formats.
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for file_format in options.formats.split(","):
                csv = ["--timestamp", "value-encoded"] if file_format == "csv" else []
                for which, files in (("one", ["--files", "1"]), ("some", [])):
                    out = scratch / "out"
                    command = [options.binary, "export", "--endpoint", host, *TABLE, "usertable", str(out / "part"),
                               "--format", file_format, *files, *csv]
                    found.setdefault((file_format, "export", which), []).append(timed(server, command, out))
                    found.setdefault((file_format, "import", which), []).append(imported(scratch, options.binary, out, csv))
                    shutil.rmtree(out)
        server.stop()
    finally:
        server.kill()
        shutil.rmtree(scratch, ignore_errors=True)
    print("| format | | files | rows/s | command, CPU of a row | server, CPU of a row | memory of the command | bytes |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rounds in found.items():
        print(line(name, options.rows, rounds))


if __name__ == "__main__":
    main()

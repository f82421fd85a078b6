#!/usr/bin/env python3
"""Measures `tepui export` and `tepui import` of each format, on a server of the same binary on the same machine.

    make bench-transfer ROWS=1000000

Rows are YCSB's: ten columns of 100 bytes that do not compress. Each format is exported into one file, and into as many
as `tepui export` makes by itself, and each is imported over a copy of the table. Prints a line of Markdown for each: rows
a second, and the processor time that a row takes of the command and of the server, whatever that did meanwhile.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from harness import Server, temp_dir  # noqa: E402

TABLE = ["--project", "bench", "--instance", "bench", "--table"]  # those of `tepui bench server`
FORMATS = ("avro", "parquet", "sequencefile", "csv")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, of the system and its own."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def timed(server: Server, command: list[str]) -> tuple[float, float, float, float]:
    """Runs a command: seconds, its processor time, the server's, and the most memory that it had, in MiB."""
    server_before, began = cpu_seconds(server.process.pid), time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = time.monotonic() - began
    return seconds, used.ru_utime + used.ru_stime, cpu_seconds(server.process.pid) - server_before, used.ru_maxrss / 1024


def main() -> None:
    """Loads, exports, imports."""
    parser = argparse.ArgumentParser(description="Exports and imports, timed; see the file's head.")
    parser.add_argument("--binary", required=True, help="the tepui binary")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", default=",".join(FORMATS))
    options = parser.parse_args()
    scratch = pathlib.Path(temp_dir("tepui-transfer-"))
    server = Server(str(scratch / "data"), options.binary)
    try:
        host = server.start()
        subprocess.run((options.binary, "bench", "server", "--endpoint", host, "--rows", str(options.rows), "--workload", "none",
                        "--pid", str(server.process.pid)), check=True, stdout=subprocess.DEVNULL)
        print("| format | | files | rows/s | command, CPU of a row | server, CPU of a row | memory of the command | bytes |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
        for file_format in options.formats.split(","):
            for files in (["--files", "1"], []):
                out = scratch / "out"
                csv = ["--timestamp", "value-encoded"] if file_format == "csv" else []
                for name, command in (
                    ("export", [str(out / "part"), "--format", file_format, *files]),
                    ("import", [str(out), "--create", "--state", str(scratch / "state"), "--rejected", str(scratch / "rejected")]),
                ):
                    table = "usertable" if name == "export" else "copy"
                    whole = [options.binary, name, "--endpoint", host, *TABLE, table, *command, *csv]
                    seconds, client, of_server, memory = timed(server, whole)
                    count, size = len(list(out.iterdir())), sum(f.stat().st_size for f in out.iterdir())
                    print(f"| {file_format} | {name} | {count} | {options.rows / seconds:,.0f} | {client / options.rows * 1e6:.1f} us "
                          f"| {of_server / options.rows * 1e6:.1f} us | {memory:.0f} MiB | {size / 1e9:.2f} GB |", flush=True)
                shutil.rmtree(out)
        server.stop()
    finally:
        server.kill()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()

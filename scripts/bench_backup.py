#!/usr/bin/env python3
"""Measures a backup and its restore on the server that BIGTABLE_EMULATOR_HOST names: how long each takes to answer
and to be done, and reads of the restored table, every byte compared, while rows of the original are rewritten.

    make bench-backup ROWS=5000000

Rows have 1,000 bytes of value, so a million is a gigabyte.
"""

import argparse
import datetime
import subprocess
import time

from google.cloud import bigtable

PROJECT, INSTANCE, TABLE = "bench", "bench", "usertable"  # those of `tepui bench server`
KEPT = datetime.timedelta(days=1)


def timed(what: str, start) -> None:
    """Starts an operation and waits until it is done."""
    began = time.monotonic()
    operation = start()
    answered = time.monotonic()
    operation.result()
    print(f"{what}: answered in {answered - began:.3f} s, done in {time.monotonic() - began:.3f} s", flush=True)


def main() -> None:
    """Loads, backs up, restores, reads."""
    parser = argparse.ArgumentParser(description="A backup and its restore, timed; see the file's head.")
    parser.add_argument("--binary", required=True, help="the tepui binary, for its load generator")
    parser.add_argument("--host", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    bench = [options.binary, "bench", "server", "--endpoint", options.host, "--rows", str(options.rows), "--columns", "1",
             "--value-bytes", "1000"]
    subprocess.run((*bench, "--workload", "none"), check=True)
    instance = bigtable.Client(project=PROJECT, admin=True).instance(INSTANCE)
    name = f"backup-{time.time_ns()}"
    expires = datetime.datetime.now(datetime.timezone.utc) + KEPT
    backup = instance.table(TABLE).backup(name, cluster_id="tepui", expire_time=expires)
    timed("backup", backup.create)
    backup.reload()
    print(f"backup: {backup.size_bytes / 1e9:.2f} GB")
    timed("restore", lambda: backup.restore(name))
    with subprocess.Popen((*bench, "--load", "never", "--workload", "f", "--seconds", "20"),
                          stdout=subprocess.DEVNULL) as rewriting:
        subprocess.run((*bench, "--table", name, "--load", "never", "--workload", "c", "--seconds", "10", "--verify"),
                       check=True)
    if rewriting.returncode:
        raise SystemExit("the original could not be rewritten")


if __name__ == "__main__":
    main()

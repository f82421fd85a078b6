#!/usr/bin/env python3
"""Runs YCSB on the server that BIGTABLE_EMULATOR_HOST names, with every value that is read compared with the
one that its key and field determine (YCSB's `dataintegrity`; of scans, the binding does, with their keys).

    ycsb.py CLASSPATH [--records N] [--operations N] [--threads N]

Loads, then runs the workloads A (half updates), B (5% updates), C (reads), D (reads of the latest), E (scans)
and F (read-modify-writes). Fails when YCSB fails, an operation does, or a value is not what it must be.
"""

import argparse
import re
import subprocess
import sys

# name: (read, update, insert, scan, read-modify-write, distribution), as YCSB's own files have them.
WORKLOADS = {
    "a": (0.5, 0.5, 0, 0, 0, "zipfian"),
    "b": (0.95, 0.05, 0, 0, 0, "zipfian"),
    "c": (1, 0, 0, 0, 0, "zipfian"),
    "d": (0.95, 0, 0.05, 0, 0, "latest"),
    "e": (0, 0, 0.05, 0.95, 0, "zipfian"),
    "f": (0.5, 0, 0, 0, 0.5, "zipfian"),
}
SECONDS_MAX = 300
# [READ], Return=OK, 5012
RETURNS = re.compile(r"^\[([A-Z-]+)\], Return=([A-Z_]+), (\d+)$", re.MULTILINE)
OPERATIONS = re.compile(r"^\[([A-Z-]+)\], Operations, (\d+)$", re.MULTILINE)
RATE = re.compile(r"^\[OVERALL\], Throughput\(ops/sec\), ([\d.]+)$", re.MULTILINE)


def ycsb(options: argparse.Namespace, phase: str, workload: str) -> bool:
    """Runs one phase of one workload; whether all of it was right."""
    read, update, insert, scan, rmw, distribution = WORKLOADS[workload]
    properties = {
        "workload": "site.ycsb.workloads.CoreWorkload",
        "dataintegrity": "true",
        "fieldlengthdistribution": "constant",
        "recordcount": options.records,
        "operationcount": options.operations // (10 if scan else 1),
        "readproportion": read,
        "updateproportion": update,
        "insertproportion": insert,
        "scanproportion": scan,
        "readmodifywriteproportion": rmw,
        "requestdistribution": distribution,
        "maxscanlength": 100,
        "table": "usertable",
    }
    command = ["java", "-cp", options.classpath, "site.ycsb.Client", phase, "-db", "tepui.YcsbBigtable",
               "-threads", str(options.threads)]
    for name, value in properties.items():
        command += ["-p", f"{name}={value}"]
    try:
        ran = subprocess.run(command, text=True, capture_output=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        print(f"ycsb {phase} {workload}: not done after {SECONDS_MAX} s")
        return False
    returns = RETURNS.findall(ran.stdout)
    done = {kind: int(n) for kind, n in OPERATIONS.findall(ran.stdout)}
    wrong = {f"{kind} {result}": int(n) for kind, result, n in returns if result != "OK"}
    # A read or a scan that was not compared proves nothing: each of them must be among the verified ones.
    kind, verified_as = ("SCAN", "VERIFY-SCAN") if scan else ("READ", "VERIFY")
    verified = sum(int(n) for k, result, n in returns if (k, result) == (verified_as, "OK"))
    compared = phase != "-t" or verified >= done.get(kind, 0) > 0
    good = ran.returncode == 0 and returns and not wrong and compared
    rate = RATE.search(ran.stdout)
    print(f"ycsb {'load' if phase == '-load' else workload}: {done}, {verified} {'scans' if scan else 'reads'} verified, wrong: {wrong or 'none'}, "
          f"{rate.group(1) if rate else '?'} operations/s", flush=True)
    if not good:
        print(ran.stdout[-2000:], ran.stderr[-4000:], sep="\n")
    return bool(good)


def main() -> int:
    """Loads and runs every workload."""
    parser = argparse.ArgumentParser(description="YCSB with verified values; see the file's head.")
    parser.add_argument("classpath")
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args()
    runs = [("-load", "a"), *(("-t", workload) for workload in WORKLOADS)]
    results = [ycsb(options, *run) for run in runs]
    print(f"ycsb: {sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

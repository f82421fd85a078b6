"""The lines of run.sh: what Tepui did over what its peers did, with the bars.

    report.py DIRECTORY STORE...

Exits with 1 when a bar is short, with 2 when a store that ran left no figures, or none that can be judged. Bars of stores that did not run are left out,
and said to be.
"""

import json
import pathlib
import sys

PHASES = ("write", "read")
# Name, phase, peer, figure, at least.
BARS = [
    ("writes per second over Bitcask's", "write", "bitcask", "rate", 0.7),
    ("writes per second over RocksDB's", "write", "rocksdb", "rate", 1.0),
    ("reads per second over Bitcask's", "read", "bitcask", "rate", 1.0),
    ("Bitcask's p99 of writes over ours", "write", "bitcask", "p99", 0.7),
    ("RocksDB's p99 of writes over ours", "write", "rocksdb", "p99", 1.0),
    ("Bitcask's p99 of reads over ours", "read", "bitcask", "p99", 1.0),
]
TAIL_MAX = 1.5


def of_peers(path):
    """What the drivers printed, by store and phase."""
    results = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        result = json.loads(line)
        results[result["store"], result["phase"]] = {
            "rate": result["ops"] / result["seconds"],
            "p99": result["p99_micros"],
            "tail": result["p99_last_micros"] / result["p99_first_micros"],
        }
    return results


def of_tepui(path):
    """The run that writes and the run that reads, of `tepui bench engine --json`."""
    results = {}
    for run in json.loads(path.read_text())["runs"] if path.exists() else []:
        phase, tenth, latency = ("write", "writes", "write_latency_micros") if run["writes"] else ("read", "reads", "latency_micros")
        if ("tepui", phase) in results or run["interrupted"] or not run["first_tenth"] or not run["last_tenth"]:
            raise ValueError(f"{path}: not one whole run of each kind")
        results["tepui", phase] = {
            "rate": run["ops"] / run["seconds"],
            "p99": run[latency]["p99"],
            "tail": run["last_tenth"][tenth]["p99"] / run["first_tenth"][tenth]["p99"],
        }
    return results


def judge(results, stores):
    """Prints a line a bar; how many are short, and how many there are."""
    short = judged = 0

    def say(name, figure, bar, good):
        nonlocal short, judged
        short += not good
        judged += 1
        print(f"{name:<45} {figure:>6.2f}  {bar}  {'ok' if good else 'short'}")

    def left_out(name, needs):
        missing = [store for store in needs if store not in stores]
        if missing:
            print(f"{name:<45} left out: without {' and '.join(missing)}")
        return missing

    for name, phase, peer, figure, least in BARS:
        if left_out(name, ("tepui", peer)):
            continue
        ours, theirs = results["tepui", phase][figure], results[peer, phase][figure]
        ratio = ours / theirs if figure == "rate" else theirs / ours
        say(name, ratio, f"at least {least:.2f}", ratio >= least)
    for phase in PHASES:
        name = f"{phase}s: p99 of the last tenth over the first"
        if not left_out(name, ("tepui",)):
            tail = results["tepui", phase]["tail"]
            say(name, tail, f"at most {TAIL_MAX:.2f} ", tail <= TAIL_MAX)
    return short, judged


def main(directory, *stores):
    directory = pathlib.Path(directory)
    try:
        results = of_peers(directory / "lines") | of_tepui(directory / "tepui.json")
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        print(f"no figures that can be judged: {error!r}", file=sys.stderr)
        return 2
    missing = [f"{store}'s {phase}s" for store in stores for phase in PHASES if (store, phase) not in results]
    if missing:
        print(f"no figures of {', '.join(missing)}", file=sys.stderr)
        return 2
    print(f"{'store':<10} {'phase':<6} {'per second':>11} {'p99 us':>10} {'last tenth over first':>22}")
    for (store, phase), figures in results.items():
        print(f"{store:<10} {phase:<6} {figures['rate']:>11.0f} {figures['p99']:>10.0f} {figures['tail']:>22.2f}")
    short, judged = judge(results, stores)
    if not judged:
        print("no bar could be judged: Tepui did not run", file=sys.stderr)
        return 2
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

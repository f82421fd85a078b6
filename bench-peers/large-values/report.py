"""The lines of run.sh: what Tepui did over what its peers did, with the bars. Exits with 1 when one of them is short."""

import json
import pathlib
import statistics
import sys

directory = pathlib.Path(sys.argv[1])
results = {}
lines = directory / "lines"
for line in lines.read_text().splitlines() if lines.exists() else []:
    result = json.loads(line)
    results[result["store"], result["phase"]] = {
        "rate": result["ops"] / result["seconds"],
        "p99": result["p99_micros"],
        "tail": result["p99_last_micros"] / result["p99_first_micros"],
    }
for phase, file in [("write", "tepui-put.json"), ("read", "tepui-get.json")]:
    path = directory / file
    if not path.exists():
        continue
    runs = json.loads(path.read_text())["runs"]
    key = "write_latency_micros" if phase == "write" else "latency_micros"
    p99s = [(run[key] or run["latency_micros"])["p99"] for run in runs]
    results["tepui", phase] = {
        "rate": sum(run["ops"] for run in runs) / sum(run["seconds"] for run in runs),
        # Of runs of equal length, the median of their tails.
        "p99": statistics.median(p99s),
        "tail": p99s[-1] / p99s[0],
    }

print(f"{'store':<10} {'phase':<6} {'per second':>11} {'p99 us':>10} {'last tenth over first':>22}")
for (store, phase), figures in results.items():
    print(f"{store:<10} {phase:<6} {figures['rate']:>11.0f} {figures['p99']:>10.0f} {figures['tail']:>22.2f}")

BARS = [
    ("writes per second over Bitcask's", "write", "bitcask", "rate", 0.7),
    ("writes per second over RocksDB's", "write", "rocksdb", "rate", 1.0),
    ("reads per second over Bitcask's", "read", "bitcask", "rate", 1.0),
    ("Bitcask's p99 of writes over ours", "write", "bitcask", "p99", 0.7),
    ("Bitcask's p99 of reads over ours", "read", "bitcask", "p99", 1.0),
]
short = 0
for name, phase, peer, figure, least in BARS:
    ours, theirs = results.get(("tepui", phase)), results.get((peer, phase))
    if not ours or not theirs:
        continue
    ratio = ours[figure] / theirs[figure] if figure == "rate" else theirs[figure] / ours[figure]
    short += ratio < least
    print(f"{name:<40} {ratio:>6.2f}  at least {least:.2f}  {'ok' if ratio >= least else 'short'}")
for phase in ("write", "read"):
    ours = results.get(("tepui", phase))
    if ours:
        short += ours["tail"] > 1.5
        print(f"{phase + 's: p99 of the last tenth over the first':<40} {ours['tail']:>6.2f}  at most 1.50   {'ok' if ours['tail'] <= 1.5 else 'short'}")
sys.exit(1 if short else 0)

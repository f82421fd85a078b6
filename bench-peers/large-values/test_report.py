"""That report.py judges what ran, and says what did not: python3 -m unittest."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import report


def peer(store, phase, seconds, p99):
    return {"store": store, "phase": phase, "ops": 1000, "seconds": seconds, "p99_micros": p99, "p99_first_micros": p99, "p99_last_micros": p99}


def tepui(phase, seconds, p99, last):
    kind = "writes" if phase == "write" else "reads"
    run = {"ops": 1000, "writes": 0, "reads": 0, "seconds": seconds, "interrupted": False}
    run |= {"latency_micros": {"p99": 0.0}, "write_latency_micros": None, kind: 1000}
    run["write_latency_micros" if phase == "write" else "latency_micros"] = {"p99": p99}
    return run | {"first_tenth": {kind: {"p99": p99}}, "last_tenth": {kind: {"p99": last}}}


class Report(unittest.TestCase):
    def report(self, lines, runs, stores):
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            (directory / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (directory / "tepui.json").write_text(json.dumps({"runs": runs}))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                code = report.main(directory, *stores)
            return code, out.getvalue()

    def test_every_bar_has_a_line(self):
        lines = [peer(store, phase, 2.0, 50.0) for store in ("bitcask", "rocksdb") for phase in report.PHASES]
        runs = [tepui("write", 1.0, 40.0, 44.0), tepui("read", 1.0, 40.0, 44.0)]
        code, out = self.report(lines, runs, ("tepui", "bitcask", "rocksdb"))
        self.assertEqual((code, out.count("  ok\n")), (0, len(report.BARS) + 2), out)
        self.assertIn("RocksDB's p99 of writes over ours", out)

    def test_a_store_that_becomes_slower_is_short_and_one_that_did_not_run_is_left_out(self):
        runs = [tepui("write", 1.0, 40.0, 61.0), tepui("read", 1.0, 40.0, 44.0)]
        code, out = self.report([], runs, ("tepui",))
        self.assertEqual((code, out.count("  short\n"), out.count("left out: without")), (1, 1, len(report.BARS)), out)

    def test_a_store_that_ran_and_left_nothing_is_an_error(self):
        runs = [tepui("write", 1.0, 40.0, 44.0), tepui("read", 1.0, 40.0, 44.0)]
        code, out = self.report([peer("bitcask", "write", 2.0, 50.0)], runs, ("tepui", "bitcask"))
        self.assertEqual(code, 2)
        self.assertIn("no figures of bitcask's reads", out)

    def test_runs_that_cannot_be_judged_are_an_error_and_no_bar_is_short(self):
        few = tepui("write", 1.0, 40.0, 44.0) | {"first_tenth": None, "last_tenth": None}
        code, out = self.report([], [few, tepui("read", 1.0, 40.0, 44.0)], ("tepui",))
        self.assertEqual(code, 2, out)


if __name__ == "__main__":
    unittest.main()

"""What system.py unpacks, on a Python that can refuse members of an archive by itself and on one that cannot; and what it takes for failures."""

import argparse
import contextlib
import io
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest
from unittest import mock

import system


def packed(*members: tuple[str, bytes]) -> tarfile.TarFile:
    """An archive of members of such types, each with a line."""
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"text"))
    return tarfile.open(fileobj=io.BytesIO(into.getvalue()))


class Extract(unittest.TestCase):
    def unpack(self, *members: tuple[str, bytes]) -> list[str]:
        with tempfile.TemporaryDirectory() as place, packed(*members) as archive:
            into = pathlib.Path(place) / "into"
            into.mkdir()
            try:
                for member in archive.getmembers():
                    system.extract(archive, member, into)
            finally:
                self.assertEqual([p.name for p in pathlib.Path(place).iterdir()], ["into"])
            return sorted(str(p.relative_to(into)) for p in into.rglob("*") if p.is_file())

    def test_files_are_unpacked(self):
        self.assertEqual(self.unpack(("tests", tarfile.DIRTYPE), ("tests/a/b.py", tarfile.REGTYPE)), ["tests/a/b.py"])

    def test_what_would_go_elsewhere_is_refused(self):
        for name, kind in (("tests/../../b.py", tarfile.REGTYPE), ("tests/link", tarfile.SYMTYPE)):
            with self.subTest(name), self.assertRaises((ValueError, tarfile.TarError)):
                self.unpack((name, kind))


class ExtractWithoutFilters(Extract):
    """Debian 12's Python 3.11.2, where `extract` takes no filter."""

    def setUp(self):
        extract = tarfile.TarFile.extract
        self.enterContext(mock.patch.object(
            tarfile.TarFile, "extract", lambda archive, member, path: extract(archive, member, path)))
        if hasattr(tarfile, "data_filter"):
            data_filter = tarfile.data_filter
            self.addCleanup(setattr, tarfile, "data_filter", data_filter)
            del tarfile.data_filter


class Part(unittest.TestCase):
    """A pytest that leaves such a report, and ends with such a code."""

    def setUp(self):
        self.work = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.object(system, "WORK", self.work))

    def failed(self, code: int | None, *cases: str, k: str | None = None) -> list[str]:
        def run(*_, **__):
            if cases:
                (self.work / "data.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
            if code is None:
                raise subprocess.TimeoutExpired("pytest", 1)
            return subprocess.CompletedProcess((), code)

        with mock.patch.object(system.subprocess, "run", run):
            results = system.run_part(self.work, "data", argparse.Namespace(k=k))
        return [name for name, result, _ in results if result == "failed"]

    good = '<testcase classname="a.T" name="good"/>'
    bad = '<testcase classname="a.T" name="bad"><failure/></testcase>'
    skipped = '<testcase classname="a.T" name="none"><skipped/></testcase>'

    def test_tests_that_passed_and_failed_are_as_the_report_has_them(self):
        self.assertEqual(self.failed(0, self.good, self.skipped), [])
        self.assertEqual(self.failed(1, self.good, self.bad), ["data/T::bad"])

    def test_a_suite_that_did_not_come_to_its_end_failed_whatever_passed(self):
        for code in (2, 3, 4, -11, None):
            with self.subTest(code):
                self.assertEqual(self.failed(code, self.good), ["data as a whole"])

    def test_a_suite_of_which_nothing_passed_failed(self):
        self.assertIn("data as a whole", self.failed(0))
        self.assertIn("data as a whole", self.failed(5, " "))
        self.assertEqual(self.failed(0, self.skipped), ["data as a whole"])

    def test_a_suite_of_which_nothing_was_asked_for_did_not_fail(self):
        self.assertEqual(self.failed(5, " ", k="other"), [])
        self.assertEqual(self.failed(2, self.good, k="other"), ["data as a whole"])


class Exceptions(unittest.TestCase):
    def run_with(self, *arguments: str, results: list[tuple[str, str, str]]) -> tuple[int, str]:
        """With these results of each suite."""
        out = io.StringIO()
        with contextlib.ExitStack() as patched:
            patched.enter_context(mock.patch.object(system, "sources", lambda: None))
            patched.enter_context(mock.patch.object(system, "run_part", lambda *_: results))
            patched.enter_context(mock.patch.object(system.sys, "argv", ["system.py", *arguments]))
            patched.enter_context(mock.patch.dict(os.environ, BIGTABLE_EMULATOR_HOST="127.0.0.1:1"))
            patched.enter_context(contextlib.redirect_stdout(out))
            return system.main(), out.getvalue()

    listed = [line.split("\t")[0].replace("*", "") for line in (system.HERE / "exceptions.txt").read_text().splitlines()
              if line and not line.startswith("#")]

    def test_exceptions_that_were_run_are_no_failures(self):
        results = [(name, "failed", "") for name in self.listed]
        code, out = self.run_with(results=[("data/T::good", "passed", ""), *results])
        self.assertEqual(code, 0, out)

    def test_an_exception_of_which_no_test_was_run_is_a_failure(self):
        results = [("data/T::good", "passed", ""), *((name, "failed", "") for name in self.listed[1:])]
        code, out = self.run_with(results=results)
        self.assertEqual(code, 1)
        self.assertIn(f"{self.listed[0]} (an exception that was not run)", out)
        self.assertEqual(self.run_with("-k", "good", results=results)[0], 0)


if __name__ == "__main__":
    unittest.main()

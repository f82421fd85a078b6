#!/usr/bin/env python3
"""Runs the system tests that the Python client's source package carries, on the server that
BIGTABLE_EMULATOR_HOST names, as against the real service: nothing is skipped for being an emulator.

    system.py [-k EXPRESSION]

Ends with `N passed, N failed, N skipped`, and exits with 1 when a test failed or was skipped that exceptions.txt
does not name, when a suite did not come to its end or none of its tests passed, or when a line of the list is of
no test that ran. A line of the list is a test's name, or a prefix of names that ends
with `*`, a tab and the reason.
"""

import argparse
import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
WORK = HERE.parents[3] / ".cache" / "python-system"
PACKAGE = "google-cloud-bigtable"
PARTS = ("v2_client", "data", "admin_overlay")
# The client's own metrics, judged through the internals of channels that a plaintext one does not have.
LEFT_OUT = ("tests/system/data/test_metrics_async.py", "tests/system/data/test_metrics_autogen.py")
PART_SECONDS_MAX = 1500
TEST_SECONDS_MAX = 180
# pytest's exit codes when it came to its end: all passed; some failed, which the report says; nothing matched `-k`.
PASSED, FAILED, NONE_CHOSEN = 0, 1, 5


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, into: pathlib.Path) -> None:
    """Unpacks a file or a directory of the archive below `into`. Python before 3.11.4 (Debian 12 has 3.11.2) cannot refuse
    what would go elsewhere, and `filter` is an error there; so it is refused by hand."""
    if hasattr(tarfile, "data_filter"):
        archive.extract(member, into, filter="data")
        return
    path = pathlib.PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise ValueError(f"{member.name} of the archive is no plain file below its directory")
    archive.extract(member, into)


def sources() -> pathlib.Path:
    """The source package of the pinned version, unpacked, without the client itself: the installed one is tested."""
    pinned = next(line.strip() for line in (HERE / "requirements.txt").read_text().splitlines()
                  if line.startswith(PACKAGE + "=="))
    whole = WORK / pinned
    if not whole.is_dir():
        # Renamed when it is whole: half of the tests would pass, too.
        into = WORK / f"{pinned}.unpacking"
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        subprocess.run((sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--no-binary", ":all:", pinned, "--dest", str(into)), check=True)
        with tarfile.open(next(into.glob("*.tar.gz"))) as archive:
            for member in archive.getmembers():
                _, _, member.name = member.name.partition("/")
                if member.name.startswith("tests/"):
                    extract(archive, member, into)
        into.rename(whole)
    return whole


def run_part(tree: pathlib.Path, part: str, options: argparse.Namespace) -> list[tuple[str, str, str]]:
    """[(name, passed | failed | skipped, why)] of one of the three suites."""
    report = WORK / f"{part}.xml"
    report.unlink(missing_ok=True)
    env = {**os.environ, "GOOGLE_CLOUD_PROJECT": "tests", "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-m", "pytest", f"tests/system/{part}", "-q", "-p", "no:cacheprovider", "-W", "ignore",
               f"--timeout={TEST_SECONDS_MAX}", f"--junitxml={report}", "-p", "real_service"]
    command += [f"--ignore={path}" for path in LEFT_OUT]
    command += ["-k", options.k] if options.k else []
    log = report.with_suffix(".log")
    with log.open("w") as out:
        try:
            code = subprocess.run(command, cwd=tree, env=env, stdout=out, stderr=subprocess.STDOUT,
                                  timeout=PART_SECONDS_MAX, check=False).returncode
            ended = f"pytest ended with code {code}"
        except subprocess.TimeoutExpired:
            code, ended = None, f"not done after {PART_SECONDS_MAX} s"
    results = []
    if code not in (PASSED, FAILED, NONE_CHOSEN if options.k else PASSED) or not report.exists():
        tail = "".join(log.read_text().splitlines(keepends=True)[-20:])
        results.append((f"{part} as a whole", "failed", f"{tail}\n{ended}"))
    for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
        name = f"{part}/{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
        bad = [e for e in case if e.tag in ("failure", "error")]
        skip = case.find("skipped")
        if bad:
            results.append((name, "failed", bad[0].text or bad[0].get("message") or ""))
        elif skip is not None:
            results.append((name, "skipped", skip.get("message") or ""))
        else:
            results.append((name, "passed", ""))
    if not options.k and all(result != "passed" for _, result, _ in results):
        results.append((f"{part} as a whole", "failed", "none of its tests passed"))
    return results


def main() -> int:
    """Runs the suites and counts."""
    parser = argparse.ArgumentParser(description="The Python client's system tests; see the file's head.")
    parser.add_argument("-k", help="only the tests that match, as pytest has it")
    options = parser.parse_args()
    if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
        print("BIGTABLE_EMULATOR_HOST is not set: run this by `make clients`", file=sys.stderr)
        return 2
    listed = (HERE / "exceptions.txt").read_text().splitlines()
    exceptions = [line.split("\t")[0] for line in listed if line and not line.startswith("#")]
    tree = sources()
    counts, bad, used = {"passed": 0, "failed": 0, "skipped": 0}, [], set()
    for part in PARTS:
        for name, result, why in run_part(tree, part, options):
            counts[result] += 1
            excepted = {pattern for pattern in exceptions if fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))}
            used |= excepted
            if result != "passed" and not excepted:
                bad.append(f"{name} ({result})")
                print(f"{result}: {name}\n{why[-3000:]}", flush=True)
            elif result == "passed" and excepted and name in exceptions:
                print(f"note: {name} passes: take it off the list of exceptions", flush=True)
    if not options.k:
        bad += [f"{pattern} (an exception that was not run)" for pattern in exceptions if pattern not in used]
    for name in bad:
        print(f"not as it should be: {name}")
    print(f"python system: {counts['passed']} passed, {counts['failed']} failed, "
          f"{counts['skipped']} skipped")
    return 1 if bad or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

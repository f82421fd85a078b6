#!/usr/bin/env python3
"""Runs the integration test that the Go client's module carries on the server that BIGTABLE_EMULATOR_HOST names:
as its authors run it against their emulator, or (--real) as against the real service, where it skips nothing for
being an emulator and administers instances, backups and views too.

    integration.py [--real] [--run REGEXP]

The test starts an emulator in its own process through the package `bttest`. In a copy of the module that
package is exchanged for one of the same shape that starts nothing and gives the server's address. What is
asserted stays as it is; `prepare` makes the edits that an outside server needs, and one for a race of the test's own.

Each test runs in a process of its own, so that a panic fails one test. Ends with
`N passed, N failed, N skipped` and exits with 1 when a test was skipped that expected_skips.txt does not name,
or, with --real, failed or was skipped that real_exceptions.txt does not name.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
WORK = HERE.parents[2] / ".cache" / "go-integration"
MODULE = "cloud.google.com/go/bigtable"
TEST_SECONDS_MAX = 150
# These reach for Google's session protocol, which is not part of the public API.
LEFT_OUT = ("TestIntegration_SessionVRpc",)

BTTEST = """\
// Package bttest stands in for the emulator: it gives the address of a server that runs already.
package bttest

import (
	"os"

	"google.golang.org/grpc"
)

// Server is a server that somebody else runs.
type Server struct{ Addr string }

// NewServer gives the server that BIGTABLE_TEST_SERVER names.
func NewServer(string, ...grpc.ServerOption) (*Server, error) {
	return &Server{Addr: os.Getenv("BIGTABLE_TEST_SERVER")}, nil
}

// Close does nothing.
func (*Server) Close() {}
"""


def go(cwd: pathlib.Path, *args: str) -> str:
    """Runs a go command and returns what it printed."""
    return subprocess.run(("go", *args), cwd=cwd, check=True, text=True, stdout=subprocess.PIPE).stdout


def edit(file: pathlib.Path, before: str, after: str) -> None:
    """Exchanges a text that must be there."""
    text = file.read_text()
    if before not in text:
        raise SystemExit(f"{file} is not as this script knows it: no {before!r}")
    file.write_text(text.replace(before, after))


def prepare(module: pathlib.Path) -> pathlib.Path:
    """A writable copy of the module, with our bttest in the place of theirs."""
    copy = WORK / module.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(module, copy, copy_function=shutil.copyfile)
    for directory in (copy, *(d for d in copy.rglob("*") if d.is_dir())):
        directory.chmod(0o755)
    for file in (copy / "bttest").glob("*.go"):
        file.unlink()
    (copy / "bttest" / "bttest.go").write_text(BTTEST)
    # Plaintext needs the first; the second is a table of each test's own, since the next test would find the
    # fixed one full on a server that keeps its data.
    edit(copy / "admin" / "apiv2" / "table_admin_integration_test.go", "option.WithEndpoint(emulatorHost),",
         "option.WithEndpoint(emulatorHost), option.WithoutAuthentication(),")
    edit(copy / "export_test.go", 'config.Table = "mytable"', 'config.Table = os.Getenv("BIGTABLE_TEST_TABLE")')
    # Subtests that run at the same time fill one array with chance, and two of them may then name their profiles alike.
    edit(copy / "integration_test.go", "\t\t\tcryptorand.Read(uniqueID)\n",
         "\t\t\tuniqueID := append([]byte(nil), uniqueID...)\n\t\t\tcryptorand.Read(uniqueID)\n")
    return copy


def end_session(process: subprocess.Popen) -> None:
    """Ends a process that leads a session, and the ones that it has started, which would outlive it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run_test(binary: pathlib.Path, cwd: pathlib.Path, test: str, env: dict, args: list[str]) -> dict[str, tuple[str, str]]:
    """{test or subtest: (pass | fail | skip, its output)} of one top-level test."""
    env = {**env, "BIGTABLE_TEST_TABLE": f"it-{time.time_ns()}"}
    command = ["go", "tool", "test2json", str(binary), "-test.v=test2json", f"-test.run=^{test}$", *args]
    process = subprocess.Popen(command, cwd=cwd, env=env, text=True, errors="replace", stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    in_time = True
    try:
        out, _ = process.communicate(timeout=TEST_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        in_time = False
        end_session(process)
        out, _ = process.communicate()
    except BaseException:
        end_session(process)
        raise
    results, output = {test: "fail"}, {}
    for line in out.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            event = {"Action": "output", "Test": test, "Output": line + "\n"}
        name = event.get("Test", test)
        if event["Action"] == "run":
            results[name] = "fail"  # until it ends
        elif event["Action"] in ("pass", "fail", "skip") and "Test" in event:
            results[name] = event["Action"]
        elif event["Action"] == "output":
            output[name] = output.get(name, "") + event["Output"]
    # A test with subtests counts through them, unless it failed on its own or was ended before all of them had run.
    leaves = {}
    for name, result in results.items():
        inner = [r for n, r in results.items() if n.startswith(name + "/")]
        if not inner or (result == "fail" and "fail" not in inner) or (name == test and not in_time):
            leaves[name] = (result, output.get(name, ""))
    return leaves


def real_service(host: str) -> list[str]:
    """Makes the instance that the tests of the real service expect to be there; the flags that name it."""
    instance = f"it-{time.time_ns() % 10**9}"
    env = {**os.environ, "BIGTABLE_EMULATOR_HOST": host}
    clusters = [f"{instance}-c1", f"{instance}-c2"]
    subprocess.run(("go", "run", "./instance", "tests", instance, *clusters), cwd=HERE, env=env, check=True)
    return ["-it.use-prod", "-it.project=tests", f"-it.instance={instance}", f"-it.cluster={clusters[0]}",
            f"-it.cluster2={clusters[1]}"]


def main() -> int:
    """Builds, runs and counts."""
    parser = argparse.ArgumentParser(description="The Go client's integration test; see the file's head.")
    parser.add_argument("--real", action="store_true", help="as against the real service")
    parser.add_argument("--run", default="", metavar="REGEXP", help="only the tests whose names match")
    options = parser.parse_args()
    host = os.environ.get("BIGTABLE_EMULATOR_HOST")
    if not host:
        print("BIGTABLE_EMULATOR_HOST is not set: run this by `make clients`", file=sys.stderr)
        return 2
    lines = (HERE / ("real_exceptions.txt" if options.real else "expected_skips.txt")).read_text().splitlines()
    expected = {line.split("\t")[0] for line in lines if line and not line.startswith("#")}
    go(HERE, "mod", "download", MODULE)
    copy = prepare(pathlib.Path(go(HERE, "list", "-m", "-f", "{{.Dir}}", MODULE).strip()))
    counts, bad, seen = {"pass": 0, "fail": 0, "skip": 0}, [], set()
    for cwd, pattern in ((copy, "^TestIntegration_|^TestReadRows"), (copy / "admin" / "apiv2", "^TestIntegration_")):
        binary = WORK / f"{cwd.name}.test"
        go(cwd, "test", "-c", "-vet=off", "-o", str(binary), ".")
        # The module's test sets this variable itself where it wants it; the admin client's reads it.
        env = {k: v for k, v in os.environ.items() if k != "BIGTABLE_EMULATOR_HOST"}
        env["BIGTABLE_TEST_SERVER"] = host
        if cwd != copy or options.real:
            env["BIGTABLE_EMULATOR_HOST"] = host
        args = real_service(host) if options.real and cwd == copy else []
        listed = subprocess.run([str(binary), f"-test.list={pattern}"], cwd=cwd, env=env, check=True, text=True,
                                stdout=subprocess.PIPE).stdout
        wanted = (t for t in listed.split() if t.startswith("Test") and not t.startswith(LEFT_OUT))
        for test in (t for t in wanted if re.search(options.run, t)):
            for name, (result, output) in run_test(binary, cwd, test, env, args).items():
                counts[result] += 1
                seen.add(name)
                print(f"{result:4}  {name}", flush=True)
                if result == "fail" and options.real and name in expected:
                    print(output[:600], flush=True)
                elif result == "fail":
                    bad.append(name)
                    print(output, flush=True)
                elif result == "skip" and name not in expected:
                    bad.append(f"{name} (skipped, not expected to be)")
                    print(output, flush=True)
                elif result == "pass" and name in expected:
                    print(f"note: {name} passes: take it off the list of exceptions", flush=True)
    if not options.run:
        bad += [f"{name} (an exception that was not run)" for name in sorted(expected - seen)]
    for name in bad:
        print(f"not as it should be: {name}")
    print(f"go integration{' (real)' if options.real else ''}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
    return 1 if bad or not counts["pass"] else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs the emulator tests that the community's Rust client (crate bigtable_rs) is published with, on the server
that BIGTABLE_EMULATOR_HOST names. Needs cargo, and a protoc in $PROTOC, which the crate's build asks for.

Ends with `N passed, N failed, N skipped`, and fails where one failed or was skipped.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

VERSION = "0.4.2"
CRATE = f"bigtable_rs-{VERSION}"
WORK = pathlib.Path(__file__).resolve().parents[3] / ".cache" / "rust-client"
SECONDS_MAX = 900
RESULT = re.compile(r"^test (\S+) \.\.\. (ok|FAILED|ignored)", re.MULTILINE)


def sources() -> pathlib.Path:
    """A copy of the published crate, found by the metadata of a package that depends on it."""
    copy = WORK / CRATE
    if not copy.is_dir():
        asking = WORK / "asking"
        (asking / "src").mkdir(parents=True, exist_ok=True)
        (asking / "src" / "lib.rs").write_text("")
        (asking / "Cargo.toml").write_text(
            '[package]\nname = "asking"\nversion = "0.0.0"\nedition = "2021"\n'
            f'[dependencies]\nbigtable_rs = "={VERSION}"\n[workspace]\n')
        told = subprocess.run(("cargo", "metadata", "--format-version", "1"), cwd=asking, check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        manifest = next(p["manifest_path"] for p in json.loads(told)["packages"] if p["name"] == "bigtable_rs")
        # Renamed when it is whole.
        copying = WORK / f"{CRATE}.copying"
        shutil.rmtree(copying, ignore_errors=True)
        shutil.copytree(pathlib.Path(manifest).parent, copying, copy_function=shutil.copyfile)
        with (copying / "Cargo.toml").open("a") as out:
            out.write("\n[workspace]\n")
        copying.rename(copy)
    return copy


def main() -> int:
    """Builds, runs and counts."""
    if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
        print("BIGTABLE_EMULATOR_HOST is not set: run this by `make clients`", file=sys.stderr)
        return 2
    # A target directory of its own, also where the caller's environment names another.
    env = {**os.environ, "CARGO_TARGET_DIR": str(WORK / "target")}
    ran = subprocess.run(("cargo", "test", "--quiet", "--test", "tests", "--features", "integration_tests", "emulator",
                          "--", "--test-threads=1", "--format=pretty"), cwd=sources(), env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, check=False)
    results = [result for _, result in RESULT.findall(ran.stdout)]
    counts = {kind: results.count(kind) for kind in ("ok", "FAILED", "ignored")}
    good = ran.returncode == 0 and counts["ok"] > 0 and not counts["ignored"]
    if not good:
        print(ran.stdout[-6000:])
    print(f"bigtable_rs: {counts['ok']} passed, {counts['FAILED']} failed, {counts['ignored']} skipped")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

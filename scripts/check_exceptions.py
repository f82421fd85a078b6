#!/usr/bin/env python3
"""Checks that docs/compatibility.md lists the tests of the clients' own suites that do not pass, or are not run, as the
lists that the suites are run with have them: each with its reason, and no others.

The page has a table for each list, under the heading "The clients' own suites", behind a line `<!-- FILE -->`. FILE is a
list of lines `name, tab, reason`, or a script whose LEFT_OUT are names; of those the reasons are the page's.
"""

import ast
import pathlib
import re
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
PAGE = REPO / "docs" / "compatibility.md"
LISTS = ("tests/clients/go/real_exceptions.txt", "tests/clients/go/expected_skips.txt",
         "tests/clients/python/system/exceptions.txt")
SCRIPTS = ("tests/clients/go/integration.py", "tests/clients/python/system/system.py")
TABLE = re.compile(r"<!-- (tests/clients/\S+) -->\n\n((?:\|.*\n)+)")
ROW = re.compile(r"\| `(.+?)` \| (.+) \|")


def listed(file: str) -> dict[str, str]:
    """{test: reason} of a list."""
    lines = (REPO / file).read_text().splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


def left_out(file: str) -> set[str]:
    """The tests that a script does not run."""
    for node in ast.parse((REPO / file).read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "LEFT_OUT" for t in node.targets):
            return set(ast.literal_eval(node.value))
    raise SystemExit(f"{file} has no LEFT_OUT")


def main() -> int:
    """Compares every table."""
    shown = {file: ROW.findall(rows) for file, rows in TABLE.findall(PAGE.read_text())}
    wrong, count = [], 0
    for file in (*LISTS, *SCRIPTS):
        rows = dict(shown.get(file, []))
        count += len(rows)
        if file in LISTS:
            expected, found = set(listed(file).items()), set(rows.items())
        else:
            expected, found = left_out(file), set(rows)
        wrong += [f"{PAGE.name} does not list what {file} has: {it}" for it in sorted(expected - found)]
        wrong += [f"{PAGE.name} lists what {file} has not: {it}" for it in sorted(found - expected)]
    print("\n".join(wrong) or f"{PAGE.name}: {count} tests of the clients' suites are listed as they are left out")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

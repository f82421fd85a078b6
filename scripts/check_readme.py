#!/usr/bin/env python3
"""Checks that the README shows the examples exactly as they are run by the clients' tests.

A code block of the README follows a line `<!-- FILE -->`; FILE must hold the same text.
"""

import pathlib
import re
import sys

REPO = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- (examples/\S+) -->\n```\w*\n(.*?)```", re.DOTALL)


def main() -> int:
    """Compares every block."""
    shown = BLOCK.findall((REPO / "README.md").read_text())
    # A README that lost its marks would pass for ever.
    wrong = [] if len(shown) >= 2 else ["README.md shows fewer than two examples"]
    wrong += [f"README.md shows {name} otherwise than it is" for name, text in shown if (REPO / name).read_text() != text]
    print("\n".join(wrong) or f"README.md: {len(shown)} examples are as they are run")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

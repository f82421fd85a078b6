"""The example that the README shows, as it is there."""

import pathlib
import subprocess
import sys

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples" / "python" / "hello.py"


def test_example():
    # Twice: an example must not fail the second time that somebody tries it.
    for _ in range(2):
        out = subprocess.run([sys.executable, "-W", "ignore", str(EXAMPLE)], check=True, capture_output=True, text=True).stdout
        assert out == "greeting#1 Hello from Python\n"

"""What system.py unpacks, on a Python that can refuse members of an archive by itself and on one that cannot."""

import io
import pathlib
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


if __name__ == "__main__":
    unittest.main()

"""Google's `cbt` against the server that BIGTABLE_EMULATOR_HOST names: each command that speaks to a server, and what it
prints.

$CBT is the program; `make clients` builds it from the last Go module that carries it and can be fetched from the module
proxy. What newer ones add are commands (addtocell, backups) over RPCs that the other clients' tests call.
"""

import os
import re
import subprocess
import uuid

import pytest

if not os.environ.get("BIGTABLE_EMULATOR_HOST"):
    pytest.exit("BIGTABLE_EMULATOR_HOST is not set: run these tests by `make clients`", returncode=2)

CBT = os.environ.get("CBT", "cbt")
PROJECT = "tests"


def run(*args, instance="cbt"):
    """Runs a command; its exit code, output and complaints."""
    # Without credentials it would ask gcloud for some.
    env = {**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": os.devnull, "HOME": "/nonexistent"}
    command = [CBT, "-project", PROJECT, "-instance", instance, *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def cbt(*args, instance="cbt"):
    """Runs a command that must succeed; what it prints."""
    code, out, err = run(*args, instance=instance)
    assert code == 0, f"cbt {args}: {err}"
    return out


def fails(*args, instance="cbt"):
    """Runs a command that must fail; its complaint."""
    code, out, err = run(*args, instance=instance)
    assert code != 0, f"cbt {args} did not fail: {out}"
    return err


def cells(text):
    """What `read` and `lookup` print, as {row: [(column, value)]}, newest first."""
    rows, row, column = {}, None, None
    for line in text.splitlines():
        if line.startswith("----"):
            row = None
        elif row is None:
            row = line
            rows[row] = []
        elif match := re.match(r"^  (\S+) +@ ", line):
            column = match.group(1)
        else:
            rows[row].append((column, line.strip().strip('"')))
    return rows


@pytest.fixture
def table():
    """A table with two families; removed at the end."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    cbt("createtable", name, "families=cf:maxversions=2,other:never", "splits=g,p")
    yield name
    cbt("deletetable", name)


def test_tables_and_families_are_listed_with_their_policies(table):
    assert table in cbt("ls").split()
    listed = {line.split()[0]: " ".join(line.split()[1:]) for line in cbt("ls", table).splitlines()[2:]}
    assert listed == {"cf": "versions() > 2", "other": "<never>"}


def test_families_come_change_and_go(table):
    cbt("createfamily", table, "new")
    cbt("setgcpolicy", table, "new", "maxage=7d", "and", "maxversions=3")
    policy = next(line for line in cbt("ls", table).splitlines() if line.startswith("new"))
    assert "age() > 7d" in policy and "versions() > 3" in policy and "&&" in policy
    cbt("setgcpolicy", table, "new", "never")
    cbt("deletefamily", table, "new")
    assert "new" not in cbt("ls", table)
    assert "AlreadyExists" in fails("createfamily", table, "cf")
    assert "NotFound" in fails("deletefamily", table, "gone")


def test_cells_are_set_looked_up_and_deleted(table):
    cbt("set", table, "r1", "cf:a=one@1000", "cf:a=two@2000", "other:b=x")
    assert cells(cbt("lookup", table, "r1")) == {
        "r1": [("cf:a", "two"), ("cf:a", "one"), ("other:b", "x")]
    }
    assert cells(cbt("lookup", table, "r1", "columns=cf:a", "cells-per-column=1")) == {
        "r1": [("cf:a", "two")]
    }
    cbt("deletecolumn", table, "r1", "cf", "a")
    assert cells(cbt("lookup", table, "r1")) == {"r1": [("other:b", "x")]}
    cbt("deleterow", table, "r1")
    assert cells(cbt("read", table)) == {}
    assert "NotFound" in fails("set", "no-such-table", "r", "cf:a=1")


def test_reads_take_ranges_prefixes_patterns_and_limits(table):
    for row in ("apple", "avocado", "banana", "pear"):
        cbt("set", table, row, f"cf:name={row}", "other:n=1")
    def rows(*args):
        return list(cells(cbt("read", table, *args)))
    assert rows() == ["apple", "avocado", "banana", "pear"]
    assert rows("prefix=a") == ["apple", "avocado"]
    assert rows("start=avocado", "end=pear") == ["avocado", "banana"]
    assert rows("regex=.*an.*") == ["banana"]
    assert rows("count=2") == ["apple", "avocado"]
    assert cells(cbt("read", table, "columns=cf:name", "count=1")) == {"apple": [("cf:name", "apple")]}
    assert cells(cbt("read", table, "columns=other:", "count=1")) == {"apple": [("other:n", "1")]}
    assert cbt("count", table).strip() == "4"
    cbt("deleteallrows", table)
    assert cbt("count", table).strip() == "0"


def test_csv_files_are_imported(table, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(",cf,,other\n,a,b,c\nr1,1,,3\nr2,,2,\n" + "".join(f"x{n:04},v,,\n" for n in range(1200)))
    cbt("import", table, str(path), "batch-size=100", "workers=3")
    assert cbt("count", table).strip() == "1202"
    assert cells(cbt("read", table, "prefix=r")) == {
        "r1": [("cf:a", "1"), ("other:c", "3")],
        "r2": [("cf:b", "2")],
    }
    path.write_text(",a\nr3,7\n")
    cbt("import", table, str(path), "column-family=cf")
    assert cells(cbt("lookup", table, "r3")) == {"r3": [("cf:a", "7")]}
    path.write_text(",gone\n,a\nr4,7\n")
    assert fails("import", table, str(path))


def test_tables_that_are_not_there_are_not_found():
    for command in (("ls", "gone"), ("deletetable", "gone"), ("createfamily", "gone", "cf")):
        assert "NotFound" in fails(*command)
    assert fails("count", "gone")


def test_writes_are_waited_for(table):
    assert "replicated" in cbt("waitforreplication", table)


@pytest.mark.parametrize(("command", "rpc", "instead"), [
    (("createsnapshot", "c", "snap", "t"), "SnapshotTable", "CreateBackup"),
    (("createtablefromsnapshot", "t", "c", "snap"), "CreateTableFromSnapshot", "RestoreTable"),
    (("getsnapshot", "c", "snap"), "GetSnapshot", "GetBackup"),
    (("listsnapshots", "c"), "ListSnapshots", "ListBackups"),
    (("deletesnapshot", "c", "snap"), "DeleteSnapshot", "DeleteBackup"),
])
def test_snapshots_are_withdrawn_for_backups(command, rpc, instead):
    complaint = fails(*command)
    assert "Unimplemented" in complaint
    assert f"BigtableTableAdmin.{rpc} is withdrawn; use {instead}" in complaint


def test_instances_clusters_and_app_profiles_are_administered():
    instance = f"i-{uuid.uuid4().hex[:8]}"
    cluster = f"{instance}-c1"
    cbt("createinstance", instance, "An instance", cluster, "us-central1-b", "3", "SSD")
    listed = cbt("listinstances")
    assert re.search(rf"^{instance}\s+An instance$", listed, re.MULTILINE), listed
    listed = cbt("listclusters", instance=instance)
    assert re.search(rf"^{cluster}\s+us-central1-b\s+READY \(3 serve nodes\)$", listed, re.MULTILINE), listed
    cbt("updatecluster", cluster, "num-nodes=5", instance=instance)
    assert "(5 serve nodes)" in cbt("listclusters", instance=instance)
    second = f"{instance}-c2"
    assert "is on SSD" in fails("createcluster", second, "us-east1-c", "1", "HDD", instance=instance)
    assert "zones" in fails("createcluster", second, "us-central1-b", "1", "SSD", instance=instance)
    cbt("createcluster", second, "us-east1-c", "1", "SSD", instance=instance)
    listed = cbt("listclusters", instance=instance)
    assert re.search(rf"^{second}\s+us-east1-c\s+READY \(1 serve nodes\)$", listed, re.MULTILINE), listed
    assert "AlreadyExists" in fails("createcluster", second, "us-east1-c", "1", "SSD", instance=instance)
    cbt("deletecluster", second, instance=instance)
    assert second not in cbt("listclusters", instance=instance)
    assert "NotFound" in fails("deletecluster", second, instance=instance)

    cbt("createappprofile", instance, "prof", "A profile", f"route-to={cluster}", instance=instance)
    assert f'cluster_id:"{cluster}"' in cbt("getappprofile", instance, "prof", instance=instance)
    assert "A profile" in cbt("listappprofile", instance, instance=instance)
    cbt("updateappprofile", instance, "prof", "Another text", f"route-to={cluster}", instance=instance)
    assert "Another text" in cbt("getappprofile", instance, "prof", instance=instance)
    cbt("deleteappprofile", instance, "prof", instance=instance)
    assert "NotFound" in fails("getappprofile", instance, "prof", instance=instance)

    cbt("createtable", "t", "families=cf:never", instance=instance)
    cbt("set", "t", "r", "cf:a=1", instance=instance)
    cbt("deletetable", "t", instance=instance)
    cbt("deleteinstance", instance)
    assert instance not in cbt("listinstances")

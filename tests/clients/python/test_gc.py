"""Garbage collection on an idle server: within a minute, without any call that would cause it."""

import time

import pytest
from google.cloud.bigtable.data import ReadRowsQuery, SetCell

COLLECTED_WITHIN_S = 60
# The server's promise, and what a busy machine adds.
WAIT_S = COLLECTED_WITHIN_S + 15


@pytest.mark.timeout(WAIT_S + 30)
def test_cells_that_may_go_are_gone_within_a_minute(make_table):
    table = make_table({
        "newest": {"gc_rule": {"max_num_versions": 1}},
        "fresh": {"gc_rule": {"max_age": {"seconds": 3600}}},
        "all": {},
    })
    now = int(time.time() * 1000) * 1000
    day = 86_400 * 1_000_000
    for age in (2 * day, day, 0):
        table.mutate_row("r", [SetCell(f, "q", b"v", timestamp_micros=now - age) for f in ("newest", "fresh", "all")])
    table.mutate_row("old", SetCell("fresh", "q", b"v", timestamp_micros=now - day))
    begin = time.monotonic()
    expected = {b"r": {"newest": 1, "fresh": 1, "all": 3}}
    while True:
        found = {
            row.row_key: {f: sum(c.family == f for c in row) for f in {c.family for c in row}}
            for row in table.read_rows(ReadRowsQuery())
        }
        if found == expected or time.monotonic() - begin > WAIT_S:
            break
        time.sleep(1)
    assert found == expected

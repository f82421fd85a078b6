"""Every kind of row filter, through the client's own filter classes, on one small table."""

import datetime

import pytest
from google.cloud.bigtable.data import ReadRowsQuery, RowMutationEntry, SetCell
from google.cloud.bigtable.data import row_filters as rf

ROWS = {
    b"apple": [("f", "a", 1, b"red"), ("f", "a", 2, b"green"), ("f", "b", 1, b"sweet"), ("g", "n", 1, b"\x00\x05")],
    b"pear": [("f", "a", 1, b"green"), ("f", "c", 3, b"bulbous"), ("g", "n", 1, b"\x00\x0a")],
    b"plum\xff": [("g", "n", 2, b"\x01\x00"), ("g", "o", 1, b"line\nbreak")],
}


@pytest.fixture(scope="module")
def fruit(make_table):
    table = make_table()
    table.bulk_mutate_rows([
        RowMutationEntry(key, [SetCell(f, q, v, timestamp_micros=t * 1000) for f, q, t, v in row])
        for key, row in ROWS.items()
    ])
    return table


def read(table, row_filter):
    """{row key: [(family:qualifier@milliseconds, value)]}."""
    return {
        r.row_key: [(f"{c.family}:{c.qualifier.decode()}@{c.timestamp_micros // 1000}", c.value) for c in r]
        for r in table.read_rows(ReadRowsQuery(row_filter=row_filter))
    }


def places(table, row_filter):
    """{row key: "family:qualifier@milliseconds ..."}."""
    return {k: " ".join(p for p, _ in v) for k, v in read(table, row_filter).items()}


APPLE, PEAR, PLUM = b"apple", b"pear", b"plum\xff"
ALL = {APPLE: "f:a@2 f:a@1 f:b@1 g:n@1", PEAR: "f:a@1 f:c@3 g:n@1", PLUM: "g:n@2 g:o@1"}


def at(millis):
    return datetime.datetime.fromtimestamp(millis / 1000, datetime.timezone.utc)


CASES = [
    ("no filter", None, ALL),
    ("pass all", rf.PassAllFilter(True), ALL),
    ("block all", rf.BlockAllFilter(True), {}),
    ("row key regex matches the whole key", rf.RowKeyRegexFilter(b"p.*r"), {PEAR: ALL[PEAR]}),
    ("row key regex does not match a part", rf.RowKeyRegexFilter(b"p"), {}),
    ("row key regex over bytes", rf.RowKeyRegexFilter(rb"plum\C"), {PLUM: ALL[PLUM]}),
    ("family regex", rf.FamilyNameRegexFilter("g"), {APPLE: "g:n@1", PEAR: "g:n@1", PLUM: "g:n@2 g:o@1"}),
    ("qualifier regex", rf.ColumnQualifierRegexFilter(b"[bc]"), {APPLE: "f:b@1", PEAR: "f:c@3"}),
    ("value regex", rf.ValueRegexFilter(b"gre+n|sweet"), {APPLE: "f:a@2 f:b@1", PEAR: "f:a@1"}),
    ("a dot does not match a line break", rf.ValueRegexFilter(b"line.*"), {}),
    (r"\C matches a line break", rf.ValueRegexFilter(rb"line\C*"), {PLUM: "g:o@1"}),
    ("literal value", rf.LiteralValueFilter(b"\x00\x0a"), {PEAR: "g:n@1"}),
    ("column range, both ends", rf.ColumnRangeFilter("f", b"a", b"b"), {APPLE: "f:a@2 f:a@1 f:b@1", PEAR: "f:a@1"}),
    ("column range, start left out", rf.ColumnRangeFilter("f", b"a", b"c", inclusive_start=False), {APPLE: "f:b@1", PEAR: "f:c@3"}),
    ("column range, end left out", rf.ColumnRangeFilter("f", b"a", b"c", inclusive_end=False), {APPLE: "f:a@2 f:a@1 f:b@1", PEAR: "f:a@1"}),
    ("column range, whole family", rf.ColumnRangeFilter("f"), {APPLE: "f:a@2 f:a@1 f:b@1", PEAR: "f:a@1 f:c@3"}),
    ("timestamps from and before", rf.TimestampRangeFilter(at(2), at(3)), {APPLE: "f:a@2", PLUM: "g:n@2"}),
    ("timestamps from", rf.TimestampRangeFilter(at(2)), {APPLE: "f:a@2", PEAR: "f:c@3", PLUM: "g:n@2"}),
    ("value range", rf.ValueRangeFilter(b"\x00\x06", b"\x01"), {PEAR: "g:n@1"}),
    ("value range, ends left out", rf.ValueRangeFilter(b"green", b"sweet", inclusive_start=False, inclusive_end=False), {APPLE: "f:a@1", PLUM: "g:o@1"}),
    ("value bitmask", rf.ValueBitmaskFilter(b"\x00\x02"), {PEAR: "g:n@1"}),
    ("cells per row, offset", rf.CellsRowOffsetFilter(2), {APPLE: "f:b@1 g:n@1", PEAR: "g:n@1"}),
    ("cells per row, limit", rf.CellsRowLimitFilter(2), {APPLE: "f:a@2 f:a@1", PEAR: "f:a@1 f:c@3", PLUM: "g:n@2 g:o@1"}),
    ("cells per column", rf.CellsColumnLimitFilter(1), {APPLE: "f:a@2 f:b@1 g:n@1", PEAR: ALL[PEAR], PLUM: ALL[PLUM]}),
    ("chain", rf.RowFilterChain([rf.FamilyNameRegexFilter("f"), rf.CellsColumnLimitFilter(1), rf.ValueRegexFilter(b"green|red")]),
     {APPLE: "f:a@2", PEAR: "f:a@1"}),
    ("interleave keeps duplicates", rf.RowFilterUnion([rf.ColumnQualifierRegexFilter(b"b"), rf.ColumnQualifierRegexFilter(b"[ab]")]),
     {APPLE: "f:a@2 f:a@1 f:b@1 f:b@1", PEAR: "f:a@1"}),
    ("condition", rf.ConditionalRowFilter(rf.ValueRegexFilter(b"sweet"), rf.ColumnQualifierRegexFilter(b"b"), rf.FamilyNameRegexFilter("g")),
     {APPLE: "f:b@1", PEAR: "g:n@1", PLUM: "g:n@2 g:o@1"}),
    ("condition without a false branch", rf.ConditionalRowFilter(rf.ColumnQualifierRegexFilter(b"c"), rf.PassAllFilter(True)), {PEAR: ALL[PEAR]}),
    ("sink goes past what follows", rf.RowFilterChain([
        rf.FamilyNameRegexFilter("f"),
        rf.RowFilterUnion([rf.RowFilterChain([rf.ColumnQualifierRegexFilter(b"b"), rf.SinkFilter(True)]), rf.PassAllFilter(True)]),
        rf.ColumnQualifierRegexFilter(b"c"),
    ]), {APPLE: "f:b@1", PEAR: "f:c@3"}),
]


@pytest.mark.parametrize("row_filter, expected", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_filter(fruit, row_filter, expected):
    assert places(fruit, row_filter) == expected


def test_strip_value_keeps_cells_without_their_values(fruit):
    got = read(fruit, rf.StripValueTransformerFilter(True))
    assert {k: " ".join(p for p, _ in v) for k, v in got.items()} == ALL
    assert {value for row in got.values() for _, value in row} == {b""}


def test_labels_mark_the_path_that_a_cell_took(fruit):
    both = rf.RowFilterUnion([
        rf.RowFilterChain([rf.ColumnQualifierRegexFilter(b"b"), rf.ApplyLabelFilter("taste")]),
        rf.RowFilterChain([rf.ColumnQualifierRegexFilter(b"a"), rf.CellsColumnLimitFilter(1), rf.ApplyLabelFilter("colour")]),
    ])
    row = fruit.read_row("apple", row_filter=both)
    assert [(c.qualifier, c.labels) for c in row] == [(b"a", ["colour"]), (b"b", ["taste"])]


def test_row_sample_takes_about_its_share(make_table):
    table = make_table()
    count = 2000
    table.bulk_mutate_rows([
        RowMutationEntry(f"{i:05}", SetCell("f", "q", b"v", timestamp_micros=1000)) for i in range(count)
    ])
    got = len(table.read_rows(ReadRowsQuery(row_filter=rf.RowSampleFilter(0.5))))
    # Nine standard deviations (22 rows each): chance alone does not fail this test.
    assert abs(got - count / 2) < 200


def test_filter_nested_20_deep_is_taken(fruit):
    # 19 chains around a leaf: 20 levels.
    nested = rf.PassAllFilter(True)
    for _ in range(19):
        nested = rf.RowFilterChain([nested, rf.PassAllFilter(True)])
    assert places(fruit, nested) == ALL

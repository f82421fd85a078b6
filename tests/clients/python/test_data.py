"""Writes and reads through the data client, the asynchronous one and the classic one."""

import asyncio
import time

import pytest
from conftest import INSTANCE, PARENT, PROJECT
from google.api_core import exceptions
from google.cloud.bigtable.data import (
    AddToCell,
    BigtableDataClientAsync,
    DeleteAllFromFamily,
    DeleteAllFromRow,
    DeleteRangeFromColumn,
    ReadRowsQuery,
    RowMutationEntry,
    RowRange,
    SetCell,
    row_filters,
)
from google.cloud.bigtable.data.exceptions import MutationsExceptionGroup
from google.cloud.bigtable.data.read_modify_write_rules import AppendValueRule, IncrementRule
from google.cloud.bigtable.row_filters import CellsColumnLimitFilter
from google.cloud.bigtable.row_set import RowSet

MIB = 1 << 20


def cells(row):
    """A row as [(family, qualifier, timestamp, value)]; [] for no row."""
    return [(c.family, c.qualifier, c.timestamp_micros, c.value) for c in row] if row else []


def keys(rows):
    return [r.row_key for r in rows]


# --- mutations ---


def test_cells_come_back_newest_first_and_qualifiers_in_order(table):
    table.mutate_row("r", [
        SetCell("f", "b", b"1", timestamp_micros=1000),
        SetCell("f", "b", b"3", timestamp_micros=3000),
        SetCell("f", "a", b"x", timestamp_micros=1000),
        SetCell("f", "b", b"2", timestamp_micros=2000),
    ])
    assert cells(table.read_row("r")) == [
        ("f", b"a", 1000, b"x"), ("f", b"b", 3000, b"3"), ("f", b"b", 2000, b"2"), ("f", b"b", 1000, b"1"),
    ]


def test_same_timestamp_is_replaced(table):
    for value in (b"first", b"second"):
        table.mutate_row("r", SetCell("f", "q", value, timestamp_micros=5000))
    assert cells(table.read_row("r")) == [("f", b"q", 5000, b"second")]


def test_server_time_is_now_in_whole_milliseconds(table):
    before = time.time()
    table.mutate_row("r", SetCell("f", "q", b"v", timestamp_micros=-1))
    micros = table.read_row("r").cells[0].timestamp_micros
    assert micros % 1000 == 0
    # The server's clock is this machine's.
    assert before - 1 <= micros / 1e6 <= time.time() + 1


def test_mutations_of_one_row_apply_in_order(table):
    table.mutate_row("r", SetCell("f", "old", b"v", timestamp_micros=1000))
    table.mutate_row("r", [DeleteAllFromRow(), SetCell("f", "new", b"v", timestamp_micros=1000)])
    assert cells(table.read_row("r")) == [("f", b"new", 1000, b"v")]


def test_delete_of_a_time_range_takes_its_start_and_leaves_its_end(table):
    table.mutate_row("r", [SetCell("f", "q", b"v", timestamp_micros=t) for t in (1000, 2000, 3000, 4000)])
    table.mutate_row("r", DeleteRangeFromColumn("f", b"q", start_timestamp_micros=2000, end_timestamp_micros=4000))
    assert [c[2] for c in cells(table.read_row("r"))] == [4000, 1000]


def test_delete_of_column_family_and_row(table):
    table.mutate_row("r", [SetCell(f, q, b"v", timestamp_micros=1000) for f in "fg" for q in "ab"])
    table.mutate_row("r", DeleteRangeFromColumn("f", b"a"))
    assert [(c[0], c[1]) for c in cells(table.read_row("r"))] == [("f", b"b"), ("g", b"a"), ("g", b"b")]
    table.mutate_row("r", DeleteAllFromFamily("g"))
    assert [(c[0], c[1]) for c in cells(table.read_row("r"))] == [("f", b"b")]
    table.mutate_row("r", DeleteAllFromRow())
    assert table.read_row("r") is None


def test_bulk_writes_report_each_entry(table):
    entries = [RowMutationEntry(f"r{i}", SetCell("f", "q", b"v", timestamp_micros=1000)) for i in range(4)]
    entries[1] = RowMutationEntry("r1", SetCell("no-such-family", "q", b"v", timestamp_micros=1000))
    with pytest.raises(MutationsExceptionGroup) as caught:
        table.bulk_mutate_rows(entries)
    assert [e.index for e in caught.value.exceptions] == [1]
    assert isinstance(caught.value.exceptions[0].__cause__, exceptions.NotFound)
    assert keys(table.read_rows(ReadRowsQuery())) == [b"r0", b"r2", b"r3"]


def test_batcher_writes_everything(table):
    with table.mutations_batcher(flush_limit_mutation_count=100) as batcher:
        for i in range(1000):
            batcher.append(RowMutationEntry(f"{i:04}", SetCell("f", "q", b"%d" % i, timestamp_micros=1000)))
    rows = table.read_rows(ReadRowsQuery())
    assert [(r.row_key, r.cells[0].value) for r in rows] == [(b"%04d" % i, b"%d" % i) for i in range(1000)]


def test_aggregates_sum_min_and_max(make_table):
    def family(kind):
        int64 = {"int64_type": {"encoding": {"big_endian_bytes": {}}}}
        return {"value_type": {"aggregate_type": {"input_type": int64, kind: {}}}}

    table = make_table({"sum": family("sum"), "min": family("min"), "max": family("max")})
    for value in (5, -7, 9):
        table.mutate_row("r", [AddToCell(f, "q", value, timestamp_micros=1000) for f in ("sum", "min", "max")])
    got = {c.family: int.from_bytes(c.value, "big", signed=True) for c in table.read_row("r")}
    assert got == {"sum": 7, "min": -7, "max": 9}


# --- read-modify-write, check-and-mutate ---


def test_increments_and_appends_see_each_other(table):
    row = table.read_modify_write_row("r", [IncrementRule("f", "n", 5), AppendValueRule("f", "s", b"ab")])
    assert int(row["f", b"n"][0]) == 5 and row["f", b"s"][0].value == b"ab"
    row = table.read_modify_write_row("r", [
        IncrementRule("f", "n", -7), AppendValueRule("f", "s", b"cd"), AppendValueRule("f", "s", b"ef"),
    ])
    assert int(row["f", b"n"][0]) == -2 and row["f", b"s"][0].value == b"abcdef"
    now = table.read_row("r")
    assert int(now["f", b"n"][0]) == -2 and now["f", b"s"][0].value == b"abcdef"


def test_increment_of_what_is_not_a_number_fails_and_changes_nothing(table):
    table.mutate_row("r", SetCell("f", "n", b"abc", timestamp_micros=1000))
    with pytest.raises((exceptions.FailedPrecondition, exceptions.InvalidArgument)):
        table.read_modify_write_row("r", IncrementRule("f", "n", 1))
    assert cells(table.read_row("r")) == [("f", b"n", 1000, b"abc")]


def test_concurrent_increments_are_all_counted(data_client, table):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: table.read_modify_write_row("r", IncrementRule("f", "n", 1)), range(200)))
    assert int(table.read_row("r")["f", b"n"][0]) == 200


def test_check_and_mutate_takes_the_branch_of_the_predicate(table):
    yes, no = SetCell("f", "yes", b"v", timestamp_micros=1000), SetCell("f", "no", b"v", timestamp_micros=1000)
    assert table.check_and_mutate_row("r", None, true_case_mutations=yes, false_case_mutations=no) is False
    assert [c[1] for c in cells(table.read_row("r"))] == [b"no"]
    predicate = row_filters.ColumnQualifierRegexFilter(b"no")
    assert table.check_and_mutate_row("r", predicate, true_case_mutations=yes) is True
    assert [c[1] for c in cells(table.read_row("r"))] == [b"no", b"yes"]
    predicate = row_filters.ValueRegexFilter(b"absent")
    assert table.check_and_mutate_row("r", predicate, true_case_mutations=DeleteAllFromRow()) is False
    assert [c[1] for c in cells(table.read_row("r"))] == [b"no", b"yes"]


# --- reads ---


@pytest.fixture(scope="module")
def letters(make_table):
    """Rows a .. j, in several tablets."""
    table = make_table(splits=[b"c", b"g"])
    table.bulk_mutate_rows([
        RowMutationEntry(k, SetCell("f", "q", k.encode(), timestamp_micros=1000)) for k in "abcdefghij"
    ])
    return table


@pytest.mark.parametrize(
    "bounds, expected",
    [
        ((None, None, None, None), "abcdefghij"),
        (("c", "f", True, False), "cde"),
        (("c", "f", False, True), "def"),
        (("c", "f", True, True), "cdef"),
        (("c", "f", False, False), "de"),
        (("h", None, None, None), "hij"),
        ((None, "c", None, None), "ab"),
        (("x", None, None, None), ""),
    ],
)
def test_ranges_with_open_and_closed_ends(letters, bounds, expected):
    rows = letters.read_rows(ReadRowsQuery(row_ranges=RowRange(*bounds)))
    assert b"".join(keys(rows)).decode() == expected


def test_keys_and_overlapping_ranges_give_each_row_once_in_order(letters):
    query = ReadRowsQuery(row_keys=["i", "b", "zz", "d"], row_ranges=[RowRange("c", "f"), RowRange("e", "g")])
    assert keys(letters.read_rows(query)) == [b"b", b"c", b"d", b"e", b"f", b"i"]


def test_limit_across_tablets(letters):
    assert keys(letters.read_rows(ReadRowsQuery(limit=7))) == [b"%c" % c for c in b"abcdefg"]


def test_prefix_scan_with_the_classic_client(letters, client):
    letters.bulk_mutate_rows([
        RowMutationEntry(k, SetCell("f", "q", b"v", timestamp_micros=1000)) for k in ("p#1", "p#2", "p$", "p")
    ])
    rows = RowSet()
    rows.add_row_range_with_prefix("p#")
    classic = client.instance(INSTANCE).table(letters.table_id)
    assert [r.row_key for r in classic.read_rows(row_set=rows)] == [b"p#1", b"p#2"]
    letters.bulk_mutate_rows([RowMutationEntry(k, DeleteAllFromRow()) for k in ("p#1", "p#2", "p$", "p")])


def raw_read(client, table, **request):
    """(row keys, biggest message) of a raw ReadRows, for what the data client has no option for."""
    found, biggest, key = [], 0, b""
    stream = client.table_data_client.read_rows(
        request={"table_name": f"{PARENT}/tables/{table.table_id}", **request}
    )
    for response in stream:
        biggest = max(biggest, response._pb.ByteSize())
        for chunk in response.chunks:
            key = chunk.row_key or key
            if chunk.commit_row:
                found.append(key)
                key = b""
    return found, biggest


def test_reversed_scans_go_from_the_last_row_to_the_first(letters, client):
    found, _ = raw_read(client, letters, reversed=True)
    assert found == [b"%c" % c for c in b"jihgfedcba"]
    found, _ = raw_read(
        client, letters, reversed=True, rows_limit=3,
        rows={"row_keys": [b"a"], "row_ranges": [{"start_key_closed": b"b", "end_key_open": b"h"}]},
    )
    assert found == [b"g", b"f", b"e"]


def test_a_cell_of_20_mib_comes_back_in_messages_below_4_mib(table, client):
    value = bytes(range(256)) * (20 * MIB // 256)
    table.mutate_row("big", SetCell("f", "q", value, timestamp_micros=1000))
    assert table.read_row("big").cells[0].value == value
    # Behind another row too: the client looks for the order of rows at the beginning of every message.
    table.mutate_row("before", SetCell("f", "q", b"small", timestamp_micros=1000))
    rows = table.read_rows(ReadRowsQuery())
    assert [(row.row_key, [cell.value for cell in row]) for row in rows] == [(b"before", [b"small"]), (b"big", [value])]
    found, biggest = raw_read(client, table)
    assert found == [b"before", b"big"] and biggest < 4 * MIB


def test_rows_of_several_messages_are_scanned_one_after_another(table, client):
    values = {f"r{i}".encode(): bytes([i]) * (3 * MIB - 1) for i in range(3)}
    for key, value in values.items():
        table.mutate_row(key, [SetCell("f", "q", value, timestamp_micros=1000), SetCell("g", "q", b"small", timestamp_micros=1000)])
    rows = table.read_rows(ReadRowsQuery())
    assert {r.row_key: [c.value for c in r] for r in rows} == {k: [v, b"small"] for k, v in values.items()}
    found, biggest = raw_read(client, table)
    assert found == sorted(values) and biggest < 4 * MIB


def test_wide_row_of_ten_thousand_columns(table):
    table.mutate_row("r", [SetCell("f", f"{i:05}", b"%d" % i, timestamp_micros=1000) for i in range(10_000)])
    row = table.read_row("r")
    assert [(c.qualifier, c.value) for c in row] == [(b"%05d" % i, b"%d" % i) for i in range(10_000)]


def test_binary_keys_qualifiers_and_values(table):
    key, qualifier, value = b"\x00\xff\n\x80", b"\x00:\xfe\n", bytes(range(256))
    table.mutate_row(key, [SetCell("f", qualifier, value, timestamp_micros=1000), SetCell("f", b"", b"", timestamp_micros=1000)])
    row = table.read_row(key)
    assert row.row_key == key
    assert cells(row) == [("f", b"", 1000, b""), ("f", qualifier, 1000, value)]


def test_missing_row_reads_as_none(table):
    assert table.read_row("nobody") is None
    assert not table.row_exists("nobody")


def test_sharded_reads_by_sampled_keys_give_every_row(letters):
    shards = ReadRowsQuery().shard(letters.sample_row_keys())
    assert sorted(keys(letters.read_rows_sharded(shards))) == [b"%c" % c for c in b"abcdefghij"]


# --- the other clients ---


def test_async_client_writes_and_reads(table):
    async def work():
        async with BigtableDataClientAsync(project=PROJECT) as client:
            async with client.get_table(INSTANCE, table.table_id) as t:
                await asyncio.gather(*(
                    t.mutate_row(f"r{i:02}", SetCell("f", "q", b"%d" % i, timestamp_micros=1000)) for i in range(50)
                ))
                async with t.mutations_batcher() as batcher:
                    for i in range(50, 60):
                        await batcher.append(RowMutationEntry(f"r{i:02}", SetCell("f", "q", b"%d" % i, timestamp_micros=1000)))
                got = [(r.row_key, r.cells[0].value) async for r in await t.read_rows_stream(ReadRowsQuery())]
                row = await t.read_modify_write_row("n", IncrementRule("f", "n", 3))
                return got, int(row.cells[0]), await t.row_exists("n")

    got, number, exists = asyncio.run(work())
    assert got == [(b"r%02d" % i, b"%d" % i) for i in range(60)]
    assert number == 3 and exists


def test_classic_client_writes_reads_and_conditions(table, client):
    t = client.instance(INSTANCE).table(table.table_id)
    row = t.direct_row("r")
    row.set_cell("f", "q", b"v1")
    assert row.commit().code == 0
    statuses = t.mutate_rows([_set(t, f"s{i}") for i in range(3)])
    assert [s.code for s in statuses] == [0, 0, 0]
    conditional = t.conditional_row("r", CellsColumnLimitFilter(1))
    conditional.set_cell("f", "q2", b"seen", state=True)
    assert conditional.commit() is True
    append = t.append_row("r")
    append.append_cell_value("f", "q", b"+")
    append.increment_cell_value("f", "n", 2)
    assert append.commit()["f"][b"q"][0][0] == b"v1+"
    got = t.read_row("r", filter_=CellsColumnLimitFilter(1))
    assert got.cell_value("f", b"q") == b"v1+" and got.cell_value("f", b"q2") == b"seen"
    assert [r.row_key for r in t.read_rows(start_key=b"s", end_key=b"t")] == [b"s0", b"s1", b"s2"]


def _set(t, key):
    row = t.direct_row(key)
    row.set_cell("f", "q", b"v")
    return row


# --- bad input: the documented code, and the connection stays usable ---


BAD = [
    ("empty row key", exceptions.InvalidArgument, lambda t: t.mutate_row(b"", SetCell("f", "q", b"v"))),
    ("row key over 4 KiB", exceptions.InvalidArgument, lambda t: t.mutate_row(b"k" * 4097, SetCell("f", "q", b"v"))),
    ("qualifier over 16 KiB", exceptions.InvalidArgument, lambda t: t.mutate_row("r", SetCell("f", b"q" * 16385, b"v"))),
    ("microseconds", exceptions.InvalidArgument, lambda t: t.mutate_row("r", SetCell("f", "q", b"v", timestamp_micros=1001))),
    ("unknown family", exceptions.NotFound, lambda t: t.mutate_row("r", SetCell("nope", "q", b"v"))),
    ("inverted time range", exceptions.InvalidArgument,
     lambda t: t.mutate_row("r", _inverted())),
    ("bad regex", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.ValueRegexFilter(b"(["))),
    ("zero cells per column", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.CellsColumnLimitFilter(0))),
    ("sample of 2", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.RowSampleFilter(2.0))),
    ("chain of one", exceptions.InvalidArgument,
     lambda t: t.read_row("r", row_filter=row_filters.RowFilterChain([row_filters.PassAllFilter(True)]))),
    ("pass_all_filter: false", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.PassAllFilter(False))),
    ("label with capitals", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.ApplyLabelFilter("Loud"))),
    ("filter nested too deep", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=_nested(21))),
    ("filter over 20 KiB", exceptions.InvalidArgument, lambda t: t.read_row("r", row_filter=row_filters.ValueRegexFilter(b"a" * 20481))),
]


class _inverted(DeleteRangeFromColumn):
    """A deletion whose range ends before it starts; the client's own check is skipped."""

    def __init__(self):
        super().__init__("f", b"q")

    def __post_init__(self):
        pass

    def _to_dict(self):
        return {"delete_from_column": {
            "family_name": "f", "column_qualifier": b"q",
            "time_range": {"start_timestamp_micros": 3000, "end_timestamp_micros": 2000},
        }}


def _nested(depth):
    f = row_filters.PassAllFilter(True)
    for _ in range(depth):
        f = row_filters.RowFilterChain([f, row_filters.PassAllFilter(True)])
    return f


@pytest.mark.parametrize("error, call", [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(table, error, call):
    with pytest.raises(error):
        call(table)
    table.mutate_row("after", SetCell("f", "q", b"v"))
    assert table.row_exists("after")


def test_unknown_table_is_not_found_for_every_call(data_client):
    with data_client.get_table(INSTANCE, "no-such-table") as t:
        for call in (
            lambda: t.read_row("r"),
            lambda: t.mutate_row("r", SetCell("f", "q", b"v")),
            lambda: t.sample_row_keys(),
            lambda: t.read_modify_write_row("r", IncrementRule("f", "q", 1)),
            lambda: t.check_and_mutate_row("r", None, true_case_mutations=DeleteAllFromRow()),
        ):
            with pytest.raises(exceptions.NotFound):
                call()


def test_requests_without_mutations_are_invalid(client, table):
    name = f"{PARENT}/tables/{table.table_id}"
    raw = client.table_data_client
    for call, request in (
        (raw.mutate_row, {"row_key": b"r", "mutations": []}),
        (raw.check_and_mutate_row, {"row_key": b"r"}),
        (raw.read_modify_write_row, {"row_key": b"r", "rules": []}),
    ):
        with pytest.raises(exceptions.InvalidArgument):
            call(request={"table_name": name, **request})

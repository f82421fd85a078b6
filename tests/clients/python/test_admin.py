"""Table administration through the official clients."""

import datetime

import pytest
from conftest import INSTANCE, PARENT, fresh_name
from google.api_core import exceptions
from google.cloud.bigtable import column_family as cf
from google.cloud.bigtable.data import ReadRowsQuery, SetCell
from google.protobuf import duration_pb2, field_mask_pb2


def full(name):
    return f"{PARENT}/tables/{name}"


@pytest.fixture
def instance(client):
    return client.instance(INSTANCE)


def test_table_is_created_listed_and_deleted(instance):
    table = instance.table(fresh_name())
    assert not table.exists()
    table.create(column_families={"f": cf.MaxVersionsGCRule(2)})
    assert table.exists()
    assert table.name in [t.name for t in instance.list_tables()]
    table.delete()
    assert not table.exists()
    assert table.name not in [t.name for t in instance.list_tables()]


def test_creating_an_existing_table_is_already_exists(instance):
    table = instance.table(fresh_name())
    table.create()
    with pytest.raises(exceptions.AlreadyExists):
        table.create()


def test_get_and_delete_of_an_unknown_table_are_not_found(admin):
    for call in (admin.get_table, admin.delete_table):
        with pytest.raises(exceptions.NotFound):
            call(request={"name": full("no-such-table")})


def test_list_tables_in_pages_shows_each_table_once(admin):
    names = sorted(fresh_name("page") for _ in range(5))
    # An instance of its own, so that other tests' tables do not show.
    parent = f"projects/tests/instances/{fresh_name('i')}"
    for name in names:
        admin.create_table(request={"parent": parent, "table_id": name, "table": {}})
    pager = admin.list_tables(request={"parent": parent, "page_size": 2})
    assert sorted(t.name for t in pager) == [f"{parent}/tables/{n}" for n in names]


def test_gc_rules_of_every_kind_come_back_as_given(instance):
    rules = {
        "versions": cf.MaxVersionsGCRule(3),
        "age": cf.MaxAgeGCRule(datetime.timedelta(days=2)),
        "either": cf.GCRuleUnion([cf.MaxVersionsGCRule(1), cf.MaxAgeGCRule(datetime.timedelta(hours=1))]),
        "both": cf.GCRuleIntersection([cf.MaxVersionsGCRule(1), cf.MaxAgeGCRule(datetime.timedelta(hours=1))]),
        "forever": None,
    }
    table = instance.table(fresh_name())
    table.create(column_families=rules)
    families = table.list_column_families()
    assert {name: family.gc_rule for name, family in families.items()} == rules


def test_families_are_created_updated_and_deleted(instance):
    table = instance.table(fresh_name())
    table.create(column_families={"a": None})
    b = table.column_family("b", gc_rule=cf.MaxVersionsGCRule(1))
    b.create()
    assert set(table.list_column_families()) == {"a", "b"}
    table.column_family("b", gc_rule=cf.MaxVersionsGCRule(7)).update()
    assert table.list_column_families()["b"].gc_rule == cf.MaxVersionsGCRule(7)
    table.column_family("a").delete()
    assert set(table.list_column_families()) == {"b"}


def test_family_changes_that_cannot_all_be_made_are_not_made_at_all(admin, instance):
    table = instance.table(fresh_name())
    table.create(column_families={"a": None})
    with pytest.raises(exceptions.AlreadyExists):
        admin.modify_column_families(request={
            "name": table.name,
            "modifications": [{"id": "new", "create": {}}, {"id": "a", "create": {}}],
        })
    assert set(table.list_column_families()) == {"a"}


def test_a_dropped_and_recreated_family_is_empty(table, admin):
    table.mutate_row("r", [SetCell("f", "q", b"old"), SetCell("g", "q", b"kept")])
    name = full(table.table_id)
    admin.modify_column_families(request={"name": name, "modifications": [{"id": "f", "drop": True}]})
    admin.modify_column_families(request={"name": name, "modifications": [{"id": "f", "create": {}}]})
    assert [c.family for c in table.read_row("r")] == ["g"]


def test_update_needs_deletion_protection_off_before_delete(admin, instance):
    table = instance.table(fresh_name())
    table.create()
    def protect(on):
        admin.update_table(request={
            "table": {"name": table.name, "deletion_protection": on},
            "update_mask": field_mask_pb2.FieldMask(paths=["deletion_protection"]),
        }).result(timeout=30)

    protect(True)
    assert admin.get_table(request={"name": table.name}).deletion_protection
    with pytest.raises(exceptions.FailedPrecondition):
        table.delete()
    protect(False)
    table.delete()


def test_undelete_brings_a_table_back_with_its_rows(table, admin):
    table.mutate_row("r", SetCell("f", "q", b"v"))
    name = full(table.table_id)
    admin.delete_table(request={"name": name})
    with pytest.raises(exceptions.NotFound):
        table.read_row("r")
    assert admin.undelete_table(request={"name": name}).result(timeout=30).name == name
    assert table.read_row("r").cells[0].value == b"v"


def test_views_show_what_they_promise(admin, instance):
    table = instance.table(fresh_name())
    table.create(column_families={"f": cf.MaxVersionsGCRule(2)})
    name_only = admin.get_table(request={"name": table.name, "view": "NAME_ONLY"})
    assert name_only.name == table.name and not name_only.column_families
    schema = admin.get_table(request={"name": table.name, "view": "SCHEMA_VIEW"})
    assert schema.column_families["f"].gc_rule.max_num_versions == 2


def test_max_age_keeps_fractions_of_a_second(admin, make_table):
    table = make_table({"f": {"gc_rule": {"max_age": duration_pb2.Duration(seconds=5, nanos=250_000_000)}}})
    age = admin.get_table(request={"name": full(table.table_id)}).column_families["f"].gc_rule.max_age
    assert age == datetime.timedelta(seconds=5, milliseconds=250)


def test_initial_splits_are_sampled_in_order(make_table):
    table = make_table(splits=[b"c", b"m", b"t"])
    keys = [key for key, _ in table.sample_row_keys()]
    assert {b"c", b"m", b"t"} <= set(keys)
    ends = [k for k in keys if k]
    assert ends == sorted(ends)


def test_drop_row_range_by_prefix_and_of_everything(table, client):
    for key in ("a1", "a2", "b1"):
        table.mutate_row(key, SetCell("f", "q", b"v"))
    classic = client.instance(INSTANCE).table(table.table_id)
    classic.drop_by_prefix("a", timeout=60)
    assert [r.row_key for r in table.read_rows(ReadRowsQuery())] == [b"b1"]
    table.mutate_row("a1", SetCell("f", "q", b"new"))
    assert [r.row_key for r in table.read_rows(ReadRowsQuery())] == [b"a1", b"b1"]
    classic.truncate(timeout=60)
    assert table.read_rows(ReadRowsQuery()) == []
    table.mutate_row("z", SetCell("f", "q", b"v"))
    assert [r.row_key for r in table.read_rows(ReadRowsQuery())] == [b"z"]


def test_consistency_token_is_checked(admin, table):
    name = full(table.table_id)
    token = admin.generate_consistency_token(request={"name": name}).consistency_token
    assert admin.check_consistency(request={"name": name, "consistency_token": token}).consistent
    with pytest.raises(exceptions.InvalidArgument):
        admin.check_consistency(request={"name": name, "consistency_token": "nobody gave this"})


@pytest.mark.parametrize("bad", ["", "-starts-badly", "has space", "x" * 51])
def test_bad_table_ids_are_invalid(admin, bad):
    with pytest.raises(exceptions.InvalidArgument):
        admin.create_table(request={"parent": PARENT, "table_id": bad, "table": {}})


def test_bad_family_names_are_invalid(admin):
    with pytest.raises(exceptions.InvalidArgument):
        admin.create_table(request={
            "parent": PARENT, "table_id": fresh_name(), "table": {"column_families": {"with:colon": {}}},
        })

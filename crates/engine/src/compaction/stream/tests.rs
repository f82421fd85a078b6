use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cell::{Mutation, Row, RowRange, SEQ_MAX, row_prefix};
use crate::limits::ROW_READ_BYTES_MAX;
use crate::read::testing::model::{History, any_history, record, schema};
use crate::read::testing::{Record as Rec, VecCursor, cursors, read};
use crate::read::{Projection, ReadSpec};
use crate::schema::GcRule;

fn spec(snapshots: Vec<Seq>, beneath: Beneath) -> CompactionSpec {
    CompactionSpec {
        schema: schema(None),
        snapshots,
        beneath,
        excised: Arc::from([]),
        times: Times::all_in_sight(0),
    }
}

#[test]
fn a_compaction_that_is_to_stop_does_not_go_through_all_that_is_deleted_first() {
    // A row that is gone, with more cells than anybody waits for.
    let put = |n: u64| {
        let qualifier = n.to_string().into();
        Mutation::Put { family: FamilyId(1), qualifier, timestamp: 1000, value: "v".into() }
    };
    let mut records: Vec<_> =
        (1..=10 * TAKEN_TOGETHER).map(|n| record(b"gone", &put(n), n)).collect();
    records.push(record(b"gone", &Mutation::DeleteRow, 10 * TAKEN_TOGETHER + 1));
    records.sort();
    let runs = cursors(&[Arc::new(records)], false);
    let asked = std::cell::Cell::new(0);
    let wanted = || {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    let mut stream = CompactionStream::new(runs, spec(Vec::new(), Beneath::NOTHING), &[]);
    assert!(stream.next_while(&wanted).is_err());
    assert_eq!((asked.get(), stream.stats().records_in / TAKEN_TOGETHER), (3, 2));
    assert!(stream.next().unwrap().is_none(), "nothing comes behind an error");
}

/// Runs a compaction to its end and checks what holds of every one.
fn compact(
    runs: &[Arc<Vec<Rec>>],
    spec: CompactionSpec,
    blocking: bool,
) -> (Arc<Vec<Rec>>, CompactionStats) {
    let mut stream = CompactionStream::new(cursors(runs, blocking), spec, &[]);
    let mut out: Vec<Rec> = Vec::new();
    while let Some(entry) = stream.next().unwrap() {
        let record = (entry.key.bytes().to_vec(), Bytes::copy_from_slice(entry.value));
        assert_eq!(stream.value_bytes(), record.1);
        assert!(out.last().is_none_or(|last| last.0 < record.0), "keys ascend");
        out.push(record);
    }
    assert!(stream.next().unwrap().is_none());
    let s = stream.stats();
    let dropped = s.hidden
        + s.overwritten
        + s.collected
        + s.family_dropped
        + s.excised
        + s.tombstones_dropped;
    assert_eq!(s.records_in, s.records_out + dropped, "{s:?}");
    assert_eq!(s.records_out, out.len() as u64);
    (Arc::new(out), s)
}

fn rows(runs: &[Arc<Vec<Rec>>], snapshot: Seq, excised: &Arc<[Excised]>) -> Vec<Row> {
    let spec = ReadSpec {
        snapshot,
        schema: schema(None),
        excised: Arc::clone(excised),
        range: RowRange::all(),
        projection: Projection::all(),
        reverse: false,
        rows_hint: None,
        row_bytes_max: ROW_READ_BYTES_MAX,
        wide_tombstones: true,
    };
    read(runs, &spec, false).unwrap()
}

/// The history cut into runs that are contiguous in time, newest first.
fn cut(history: &History, cuts: &[prop::sample::Index]) -> Vec<Arc<Vec<Rec>>> {
    let mut at: Vec<Seq> = cuts.iter().map(|cut| cut.index(history.0.len() + 1) as Seq).collect();
    at.extend([0, history.last()]);
    at.sort_unstable();
    let mut runs: Vec<_> = at
        .windows(2)
        .map(|ends| {
            let mut records = history.records(|seq| seq > ends[0] && seq <= ends[1]);
            records.sort();
            Arc::new(records)
        })
        .collect();
    runs.reverse();
    runs
}

fn pick_snapshots(history: &History, picks: &[prop::sample::Index]) -> Vec<Seq> {
    let mut seqs: Vec<Seq> =
        picks.iter().map(|pick| pick.index(history.0.len() + 1) as Seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    seqs
}

/// What runs have, as the properties of their SSTs would say, or as if those were not known.
fn beneath(runs: &[Arc<Vec<Rec>>], is_known: bool) -> Beneath {
    if !is_known && !runs.is_empty() {
        return Beneath::Anything;
    }
    let mut newest = BTreeMap::new();
    for (key, _) in runs.iter().flat_map(|run| run.iter()) {
        let key = KeyView::parse(key).unwrap();
        if !key.kind().is_tombstone() {
            let known = newest.entry(key.family()).or_insert(Timestamp::MIN);
            *known = key.timestamp().max(*known);
        }
    }
    Beneath::Cells(newest)
}

/// A pick of neighbouring runs, and whether it is known what lies beneath.
type AnyPick = (Index, Index, bool);

/// Compacts neighbouring runs, as picked, until one is left; `check` sees the runs after each.
fn compact_down(
    mut runs: Vec<Arc<Vec<Rec>>>,
    picks: &[AnyPick],
    spec: impl Fn(Beneath) -> CompactionSpec,
    blocking: bool,
    mut check: impl FnMut(&[Arc<Vec<Rec>>]),
) -> Arc<Vec<Rec>> {
    for (a, b, is_known) in picks {
        let (a, b) = (a.index(runs.len()), b.index(runs.len()));
        let (first, last) = (a.min(b), a.max(b));
        let beneath = beneath(&runs[last + 1..], *is_known);
        let (out, _) = compact(&runs[first..=last], spec(beneath), blocking);
        runs.splice(first..=last, [out]);
        check(&runs);
    }
    let (out, _) = compact(&runs, spec(Beneath::NOTHING), blocking);
    check(std::slice::from_ref(&out));
    out
}

fn is_tombstone(record: &Rec) -> bool {
    KeyView::parse(&record.0).unwrap().kind().is_tombstone()
}

/// Ages count from 6: timestamps of histories are 0 to 5.
const NOW: i64 = 6;

fn any_rule() -> impl Strategy<Value = GcRule> {
    let leaf =
        prop_oneof![(1..4_u32).prop_map(GcRule::MaxVersions), (1..7_i64).prop_map(GcRule::MaxAge),];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 1..3).prop_map(GcRule::Union),
            vec(inner, 0..3).prop_map(GcRule::Intersection),
        ]
    })
}

type Index = prop::sample::Index;

proptest! {
    #[test]
    fn no_reader_can_tell_that_a_compaction_ran(
        history in any_history(),
        cuts in vec(any::<Index>(), 0..6),
        snapshots in vec(any::<Index>(), 0..4),
        picks in vec(any::<AnyPick>(), 0..5),
        blocking in any::<bool>(),
    ) {
        let snapshots = pick_snapshots(&history, &snapshots);
        let excised = history.excised();
        let spec = |beneath| CompactionSpec {
            excised: Arc::clone(&excised),
            ..spec(snapshots.clone(), beneath)
        };
        let views: Vec<Seq> = snapshots.iter().copied().chain([SEQ_MAX]).collect();
        let one = compact_down(cut(&history, &cuts), &picks, spec, blocking, |runs| {
            for view in &views {
                assert_eq!(
                    rows(runs, *view, &excised),
                    history.rows(*view, &schema(None)),
                    "at {view}"
                );
            }
        });
        if snapshots.is_empty() {
            // Nothing is left but what the latest view shows.
            let cells: usize =
                history.rows(SEQ_MAX, &schema(None)).iter().map(|r| r.cells.len()).sum();
            prop_assert_eq!(one.len(), cells);
            prop_assert!(!one.iter().any(is_tombstone));
            // Nor does it need the excised ranges any more.
            prop_assert_eq!(
                rows(&[one], SEQ_MAX, &Arc::from([])),
                history.rows(SEQ_MAX, &schema(None))
            );
        } else {
            // Once the snapshots are closed, another compaction gets there.
            let (rest, _) = compact(&[one], CompactionSpec { snapshots: vec![], ..spec(Beneath::NOTHING) }, false);
            prop_assert!(!rest.iter().any(is_tombstone));
        }
    }

    #[test]
    fn collection_takes_what_a_rule_lets_go_and_nothing_else(
        history in any_history(),
        cuts in vec(any::<Index>(), 0..6),
        snapshots in vec(any::<Index>(), 0..3),
        picks in vec(any::<AnyPick>(), 0..5),
        rule in any_rule(),
    ) {
        let snapshots = pick_snapshots(&history, &snapshots);
        let excised = history.excised();
        let spec = |beneath| CompactionSpec {
            schema: schema(Some(rule.clone())),
            excised: Arc::clone(&excised),
            times: Times::all_in_sight(NOW),
            ..spec(snapshots.clone(), beneath)
        };
        let latest = history.rows(SEQ_MAX, &schema(None));
        // The newer cells that a compaction may have counted before some of them were deleted.
        let must_stay: Vec<Row> = latest
            .iter()
            .map(|row| {
                let stays = |cell: &&crate::cell::Cell| {
                    !rule.collects(history.ever_newer(&row.key, cell), cell.timestamp, NOW)
                };
                Row { key: row.key.clone(), cells: row.cells.iter().filter(stays).cloned().collect() }
            })
            .collect();
        compact_down(cut(&history, &cuts), &picks, spec, false, |runs| {
            for snapshot in &snapshots {
                assert_eq!(
                    rows(runs, *snapshot, &excised),
                    history.rows(*snapshot, &schema(None)),
                    "at {snapshot}"
                );
            }
            let left = rows(runs, SEQ_MAX, &excised);
            for row in &must_stay {
                let found = left.iter().find(|r| r.key == row.key);
                for cell in &row.cells {
                    assert!(found.is_some_and(|r| r.cells.contains(cell)), "lost {cell:?}");
                }
            }
            for row in &left {
                let known = latest.iter().find(|r| r.key == row.key).expect("rows do not appear");
                for cell in &row.cells {
                    let same = |c: &crate::cell::Cell| {
                        (c.family, &c.qualifier, c.timestamp)
                            == (cell.family, &cell.qualifier, cell.timestamp)
                    };
                    let before = known.cells.iter().find(|c| same(c)).expect("cells do not appear");
                    // An aggregate that was collected below newer operands starts anew.
                    if cell.family.0 == 1 {
                        assert_eq!(before.value, cell.value, "older values do not come back");
                    }
                }
            }
        });

        // All at once, without snapshots: exactly what the rule does not collect is left.
        let all = CompactionSpec { snapshots: Vec::new(), ..spec(Beneath::NOTHING) };
        let (one, _) = compact(&cut(&history, &cuts), all.clone(), false);
        let kept: Vec<Row> = latest
            .iter()
            .map(|row| {
                let kept = row.cells.iter().filter(|cell| {
                    let newer = row.cells.iter().filter(|c| {
                        c.family == cell.family
                            && c.qualifier == cell.qualifier
                            && c.timestamp > cell.timestamp
                    });
                    !rule.collects(newer.count() as u32, cell.timestamp, NOW)
                });
                Row { key: row.key.clone(), cells: kept.cloned().collect() }
            })
            .filter(|row| !row.cells.is_empty())
            .collect();
        prop_assert_eq!(rows(std::slice::from_ref(&one), SEQ_MAX, &Arc::from([])), kept);
        prop_assert!(!one.iter().any(is_tombstone));
        // And a second pass finds nothing to do.
        let (again, _) = compact(std::slice::from_ref(&one), all, false);
        prop_assert_eq!(again, one);
    }

    #[test]
    fn parts_cut_at_rows_make_the_whole(
        history in any_history(),
        cuts in vec(any::<Index>(), 0..4),
        snapshots in vec(any::<Index>(), 0..3),
    ) {
        let snapshots = pick_snapshots(&history, &snapshots);
        let runs = cut(&history, &cuts);
        let (whole, _) = compact(&runs, spec(snapshots.clone(), Beneath::NOTHING), false);
        let bound = row_prefix(b"a\0");
        let mut stream =
            CompactionStream::new(cursors(&runs, false), spec(snapshots, Beneath::NOTHING), &bound);
        let mut upper: Vec<Rec> =
            whole.iter().filter(|(key, _)| *key < bound).cloned().collect();
        while let Some(entry) = stream.next().unwrap() {
            upper.push((entry.key.bytes().to_vec(), Bytes::copy_from_slice(entry.value)));
        }
        prop_assert_eq!(&upper, whole.as_ref());
    }
}

fn merge(operand: &'static [u8], seq: Seq) -> Rec {
    let merge = Mutation::Merge {
        family: FamilyId(2),
        qualifier: Bytes::new(),
        timestamp: 1,
        operand: Bytes::from_static(operand),
    };
    record(b"a", &merge, seq)
}

fn all(records: Vec<Rec>, spec: CompactionSpec) -> Result<Vec<Rec>> {
    let cursor: Box<dyn Cursor> = Box::new(VecCursor::new(records, false));
    let mut stream = CompactionStream::new(vec![cursor], spec, &[]);
    let mut out = Vec::new();
    while let Some(entry) = stream.next()? {
        out.push((entry.key.bytes().to_vec(), Bytes::copy_from_slice(entry.value)));
    }
    Ok(out)
}

#[test]
fn a_million_operands_of_one_cell_become_one() {
    let records = (1..=1_000_000).map(|seq| merge(&[0, 0, 0, 0, 0, 0, 0, 1], seq)).collect();
    let out = all(records, spec(Vec::new(), Beneath::Anything)).unwrap();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].1.as_ref(), 1_000_000_i64.to_be_bytes());
    let key = KeyView::parse(&out[0].0).unwrap();
    assert_eq!((key.seq(), key.kind()), (1_000_000, Kind::Merge));
}

#[test]
fn malformed_operands_and_tombstones_pass_through_for_a_read_to_report() {
    let delete = Mutation::DeleteCells {
        family: FamilyId(1),
        qualifier: Bytes::new(),
        timestamps: crate::cell::TimestampRange { start: 1, end: 5 },
    };
    let mut tombstone = record(b"a", &delete, 9);
    tombstone.1 = Bytes::from_static(b"bad");
    let mut records = vec![
        tombstone,
        merge(&[0; 8], 4),
        merge(b"bad", 3),
        merge(&[0, 0, 0, 0, 0, 0, 0, 2], 2),
        merge(&[0, 0, 0, 0, 0, 0, 0, 1], 1),
    ];
    let out = all(records.clone(), spec(Vec::new(), Beneath::NOTHING)).unwrap();
    // The two below the malformed operand combine; nothing else changes.
    records.pop();
    records[3].1 = Bytes::copy_from_slice(&3_i64.to_be_bytes());
    assert_eq!(out, records);
}

#[test]
fn a_value_elsewhere_hides_and_is_hidden_as_a_value_is() {
    let elsewhere = |seq| {
        let mut record = merge(&[7; 11], seq);
        *record.0.last_mut().unwrap() = Kind::ValueElsewhere as u8;
        record
    };
    let out = |records| all(records, spec(Vec::new(), Beneath::NOTHING)).unwrap();
    let (new, old) = (elsewhere(2), elsewhere(1));
    assert_eq!(out(vec![new.clone(), old.clone()]), std::slice::from_ref(&new));
    assert_eq!(out(vec![new.clone(), merge(&[0; 8], 1)]), [new], "it ends its cell");
    // A pointer is no number: an operand above it stays for a read to report.
    let records = vec![merge(&[0; 8], 2), old];
    assert_eq!(out(records.clone()), records);
}

//! Random requests against a table and against the simplest thing that could be right: a sorted map of
//! cells, changed and read as the documentation says.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use proptest::prelude::*;
use tokio::runtime;

use crate::{Change, Fixture, add, delete_cells, delete_family, delete_row, row_set, set, texts};

/// Families by their number in the schema.
const FAMILIES: [&str; 3] = ["f", "g", "sum"];
const ROWS: [&str; 6] = ["a", "b", "b\0", "ba", "c", "d"];
const SPLITS: [&str; 2] = ["b", "c"];

/// Row, family number, qualifier, timestamp descending.
type Key = (String, usize, String, Reverse<i64>);

#[derive(Debug, Clone)]
enum Op {
    Mutate(usize, Vec<Step>),
    Drop(String),
    Flush,
    Reopen,
    Read { keys: Vec<usize>, ranges: Vec<(usize, usize)>, reversed: bool, rows_limit: usize },
}

#[derive(Debug, Clone)]
enum Step {
    Set { family: usize, qualifier: String, millis: i64, value: String },
    Add { input: i64 },
    DeleteCells { family: usize, qualifier: String, start: i64, end: i64 },
    DeleteFamily { family: usize },
    DeleteRow,
}

impl Step {
    fn change(&self) -> Change {
        match self {
            Self::Set { family, qualifier, millis, value } => {
                set(FAMILIES[*family], qualifier, millis * 1_000, value.clone())
            }
            Self::Add { input } => add("sum", *input),
            Self::DeleteCells { family, qualifier, start, end } => {
                delete_cells(FAMILIES[*family], qualifier, start * 1_000, end * 1_000)
            }
            Self::DeleteFamily { family } => delete_family(FAMILIES[*family]),
            Self::DeleteRow => delete_row(),
        }
    }

    fn apply(&self, row: &str, cells: &mut BTreeMap<Key, Vec<u8>>) {
        match self {
            Self::Set { family, qualifier, millis, value } => {
                let key = (row.to_owned(), *family, qualifier.clone(), Reverse(millis * 1_000));
                cells.insert(key, value.clone().into_bytes());
            }
            Self::Add { input } => {
                let cell = cells
                    .entry((row.to_owned(), 2, "q".to_owned(), Reverse(1_000)))
                    .or_insert_with(|| vec![0; 8]);
                let sum = i64::from_be_bytes(cell.as_slice().try_into().unwrap()) + input;
                *cell = sum.to_be_bytes().to_vec();
            }
            Self::DeleteCells { family, qualifier, start, end } => {
                cells.retain(|(r, f, q, t), _| {
                    let in_range = t.0 >= start * 1_000 && (*end == 0 || t.0 < end * 1_000);
                    !(r == row && f == family && q == qualifier && in_range)
                });
            }
            Self::DeleteFamily { family } => {
                cells.retain(|(r, f, ..), _| !(r == row && f == family));
            }
            Self::DeleteRow => cells.retain(|(r, ..), _| r != row),
        }
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    let qualifier = || prop::sample::select(vec!["", "p", "q"]).prop_map(str::to_owned);
    prop_oneof![
        6 => (0..2_usize, qualifier(), 0..4_i64, "[a-z]{0,3}").prop_map(
            |(family, qualifier, millis, value)| Step::Set { family, qualifier, millis, value }
        ),
        2 => (-5..5_i64).prop_map(|input| Step::Add { input }),
        2 => (0..3_usize, qualifier(), 0..3_i64, 1..3_i64, any::<bool>()).prop_map(
            |(family, qualifier, start, len, endless)| {
                let end = if endless { 0 } else { start + len };
                Step::DeleteCells { family, qualifier, start, end }
            }
        ),
        1 => (0..3_usize).prop_map(|family| Step::DeleteFamily { family }),
        1 => Just(Step::DeleteRow),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let row = 0..ROWS.len();
    prop_oneof![
        8 => (row.clone(), prop::collection::vec(any_step(), 1..5))
            .prop_map(|(row, steps)| Op::Mutate(row, steps)),
        1 => prop::sample::select(vec!["a", "b", "ba", "x"]).prop_map(|p| Op::Drop(p.to_owned())),
        1 => Just(Op::Flush),
        1 => Just(Op::Reopen),
        4 => (
            prop::collection::vec(row.clone(), 0..4),
            prop::collection::vec((row.clone(), row), 0..3),
            any::<bool>(),
            0..5_usize,
        ).prop_map(|(keys, ranges, reversed, rows_limit)| {
            let ranges = ranges.into_iter().map(|(a, b)| (a.min(b), a.max(b))).collect();
            Op::Read { keys, ranges, reversed, rows_limit }
        }),
    ]
}

/// What a read must show.
fn expected(
    cells: &BTreeMap<Key, Vec<u8>>,
    keys: &[usize],
    ranges: &[(usize, usize)],
    reversed: bool,
    rows_limit: usize,
) -> Vec<String> {
    let wanted = |row: &str| {
        keys.is_empty() && ranges.is_empty()
            || keys.iter().any(|k| ROWS[*k] == row)
            || ranges.iter().any(|(a, b)| ROWS[*a] <= row && row < ROWS[*b])
    };
    let mut rows: Vec<&str> = cells.keys().map(|(row, ..)| row.as_str()).collect();
    rows.dedup();
    rows.retain(|row| wanted(row));
    if reversed {
        rows.reverse();
    }
    if rows_limit > 0 {
        rows.truncate(rows_limit);
    }
    rows.into_iter()
        .flat_map(|row| {
            cells.iter().filter(move |((r, ..), _)| r == row).map(|((r, f, q, t), value)| {
                let (r, value) = (r.as_bytes().escape_ascii(), value.escape_ascii());
                format!("{r} {}:{q}@{}={value}", FAMILIES[*f], t.0)
            })
        })
        .collect()
}

async fn run(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut fixture = Fixture::new(&SPLITS);
    let mut cells: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for op in ops {
        match op {
            Op::Mutate(row, steps) => {
                fixture.mutate(ROWS[row], steps.iter().map(Step::change).collect()).await;
                for step in &steps {
                    step.apply(ROWS[row], &mut cells);
                }
            }
            Op::Drop(prefix) => {
                fixture.table.drop_row_range(Some(prefix.as_bytes())).await.unwrap();
                cells.retain(|(row, ..), _| !row.starts_with(&prefix));
            }
            Op::Flush => fixture.flush().await,
            Op::Reopen => fixture.reopen(),
            Op::Read { keys, ranges, reversed, rows_limit } => {
                let names: Vec<&str> = keys.iter().map(|k| ROWS[*k]).collect();
                let bounds: Vec<_> = ranges.iter().map(|(a, b)| (ROWS[*a], ROWS[*b])).collect();
                let request = v2::ReadRowsRequest {
                    rows: row_set(&names, &bounds),
                    reversed,
                    rows_limit: rows_limit as i64,
                    ..Default::default()
                };
                let shown = texts(&fixture.read(request).await);
                prop_assert_eq!(shown, expected(&cells, &keys, &ranges, reversed, rows_limit));
            }
        }
    }
    prop_assert_eq!(fixture.dump().await, expected(&cells, &[], &[], false, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_table_answers_as_a_sorted_map_of_cells_would(
        ops in prop::collection::vec(any_op(), 1..40),
    ) {
        runtime::Builder::new_current_thread().build().unwrap().block_on(run(ops))?;
    }
}

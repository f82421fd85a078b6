//! Batches of many mutations, which go into the memtable in another order than their own.

use super::*;
use crate::memtable::COPIED_VALUE_BYTES_MIN;
use crate::random::mix64;

/// Mutations of a row in no order, of which some are of the same cells, and some large.
fn mutations() -> Vec<Mutation> {
    let (family, bytes) = (FamilyId(1), |n: u64| Bytes::from(format!("{:02}", mix64(n) % 40)));
    let one = |n: u64| match mix64(!n) % 16 {
        0 => Mutation::DeleteCells {
            family,
            qualifier: bytes(n),
            timestamps: TimestampRange { start: 0, end: 3_000 },
        },
        1 => Mutation::DeleteCells { family, qualifier: bytes(n), timestamps: TimestampRange::ALL },
        kind => Mutation::Put {
            family,
            qualifier: bytes(n),
            timestamp: (mix64(n + 1_000) % 8) as i64 * 1_000,
            value: match kind {
                2 => Bytes::from(vec![n as u8; COPIED_VALUE_BYTES_MIN + n as usize]),
                _ => Bytes::from(format!("value {n}")),
            },
        },
    };
    (0..500).map(one).collect()
}

#[test]
fn a_wide_batch_shows_what_its_mutations_show_one_after_the_other() {
    let rig = rig();
    let apply = |row: &'static str, mutations| {
        let row = Bytes::from_static(row.as_bytes());
        block_on(rig.tablet.apply(RowBatch { row, mutations })).unwrap();
    };
    apply("at once", mutations());
    for mutation in mutations() {
        apply("one by one", vec![mutation]);
    }
    let cells = |row: &str| {
        let all = Projection::all();
        let read = rig.tablet.read_row(row.as_bytes(), &all, ReadView::Durable);
        block_on(read).unwrap().unwrap().cells
    };
    let expected = cells("one by one");
    assert!(expected.iter().any(|cell| cell.value.len() >= COPIED_VALUE_BYTES_MIN));
    assert!((50..300).contains(&expected.len()), "{}", expected.len());
    assert_eq!(cells("at once"), expected);
    block_on(rig.tablet.flush()).unwrap();
    assert_eq!(cells("at once"), expected);
}

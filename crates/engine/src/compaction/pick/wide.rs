//! Picks of tables that are written in the order of their rows: level 0 has thousands of files, of which hardly any two
//! share a row. At a look at all the others for each file, or for each two of them, these tests take minutes to hours.

use bytes::Bytes;

use super::*;
use crate::compaction::shape::Contents;
use crate::manifest::VersionEdit;

/// Files of level 0: half a terabyte of them, of memtables of 128 MiB.
const FILES: u64 = 4000;

/// A file of level 0 is as old as its id tells.
fn file(id: FileId, level: u8, (first, last): (u64, u64), bytes: u64) -> SstRef {
    let row = |at: u64| Bytes::copy_from_slice(&at.to_be_bytes());
    SstRef::of_test(id, level, (row(first), row(last)), bytes)
}

/// What is picked first where level 0 is due for its weight, but for `busy` files.
fn picked(files: impl Iterator<Item = SstRef>, style: CompactionStyle, busy: &[FileId]) -> Pick {
    let edit = VersionEdit { add: files.collect(), ..VersionEdit::default() };
    let version = Version::empty(RowRange::all()).apply(&edit).unwrap();
    let options = EngineOptions { base_level_bytes: 1000, ..EngineOptions::default() };
    let shape = Shape::new(&version, &options, style, &|_| Contents::default());
    let busy = Busy { files: busy.iter().copied().collect(), ..Busy::default() };
    pick_by_shape(&version, &shape, &options, &busy).unwrap()
}

fn ids(pick: &Pick) -> Vec<FileId> {
    pick.inputs.iter().map(|file| file.id).collect()
}

#[test]
fn of_thousands_of_files_in_the_order_of_their_rows_the_newest_goes_down_alone() {
    let files = || (1..=FILES).map(|id| file(id, 0, (10 * id, 10 * id + 9), 10));
    for style in [CompactionStyle::Tiered, CompactionStyle::Leveled] {
        let pick = picked(files(), style, &[]);
        assert_eq!((ids(&pick), pick.reason), (vec![FILES], Reason::L0), "{style:?}");
        let next = picked(files(), style, &[FILES, FILES - 1]);
        assert_eq!(ids(&next), [FILES - 2], "{style:?}");
    }
}

#[test]
fn of_thousands_of_files_over_others_the_one_goes_down_that_meets_the_fewest_bytes() {
    // A table that is imported once more.
    let cheap = FILES / 3;
    let over = (1..=FILES).map(|id| file(id, 0, (10 * id, 10 * id + 9), 10));
    let under = (1..=FILES).map(|id| {
        let bytes = if id == cheap { 15 } else { 19 };
        file(FILES + id, LAST_LEVEL, (10 * id + 3, 10 * id + 5), bytes)
    });
    let pick = picked(over.chain(under), CompactionStyle::Tiered, &[]);
    assert_eq!(ids(&pick), [cheap, FILES + cheap]);
}

#[test]
fn thousands_of_files_that_lie_on_each_other_like_bricks_go_down_together() {
    let upper = (1..=FILES).map(|id| file(FILES + id, 0, (10 * id + 5, 10 * id + 14), 10));
    let lower = (1..=FILES).map(|id| file(id, 0, (10 * id, 10 * id + 9), 10));
    let pick = picked(upper.chain(lower), CompactionStyle::Tiered, &[]);
    assert_eq!(ids(&pick), (1..=2 * FILES).rev().collect::<Vec<_>>());
}

#[test]
fn rows_that_are_written_over_and_over_are_merged_beside_thousands_of_files_that_share_none() {
    const IN_ORDER: u64 = 10 * FILES;
    let corner = (1..=10).map(|n| file(IN_ORDER + n, 0, (0, 9), 1));
    let in_order = (1..=IN_ORDER).map(|id| file(id, 0, (10 * id, 10 * id + 9), 10));
    let last = file(2 * IN_ORDER, LAST_LEVEL, (0, 10 * IN_ORDER + 9), 10_000_000);
    let files = corner.chain(in_order).chain([last]);
    let pick = picked(files, CompactionStyle::Tiered, &[]);
    assert_eq!(pick.reason, Reason::WithinL0);
    assert_eq!(ids(&pick), (IN_ORDER + 2..=IN_ORDER + 10).rev().collect::<Vec<_>>());
}

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::cell::{FamilyId, KeyView, Mutation, row_prefix};
use crate::error::{Error, ErrorKind};
use crate::read::testing::model::{any_history, any_row};
use crate::read::testing::{Record, VecCursor, cursors};

#[derive(Debug, Clone)]
enum Move {
    Next,
    /// To the record with this place in the union, or past the end.
    Seek(prop::sample::Index),
    RowBefore(Option<Bytes>),
    LastRowBefore(Option<Bytes>),
    /// As a reverse scan goes on: before the row under the cursor.
    Back,
}

fn any_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        12 => Just(Move::Next),
        4 => any::<prop::sample::Index>().prop_map(Move::Seek),
        2 => prop::option::of(any_row()).prop_map(Move::RowBefore),
        2 => prop::option::of(any_row()).prop_map(Move::LastRowBefore),
        4 => Just(Move::Back),
    ]
}

fn settle(cursor: &mut impl Cursor, step: Result<Step>) {
    let mut step = step.unwrap();
    while step == Step::Blocked {
        assert!(cursor.entry().is_none(), "a blocked cursor shows nothing");
        let mut wanted = Vec::new();
        cursor.wanted(&mut wanted);
        step = cursor.resume().unwrap();
    }
}

fn shown(cursor: &impl Cursor) -> Option<Record> {
    cursor.entry().map(|e| (e.key.bytes().to_vec(), Bytes::copy_from_slice(e.value)))
}

proptest! {
    #[test]
    fn a_merge_moves_as_one_cursor_over_all_records_would(
        history in any_history(),
        hands in vec((0..5_usize, 0..6_u8), 1..12),
        runs in 1..5_usize,
        moves in vec(any_move(), 1..60),
        blocking in any::<bool>(),
    ) {
        let all = history.records(|_| true);
        let mut dealt = vec![Vec::new(); runs];
        for (record, (hand, twice)) in all.iter().zip(hands.iter().cycle()) {
            dealt[hand % runs].push(record.clone());
            if *twice == 0 && runs > 1 {
                dealt[(hand + 1) % runs].push(record.clone());
            }
        }
        let dealt: Vec<_> = dealt
            .into_iter()
            .map(|mut run| { run.sort(); Arc::new(run) })
            .collect();
        let mut merge = MergeCursor::new(cursors(&dealt, blocking));
        let mut one = VecCursor::new(all.clone(), false);
        // The one row that the merge shows.
        let mut only: Option<Vec<u8>> = None;
        let mut sorted = all;
        sorted.sort();

        for step in moves {
            let here = shown(&merge).map(|(key, _)| {
                KeyView::parse(&key).unwrap().row_prefix().to_vec()
            });
            match (step, here) {
                (Move::Next | Move::Back, None) => continue,
                (Move::Next, Some(_)) => {
                    let step = merge.next();
                    settle(&mut merge, step);
                    let step = one.next();
                    settle(&mut one, step);
                }
                (Move::Seek(at), _) => {
                    let at = at.index(sorted.len() + 1);
                    let target = sorted.get(at).map_or(&[0xFF; 3][..], |(key, _)| key);
                    // Forward within the one row it stays the one row; else it is over.
                    let forward =
                        shown(&merge).is_some_and(|(key, _)| key.as_slice() <= target);
                    if !forward {
                        only = None;
                    }
                    let step = merge.seek(target);
                    settle(&mut merge, step);
                    let step = one.seek(target);
                    settle(&mut one, step);
                }
                (Move::RowBefore(row), _) => {
                    only = None;
                    let bound = row.map_or_else(Vec::new, |row| row_prefix(&row));
                    let step = merge.seek_row_before(&bound);
                    settle(&mut merge, step);
                    let step = one.seek_row_before(&bound);
                    settle(&mut one, step);
                }
                (step @ (Move::LastRowBefore(_) | Move::Back), here) => {
                    let bound = match step {
                        Move::LastRowBefore(row) => {
                            row.map_or_else(Vec::new, |row| row_prefix(&row))
                        }
                        _ => here.unwrap(),
                    };
                    let step = merge.last_row_before(&bound);
                    settle(&mut merge, step);
                    let step = one.seek_row_before(&bound);
                    settle(&mut one, step);
                    only = one.entry().map(|e| e.key.row_prefix().to_vec());
                }
            }
            let outside = only.as_ref().is_some_and(|row| {
                one.entry().is_some_and(|e| e.key.row_prefix() != row.as_slice())
            });
            let expected = if outside { None } else { shown(&one) };
            prop_assert_eq!(shown(&merge), expected);
        }
    }
}

/// Fails on the move with this number.
struct Failing(VecCursor, u32);

impl Failing {
    fn tick(&mut self) -> Result<()> {
        if self.1 == 0 {
            return Err(Error::new(ErrorKind::Io, "broken"));
        }
        self.1 -= 1;
        Ok(())
    }
}

impl Cursor for Failing {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        self.tick()?;
        self.0.seek(target)
    }
    fn next(&mut self) -> Result<Step> {
        self.tick()?;
        self.0.next()
    }
    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.tick()?;
        self.0.seek_row_before(bound)
    }
    fn entry(&self) -> Option<Entry<'_>> {
        self.0.entry()
    }
    fn wanted(&self, out: &mut Vec<BlockRequest>) {
        self.0.wanted(out);
    }
    fn supply(&mut self, request: &BlockRequest, block: &Arc<Block>) {
        self.0.supply(request, block);
    }
    fn resume(&mut self) -> Result<Step> {
        self.0.resume()
    }
}

#[test]
fn after_an_error_the_merge_shows_nothing() {
    let record = |seq| {
        let put = Mutation::Put {
            family: FamilyId(1),
            qualifier: Bytes::new(),
            timestamp: 1,
            value: Bytes::new(),
        };
        crate::read::testing::model::record(b"a", &put, seq)
    };
    let whole = VecCursor::new(vec![record(1), record(3)], false);
    let broken = Failing(VecCursor::new(vec![record(2), record(4)], false), 1);
    let mut merge = MergeCursor::new(vec![Box::new(whole), Box::new(broken)]);
    assert_eq!(merge.seek(&[]).unwrap(), Step::Ready);
    assert_eq!(merge.entry().unwrap().key.seq(), 4);
    assert_eq!(merge.next().unwrap_err().kind(), ErrorKind::Io);
    assert!(merge.entry().is_none(), "half a merge must not pass for a whole one");
}

//! The newest changes of tablets with a change stream, in memory: what a reader that keeps up reads, without a file.
//!
//! Guarantees: of a tablet, the tail has every batch after a sequence that it knows, in order; of all tablets together
//! it keeps a bounded number of bytes and lets the oldest batches go first. A batch is here before it is durable: who
//! reads stops at the visible sequence.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::Change;
use crate::cell::Seq;
use crate::error::Result;
use crate::log::decode_batch;

/// What a batch counts for beyond its bytes: its places in the queues.
const ENTRY_OVERHEAD_BYTES: u64 = 128;

/// The tails of all tablets.
#[derive(Debug)]
pub(super) struct Tail {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tablets: HashMap<u64, Kept>,
    /// Which tablet's batch with which last sequence came when.
    order: VecDeque<(u64, Seq)>,
    bytes: u64,
}

/// What is kept of a tablet.
#[derive(Debug)]
struct Kept {
    /// Every batch of the tablet after this sequence is in `batches`.
    complete_after: Seq,
    batches: VecDeque<Batch>,
}

#[derive(Debug, Clone)]
struct Batch {
    first_seq: Seq,
    last_seq: Seq,
    /// As in the log, but for the sequence.
    payload: Bytes,
}

impl Batch {
    fn cost(&self) -> u64 {
        self.payload.len() as u64 + ENTRY_OVERHEAD_BYTES
    }

    /// Bytes of the change that it becomes, roughly.
    fn decoded_bytes(&self) -> usize {
        let mutations = usize::try_from(self.last_seq - self.first_seq + 1).unwrap_or(usize::MAX);
        self.payload.len().saturating_add(Change::overhead_bytes(mutations))
    }
}

/// What the tail has for a reader.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has only what comes after this sequence.
    After(Seq),
    /// There is nothing yet.
    Nothing,
    /// A batch with this last sequence.
    At(Seq),
}

impl State {
    /// Lets a tablet's batches go.
    fn clear(&mut self, tablet: u64) {
        let Some(kept) = self.tablets.get_mut(&tablet) else { return };
        self.bytes -= kept.batches.drain(..).map(|batch| batch.cost()).sum::<u64>();
        self.order.retain(|(of, _)| *of != tablet);
    }
}

impl Tail {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Mutex::default() }
    }

    /// Begins to keep a tablet's batches, those after `seq`.
    pub(super) fn begin(&self, tablet: u64, seq: Seq) {
        let kept = Kept { complete_after: seq, batches: VecDeque::new() };
        self.lock().tablets.insert(tablet, kept);
    }

    /// Lets a tablet's batches go.
    pub(super) fn end(&self, tablet: u64) {
        let mut state = self.lock();
        state.clear(tablet);
        state.tablets.remove(&tablet);
    }

    /// Adds a batch. Those of a tablet come in the order of their sequences.
    pub(super) fn push(&self, tablet: u64, first_seq: Seq, last_seq: Seq, payload: Bytes) {
        let batch = Batch { first_seq, last_seq, payload };
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(kept) = state.tablets.get_mut(&tablet) else { return };
        if batch.cost() > self.bytes_max {
            // It would let all others go and not stay itself. Who reads this tablet finds it in the log.
            kept.complete_after = last_seq;
            state.clear(tablet);
            return;
        }
        state.bytes += batch.cost();
        kept.batches.push_back(batch);
        state.order.push_back((tablet, last_seq));
        while state.bytes > self.bytes_max
            && let Some((tablet, seq)) = state.order.pop_front()
        {
            if let Some(kept) = state.tablets.get_mut(&tablet)
                && let Some(batch) = kept.batches.pop_front_if(|batch| batch.last_seq == seq)
            {
                kept.complete_after = seq;
                state.bytes -= batch.cost();
            }
        }
    }

    /// The first batch of a tablet after `seq`.
    pub(super) fn next(&self, tablet: u64, seq: Seq) -> Next {
        let state = self.lock();
        match state.tablets.get(&tablet) {
            Some(kept) if kept.complete_after <= seq => {
                let at = kept.batches.partition_point(|batch| batch.last_seq <= seq);
                kept.batches.get(at).map_or(Next::Nothing, |batch| Next::At(batch.last_seq))
            }
            Some(kept) => Next::After(kept.complete_after),
            None => Next::Nothing,
        }
    }

    /// The batches of a tablet after `seq` and up to `through`: as many as `bytes_max` goes, one at least; and up to
    /// where that is all. `None` where the tail does not reach back as far.
    pub(super) fn read(
        &self,
        tablet: u64,
        seq: Seq,
        through: Seq,
        bytes_max: usize,
    ) -> Option<Result<(Vec<Change>, Seq)>> {
        let mut read_to = through.max(seq);
        let mut batches = Vec::new();
        {
            let state = self.lock();
            let kept = state.tablets.get(&tablet).filter(|kept| kept.complete_after <= seq)?;
            let at = kept.batches.partition_point(|batch| batch.last_seq <= seq);
            let mut bytes = 0;
            for batch in kept.batches.range(at..).take_while(|batch| batch.last_seq <= through) {
                let more = batch.decoded_bytes();
                if bytes > 0 && bytes + more > bytes_max {
                    read_to = batches.last().map_or(seq, |batch: &Batch| batch.last_seq);
                    break;
                }
                bytes += more;
                batches.push(batch.clone());
            }
        }
        let decode = |batch: Batch| {
            let (_, _, source, decoded) = decode_batch(batch.payload)?;
            let Batch { first_seq, last_seq, .. } = batch;
            Ok(Change { first_seq, last_seq, source, batch: decoded })
        };
        let changes = batches.into_iter().map(decode).collect::<Result<_>>();
        Some(changes.map(|changes| (changes, read_to)))
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{FamilyId, Mutation, RowBatch};
    use crate::log::encode_batch;

    fn batch(row: u64) -> RowBatch {
        let mutations = vec![Mutation::DeleteFamily { family: FamilyId(1) }, Mutation::DeleteRow];
        RowBatch { row: Bytes::from(row.to_be_bytes().to_vec()), mutations }
    }

    /// Pushes batches with two sequences each: 10 and 11, 20 and 21, ...
    fn push(tail: &Tail, tablet: u64, numbers: std::ops::Range<u64>) {
        for i in numbers {
            let payload = Bytes::copy_from_slice(encode_batch(tablet, &batch(i)).bytes());
            tail.push(tablet, 10 * i, 10 * i + 1, payload);
        }
    }

    fn read(tail: &Tail, seq: Seq, through: Seq, bytes_max: usize) -> Option<(Vec<Seq>, Seq)> {
        let (changes, to) = tail.read(1, seq, through, bytes_max)?.unwrap();
        Some((changes.iter().map(|change| change.first_seq).collect(), to))
    }

    #[test]
    fn a_reader_gets_what_is_visible_after_its_place_and_no_more_than_it_asks_for() {
        let tail = Tail::new(1 << 20);
        tail.begin(1, 5);
        push(&tail, 1, 1..5);
        assert_eq!(read(&tail, 5, 31, 1 << 20), Some((vec![10, 20, 30], 31)));
        assert_eq!(read(&tail, 11, 35, 1), Some((vec![20], 21)));
        assert_eq!(read(&tail, 31, 35, 1), Some((vec![], 35)));
        assert_eq!(read(&tail, 4, 35, 1), None, "it does not reach back to 5");
        assert_eq!(tail.next(1, 21), Next::At(31));
        assert_eq!((tail.next(1, 41), tail.next(1, 4)), (Next::Nothing, Next::After(5)));
        assert_eq!(tail.next(2, 41), Next::Nothing);
    }

    #[test]
    fn a_batch_that_has_no_room_is_found_in_the_log_and_lets_those_of_other_tablets_stay() {
        let tail = Tail::new(10_000);
        tail.begin(1, 0);
        tail.begin(2, 0);
        push(&tail, 1, 1..5);
        let others = tail.bytes();
        push(&tail, 2, 5..8);
        tail.push(2, 81, 85, Bytes::from(vec![0; 20_000]));
        assert_eq!(tail.bytes(), others);
        assert_eq!(read(&tail, 0, 41, 1 << 20), Some((vec![10, 20, 30, 40], 41)));
        assert_eq!((tail.next(2, 61), tail.next(2, 85)), (Next::After(85), Next::Nothing));
    }

    #[test]
    fn the_oldest_batches_go_first_and_a_tablet_that_ends_gives_its_bytes_back() {
        let tail = Tail::new(10_000);
        tail.begin(1, 0);
        tail.begin(2, 0);
        push(&tail, 1, 0..20);
        push(&tail, 2, 20..40);
        assert!(tail.bytes() > 5_000 && read(&tail, 0, 500, 1 << 20).is_some());
        push(&tail, 2, 40..200);
        assert!(tail.bytes() <= 10_000);
        assert_eq!(read(&tail, 0, 500, 1 << 20), None);
        tail.end(2);
        tail.end(1);
        assert_eq!(tail.bytes(), 0);
        tail.begin(1, 3_000);
        push(&tail, 1, 301..400);
        assert!(tail.bytes() <= 10_000);
        assert_eq!(tail.next(1, 3_990), Next::At(3_991));
    }
}

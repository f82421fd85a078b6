//! What a `MutateRows` writes: its entries joined by rows, and its rows gathered by tablets into writes.

use std::collections::HashMap;
use std::hash::Hash;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use tepui_engine::cell::RowBatch;

use crate::authorized_view::{AuthorizedView, check_write};
use crate::error::{Error, Result};
use crate::idempotency::Token;
use crate::limits;
use crate::mutation;
use crate::schema::TableSchema;
use crate::tablets::TabletMap;
use crate::turn::Turn;

/// Writes of one `MutateRows` under way at once, at most. They share group commits of the log, so fewer would cost a
/// sync per few; more would let one request fill the log's queue.
const MUTATE_ROWS_IN_FLIGHT_MAX: usize = 1_024;

/// Bytes of one `MutateRows` that are being written at once, roughly: a group of the log. A bulk of large rows
/// waits for its own writes, instead of filling the log's queue and being refused for it.
const MUTATE_ROWS_IN_FLIGHT_BYTES: usize = 4 << 20;

/// Writes of one `MutateRows` under way at once even where they are large: they share a sync.
const MUTATE_ROWS_IN_FLIGHT_MIN: usize = 4;

/// A mutation is as much work as so many bytes of values: half a microsecond.
const MUTATION_WORK_BYTES: usize = 64;

/// Mutations of several entries of one row that are written at once, at most, and their bytes (see [`work_bytes`]). Each goes into the
/// memtable in one piece, and until it is there the tablet takes no other write and no later one of any table is seen: a millisecond, of
/// a bulk that may have 100,000 mutations of one row. Fewer, and such a bulk waits for more syncs, one after the other.
const JOINED_MUTATIONS_MAX: usize = 1_000;
const JOINED_BYTES_MAX: usize = 1 << 20;

/// Rows of a bulk that go to one tablet (`T` is a handle of one) as one write.
#[derive(Debug)]
pub(crate) struct BulkWrite<T> {
    pub(crate) tablet: T,
    pub(crate) rows: BulkRows,
    /// Indexes of the entries that are in it, in their order.
    pub(crate) entries: Vec<usize>,
    /// Bytes of the rows that are under way at once, roughly.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum BulkRows {
    /// As many as make up a turn, or one that is a turn by itself; each for itself, but for what goes wrong with the log.
    Together(Vec<RowBatch>),
    /// A row whose write depends on what is in it.
    Once(Token, RowBatch),
    /// Parts of a row, each written when the one before it is, with how many of the entries are in each.
    InOrder(Vec<(RowBatch, usize)>),
}

/// Rows of a bulk, gathered by tablets (which `id` tells apart) into writes.
pub(crate) fn bulk_writes<T: Clone, I: Eq + Hash>(
    rows: Vec<RowWrite>,
    tablets: &TabletMap<T>,
    id: impl Fn(&T) -> I,
) -> Vec<BulkWrite<T>> {
    let mut writes: Vec<BulkWrite<T>> = Vec::new();
    // By tablet, the write that takes more rows.
    let mut open: HashMap<I, (usize, Turn)> = HashMap::new();
    for RowWrite { first, rest, token } in rows {
        let tablet = tablets.get(&first.batch.row);
        if !rest.is_empty() {
            let (mut parts, mut entries, mut bytes) = (Vec::new(), Vec::new(), 0);
            for part in std::iter::once(first).chain(rest) {
                bytes = part.work_bytes().max(bytes);
                parts.push((part.batch, part.entries.len()));
                entries.extend(part.entries);
            }
            let (tablet, rows) = (tablet.clone(), BulkRows::InOrder(parts));
            writes.push(BulkWrite { tablet, rows, entries, bytes });
            continue;
        }
        let bytes = first.work_bytes();
        let RowPart { batch, entries, .. } = first;
        if let Some(token) = token {
            let (tablet, rows) = (tablet.clone(), BulkRows::Once(token, batch));
            writes.push(BulkWrite { tablet, rows, entries, bytes });
            continue;
        }
        if Turn::is_of(bytes) {
            // What is refused of a row for its size, by the engine, fails all that is written with it.
            let (tablet, rows) = (tablet.clone(), BulkRows::Together(vec![batch]));
            writes.push(BulkWrite { tablet, rows, entries, bytes });
            continue;
        }
        let key = id(tablet);
        let (at, mut turn) = open.remove(&key).unwrap_or((writes.len(), Turn::default()));
        match writes.get_mut(at) {
            Some(BulkWrite {
                rows: BulkRows::Together(together),
                entries: all,
                bytes: sum,
                ..
            }) => {
                together.push(batch);
                all.extend(entries);
                *sum += bytes;
            }
            _ => {
                let (tablet, rows) = (tablet.clone(), BulkRows::Together(vec![batch]));
                writes.push(BulkWrite { tablet, rows, entries, bytes });
            }
        }
        turn.row(bytes);
        if !turn.is_over() {
            open.insert(key, (at, turn));
        }
    }
    writes
}

/// Bytes of mutations of a row, or what they come to where they are more work than their bytes: each has the key in the memtable, and a
/// place to be found.
fn work_bytes(payload: usize, mutations: usize, row: &[u8]) -> usize {
    payload.max(mutations.saturating_mul(row.len() + MUTATION_WORK_BYTES))
}

/// Writes of a bulk that are under way at once.
pub(crate) fn bulk_writes_in_flight<T>(writes: &[BulkWrite<T>]) -> usize {
    let bytes: usize = writes.iter().map(|write| write.bytes).sum();
    let of_a_write = (bytes / writes.len().max(1)).max(1);
    (MUTATE_ROWS_IN_FLIGHT_BYTES / of_a_write)
        .clamp(MUTATE_ROWS_IN_FLIGHT_MIN, MUTATE_ROWS_IN_FLIGHT_MAX)
}

/// What a `MutateRows` writes: each row with the mutations of all its good entries in their order, and the entries that failed before
/// anything was written.
///
/// Joining the entries of a row keeps their order without waiting for one sync per entry. Each entry is
/// still atomic; that they are atomic together, and fail together, is allowed. Of many, parts are written one after the other.
#[derive(Debug)]
pub(crate) struct BulkPlan {
    pub(crate) rows: Vec<RowWrite>,
    pub(crate) failed: Vec<(usize, Error)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RowWrite {
    first: RowPart,
    /// What does not fit beside that, in order.
    rest: Vec<RowPart>,
    /// Of an entry that must not be applied twice, which is never joined with others.
    token: Option<Token>,
}

/// Mutations of a row that are written at once: of some entries.
#[derive(Debug, PartialEq, Eq)]
struct RowPart {
    batch: RowBatch,
    /// Indexes of the entries that the batch holds.
    entries: Vec<usize>,
    /// Bytes of its mutations.
    payload: usize,
}

impl BulkPlan {
    pub(crate) fn new(
        schema: &TableSchema,
        entries: &[v2::mutate_rows_request::Entry],
        now: i64,
        view: Option<&AuthorizedView>,
    ) -> Result<Self> {
        limits::check_mutation_count(entries.iter().map(|e| e.mutations.len()).sum())?;
        let mut rows: Vec<RowWrite> = Vec::with_capacity(entries.len());
        let mut by_row: HashMap<Bytes, usize> = HashMap::with_capacity(entries.len());
        let mut failed = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let compiled = check_write(view, &entry.row_key, &entry.mutations)
                .and_then(|()| mutation::compile(schema, &entry.row_key, &entry.mutations));
            let batch = match compiled {
                Ok(batch) if batch.mutations.is_empty() => continue,
                Ok(batch) => batch,
                Err(error) => {
                    failed.push((index, error));
                    continue;
                }
            };
            match Token::of(entry.idempotency.as_ref(), &batch, now) {
                Ok(None) => {}
                Ok(token) => {
                    rows.push(RowWrite::new(batch, index, token));
                    continue;
                }
                Err(error) => {
                    failed.push((index, error));
                    continue;
                }
            }
            let at = *by_row.entry(batch.row.clone()).or_insert(rows.len());
            match rows.get_mut(at) {
                Some(row) => row.join(batch, index),
                None => rows.push(RowWrite::new(batch, index, None)),
            }
        }
        Ok(Self { rows, failed })
    }
}

impl RowWrite {
    fn new(batch: RowBatch, entry: usize, token: Option<Token>) -> Self {
        Self { first: RowPart::new(batch, entry), rest: Vec::new(), token }
    }

    fn join(&mut self, batch: RowBatch, entry: usize) {
        let next = RowPart::new(batch, entry);
        let last = self.rest.last_mut().unwrap_or(&mut self.first);
        if last.has_room(&next) {
            last.join(next);
        } else {
            self.rest.push(next);
        }
    }
}

impl RowPart {
    fn new(batch: RowBatch, entry: usize) -> Self {
        let payload = batch.mutations.iter().map(mutation::payload_bytes).sum();
        Self { batch, entries: vec![entry], payload }
    }

    fn work_bytes(&self) -> usize {
        work_bytes(self.payload, self.batch.mutations.len(), &self.batch.row)
    }

    fn has_room(&self, next: &Self) -> bool {
        let mutations = self.batch.mutations.len() + next.batch.mutations.len();
        let bytes = work_bytes(self.payload + next.payload, mutations, &self.batch.row);
        mutations <= JOINED_MUTATIONS_MAX && bytes <= JOINED_BYTES_MAX
    }

    fn join(&mut self, next: Self) {
        self.batch.mutations.extend(next.batch.mutations);
        self.entries.extend(next.entries);
        self.payload += next.payload;
    }
}

#[cfg(test)]
mod tests {
    use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::SetCell;
    use tepui_engine::cell::{Mutation, RowRange};

    use super::*;
    use crate::error::Code;
    use crate::schema::FamilySchema;

    fn schema() -> TableSchema {
        let mut schema = TableSchema::new();
        let id = schema.allocate_family_id();
        schema.families.insert("f".into(), FamilySchema::new(id));
        schema
    }

    fn entry(row: &'static str, families: &[&str]) -> v2::mutate_rows_request::Entry {
        let mutations = families
            .iter()
            .map(|family| v2::Mutation {
                mutation: Some(v2::mutation::Mutation::SetCell(SetCell {
                    family_name: (*family).to_owned(),
                    ..SetCell::default()
                })),
            })
            .collect();
        v2::mutate_rows_request::Entry { row_key: row.into(), mutations, idempotency: None }
    }

    #[test]
    fn entries_of_a_row_are_joined_in_their_order_and_bad_ones_fail_alone() {
        let entries = [
            entry("a", &["f"]),
            entry("b", &["f", "f"]),
            entry("a", &["f", "nope"]),
            entry("", &["f"]),
            entry("b", &[]),
            entry("a", &["f", "f", "f"]),
        ];
        let plan = BulkPlan::new(&schema(), &entries, 0, None).unwrap();
        let rows: Vec<_> = plan
            .rows
            .iter()
            .map(|r| &r.first)
            .map(|r| (r.batch.row.as_ref(), r.batch.mutations.len(), r.entries.as_slice()))
            .collect();
        assert_eq!(rows, [(b"a".as_slice(), 4, &[0, 5][..]), (b"b".as_slice(), 2, &[1][..])]);
        let failed: Vec<_> = plan.failed.iter().map(|(i, error)| (*i, error.kind())).collect();
        assert_eq!(
            failed,
            [(2, Code::NotFound), (3, Code::InvalidArgument), (4, Code::InvalidArgument)]
        );
    }

    #[test]
    fn many_entries_of_a_row_are_written_in_parts_one_after_the_other() {
        let all = TabletMap::new(vec![(RowRange::all(), ())]).unwrap();
        let parts = |entries: &[v2::mutate_rows_request::Entry]| {
            let plan = BulkPlan::new(&schema(), entries, 0, None).unwrap();
            let writes = bulk_writes(plan.rows, &all, |()| ());
            let [BulkWrite { rows: BulkRows::InOrder(parts), entries, bytes, .. }] = &writes[..]
            else {
                panic!("{writes:?}")
            };
            // Their mutations, and the entries.
            let mut left = &entries[..];
            let parts = parts.iter().map(|(batch, count)| {
                let (of_part, behind) = left.split_at(*count);
                left = behind;
                (batch.mutations.len(), of_part.to_vec())
            });
            let parts: Vec<_> = parts.collect();
            assert!(left.is_empty());
            (parts, *bytes)
        };
        let (all_parts, _) = parts(&vec![entry("a", &["f"; 3]); 1_000]);
        let mutations: Vec<_> = all_parts.iter().map(|(mutations, _)| *mutations).collect();
        assert_eq!(mutations, [999, 999, 999, 3]);
        let entries: Vec<_> = all_parts.iter().flat_map(|(_, entries)| entries).copied().collect();
        assert_eq!(entries, (0..1_000).collect::<Vec<_>>());
        // One that is larger is written by itself: it is atomic.
        let many = vec!["f"; 2_000];
        let (one_large, _) = parts(&[
            entry("a", &["f"]),
            entry("a", &many),
            entry("a", &["nope"]),
            entry("a", &["f"]),
            entry("a", &["f"]),
        ]);
        assert_eq!(one_large, [(1, vec![0]), (2_000, vec![1]), (2, vec![3, 4])]);
        // Few of large values, or with a large key, likewise.
        let mut large = entry("a", &["f"]);
        if let Some(v2::mutation::Mutation::SetCell(set)) = &mut large.mutations[0].mutation {
            set.value = vec![0; 300 << 10].into();
        }
        let (by_bytes, bytes) = parts(&vec![large; 8]);
        let counts: Vec<_> = by_bytes.iter().map(|(mutations, _)| *mutations).collect();
        assert_eq!(counts, [3, 3, 2]);
        assert!((900 << 10..1 << 20).contains(&bytes), "of one part at once: {bytes}");
        let key: &'static str = "k".repeat(4 << 10).leak();
        let (by_key, _) = parts(&vec![entry(key, &["f"]); 1_000]);
        assert_eq!(by_key.len(), 4);
    }

    #[test]
    fn rows_of_a_bulk_are_written_by_turns_and_large_ones_a_few_at_a_time() {
        let all = || TabletMap::new(vec![(RowRange::all(), ())]).unwrap();
        let family = tepui_engine::cell::FamilyId(1);
        let bytes = |count| Bytes::from(vec![0; count]);
        let of_each = |count: usize, mutations: Vec<Mutation>| {
            let batch = RowBatch { row: Bytes::from_static(b"r"), mutations };
            let rows = (0..count).map(|i| RowWrite::new(batch.clone(), i, None)).collect();
            bulk_writes(rows, &all(), |()| ())
        };
        let of = |count, mutation| of_each(count, vec![mutation]);
        let writes = |count, value| {
            let (qualifier, value) = (Bytes::new(), bytes(value));
            of(count, Mutation::Put { family, qualifier, timestamp: 0, value })
        };
        let small = writes(5_000, 1 << 10);
        let entries: Vec<_> = small.iter().flat_map(|write| write.entries.clone()).collect();
        assert_eq!(entries, (0..5_000).collect::<Vec<_>>());
        for write in &small {
            assert!(write.bytes <= 64 << 10, "{}", write.bytes);
            assert!(
                matches!(&write.rows, BulkRows::Together(rows) if rows.len() == write.entries.len())
            );
        }
        assert!(small.len() < 100, "{}", small.len());
        assert!((64..100).contains(&bulk_writes_in_flight(&small)));
        let large = writes(100, 100 << 10);
        assert_eq!((large.len(), bulk_writes_in_flight(&large)), (100, 40));
        let huge = writes(3, 50 << 20);
        assert_eq!((huge.len(), bulk_writes_in_flight(&huge)), (3, MUTATE_ROWS_IN_FLIGHT_MIN));
        // Values are not all that can be large.
        let (qualifier, operand) = (bytes(16 << 10), bytes(84 << 10));
        let sketches = of(100, Mutation::Merge { family, qualifier, timestamp: 0, operand });
        assert_eq!((sketches.len(), bulk_writes_in_flight(&sketches)), (100, 40));
        // A large one has nothing beside it.
        let sizes = [1, 100 << 10, 1];
        let rows = sizes.iter().enumerate().map(|(i, count)| {
            let (qualifier, value) = (Bytes::new(), bytes(*count));
            let put = Mutation::Put { family, qualifier, timestamp: 0, value };
            let batch = RowBatch { row: Bytes::from(vec![i as u8]), mutations: vec![put] };
            RowWrite::new(batch, i, None)
        });
        let writes = bulk_writes(rows.collect(), &all(), |()| ());
        let shown: Vec<_> = writes.iter().map(|write| write.entries.as_slice()).collect();
        assert_eq!(shown, [&[0, 2][..], &[1]]);
        // Nor are bytes all that is work.
        let deletions = of_each(250, vec![Mutation::DeleteRow; 400]);
        assert!(deletions.iter().all(|write| write.entries.len() <= 3));
    }

    #[test]
    fn rows_of_a_bulk_go_to_their_tablets_and_those_with_a_token_alone() {
        let (low, high) = (RowRange::new("", "m"), RowRange::new("m", ""));
        let tablets = TabletMap::new(vec![(low, 1), (high, 2)]).unwrap();
        let now = 1_700_000_000_000_000;
        let rows = ["a", "x", "b", "t", "y"].iter().enumerate().map(|(i, row)| {
            let mutation = Mutation::Merge {
                family: tepui_engine::cell::FamilyId(1),
                qualifier: Bytes::new(),
                timestamp: 0,
                operand: Bytes::from(1_i64.to_be_bytes().to_vec()),
            };
            let batch =
                RowBatch { row: Bytes::from_static(row.as_bytes()), mutations: vec![mutation] };
            let given = v2::Idempotency {
                token: Bytes::from_static(b"only once"),
                start_time: Some(prost_types::Timestamp { seconds: now / 1_000_000, nanos: 0 }),
            };
            let token =
                (*row == "t").then(|| Token::of(Some(&given), &batch, now).unwrap().unwrap());
            RowWrite::new(batch, i, token)
        });
        let writes = bulk_writes(rows.collect(), &tablets, |tablet| *tablet);
        let shown: Vec<_> = writes.iter().map(|w| (w.tablet, w.entries.as_slice())).collect();
        assert_eq!(shown, [(1, &[0, 2][..]), (2, &[1, 4][..]), (2, &[3][..])]);
    }

    #[test]
    fn mutations_of_all_entries_count_together() {
        let many = vec!["f"; 50_000];
        let mut entries = vec![entry("a", &many), entry("b", &many)];
        assert!(BulkPlan::new(&schema(), &entries, 0, None).is_ok());
        entries.push(entry("c", &["f"]));
        let error = BulkPlan::new(&schema(), &entries, 0, None).unwrap_err();
        assert_eq!(error.message(), "Too many mutations: 100001 provided; limit 100000");
        for none in [vec![], vec![entry("a", &[])]] {
            let error = BulkPlan::new(&schema(), &none, 0, None).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert_eq!(error.message(), "No mutations provided");
        }
    }
}

//! A committed batch as `DataChange` messages.
//!
//! ```text
//! first       USER, row, commit time, tie-breaker, cluster | chunks       GARBAGE_COLLECTION comes from no cluster
//! others      CONTINUATION                                 | chunks
//! the last    done, token, low watermark
//! ```
//!
//! | in the log         | in the stream                                                              |
//! |--------------------|----------------------------------------------------------------------------|
//! | a value            | `SetCell`, with the timestamp that the server chose where it was asked to; cut where it is long |
//! | an aggregate's operand | `AddToCell` of an integer, or `MergeToCell` of a state                 |
//! | deleted cells      | `DeleteFromColumn`; without a time range where all of the column goes       |
//! | a deleted family   | `DeleteFromFamily`                                                         |
//! | a deleted row      | `DeleteFromFamily` for each family that the table had then, as the service shows it |
//!
//! Families that the table does not have any more are shown by the names that they had. What is deleted again, while nothing was written
//! since, is shown once. A batch of which nothing is left to show has no message.
//!
//! Messages are made one at a time, when they are asked for: a batch of a megabyte may delete a row a hundred thousand times, and
//! each of these may be a chunk for each family.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{
    AddToCell, DeleteFromColumn, DeleteFromFamily, MergeToCell, Mutation as ProtoMutation, SetCell,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_change_stream_response::{
    DataChange, MutationChunk, StreamRecord, data_change::Type, mutation_chunk::ChunkInfo,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as ValueKind;
use tepui_engine::cell::{FamilyId, Mutation, SEQ_COUNTER_BITS, SEQ_MAX, Seq, TIMESTAMP_MAX};
use tepui_engine::changes::{Change, Source, commit_micros};
use tepui_engine::schema::Aggregate;

use crate::schema::{FamilySchema, TableSchema};

/// Bytes of keys and values in one message, at most. Clients in emulator mode keep gRPC's limit of 4 MiB; a quarter of it is
/// enough to make the overhead of a message nothing, and bounds what a stream holds.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Chunks in one message, at most. Google's Java client takes the chunks of a message by a recursion, of some frames each: thousands
/// overflow the stack of its thread. A few hundred are far from that, and enough to make the overhead of a message nothing.
pub const CHUNKS_MAX: usize = 256;

/// What a chunk takes in a message beside its keys and values, roughly.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// What a chunk takes in memory beside them: itself and, roughly, the name of its family.
const CHUNK_MEMORY_BYTES: usize = size_of::<MutationChunk>() + 64;

/// How a table's families are shown.
#[derive(Debug, Clone, Default)]
pub struct Families {
    names: HashMap<FamilyId, Arc<str>>,
    /// Those whose operands are states, and no integers.
    states: HashSet<FamilyId>,
    /// In the order of their numbers.
    spans: Vec<Span>,
}

/// A family that a table had, or may have still.
#[derive(Debug, Clone)]
pub struct Former {
    /// Its number.
    pub id: FamilyId,
    /// Its name.
    pub name: String,
    /// The position after which it was created.
    pub created_at: Seq,
    /// The one after which it was dropped; 0 where nobody knows: the deletion of a row is not shown for it.
    pub dropped_at: Seq,
}

/// Where in the history a family was there: behind the one position, up to the other.
#[derive(Debug, Clone, Copy)]
struct Span {
    id: FamilyId,
    created_at: Seq,
    dropped_at: Seq,
}

impl Families {
    /// The families of a schema, and those that the table had before.
    pub fn new(schema: &TableSchema, former: impl IntoIterator<Item = Former>) -> Self {
        let (mut names, mut spans) = (HashMap::new(), BTreeMap::new());
        for Former { id, name, created_at, dropped_at } in former {
            names.insert(id, Arc::from(name));
            spans.insert(id, Span { id, created_at, dropped_at });
        }
        for (name, family) in &schema.families {
            let FamilySchema { id, created_at, .. } = *family;
            names.insert(id, Arc::from(name.as_str()));
            spans.insert(id, Span { id, created_at, dropped_at: SEQ_MAX });
        }
        let is_state = |f: &&FamilySchema| {
            f.aggregate.is_some_and(|aggregate| matches!(aggregate.how, Aggregate::Opaque(_)))
        };
        let states = schema.families.values().filter(is_state).map(|f| f.id).collect();
        Self { names, states, spans: spans.into_values().collect() }
    }

    /// Those that were there when a row was deleted, in the order of their numbers.
    fn at(&self, deleted: Seq) -> impl Iterator<Item = FamilyId> {
        let spans = self.spans.iter();
        let there =
            spans.filter(move |span| span.created_at < deleted && deleted <= span.dropped_at);
        there.map(|span| span.id)
    }

    fn name(&self, id: FamilyId) -> Option<String> {
        self.names.get(&id).map(|name| name.as_ref().to_owned())
    }
}

/// Microseconds since 1970 as a protobuf timestamp.
pub fn timestamp(micros: i64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: micros.div_euclid(1_000_000),
        nanos: micros.rem_euclid(1_000_000) as i32 * 1_000,
    }
}

/// Bytes of memory that the largest message of a change takes, at most, beside the change: the message has its values from there.
pub fn message_bytes(change: &Change, families: &Families) -> usize {
    let of_row = LazyCell::new(|| families.at(change.first_seq).count());
    let mut chunks = 0;
    for mutation in &change.batch.mutations {
        chunks += if *mutation == Mutation::DeleteRow { *of_row } else { 1 };
        if chunks >= CHUNKS_MAX {
            break;
        }
    }
    size_of::<DataChange>() + chunks.min(CHUNKS_MAX) * CHUNK_MEMORY_BYTES
}

/// The messages of a change, made one after the other.
#[derive(Debug)]
pub struct Messages {
    change: Change,
    /// The mutation that is shown next.
    at: usize,
    /// What of it was shown: families of a deleted row, bytes of a long value.
    within: usize,
    deleted: Deleted,
    /// The families for which the deletion of its row is shown; looked for when it is.
    of_row: OnceLock<Vec<FamilyId>>,
    has_begun: bool,
}

/// What was shown as deleted, and nothing was written since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deleted {
    Nothing,
    Family(FamilyId),
    /// All families that the table had.
    Row,
}

/// A chunk to be shown.
struct Shown {
    chunk_info: Option<ChunkInfo>,
    mutation: ProtoMutation,
    /// Bytes of keys and values.
    bytes: usize,
    /// What of the mutation was shown with it; `None` for all.
    within: Option<usize>,
}

impl Shown {
    fn whole(mutation: ProtoMutation, bytes: usize) -> Self {
        Self { chunk_info: None, mutation, bytes, within: None }
    }
}

impl Messages {
    /// Those of a change.
    pub fn new(change: Change) -> Self {
        let of_row = OnceLock::new();
        Self { change, at: 0, within: 0, deleted: Deleted::Nothing, of_row, has_begun: false }
    }

    /// The next message; `None` when all of the change was shown. `token` gives that of a position. The families are to be the
    /// same for all messages of a change.
    pub fn next(
        &mut self,
        families: &Families,
        cluster: &str,
        token: impl FnOnce(Seq) -> String,
    ) -> Option<v2::ReadChangeStreamResponse> {
        let (chunks, done) = self.chunks(families);
        if chunks.is_empty() {
            return None;
        }
        let mut shown = DataChange { chunks, ..DataChange::default() };
        let change = &self.change;
        let micros = commit_micros(change.first_seq);
        if std::mem::replace(&mut self.has_begun, true) {
            shown.r#type = Type::Continuation.into();
        } else {
            match change.source {
                Source::User => {
                    shown.r#type = Type::User.into();
                    cluster.clone_into(&mut shown.source_cluster_id);
                }
                // The service names no cluster here, and clients refuse a change that does.
                Source::GarbageCollection => shown.r#type = Type::GarbageCollection.into(),
            }
            shown.row_key = change.batch.row.clone();
            shown.commit_timestamp = Some(timestamp(micros));
            // Of two commits in the same millisecond, the later has the greater.
            shown.tiebreaker = (change.first_seq & ((1 << SEQ_COUNTER_BITS) - 1)) as i32;
        }
        if done {
            shown.done = true;
            shown.token = token(change.last_seq);
            shown.estimated_low_watermark = Some(timestamp(micros));
        }
        Some(v2::ReadChangeStreamResponse { stream_record: Some(StreamRecord::DataChange(shown)) })
    }

    /// The chunks of the next message, and whether they are the last.
    fn chunks(&mut self, families: &Families) -> (Vec<MutationChunk>, bool) {
        let left = self.change.batch.mutations.len() - self.at;
        let mut chunks = Vec::with_capacity(left.min(CHUNKS_MAX));
        let mut bytes = 0;
        loop {
            self.pass_hidden(families);
            let Some(mutation) = self.change.batch.mutations.get(self.at) else {
                return (chunks, true);
            };
            // One fits into an empty message whatever it has.
            let room = match chunks.len() {
                0 => usize::MAX,
                CHUNKS_MAX => 0,
                _ => MESSAGE_BYTES_MAX.saturating_sub(bytes),
            };
            let shown = self.show(mutation, families, room);
            let Some(shown) = shown.filter(|s| s.bytes + CHUNK_OVERHEAD_BYTES <= room) else {
                return (chunks, false);
            };
            bytes += shown.bytes + CHUNK_OVERHEAD_BYTES;
            let mutation = Some(v2::Mutation { mutation: Some(shown.mutation) });
            chunks.push(MutationChunk { chunk_info: shown.chunk_info, mutation });
            match shown.within {
                Some(within) => self.within = within,
                None => self.pass(),
            }
        }
    }

    /// Goes on behind a mutation that was shown.
    fn pass(&mut self) {
        match self.change.batch.mutations.get(self.at) {
            Some(Mutation::Put { .. } | Mutation::Merge { .. }) => self.deleted = Deleted::Nothing,
            Some(Mutation::DeleteFamily { family }) if self.deleted != Deleted::Row => {
                self.deleted = Deleted::Family(*family);
            }
            Some(Mutation::DeleteRow) => self.deleted = Deleted::Row,
            Some(Mutation::DeleteFamily { .. } | Mutation::DeleteCells { .. }) | None => {}
        }
        (self.at, self.within) = (self.at + 1, 0);
    }

    /// Goes on behind mutations of which there is nothing to show.
    fn pass_hidden(&mut self, families: &Families) {
        while let Some(mutation) = self.change.batch.mutations.get(self.at) {
            let is_shown = match mutation {
                Mutation::Put { family, .. }
                | Mutation::Merge { family, .. }
                | Mutation::DeleteCells { family, .. } => families.names.contains_key(family),
                Mutation::DeleteFamily { family } => {
                    let is_again = match self.deleted {
                        Deleted::Nothing => false,
                        Deleted::Family(deleted) => deleted == *family,
                        Deleted::Row => self.of_row(families).contains(family),
                    };
                    !is_again && families.names.contains_key(family)
                }
                Mutation::DeleteRow => {
                    self.deleted != Deleted::Row && !self.of_row(families).is_empty()
                }
            };
            if is_shown {
                return;
            }
            self.at += 1;
        }
    }

    fn of_row(&self, families: &Families) -> &[FamilyId] {
        self.of_row.get_or_init(|| families.at(self.change.first_seq).collect())
    }

    /// What comes next of a mutation, in a message with room for so many bytes. `None` where its family has no name.
    fn show(&self, mutation: &Mutation, families: &Families, room: usize) -> Option<Shown> {
        Some(match mutation {
            Mutation::Put { family, qualifier, timestamp, value } => {
                set_cell(families.name(*family)?, qualifier, *timestamp, (value, self.within), room)
            }
            Mutation::Merge { family, qualifier, timestamp, operand } => {
                let is_state = families.states.contains(family);
                let merge =
                    aggregate(families.name(*family)?, qualifier, *timestamp, operand, is_state);
                Shown::whole(merge, qualifier.len() + operand.len())
            }
            Mutation::DeleteCells { family, qualifier, timestamps } => {
                let end = if timestamps.end == TIMESTAMP_MAX { 0 } else { timestamps.end };
                let time_range = v2::TimestampRange {
                    start_timestamp_micros: timestamps.start.max(0),
                    end_timestamp_micros: end,
                };
                let is_all = time_range == v2::TimestampRange::default();
                let delete = DeleteFromColumn {
                    family_name: families.name(*family)?,
                    column_qualifier: qualifier.clone(),
                    time_range: (!is_all).then_some(time_range),
                };
                Shown::whole(ProtoMutation::DeleteFromColumn(delete), qualifier.len())
            }
            Mutation::DeleteFamily { family } => {
                let delete = DeleteFromFamily { family_name: families.name(*family)? };
                Shown::whole(ProtoMutation::DeleteFromFamily(delete), 0)
            }
            Mutation::DeleteRow => {
                let of_row = self.of_row(families);
                let family = of_row.get(self.within)?;
                let delete = DeleteFromFamily { family_name: families.name(*family)? };
                let rest = Some(self.within + 1).filter(|next| *next < of_row.len());
                Shown { within: rest, ..Shown::whole(ProtoMutation::DeleteFromFamily(delete), 0) }
            }
        })
    }
}

/// A cell, or as much of its value from a byte on as there is room for, where it is too long for one message.
fn set_cell(
    family_name: String,
    qualifier: &Bytes,
    timestamp_micros: i64,
    (value, at): (&Bytes, usize),
    room: usize,
) -> Shown {
    let set = |value| {
        ProtoMutation::SetCell(SetCell {
            family_name,
            column_qualifier: qualifier.clone(),
            timestamp_micros,
            value,
        })
    };
    let around = qualifier.len() + CHUNK_OVERHEAD_BYTES;
    if around + value.len() <= MESSAGE_BYTES_MAX {
        return Shown::whole(set(value.clone()), qualifier.len() + value.len());
    }
    // A qualifier has 16 KiB at most, so that a message of its own has room for a part of the value.
    let room = room.min(MESSAGE_BYTES_MAX).saturating_sub(around).max(1);
    let end = value.len().min(at.saturating_add(room));
    let info = ChunkInfo {
        chunked_value_size: i32::try_from(value.len()).unwrap_or(i32::MAX),
        chunked_value_offset: i32::try_from(at).unwrap_or(i32::MAX),
        last_chunk: end == value.len(),
    };
    let within = Some(end).filter(|end| *end < value.len());
    let bytes = qualifier.len() + end - at;
    Shown { chunk_info: Some(info), mutation: set(value.slice(at..end)), bytes, within }
}

/// An operand: an integer, which is added, or a state, which is merged. For aggregates of integers both do the same; they
/// have eight bytes, by which those of a family that is gone are known.
fn aggregate(
    family_name: String,
    qualifier: &Bytes,
    timestamp: i64,
    operand: &Bytes,
    is_state: bool,
) -> ProtoMutation {
    let value = |kind| Some(v2::Value { kind: Some(kind), ..v2::Value::default() });
    let column_qualifier = value(ValueKind::RawValue(qualifier.clone()));
    let timestamp = value(ValueKind::RawTimestampMicros(timestamp));
    match operand.as_ref().try_into().map(i64::from_be_bytes) {
        Ok(number) if !is_state => ProtoMutation::AddToCell(AddToCell {
            family_name,
            column_qualifier,
            timestamp,
            input: value(ValueKind::IntValue(number)),
        }),
        _ => ProtoMutation::MergeToCell(MergeToCell {
            family_name,
            column_qualifier,
            timestamp,
            input: value(ValueKind::RawValue(operand.clone())),
        }),
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tepui_engine::cell::{RowBatch, TimestampRange};

    use super::*;

    fn families() -> Families {
        let mut schema = TableSchema::new();
        for name in ["z", "a"] {
            let id = schema.allocate_family_id();
            schema.families.insert(name.to_owned(), FamilySchema::new(id));
        }
        let (id, name) = (FamilyId(9), "gone".to_owned());
        Families::new(&schema, [Former { id, name, created_at: 0, dropped_at: 0 }])
    }

    fn shown(mutations: Vec<Mutation>) -> Vec<DataChange> {
        shown_of(Source::User, mutations)
    }

    fn shown_of(source: Source, mutations: Vec<Mutation>) -> Vec<DataChange> {
        let count = mutations.len() as u64;
        let first_seq = (1_700_000_000_123 << SEQ_COUNTER_BITS) + 5;
        let batch = RowBatch { row: Bytes::from_static(b"row"), mutations };
        let last_seq = first_seq + count.max(1) - 1;
        let change = Change { first_seq, last_seq, source, batch };
        let mut messages = Messages::new(change);
        let families = families();
        let messages = std::iter::from_fn(|| {
            messages.next(&families, "tepui", |seq| {
                assert_eq!(seq, last_seq);
                "token".to_owned()
            })
        });
        let change = |message: v2::ReadChangeStreamResponse| match message.stream_record {
            Some(StreamRecord::DataChange(change)) => change,
            other => panic!("{other:?}"),
        };
        messages.map(change).collect()
    }

    fn put(family: u32, value: Vec<u8>) -> Mutation {
        let qualifier = Bytes::from_static(b"q");
        Mutation::Put { family: FamilyId(family), qualifier, timestamp: 5_000, value: value.into() }
    }

    fn mutations(change: &DataChange) -> Vec<ProtoMutation> {
        let of = |chunk: &MutationChunk| chunk.mutation.clone().unwrap().mutation.unwrap();
        change.chunks.iter().map(of).collect()
    }

    #[test]
    fn each_mutation_is_shown_as_the_api_has_it() {
        let qualifier = || Bytes::from_static(b"q");
        let delete = |start, end| Mutation::DeleteCells {
            family: FamilyId(2),
            qualifier: qualifier(),
            timestamps: TimestampRange { start, end },
        };
        let merge = |operand: &[u8]| Mutation::Merge {
            family: FamilyId(2),
            qualifier: qualifier(),
            timestamp: 7_000,
            operand: Bytes::copy_from_slice(operand),
        };
        let changes = shown(vec![
            put(1, b"v".to_vec()),
            put(9, b"w".to_vec()),
            put(8, b"unknown".to_vec()),
            delete(0, TIMESTAMP_MAX),
            delete(1_000, 3_000),
            merge(&(-3_i64).to_be_bytes()),
            merge(b"a sketch"[..7].as_ref()),
            Mutation::DeleteFamily { family: FamilyId(2) },
            Mutation::DeleteRow,
        ]);
        let [change] = &changes[..] else { panic!("{changes:?}") };
        let column = |time_range| DeleteFromColumn {
            family_name: "a".to_owned(),
            column_qualifier: qualifier(),
            time_range,
        };
        let set = |family: &str, value: &'static [u8]| SetCell {
            family_name: family.to_owned(),
            column_qualifier: qualifier(),
            timestamp_micros: 5_000,
            value: Bytes::from_static(value),
        };
        let family = |name: &str| {
            ProtoMutation::DeleteFromFamily(DeleteFromFamily { family_name: name.to_owned() })
        };
        let range =
            v2::TimestampRange { start_timestamp_micros: 1_000, end_timestamp_micros: 3_000 };
        let shown = mutations(change);
        assert_eq!(
            shown[..4],
            [
                ProtoMutation::SetCell(set("z", b"v")),
                ProtoMutation::SetCell(set("gone", b"w")),
                ProtoMutation::DeleteFromColumn(column(None)),
                ProtoMutation::DeleteFromColumn(column(Some(range))),
            ]
        );
        let ProtoMutation::AddToCell(add) = &shown[4] else { panic!("{:?}", shown[4]) };
        assert_eq!(add.input.as_ref().unwrap().kind, Some(ValueKind::IntValue(-3)));
        assert!(matches!(&shown[5], ProtoMutation::MergeToCell(_)));
        assert_eq!(shown[6..], [family("a"), family("z"), family("a")]);
        assert_eq!(change.r#type(), Type::User);
        assert_eq!((change.tiebreaker, change.source_cluster_id.as_str()), (5, "tepui"));
        assert_eq!(change.commit_timestamp, Some(timestamp(1_700_000_000_123_000)));
        assert_eq!(change.estimated_low_watermark, change.commit_timestamp);
        assert!(change.done && change.token == "token" && change.row_key == "row");
    }

    #[test]
    fn what_garbage_collection_deletes_is_of_its_own_type_and_of_no_cluster() {
        let timestamps = TimestampRange { start: 1_000, end: 3_000 };
        let (family, qualifier) = (FamilyId(2), Bytes::from_static(b"q"));
        let delete = Mutation::DeleteCells { family, qualifier, timestamps };
        let changes = shown_of(Source::GarbageCollection, vec![delete.clone()]);
        let [change] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(change.r#type(), Type::GarbageCollection);
        assert_eq!((change.source_cluster_id.as_str(), change.tiebreaker), ("", 5));
        assert!(change.done && change.token == "token" && change.row_key == "row");
        assert_eq!(mutations(change), mutations(&shown(vec![delete])[0]));
    }

    #[test]
    fn a_change_of_families_that_nobody_knows_is_not_shown() {
        assert!(
            shown(vec![put(8, vec![1]), Mutation::DeleteFamily { family: FamilyId(8) }]).is_empty()
        );
    }

    #[test]
    fn what_is_deleted_again_is_shown_once_and_again_after_a_write() {
        let family = |id| Mutation::DeleteFamily { family: FamilyId(id) };
        let changes = shown(vec![
            family(1),
            family(1),
            Mutation::DeleteRow,
            family(2),
            Mutation::DeleteRow,
            family(9),
            put(2, b"v".to_vec()),
            Mutation::DeleteRow,
        ]);
        let [change] = &changes[..] else { panic!("{changes:?}") };
        let names = mutations(change).into_iter().map(|mutation| match mutation {
            ProtoMutation::DeleteFromFamily(delete) => delete.family_name,
            ProtoMutation::SetCell(_) => "set".to_owned(),
            other => panic!("{other:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), ["z", "z", "a", "gone", "set", "z", "a"]);
        let endless = shown(vec![Mutation::DeleteRow; 100_000]);
        assert_eq!((endless.len(), endless[0].chunks.len()), (1, 2));
    }

    #[test]
    fn a_deleted_row_is_shown_for_the_families_that_there_were_when_it_was() {
        let mut schema = TableSchema::new();
        for (name, created_at) in [("always", 0), ("since", 10)] {
            let id = schema.allocate_family_id();
            schema
                .families
                .insert(name.into(), FamilySchema { created_at, ..FamilySchema::new(id) });
        }
        let former = |id, name: &str, created_at, dropped_at| Former {
            id: FamilyId(id),
            name: name.to_owned(),
            created_at,
            dropped_at,
        };
        let former =
            [former(4, "until", 0, 20), former(3, "between", 10, 20), former(5, "old", 0, 0)];
        let families = Families::new(&schema, former);
        let deleted = |first_seq| {
            let deletions =
                vec![Mutation::DeleteRow, Mutation::DeleteFamily { family: FamilyId(3) }];
            let batch = RowBatch { row: Bytes::from_static(b"row"), mutations: deletions };
            let change = Change { first_seq, last_seq: first_seq, source: Source::User, batch };
            let bytes = message_bytes(&change, &families);
            let message = Messages::new(change).next(&families, "c", |_| String::new()).unwrap();
            let Some(StreamRecord::DataChange(change)) = message.stream_record else { panic!() };
            let names = mutations(&change).into_iter().map(|mutation| match mutation {
                ProtoMutation::DeleteFromFamily(delete) => delete.family_name,
                other => panic!("{other:?}"),
            });
            let names: Vec<_> = names.collect();
            let least = size_of::<DataChange>() + names.len() * CHUNK_MEMORY_BYTES;
            assert!((least..=least + CHUNK_MEMORY_BYTES).contains(&bytes), "{names:?}: {bytes}");
            names
        };
        // One that was not there is one that somebody named.
        assert_eq!(deleted(10), ["always", "until", "between"]);
        assert_eq!(deleted(11), ["always", "since", "between", "until"]);
        assert_eq!(deleted(20), ["always", "since", "between", "until"]);
        assert_eq!(deleted(21), ["always", "since", "between"]);
    }

    #[test]
    fn a_message_has_some_hundreds_of_chunks_at_most_and_no_room_for_others() {
        let columns = 2 * CHUNKS_MAX + 1;
        let changes = shown((0..columns).map(|_| put(1, b"v".to_vec())).collect());
        let chunks: Vec<_> = changes.iter().map(|change| change.chunks.len()).collect();
        assert_eq!(chunks, [CHUNKS_MAX, CHUNKS_MAX, 1]);
        assert!(changes.iter().all(|change| change.chunks.capacity() == change.chunks.len()));
        let done: Vec<_> = changes.iter().map(|change| change.done).collect();
        assert_eq!(done, [false, false, true]);
    }

    #[test]
    fn a_message_of_a_deleted_row_counts_for_each_family_before_it_is_made() {
        let of = |mutations: Vec<Mutation>| {
            let batch = RowBatch { row: Bytes::from_static(b"row"), mutations };
            let change = Change { first_seq: 1, last_seq: 1, source: Source::User, batch };
            message_bytes(&change, &families())
        };
        let [none, one] = [0, 1].map(|count| of(vec![put(1, vec![0; 9]); count]));
        assert!(one - none > size_of::<MutationChunk>());
        assert_eq!(of(vec![Mutation::DeleteRow]) - none, 2 * (one - none));
        let many = of(vec![Mutation::DeleteRow; 100_000]);
        assert_eq!(many - none, CHUNKS_MAX * (one - none), "one message at a time");
    }

    #[test]
    fn large_changes_come_in_bounded_messages_that_give_the_values_back() {
        let value = |n: usize, seed: u8| (0..n).map(|i| i as u8 ^ seed).collect::<Vec<u8>>();
        let sizes = [10, 3 << 20, 0, (1 << 20) - 70, 1 << 20, 700_000, 700_000, 5];
        let values: Vec<_> = sizes.iter().zip(1..).map(|(n, seed)| value(*n, seed)).collect();
        let changes = shown(values.iter().map(|value| put(1, value.clone())).collect());
        assert!(changes.len() > 5);
        let (mut found, mut part) = (Vec::new(), Vec::new());
        for (i, change) in changes.iter().enumerate() {
            assert!(change.encoded_len() < MESSAGE_BYTES_MAX + (64 << 10));
            let is_first = i == 0;
            let kind = if is_first { Type::User } else { Type::Continuation };
            assert_eq!((change.r#type(), change.row_key.is_empty()), (kind, !is_first));
            assert_eq!(change.done, i + 1 == changes.len());
            assert_eq!(change.token.is_empty(), !change.done);
            for chunk in &change.chunks {
                let Some(ProtoMutation::SetCell(set)) = &chunk.mutation.as_ref().unwrap().mutation
                else {
                    panic!("{chunk:?}")
                };
                if let Some(info) = chunk.chunk_info {
                    assert_eq!(info.chunked_value_offset as usize, part.len());
                    part.extend_from_slice(&set.value);
                    if !info.last_chunk {
                        continue;
                    }
                    assert_eq!(info.chunked_value_size as usize, part.len());
                } else {
                    assert!(part.is_empty());
                    part.extend_from_slice(&set.value);
                }
                found.push(std::mem::take(&mut part));
            }
        }
        assert_eq!(found, values);
    }
}

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
//! | a deleted row      | `DeleteFromFamily` for each family of the table, as the service shows it    |
//!
//! Families that the table does not have any more are shown by the names that they had. A batch of which nothing is left to show has no
//! message.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::mutation::{
    AddToCell, DeleteFromColumn, DeleteFromFamily, MergeToCell, Mutation as ProtoMutation, SetCell,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::read_change_stream_response::{
    DataChange, MutationChunk, StreamRecord, data_change::Type, mutation_chunk::ChunkInfo,
};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2::value::Kind as ValueKind;
use tepui_engine::cell::{FamilyId, Mutation, SEQ_COUNTER_BITS, TIMESTAMP_MAX};
use tepui_engine::changes::{Change, Source, commit_micros};
use tepui_engine::schema::Aggregate;

use crate::schema::{FamilySchema, TableSchema};

/// Bytes of keys and values in one message, at most. Clients in emulator mode keep gRPC's limit of 4 MiB; a quarter of it is
/// enough to make the overhead of a message nothing, and bounds what a stream holds.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// What a chunk takes beside its keys and values, roughly.
const CHUNK_OVERHEAD_BYTES: usize = 64;

/// How a table's families are shown.
#[derive(Debug, Clone, Default)]
pub struct Families {
    names: HashMap<FamilyId, Arc<str>>,
    /// Those whose operands are states, and no integers.
    states: HashSet<FamilyId>,
    /// Those that the table has, in the order of their numbers.
    present: Vec<FamilyId>,
}

impl Families {
    /// The families of a schema, and those that the table had before.
    pub fn new(schema: &TableSchema, former: impl IntoIterator<Item = (FamilyId, String)>) -> Self {
        let mut present: Vec<FamilyId> = schema.families.values().map(|f| f.id).collect();
        present.sort_unstable();
        let former = former.into_iter().map(|(id, name)| (id, Arc::from(name)));
        let there = schema.families.iter().map(|(name, f)| (f.id, Arc::from(name.as_str())));
        let is_state = |f: &&FamilySchema| {
            f.aggregate.is_some_and(|aggregate| matches!(aggregate.how, Aggregate::Opaque(_)))
        };
        let states = schema.families.values().filter(is_state).map(|f| f.id).collect();
        Self { names: former.chain(there).collect(), states, present }
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

/// The messages of a change. `token` is that of the position behind it.
pub fn messages(
    change: &Change,
    families: &Families,
    cluster: &str,
    token: String,
) -> Vec<v2::ReadChangeStreamResponse> {
    let mut pack = Pack::default();
    for mutation in &change.batch.mutations {
        pack.mutation(mutation, families);
    }
    let mut packed = pack.finish();
    let micros = commit_micros(change.first_seq);
    if let Some(first) = packed.first_mut() {
        match change.source {
            Source::User => {
                first.r#type = Type::User.into();
                cluster.clone_into(&mut first.source_cluster_id);
            }
            // The service names no cluster here, and clients refuse a change that does.
            Source::GarbageCollection => first.r#type = Type::GarbageCollection.into(),
        }
        first.row_key = change.batch.row.clone();
        first.commit_timestamp = Some(timestamp(micros));
        // Of two commits in the same millisecond, the later has the greater.
        first.tiebreaker = (change.first_seq & ((1 << SEQ_COUNTER_BITS) - 1)) as i32;
    }
    if let Some(last) = packed.last_mut() {
        last.done = true;
        last.token = token;
        last.estimated_low_watermark = Some(timestamp(micros));
    }
    let record = |change| v2::ReadChangeStreamResponse {
        stream_record: Some(StreamRecord::DataChange(change)),
    };
    packed.into_iter().map(record).collect()
}

/// Messages being filled.
#[derive(Debug, Default)]
struct Pack {
    full: Vec<DataChange>,
    chunks: Vec<MutationChunk>,
    bytes: usize,
}

impl Pack {
    fn mutation(&mut self, mutation: &Mutation, families: &Families) {
        match mutation {
            Mutation::Put { family, qualifier, timestamp, value } => {
                if let Some(family) = families.name(*family) {
                    self.set_cell(&family, qualifier, *timestamp, value);
                }
            }
            Mutation::Merge { family, qualifier, timestamp, operand } => {
                if let Some(family_name) = families.name(*family) {
                    let is_state = families.states.contains(family);
                    let merge = aggregate(family_name, qualifier, *timestamp, operand, is_state);
                    self.whole(merge, qualifier.len() + operand.len());
                }
            }
            Mutation::DeleteCells { family, qualifier, timestamps } => {
                if let Some(family_name) = families.name(*family) {
                    let end = if timestamps.end == TIMESTAMP_MAX { 0 } else { timestamps.end };
                    let time_range = v2::TimestampRange {
                        start_timestamp_micros: timestamps.start.max(0),
                        end_timestamp_micros: end,
                    };
                    let is_all = time_range == v2::TimestampRange::default();
                    let delete = DeleteFromColumn {
                        family_name,
                        column_qualifier: qualifier.clone(),
                        time_range: (!is_all).then_some(time_range),
                    };
                    self.whole(ProtoMutation::DeleteFromColumn(delete), qualifier.len());
                }
            }
            Mutation::DeleteFamily { family } => self.delete_family(*family, families),
            Mutation::DeleteRow => {
                for family in &families.present {
                    self.delete_family(*family, families);
                }
            }
        }
    }

    fn delete_family(&mut self, family: FamilyId, families: &Families) {
        if let Some(family_name) = families.name(family) {
            let delete = DeleteFromFamily { family_name };
            self.whole(ProtoMutation::DeleteFromFamily(delete), 0);
        }
    }

    /// A cell, in as many messages as its value needs.
    fn set_cell(&mut self, family: &str, qualifier: &Bytes, timestamp_micros: i64, value: &Bytes) {
        let set = |value| {
            ProtoMutation::SetCell(SetCell {
                family_name: family.to_owned(),
                column_qualifier: qualifier.clone(),
                timestamp_micros,
                value,
            })
        };
        if qualifier.len() + value.len() + CHUNK_OVERHEAD_BYTES <= MESSAGE_BYTES_MAX {
            return self.whole(set(value.clone()), qualifier.len() + value.len());
        }
        let mut at = 0;
        while at < value.len() {
            // A qualifier has 16 KiB at most, so there is always room for a part of the value.
            self.make_room(qualifier.len() + 1);
            let room = MESSAGE_BYTES_MAX
                .saturating_sub(self.bytes + qualifier.len() + CHUNK_OVERHEAD_BYTES)
                .max(1);
            let end = value.len().min(at + room);
            let info = ChunkInfo {
                chunked_value_size: i32::try_from(value.len()).unwrap_or(i32::MAX),
                chunked_value_offset: i32::try_from(at).unwrap_or(i32::MAX),
                last_chunk: end == value.len(),
            };
            self.push(Some(info), set(value.slice(at..end)), qualifier.len() + end - at);
            at = end;
        }
    }

    fn whole(&mut self, mutation: ProtoMutation, bytes: usize) {
        self.make_room(bytes);
        self.push(None, mutation, bytes);
    }

    /// Begins a message where this one has no room for so much.
    fn make_room(&mut self, bytes: usize) {
        let more = bytes + CHUNK_OVERHEAD_BYTES;
        if !self.chunks.is_empty() && self.bytes + more > MESSAGE_BYTES_MAX {
            self.end_message();
        }
    }

    fn push(&mut self, chunk_info: Option<ChunkInfo>, mutation: ProtoMutation, bytes: usize) {
        let mutation = Some(v2::Mutation { mutation: Some(mutation) });
        self.chunks.push(MutationChunk { chunk_info, mutation });
        self.bytes += bytes + CHUNK_OVERHEAD_BYTES;
    }

    fn end_message(&mut self) {
        let chunks = std::mem::take(&mut self.chunks);
        let r#type = Type::Continuation.into();
        self.full.push(DataChange { r#type, chunks, ..DataChange::default() });
        self.bytes = 0;
    }

    fn finish(mut self) -> Vec<DataChange> {
        if !self.chunks.is_empty() {
            self.end_message();
        }
        self.full
    }
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
        Families::new(&schema, [(FamilyId(9), "gone".to_owned())])
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
        let messages = messages(&change, &families(), "tepui", "token".to_owned());
        let change = |message: v2::ReadChangeStreamResponse| match message.stream_record {
            Some(StreamRecord::DataChange(change)) => change,
            other => panic!("{other:?}"),
        };
        messages.into_iter().map(change).collect()
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

//! What a record of the commit log says, and its bytes.
//!
//! ```text
//! batch    01 | tablet u64 LE | first seq u64 LE | row: varint length, bytes
//!             | varint number of mutations | mutation ...
//! marker   02                                     (its record's `durable` is all that it says)
//! opening  03 | id u64 LE | bytes u64 LE          (the segment before this one, and its length)
//! garbage  04 | as of a batch                     (a batch that garbage collection made)
//!
//! mutation:
//!   put            01 | family | qualifier | timestamp | value
//!   merge          02 | family | qualifier | timestamp | operand
//!   delete cells   03 | family | qualifier | start timestamp | end timestamp
//!   delete family  04 | family
//!   delete row     05
//!
//! family: varint u32.  timestamp: i64 LE.  qualifier, value, operand: varint length, bytes.
//! varint: LEB128, 7 bits a byte, the low ones first, in the shortest form (`crate::codec`).
//! ```
//!
//! A batch is encoded before its place in history is known: the first sequence stands at a fixed offset
//! and is filled in under the lock that hands sequences out. So are, before that, the timestamps that are to be the time of the write, with
//! the lock of its row, or a share of it, in hand: until then each holds the place of the one before it. Decoding shares the record's memory and
//! copies nothing; it takes any bytes and never reserves more than they can hold.

use bytes::Bytes;

use crate::cell::{
    FamilyId, Mutation, RowBatch, Seq, TIMESTAMP_OF_WRITE, Timestamp, TimestampRange,
};
use crate::codec::{BytesReader, Parsed, Reader, Unreadable, put_bytes, put_u64};
use crate::error::{Error, ErrorKind, Result};

const KIND_BATCH: u8 = 1;
const KIND_MARKER: u8 = 2;
const KIND_OPENING: u8 = 3;
const KIND_GARBAGE: u8 = 4;

const PUT: u8 = 1;
const MERGE: u8 = 2;
const DELETE_CELLS: u8 = 3;
const DELETE_FAMILY: u8 = 4;
const DELETE_ROW: u8 = 5;

/// Where a batch's first sequence stands.
const FIRST_SEQ_AT: usize = 1 + 8;

/// Mutations for which room is made before the first is decoded: a count is not believed further.
const MUTATIONS_RESERVED_MAX: usize = 1024;

/// Who asked for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A client.
    User,
    /// Garbage collection: cells that the table's rules let go are deleted.
    GarbageCollection,
}

impl Source {
    /// The kind of its records.
    fn kind(self) -> u8 {
        match self {
            Self::User => KIND_BATCH,
            Self::GarbageCollection => KIND_GARBAGE,
        }
    }

    /// Whose batches are records of this kind.
    fn of_kind(kind: u8) -> Option<Self> {
        [Self::User, Self::GarbageCollection].into_iter().find(|source| source.kind() == kind)
    }
}

/// A batch in the form in which the log writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedBatch {
    bytes: Vec<u8>,
    tablet: u64,
    source: Source,
    /// Where the last timestamp stands that is to be the time of the write; 0, where none can stand, without one.
    last_time_at: usize,
}

impl EncodedBatch {
    /// Bytes of the record's payload.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Never: a batch has a head.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The tablet that it changes.
    pub fn tablet(&self) -> u64 {
        self.tablet
    }

    /// Who asked for it.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The payload.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the batch its place in history: mutation `i` gets sequence `seq + i`.
    pub fn set_first_seq(&mut self, seq: Seq) {
        let place = self.bytes.iter_mut().skip(FIRST_SEQ_AT);
        for (to, from) in place.zip(seq.to_le_bytes()) {
            *to = from;
        }
    }

    /// Whether it has cells with [`TIMESTAMP_OF_WRITE`], which [`Self::set_time`] has to fill in.
    pub fn wants_time(&self) -> bool {
        self.last_time_at > 0
    }

    /// Gives the cells with [`TIMESTAMP_OF_WRITE`] their time.
    pub fn set_time(&mut self, time: Timestamp) {
        let mut at = std::mem::take(&mut self.last_time_at);
        while at > 0 {
            let place = self.bytes.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut());
            let Some(place) = place else { return };
            at = u64::from_le_bytes(*place) as usize;
            *place = time.to_le_bytes();
        }
    }
}

/// A record of the commit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogRecord {
    /// Mutations of one row.
    Batch {
        /// The tablet.
        tablet: u64,
        /// The sequence of the first mutation; the others follow on.
        first_seq: Seq,
        /// Who asked for it.
        source: Source,
        /// The mutations; they share the record's memory.
        batch: RowBatch,
    },
    /// Only there for its `durable`.
    Marker,
    /// The first record of a segment.
    Opening {
        /// The segment before it; 0 for none.
        previous: u64,
        /// Bytes of that segment when it was sealed.
        previous_bytes: u64,
    },
}

/// An upper bound of the bytes of a mutation, so that a batch is encoded without growing its buffer.
fn mutation_bytes_max(mutation: &Mutation) -> usize {
    // Tag, family and two lengths take 1 + 5 + 10 + 10 bytes at most, two timestamps 16.
    42 + match mutation {
        Mutation::Put { qualifier, value: bytes, .. }
        | Mutation::Merge { qualifier, operand: bytes, .. } => qualifier.len() + bytes.len(),
        Mutation::DeleteCells { qualifier, .. } => qualifier.len(),
        Mutation::DeleteFamily { .. } | Mutation::DeleteRow => 0,
    }
}

/// Encodes a client's batch, with first sequence 0 until [`EncodedBatch::set_first_seq`].
pub fn encode_batch(tablet: u64, batch: &RowBatch) -> EncodedBatch {
    encode_batch_of(Source::User, tablet, batch)
}

/// Encodes a batch, with first sequence 0 until [`EncodedBatch::set_first_seq`], and without the time of its write until
/// [`EncodedBatch::set_time`].
pub fn encode_batch_of(source: Source, tablet: u64, batch: &RowBatch) -> EncodedBatch {
    let capacity = FIRST_SEQ_AT
        + 8
        + 20
        + batch.row.len()
        + batch.mutations.iter().map(mutation_bytes_max).sum::<usize>();
    let mut out = Vec::with_capacity(capacity);
    out.push(source.kind());
    out.extend_from_slice(&tablet.to_le_bytes());
    out.extend_from_slice(&0_u64.to_le_bytes());
    put_bytes(&mut out, &batch.row);
    put_u64(&mut out, batch.mutations.len() as u64);
    let mut last_time_at = 0;
    for mutation in &batch.mutations {
        match mutation {
            Mutation::Put { family, qualifier, timestamp, value: bytes }
            | Mutation::Merge { family, qualifier, timestamp, operand: bytes } => {
                let put = matches!(mutation, Mutation::Put { .. });
                out.push(if put { PUT } else { MERGE });
                put_u64(&mut out, u64::from(family.0));
                put_bytes(&mut out, qualifier);
                if put && *timestamp == TIMESTAMP_OF_WRITE {
                    let before = std::mem::replace(&mut last_time_at, out.len());
                    out.extend_from_slice(&(before as u64).to_le_bytes());
                } else {
                    out.extend_from_slice(&timestamp.to_le_bytes());
                }
                put_bytes(&mut out, bytes);
            }
            Mutation::DeleteCells { family, qualifier, timestamps } => {
                out.push(DELETE_CELLS);
                put_u64(&mut out, u64::from(family.0));
                put_bytes(&mut out, qualifier);
                out.extend_from_slice(&timestamps.start.to_le_bytes());
                out.extend_from_slice(&timestamps.end.to_le_bytes());
            }
            Mutation::DeleteFamily { family } => {
                out.push(DELETE_FAMILY);
                put_u64(&mut out, u64::from(family.0));
            }
            Mutation::DeleteRow => out.push(DELETE_ROW),
        }
    }
    EncodedBatch { bytes: out, tablet, source, last_time_at }
}

/// The payload of a marker.
pub(super) fn encode_marker() -> [u8; 1] {
    [KIND_MARKER]
}

/// The payload of a segment's first record.
pub(super) fn encode_opening(previous: u64, previous_bytes: u64) -> Vec<u8> {
    let mut out = vec![KIND_OPENING];
    out.extend_from_slice(&previous.to_le_bytes());
    out.extend_from_slice(&previous_bytes.to_le_bytes());
    out
}

fn timestamp(input: &mut BytesReader) -> Parsed<Timestamp> {
    Ok(input.fixed_u64()? as i64)
}

fn family(input: &mut BytesReader) -> Parsed<FamilyId> {
    input.u32().map(FamilyId)
}

fn mutation(input: &mut BytesReader) -> Result<Mutation, Unreadable> {
    let unknown = input.malformed("a mutation of an unknown kind");
    Ok(match input.u8()? {
        PUT => Mutation::Put {
            family: family(input)?,
            qualifier: input.bytes()?,
            timestamp: timestamp(input)?,
            value: input.bytes()?,
        },
        MERGE => Mutation::Merge {
            family: family(input)?,
            qualifier: input.bytes()?,
            timestamp: timestamp(input)?,
            operand: input.bytes()?,
        },
        DELETE_CELLS => Mutation::DeleteCells {
            family: family(input)?,
            qualifier: input.bytes()?,
            timestamps: TimestampRange { start: timestamp(input)?, end: timestamp(input)? },
        },
        DELETE_FAMILY => Mutation::DeleteFamily { family: family(input)? },
        DELETE_ROW => Mutation::DeleteRow,
        _ => return Err(Unreadable::Newer(unknown)),
    })
}

/// Decodes the payload of a record that verified. Errors are `Corruption`, or `InvalidArgument` where a newer version wrote it, and
/// name the byte of the payload; the caller adds the file and the offset.
pub fn decode_record(payload: Bytes) -> Result<LogRecord> {
    parse(BytesReader::new(payload))
        .map_err(|error| Error::new(error.kind(), format!("log record, {error}")))
}

fn parse(mut input: BytesReader) -> Result<LogRecord, Unreadable> {
    let unknown = input.malformed("a record of an unknown kind");
    let kind = input.u8()?;
    let record = match (kind, Source::of_kind(kind)) {
        (_, Some(source)) => {
            let tablet = input.fixed_u64()?;
            let first_seq = input.fixed_u64()?;
            let row = input.bytes()?;
            let count = input.usize()?;
            let mut mutations = Vec::with_capacity(count.min(MUTATIONS_RESERVED_MAX));
            for _ in 0..count {
                mutations.push(mutation(&mut input)?);
            }
            LogRecord::Batch { tablet, first_seq, source, batch: RowBatch { row, mutations } }
        }
        (KIND_MARKER, _) => LogRecord::Marker,
        (KIND_OPENING, _) => {
            LogRecord::Opening { previous: input.fixed_u64()?, previous_bytes: input.fixed_u64()? }
        }
        _ => return Err(Unreadable::Newer(unknown)),
    };
    input.finish()?;
    Ok(record)
}

/// What is read of a batch without decoding its mutations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHead {
    /// The tablet.
    pub tablet: u64,
    /// The sequence of the first mutation.
    pub first_seq: Seq,
    /// The sequence of the last mutation.
    pub last_seq: Seq,
}

/// The head of a batch; `None` for a record of another kind, and for one that cannot be decoded.
pub fn batch_head(payload: &[u8]) -> Option<BatchHead> {
    let mut input = Reader::new(payload);
    Source::of_kind(input.u8().ok()?)?;
    let (tablet, first_seq) = (input.fixed_u64().ok()?, input.fixed_u64().ok()?);
    input.bytes().ok()?;
    let count = input.u64().ok()?.max(1);
    Some(BatchHead { tablet, first_seq, last_seq: first_seq.saturating_add(count - 1) })
}

/// Decodes the payload of a batch: (tablet, first sequence, source, batch).
pub fn decode_batch(payload: Bytes) -> Result<(u64, Seq, Source, RowBatch)> {
    match decode_record(payload)? {
        LogRecord::Batch { tablet, first_seq, source, batch } => {
            Ok((tablet, first_seq, source, batch))
        }
        LogRecord::Marker | LogRecord::Opening { .. } => {
            Err(Error::new(ErrorKind::Corruption, "log record, byte 0: not a batch"))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from)
    }

    fn any_mutation() -> impl Strategy<Value = Mutation> {
        let family = any::<u32>().prop_map(FamilyId);
        (0..5, family, any_bytes(), any::<i64>(), any::<i64>(), any_bytes()).prop_map(
            |(kind, family, qualifier, timestamp, end, value)| match kind {
                0 => Mutation::Put { family, qualifier, timestamp, value },
                1 => Mutation::Merge { family, qualifier, timestamp, operand: value },
                2 => Mutation::DeleteCells {
                    family,
                    qualifier,
                    timestamps: TimestampRange { start: timestamp, end },
                },
                3 => Mutation::DeleteFamily { family },
                _ => Mutation::DeleteRow,
            },
        )
    }

    proptest! {
        #[test]
        fn batches_survive_the_round_trip(
            tablet in any::<u64>(),
            is_garbage in any::<bool>(),
            seq in any::<u64>(),
            row in any_bytes(),
            mutations in proptest::collection::vec(any_mutation(), 0..20),
        ) {
            let batch = RowBatch { row, mutations };
            let source = if is_garbage { Source::GarbageCollection } else { Source::User };
            let mut encoded = encode_batch_of(source, tablet, &batch);
            encoded.set_first_seq(seq);
            prop_assert_eq!((encoded.tablet(), encoded.source()), (tablet, source));
            let payload = Bytes::copy_from_slice(encoded.bytes());
            let last_seq = seq.saturating_add((batch.mutations.len() as u64).max(1) - 1);
            let head = BatchHead { tablet, first_seq: seq, last_seq };
            prop_assert_eq!(batch_head(&payload), Some(head));
            prop_assert_eq!(decode_batch(payload.clone()).unwrap(), (tablet, seq, source, batch));
            for cut in 0..payload.len() {
                let error = decode_batch(payload.slice(..cut)).unwrap_err();
                prop_assert_eq!(error.kind(), ErrorKind::Corruption);
            }
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode_record(Bytes::from(bytes.clone()));
            let _ = batch_head(&bytes);
            for kind in [KIND_BATCH, KIND_MARKER, KIND_OPENING, KIND_GARBAGE] {
                let mut bytes = bytes.clone();
                bytes.insert(0, kind);
                let _ = decode_record(Bytes::from(bytes));
            }
        }
    }

    #[test]
    fn what_is_of_an_unknown_kind_is_a_newer_versions() {
        let batch =
            RowBatch { row: Bytes::from_static(b"r"), mutations: vec![Mutation::DeleteRow] };
        let payload = encode_batch(1, &batch).bytes().to_vec();
        for at in [0, payload.len() - 1] {
            let mut newer = payload.clone();
            newer[at] = 9;
            let error = decode_record(newer.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("a newer version wrote it"), "{error}");
        }
        let mut longer = payload;
        longer.push(0);
        assert_eq!(decode_record(longer.into()).unwrap_err().kind(), ErrorKind::Corruption);
    }

    #[test]
    fn decoded_values_share_the_memory_of_the_record() {
        let value = Bytes::from(vec![1; 1000]);
        let put = Mutation::Put {
            family: FamilyId(1),
            qualifier: Bytes::new(),
            timestamp: 0,
            value: value.clone(),
        };
        let batch = RowBatch { row: Bytes::from_static(b"r"), mutations: vec![put] };
        let payload = Bytes::copy_from_slice(encode_batch(1, &batch).bytes());
        let (_, _, _, decoded) = decode_batch(payload.clone()).unwrap();
        let Mutation::Put { value, .. } = &decoded.mutations[0] else { panic!("a put") };
        assert!(payload.as_ptr_range().contains(&value.as_ptr()));
    }

    #[test]
    fn a_damaged_count_asks_for_no_memory_and_trailing_bytes_are_refused() {
        let mut bytes = vec![KIND_BATCH];
        bytes.extend_from_slice(&[0; 16]);
        put_bytes(&mut bytes, b"row");
        put_u64(&mut bytes, u64::MAX);
        let error = decode_record(Bytes::from(bytes)).unwrap_err();
        assert!(error.message().contains("byte 31"), "{error}");
        assert!(decode_record(Bytes::from_static(&[KIND_MARKER, 0])).is_err());
        assert!(decode_record(Bytes::from_static(&[99])).is_err());
        let long = [&[KIND_BATCH][..], &[0; 16], &[0xFF; 11]].concat();
        assert!(decode_record(Bytes::from(long)).is_err(), "a varint has ten bytes at most");
    }

    #[test]
    fn the_time_of_the_write_is_filled_in_where_it_is_asked_for_and_nowhere_else() {
        let put = |timestamp, value: &'static [u8]| Mutation::Put {
            family: FamilyId(1),
            qualifier: Bytes::from_static(b"q"),
            timestamp,
            value: Bytes::from_static(value),
        };
        let of_write = TIMESTAMP_OF_WRITE;
        let mutations =
            vec![put(of_write, b"a"), put(7_000, b"b"), Mutation::DeleteRow, put(of_write, b"c")];
        let mut batch = RowBatch { row: Bytes::from_static(b"r"), mutations };
        let mut encoded = encode_batch(1, &batch);
        assert!(encoded.wants_time());
        encoded.set_time(9_000);
        batch.set_time(9_000);
        assert!(!encoded.wants_time());
        let expected =
            vec![put(9_000, b"a"), put(7_000, b"b"), Mutation::DeleteRow, put(9_000, b"c")];
        assert_eq!(batch.mutations, expected);
        let payload = Bytes::copy_from_slice(encoded.bytes());
        assert_eq!(decode_batch(payload).unwrap().3, batch);
        assert_eq!(encoded, encode_batch(1, &batch), "as if the time had been known");
    }

    #[test]
    fn the_other_records_survive_the_round_trip() {
        let decode = |bytes: &[u8]| decode_record(Bytes::copy_from_slice(bytes)).unwrap();
        assert_eq!(decode(&encode_marker()), LogRecord::Marker);
        let opening = LogRecord::Opening { previous: 7, previous_bytes: 1 << 40 };
        assert_eq!(decode(&encode_opening(7, 1 << 40)), opening);
        assert!(decode_batch(Bytes::copy_from_slice(&encode_marker())).is_err());
    }

    #[test]
    fn the_bytes_of_a_batch_are_what_the_format_says() {
        let batch = RowBatch {
            row: Bytes::from_static(b"r"),
            mutations: vec![
                Mutation::Put {
                    family: FamilyId(300),
                    qualifier: Bytes::from_static(b"q"),
                    timestamp: 5,
                    value: Bytes::from_static(b"vv"),
                },
                Mutation::DeleteRow,
            ],
        };
        let mut encoded = encode_batch(2, &batch);
        encoded.set_first_seq(3);
        let expected = [
            &[1][..],
            &[2, 0, 0, 0, 0, 0, 0, 0],
            &[3, 0, 0, 0, 0, 0, 0, 0],
            &[1, b'r', 2],
            &[1, 0xAC, 0x02, 1, b'q', 5, 0, 0, 0, 0, 0, 0, 0, 2, b'v', b'v'],
            &[5],
        ];
        assert_eq!(encoded.bytes(), expected.concat());
        let garbage = encode_batch_of(Source::GarbageCollection, 2, &batch);
        assert_eq!(garbage.bytes()[0], 4);
        assert_eq!(garbage.bytes()[17..], encoded.bytes()[17..]);
    }
}

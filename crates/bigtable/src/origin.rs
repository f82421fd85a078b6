//! Where the timestamps of mutations come from, which the generated types cannot say: `timestamp_origin`, tag 7 of a mutation.
//!
//! Clients that write or add to a cell without being told when may send their own clock's microseconds, and say so. The service cuts such a time to
//! the table's granularity, where it refuses one that somebody chose and that does not fit. Here that is done as mutations are decoded,
//! so that nothing behind knows of it.

use bytes::{Buf, BufMut, Bytes};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use crate::mutation::truncate_to_granularity;

/// The field of a mutation that says where its timestamp comes from.
const ORIGIN: u32 = 7;
/// `Mutation.TimestampOrigin.CLIENT_AUTO_GENERATED`.
const CLIENT_AUTO_GENERATED: u64 = 2;

/// A message that carries mutations.
pub trait CarriesMutations: Message + Default {
    /// The mutations of the field with this tag, where that has any.
    fn mutations(&mut self, tag: u32) -> Option<&mut Vec<v2::Mutation>>;
}

impl CarriesMutations for v2::MutateRowRequest {
    fn mutations(&mut self, tag: u32) -> Option<&mut Vec<v2::Mutation>> {
        (tag == 3).then_some(&mut self.mutations)
    }
}

impl CarriesMutations for v2::mutate_rows_request::Entry {
    fn mutations(&mut self, tag: u32) -> Option<&mut Vec<v2::Mutation>> {
        (tag == 2).then_some(&mut self.mutations)
    }
}

impl CarriesMutations for v2::CheckAndMutateRowRequest {
    fn mutations(&mut self, tag: u32) -> Option<&mut Vec<v2::Mutation>> {
        match tag {
            4 => Some(&mut self.true_mutations),
            5 => Some(&mut self.false_mutations),
            _ => None,
        }
    }
}

/// The time of the cell that a mutation sets or adds to.
fn time_of(mutation: &mut v2::mutation::Mutation) -> Option<&mut i64> {
    use v2::mutation::Mutation;
    let timestamp = match mutation {
        Mutation::SetCell(set) => return Some(&mut set.timestamp_micros),
        Mutation::AddToCell(add) => &mut add.timestamp,
        Mutation::MergeToCell(merge) => &mut merge.timestamp,
        Mutation::DeleteFromColumn(_)
        | Mutation::DeleteFromFamily(_)
        | Mutation::DeleteFromRow(_) => return None,
    };
    match &mut timestamp.as_mut()?.kind {
        Some(v2::value::Kind::RawTimestampMicros(micros)) => Some(micros),
        _ => None,
    }
}

/// What a mutation says of its timestamp's origin: of several the last, and 0 where it says nothing.
fn origin_of(mut mutation: &[u8]) -> Result<u64, DecodeError> {
    let mut origin = 0;
    while mutation.has_remaining() {
        let (tag, wire_type) = encoding::decode_key(&mut mutation)?;
        if (tag, wire_type) == (ORIGIN, WireType::Varint) {
            origin = encoding::decode_varint(&mut mutation)?;
        } else {
            encoding::skip_field(wire_type, tag, &mut mutation, DecodeContext::default())?;
        }
    }
    Ok(origin)
}

/// A message whose mutations have the timestamps that their origin makes of them; the same message on the wire as `M`, but for the origins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WithOrigins<M>(pub M);

impl<M: CarriesMutations> Message for WithOrigins<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.0.encode_raw(buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let Some(mutations) = self.0.mutations(tag) else {
            return self.0.merge_field(tag, wire_type, buf, ctx);
        };
        let mut message = Bytes::new();
        encoding::bytes::merge(wire_type, &mut message, buf, ctx)?;
        let is_generated = origin_of(&message)? == CLIENT_AUTO_GENERATED;
        let mut mutation = v2::Mutation::decode(message)?;
        if is_generated
            && let Some(micros) = mutation.mutation.as_mut().and_then(time_of)
            && *micros > 0
        {
            *micros = truncate_to_granularity(*micros);
        }
        mutations.push(mutation);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        self.0.encoded_len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// A mutation as it travels that sets a cell at a time that the client made up.
#[cfg(test)]
pub(crate) fn generated(timestamp_micros: i64) -> Vec<u8> {
    let set = v2::mutation::SetCell { timestamp_micros, ..Default::default() };
    let mutation = v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(set)) };
    let mut message = mutation.encode_to_vec();
    encoding::uint64::encode(ORIGIN, &CLIENT_AUTO_GENERATED, &mut message);
    message
}

/// The times of the cells that mutations set.
#[cfg(test)]
pub(crate) fn times(mutations: &[v2::Mutation]) -> Vec<i64> {
    let time = |mutation: &v2::Mutation| match &mutation.mutation {
        Some(v2::mutation::Mutation::SetCell(set)) => Some(set.timestamp_micros),
        _ => None,
    };
    mutations.iter().filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROS: i64 = 1_700_000_000_123_456;
    const CUT: i64 = 1_700_000_000_123_000;

    fn set(timestamp_micros: i64) -> v2::mutation::Mutation {
        let set = v2::mutation::SetCell {
            family_name: "f".into(),
            column_qualifier: "q".into(),
            timestamp_micros,
            value: "v".into(),
        };
        v2::mutation::Mutation::SetCell(set)
    }

    /// A mutation as it travels, with its origin before or behind it.
    fn encoded(mutation: v2::mutation::Mutation, origin: Option<u64>, is_first: bool) -> Vec<u8> {
        let mut field = Vec::new();
        if let Some(origin) = origin {
            encoding::uint64::encode(ORIGIN, &origin, &mut field);
        }
        let mutation = v2::Mutation { mutation: Some(mutation) }.encode_to_vec();
        if is_first { [field, mutation].concat() } else { [mutation, field].concat() }
    }

    /// The mutations of a message with this one in the field `tag`.
    fn carried<M: CarriesMutations>(tag: u32, mutation: &[u8]) -> Vec<v2::mutation::Mutation> {
        let mut message = Vec::new();
        encoding::bytes::encode(tag, &mutation.to_vec(), &mut message);
        encoding::bytes::encode(tag, &mutation.to_vec(), &mut message);
        let mut carried = WithOrigins::<M>::decode(&*message).unwrap();
        let mutations = std::mem::take(carried.0.mutations(tag).unwrap());
        assert_eq!(carried.encoded_len(), 0, "nothing else was in it");
        mutations.into_iter().map(|mutation| mutation.mutation.unwrap()).collect()
    }

    #[test]
    fn a_time_that_the_client_made_up_is_cut_in_every_message_with_mutations() {
        for is_first in [false, true] {
            let mutation = encoded(set(MICROS), Some(2), is_first);
            let all = [
                carried::<v2::MutateRowRequest>(3, &mutation),
                carried::<v2::mutate_rows_request::Entry>(2, &mutation),
                carried::<v2::CheckAndMutateRowRequest>(4, &mutation),
                carried::<v2::CheckAndMutateRowRequest>(5, &mutation),
            ];
            for mutations in all {
                assert_eq!(mutations, [set(CUT), set(CUT)]);
            }
        }
    }

    #[test]
    fn a_time_that_somebody_chose_stays_as_it_is() {
        for origin in [None, Some(0), Some(1), Some(3), Some(u64::MAX)] {
            let mutation = encoded(set(MICROS), origin, false);
            assert_eq!(carried::<v2::MutateRowRequest>(3, &mutation)[0], set(MICROS), "{origin:?}");
        }
        // The server's own, and what is none, are looked at by those who take them.
        for micros in [0, -1, -2, i64::MIN] {
            let mutation = encoded(set(micros), Some(2), false);
            assert_eq!(carried::<v2::MutateRowRequest>(3, &mutation)[0], set(micros));
        }
    }

    #[test]
    fn times_of_additions_are_cut_and_ranges_of_deletions_are_not() {
        use v2::mutation::{AddToCell, DeleteFromColumn, MergeToCell, Mutation};
        use v2::value::Kind;
        let time = |kind| Some(v2::Value { kind: Some(kind), ..Default::default() });
        let add = |kind| AddToCell { timestamp: time(kind), ..Default::default() };
        let add = |kind| Mutation::AddToCell(add(kind));
        let merge = |kind| MergeToCell { timestamp: time(kind), ..Default::default() };
        let merge = |kind| Mutation::MergeToCell(merge(kind));
        let range =
            v2::TimestampRange { start_timestamp_micros: MICROS, end_timestamp_micros: MICROS + 1 };
        let delete = DeleteFromColumn { time_range: Some(range), ..Default::default() };
        let delete = Mutation::DeleteFromColumn(delete);
        let cut = [
            (add(Kind::RawTimestampMicros(MICROS)), add(Kind::RawTimestampMicros(CUT))),
            (merge(Kind::RawTimestampMicros(MICROS)), merge(Kind::RawTimestampMicros(CUT))),
            // What is no time of a cell is refused by those who take it.
            (add(Kind::RawTimestampMicros(-MICROS)), add(Kind::RawTimestampMicros(-MICROS))),
            (add(Kind::IntValue(MICROS)), add(Kind::IntValue(MICROS))),
            (delete.clone(), delete),
        ];
        for (sent, expected) in cut {
            let mutation = encoded(sent.clone(), Some(2), false);
            assert_eq!(carried::<v2::MutateRowRequest>(3, &mutation)[0], expected);
            let chosen = encoded(sent.clone(), Some(1), false);
            assert_eq!(carried::<v2::MutateRowRequest>(3, &chosen)[0], sent);
        }
    }

    #[test]
    fn the_last_of_several_origins_holds() {
        for (origins, micros) in [([1, 2], CUT), ([2, 1], MICROS)] {
            let mut mutation = encoded(set(MICROS), Some(origins[0]), false);
            encoding::uint64::encode(ORIGIN, &origins[1], &mut mutation);
            assert_eq!(carried::<v2::MutateRowRequest>(3, &mutation)[0], set(micros));
        }
    }

    #[test]
    fn other_fields_and_damage_are_as_the_generated_types_have_them() {
        let request = v2::MutateRowRequest {
            table_name: "t".into(),
            row_key: "r".into(),
            mutations: vec![v2::Mutation { mutation: Some(set(7_000)) }; 3],
            app_profile_id: "p".into(),
            ..Default::default()
        };
        let bytes = request.encode_to_vec();
        let carried = WithOrigins::<v2::MutateRowRequest>::decode(&*bytes).unwrap();
        assert_eq!((&carried.0, carried.encoded_len()), (&request, bytes.len()));
        assert_eq!(carried.encode_to_vec(), bytes);
        for end in 0..bytes.len() {
            let (part, plain) = (&bytes[..end], v2::MutateRowRequest::decode(&bytes[..end]));
            let carried = WithOrigins::<v2::MutateRowRequest>::decode(part);
            assert_eq!(carried.ok().map(|carried| carried.0), plain.ok(), "{end}");
        }
    }
}

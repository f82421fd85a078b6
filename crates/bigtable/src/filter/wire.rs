//! The row filter as it travels: our own reading of the message `google.bigtable.v2.RowFilter`.
//!
//! The generated types lack the newest filter (`value_bitmask_filter`, tag 20), and a message that drops
//! a filter which it does not know reads as "every cell". So the filter of a request is kept as the bytes
//! that arrived ([`WithFilter`]) and decoded here, where every kind is known, where a kind that is not
//! known is refused, and where size and depth are refused with Bigtable's words instead of a transport
//! error.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

use super::compile::FILTER_BYTES_MAX;
use crate::origin::WithOrigins;

/// Bytes of a filter that are kept of a request: one more than [`super::Filter::decode`] takes, so that it refuses
/// what had more.
const KEPT_BYTES_MAX: usize = FILTER_BYTES_MAX + 1;

/// A row filter; without a kind it passes every cell.
#[derive(Clone, PartialEq, Message)]
pub struct RowFilter {
    /// Which filter.
    #[prost(
        oneof = "Kind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20"
    )]
    pub kind: Option<Kind>,
}

/// Filters in sequence or side by side.
#[derive(Clone, PartialEq, Message)]
pub struct Filters {
    /// The filters.
    #[prost(message, repeated, tag = "1")]
    pub filters: Vec<RowFilter>,
}

/// One of two filters, as a third finds cells or does not.
#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    /// What decides.
    #[prost(message, optional, boxed, tag = "1")]
    pub predicate_filter: Option<Box<RowFilter>>,
    /// Applied to the input when the predicate leaves cells; without it, nothing is left.
    #[prost(message, optional, boxed, tag = "2")]
    pub true_filter: Option<Box<RowFilter>>,
    /// Applied to the input when the predicate leaves none; without it, nothing is left.
    #[prost(message, optional, boxed, tag = "3")]
    pub false_filter: Option<Box<RowFilter>>,
}

/// A mask of bits that a value must have.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ValueBitmask {
    /// `value & mask == mask`, and the lengths agree.
    #[prost(bytes = "bytes", tag = "1")]
    pub mask: Bytes,
}

/// The kinds of filter, in the order of their tags.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// Filters in sequence.
    #[prost(message, tag = "1")]
    Chain(Filters),
    /// Filters side by side, their results pooled.
    #[prost(message, tag = "2")]
    Interleave(Filters),
    /// One of two filters.
    #[prost(message, tag = "3")]
    Condition(Box<Condition>),
    /// Rows whose key matches.
    #[prost(bytes = "bytes", tag = "4")]
    RowKeyRegexFilter(Bytes),
    /// Cells whose family's name matches.
    #[prost(string, tag = "5")]
    FamilyNameRegexFilter(String),
    /// Cells whose qualifier matches.
    #[prost(bytes = "bytes", tag = "6")]
    ColumnQualifierRegexFilter(Bytes),
    /// Cells of a range of columns of one family.
    #[prost(message, tag = "7")]
    ColumnRangeFilter(v2::ColumnRange),
    /// Cells of a range of timestamps.
    #[prost(message, tag = "8")]
    TimestampRangeFilter(v2::TimestampRange),
    /// Cells whose value matches.
    #[prost(bytes = "bytes", tag = "9")]
    ValueRegexFilter(Bytes),
    /// All but the first cells of the row.
    #[prost(int32, tag = "10")]
    CellsPerRowOffsetFilter(i32),
    /// The first cells of the row.
    #[prost(int32, tag = "11")]
    CellsPerRowLimitFilter(i32),
    /// The newest cells of each column.
    #[prost(int32, tag = "12")]
    CellsPerColumnLimitFilter(i32),
    /// Empties values.
    #[prost(bool, tag = "13")]
    StripValueTransformer(bool),
    /// Rows by chance.
    #[prost(double, tag = "14")]
    RowSampleFilter(f64),
    /// Cells of a range of values.
    #[prost(message, tag = "15")]
    ValueRangeFilter(v2::ValueRange),
    /// To the output of the read, past every other filter.
    #[prost(bool, tag = "16")]
    Sink(bool),
    /// Everything.
    #[prost(bool, tag = "17")]
    PassAllFilter(bool),
    /// Nothing.
    #[prost(bool, tag = "18")]
    BlockAllFilter(bool),
    /// Labels cells.
    #[prost(string, tag = "19")]
    ApplyLabelTransformer(String),
    /// Cells whose value has the bits of a mask.
    #[prost(message, tag = "20")]
    ValueBitmaskFilter(ValueBitmask),
}

impl RowFilter {
    /// A filter of this kind.
    pub fn of(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }

    /// The filters directly within this one.
    pub(super) fn children(&self) -> Vec<&Self> {
        match &self.kind {
            Some(Kind::Chain(list) | Kind::Interleave(list)) => list.filters.iter().collect(),
            Some(Kind::Condition(condition)) => {
                [&condition.predicate_filter, &condition.true_filter, &condition.false_filter]
                    .into_iter()
                    .filter_map(|filter| filter.as_deref())
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A request message that carries a row filter.
pub trait CarriesFilter: Message + Default {
    /// The field's number.
    const FILTER_TAG: u32;
}

impl CarriesFilter for v2::ReadRowsRequest {
    const FILTER_TAG: u32 = 3;
}

impl CarriesFilter for WithOrigins<v2::CheckAndMutateRowRequest> {
    const FILTER_TAG: u32 = 6;
}

/// A request whose filter is kept as bytes, for [`super::Filter::decode`]; the same message on the wire
/// as `M`. The filter field of `request` itself stays empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WithFilter<M> {
    /// All other fields.
    pub request: M,
    /// The encoded filter, where there is one; no more of it than shows that it is too large.
    pub filter: Option<Bytes>,
}

impl<M: CarriesFilter> Message for WithFilter<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.request.encode_raw(buf);
        if let Some(filter) = &self.filter {
            prost::encoding::bytes::encode(M::FILTER_TAG, filter, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag != M::FILTER_TAG {
            return self.request.merge_field(tag, wire_type, buf, ctx);
        }
        let mut filter = Bytes::new();
        prost::encoding::bytes::merge(wire_type, &mut filter, buf, ctx)?;
        // A field that comes twice is merged; for messages, joining their bytes means just that. It may come as
        // often as a request has room for it: each time costs the bytes that it adds, of which few are kept.
        let earlier = self.filter.take().unwrap_or_default();
        filter.truncate(KEPT_BYTES_MAX.saturating_sub(earlier.len()));
        self.filter = Some(if earlier.is_empty() {
            filter
        } else if filter.is_empty() {
            earlier
        } else {
            // In place from the second time on: what was joined is nobody else's.
            let mut joined = BytesMut::from(earlier);
            joined.extend_from_slice(&filter);
            joined.freeze()
        });
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let filter = self.filter.as_ref();
        self.request.encoded_len()
            + filter.map_or(0, |f| prost::encoding::bytes::encoded_len(M::FILTER_TAG, f))
    }

    fn clear(&mut self) {
        self.request.clear();
        self.filter = None;
    }
}

/// The same filter in the generated types; `None` for one that they cannot say.
#[cfg(test)]
pub(super) fn to_generated(filter: &RowFilter) -> v2::RowFilter {
    v2::RowFilter::decode(filter.encode_to_vec().as_slice()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Conditional = WithOrigins<v2::CheckAndMutateRowRequest>;

    #[test]
    fn a_request_keeps_its_other_fields_and_the_filters_bytes() {
        let filter = RowFilter::of(Kind::ValueBitmaskFilter(ValueBitmask {
            mask: Bytes::from_static(&[1, 2]),
        }));
        let plain = v2::ReadRowsRequest {
            table_name: "t".into(),
            rows_limit: 7,
            reversed: true,
            filter: Some(v2::RowFilter {
                filter: Some(v2::row_filter::Filter::PassAllFilter(true)),
            }),
            ..Default::default()
        };
        let decoded =
            WithFilter::<v2::ReadRowsRequest>::decode(plain.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded.request, v2::ReadRowsRequest { filter: None, ..plain.clone() });
        assert_eq!(decoded.filter.as_deref(), Some(&[0x88, 0x01, 0x01][..]));
        assert_eq!(v2::ReadRowsRequest::decode(decoded.encode_to_vec().as_slice()).unwrap(), plain);

        let mine = WithFilter {
            request: WithOrigins(v2::CheckAndMutateRowRequest {
                table_name: "t".into(),
                ..Default::default()
            }),
            filter: Some(filter.encode_to_vec().into()),
        };
        let bytes = mine.encode_to_vec();
        assert_eq!(bytes.len(), mine.encoded_len());
        assert_eq!(WithFilter::decode(bytes.as_slice()).unwrap(), mine);
        assert_eq!(RowFilter::decode(mine.filter.unwrap()).unwrap(), filter);
    }

    #[test]
    fn times_that_the_client_made_up_are_cut_beside_a_filter() {
        let mutation = crate::origin::generated(1_234_567);
        let mut bytes = Vec::new();
        for tag in [4, 5] {
            prost::encoding::bytes::encode(tag, &mutation, &mut bytes);
        }
        prost::encoding::bytes::encode(6, &vec![0x88, 0x01, 0x01], &mut bytes);
        let decoded = WithFilter::<Conditional>::decode(&*bytes).unwrap();
        assert!(decoded.filter.is_some());
        let WithOrigins(request) = decoded.request;
        for mutations in [request.true_mutations, request.false_mutations] {
            assert_eq!(crate::origin::times(&mutations), [1_234_000]);
        }
    }

    #[test]
    fn a_request_without_a_filter_has_none() {
        let bytes = v2::ReadRowsRequest { rows_limit: 1, ..Default::default() }.encode_to_vec();
        let decoded = WithFilter::<v2::ReadRowsRequest>::decode(bytes.as_slice()).unwrap();
        assert_eq!((decoded.filter, decoded.request.rows_limit), (None, 1));
    }

    /// A request whose filter comes in these pieces.
    fn in_pieces(pieces: impl Iterator<Item = Vec<u8>>) -> Bytes {
        let mut request = Vec::new();
        for piece in pieces {
            prost::encoding::bytes::encode(v2::ReadRowsRequest::FILTER_TAG, &piece, &mut request);
        }
        request.into()
    }

    fn filter_of(request: &Bytes) -> Bytes {
        WithFilter::<v2::ReadRowsRequest>::decode(request.clone()).unwrap().filter.unwrap()
    }

    #[test]
    fn a_filter_in_pieces_is_their_bytes_joined() {
        let whole: Vec<u8> = (0..9_000_u32).map(|i| i as u8).collect();
        for piece_bytes in [1, 2, 100, 8_999, 9_000] {
            let pieces = whole.chunks(piece_bytes).flat_map(|piece| [vec![], piece.to_vec()]);
            assert!(filter_of(&in_pieces(pieces)) == whole, "{piece_bytes}");
        }
        assert!(filter_of(&in_pieces([vec![], vec![]].into_iter())).is_empty());
    }

    #[test]
    fn a_filter_field_that_comes_without_bytes_moves_none() {
        let request = in_pieces(std::iter::once(vec![7; 20_000]).chain(vec![vec![]; 1_000]));
        let filter = filter_of(&request);
        assert_eq!(filter.len(), 20_000);
        assert!(request.as_ptr_range().contains(&filter.as_ptr()), "it is where it arrived");
    }

    #[test]
    fn of_a_filter_that_is_too_large_no_more_is_kept_than_shows_it() {
        let cases = [
            in_pieces([vec![7; 1 << 20], vec![], vec![7; 1 << 20]].into_iter()),
            in_pieces(vec![vec![7; 100]; 1_000].into_iter()),
            in_pieces(vec![vec![7; FILTER_BYTES_MAX], vec![7], vec![7]].into_iter()),
        ];
        for request in cases {
            let filter = filter_of(&request);
            assert_eq!(filter.len(), FILTER_BYTES_MAX + 1);
            let refused = crate::filter::Filter::decode(&filter).unwrap_err();
            assert!(refused.message().contains("exceeds maximum size"), "{refused}");
        }
        // That of a condition takes the same way.
        let mut request = Vec::new();
        for _ in 0..3 {
            let tag = Conditional::FILTER_TAG;
            prost::encoding::bytes::encode(tag, &vec![7; 20_000], &mut request);
        }
        let filter = WithFilter::<Conditional>::decode(&*request).unwrap().filter;
        assert_eq!(filter.unwrap().len(), FILTER_BYTES_MAX + 1);
    }

    #[test]
    fn a_filter_of_another_wire_type_is_refused() {
        // Tag 3 as a varint.
        assert!(WithFilter::<v2::ReadRowsRequest>::decode(&[0x18, 0x01][..]).is_err());
    }

    #[test]
    fn our_reading_agrees_with_the_generated_types() {
        use v2::row_filter::Filter;
        let generated = [
            (Filter::Sink(true), Kind::Sink(true)),
            (Filter::PassAllFilter(true), Kind::PassAllFilter(true)),
            (Filter::BlockAllFilter(true), Kind::BlockAllFilter(true)),
            (Filter::StripValueTransformer(true), Kind::StripValueTransformer(true)),
            (Filter::RowSampleFilter(0.5), Kind::RowSampleFilter(0.5)),
            (Filter::CellsPerRowOffsetFilter(3), Kind::CellsPerRowOffsetFilter(3)),
            (Filter::CellsPerRowLimitFilter(4), Kind::CellsPerRowLimitFilter(4)),
            (Filter::CellsPerColumnLimitFilter(5), Kind::CellsPerColumnLimitFilter(5)),
            (Filter::ApplyLabelTransformer("l".into()), Kind::ApplyLabelTransformer("l".into())),
            (Filter::FamilyNameRegexFilter("f".into()), Kind::FamilyNameRegexFilter("f".into())),
            (Filter::RowKeyRegexFilter("r".into()), Kind::RowKeyRegexFilter("r".into())),
            (Filter::ValueRegexFilter("v".into()), Kind::ValueRegexFilter("v".into())),
            (
                Filter::ColumnQualifierRegexFilter("q".into()),
                Kind::ColumnQualifierRegexFilter("q".into()),
            ),
        ];
        for (theirs, ours) in generated {
            let theirs = v2::RowFilter { filter: Some(theirs) };
            let ours = RowFilter::of(ours);
            assert_eq!(RowFilter::decode(theirs.encode_to_vec().as_slice()).unwrap(), ours);
            assert_eq!(to_generated(&ours), theirs);
        }
    }
}

//! Entry points for fuzz targets; not a stable API. Each takes any bytes and must return.

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message as _;
use tepui_engine::cell::{Cell, FamilyId, Row};
use tepui_engine::io::SeededRng;

use crate::bulk::Bulk;
use crate::filter::{Filter, WithFilter};
use crate::frame::{Incoming, message_bytes};
use crate::origin::WithOrigins;
use crate::parts::{self, Repeats, Shape};
use crate::regex::{Budget, Regex};
use crate::sketch::{Sketch, ValueType};

/// Decodes and compiles a row filter and runs it on a small row.
pub fn row_filter(data: &[u8]) {
    let Ok(filter) = Filter::decode(data) else { return };
    let families = vec![(FamilyId(1), "a".to_owned()), (FamilyId(2), "b".to_owned())];
    let cells = (0..8u32)
        .map(|n| Cell {
            family: FamilyId(1 + n / 4),
            qualifier: format!("q{}", n % 4 / 2).into(),
            timestamp: i64::from(1 - n % 2) * 1000,
            value: vec![n as u8; n as usize].into(),
        })
        .collect();
    let row = Row { key: "row".into(), cells };
    let names: Vec<(FamilyId, &str)> = families.iter().map(|(id, n)| (*id, n.as_str())).collect();
    let _ = filter.projection(names, None);
    let _ = filter.row_ranges();
    if filter.may_match(&row.key) {
        // A filter that multiplies cells is refused; both answers are answers.
        drop(filter.apply(row, &families, &SeededRng::new(1)));
    }
}

/// Compiles the first half as a pattern and matches it against the second.
pub fn regex(data: &[u8]) {
    let (pattern, text) = data.split_at(data.len() / 2);
    if let Ok(regex) = Regex::compile(pattern, &mut Budget::default()) {
        let _ = regex.is_match(text);
    }
}

/// Takes a request's frame in, cut where the first byte says, and decodes its message.
pub fn request_frame(data: &[u8]) {
    /// Longer ones are refused before.
    const BYTES_MAX: u32 = 1 << 20;
    let Some((cut, frame)) = data.split_first() else { return };
    if frame.first_chunk().is_some_and(|header| message_bytes(*header) > BYTES_MAX) {
        return;
    }
    let (mut whole, mut in_parts) = (Incoming::default(), Incoming::default());
    whole.push(frame);
    let (first, rest) = frame.split_at(frame.len().min(usize::from(*cut)));
    in_parts.push(first);
    in_parts.push(rest);
    let whole = whole.message();
    assert_eq!(whole, in_parts.message(), "wherever it is cut");
    if let Ok(message) = whole {
        let _ = <WithFilter<v2::ReadRowsRequest>>::decode(message.clone());
        type Write = WithOrigins<v2::MutateRowRequest>;
        let write = Write::decode(message.clone()).ok();
        let plain = v2::MutateRowRequest::decode(message.clone()).ok();
        assert!(plain.is_none() || write.is_some(), "what is none to one is none to the other");
        if let Some(WithOrigins(write)) = write {
            assert!(parts::count(&message, &Write::SHAPE) >= write.mutations.len());
        }
        if let Ok(read) = v2::ReadRowsRequest::decode(message.clone()) {
            let rows = read.rows.unwrap_or_default();
            let counted = parts::count(&message, &<WithFilter<v2::ReadRowsRequest>>::SHAPE);
            assert_eq!(counted, rows.row_keys.len() + rows.row_ranges.len());
        }
        type Check = WithFilter<WithOrigins<v2::CheckAndMutateRowRequest>>;
        let check = Check::decode(message.clone()).ok();
        let plain = v2::CheckAndMutateRowRequest::decode(message.clone()).ok();
        assert!(plain.is_none() || check.is_some(), "what is none to one is none to the other");
        if let Some(WithFilter { request: WithOrigins(check), filter }) = check {
            let mutations = check.true_mutations.len() + check.false_mutations.len();
            assert!(parts::count(&message, &Check::SHAPE) >= mutations);
            let _ = filter.map(|filter| Filter::decode(&filter));
        }
        if let Ok(modify) = v2::ReadModifyWriteRowRequest::decode(message.clone()) {
            let counted = parts::count(&message, &v2::ReadModifyWriteRowRequest::SHAPE);
            assert_eq!(counted, modify.rules.len());
        }
        if let Ok(stream) = v2::ReadChangeStreamRequest::decode(message.clone()) {
            let counted = parts::count(&message, &v2::ReadChangeStreamRequest::SHAPE);
            assert!(counted >= tokens(&stream));
        }
        assert!(parts::count(&message, &Shape::All) <= 1 + message.len() / 2);
        // A number in a mutation may be none, and so not the same as itself; and a timestamp may be cut.
        let encoded = |message: &v2::MutateRowsRequest| {
            let mut message = message.clone();
            let mutations = message.entries.iter_mut().flat_map(|entry| &mut entry.mutations);
            for mutation in mutations {
                if let Some(v2::mutation::Mutation::SetCell(set)) = &mut mutation.mutation {
                    set.timestamp_micros = set.timestamp_micros.max(0) / 1_000;
                }
            }
            message.encode_to_vec()
        };
        let plain = v2::MutateRowsRequest::decode(message.clone()).ok().as_ref().map(encoded);
        let bulk = Bulk::decode(message).ok();
        assert!(plain.is_none() || bulk.is_some(), "what is none to one is none to the other");
        if let Some(bulk) = bulk {
            let rows: Vec<_> = bulk.rows().map(<[u8]>::to_vec).collect();
            let whole = bulk.decoded().ok();
            // Nested to the limit, what is decoded by itself may still be a message.
            assert!(
                plain.is_none() || plain == whole.as_ref().map(encoded),
                "whenever it is decoded"
            );
            if let Some(whole) = whole {
                assert!(whole.entries.iter().map(|entry| &entry.row_key).eq(&rows));
            }
        }
    }
}

/// How many tokens a request begins a stream with.
fn tokens(request: &v2::ReadChangeStreamRequest) -> usize {
    use v2::read_change_stream_request::StartFrom;
    match &request.start_from {
        Some(StartFrom::ContinuationTokens(from)) => from.tokens.len(),
        _ => 0,
    }
}

/// Reads both halves as sketches and merges them.
pub fn sketch(data: &[u8]) {
    let (a, b) = data.split_at(data.len() / 2);
    for value_type in [ValueType::Int64, ValueType::Bytes] {
        if let Ok(mut merged) = Sketch::decode(value_type, a) {
            if let Ok(other) = Sketch::decode(value_type, b) {
                merged.merge(&other);
            }
            assert!(
                Sketch::decode(value_type, &merged.encode()).is_ok(),
                "what is written is read"
            );
        }
    }
}

/// A continuation token.
pub fn change_token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = crate::changes::token::Token::parse(text) {
        assert_eq!(token.to_string(), text, "what is read is what is written");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The message of a bulk of three rows.
    fn bulk() -> Vec<u8> {
        let cell = v2::mutation::SetCell { family_name: "f".into(), ..Default::default() };
        let mutation = v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(cell)) };
        let entry = |row: &'static str| v2::mutate_rows_request::Entry {
            row_key: row.into(),
            mutations: vec![mutation.clone(); 2],
            ..Default::default()
        };
        let entries = ["a", "bb", "ccc"].map(entry).into();
        v2::MutateRowsRequest { table_name: "t".into(), entries, ..Default::default() }
            .encode_to_vec()
    }

    /// The messages of a conditional write, of one of rules, and of the begin of a stream.
    fn requests() -> [Vec<u8>; 3] {
        let mutation = |family: &str| {
            let cell = v2::mutation::SetCell { family_name: family.into(), ..Default::default() };
            v2::Mutation { mutation: Some(v2::mutation::Mutation::SetCell(cell)) }
        };
        let filter = v2::row_filter::Filter::PassAllFilter(true);
        let check = v2::CheckAndMutateRowRequest {
            row_key: "a".into(),
            predicate_filter: Some(v2::RowFilter { filter: Some(filter) }),
            true_mutations: vec![mutation("f"); 2],
            false_mutations: vec![mutation("g")],
            ..Default::default()
        };
        let rule = v2::ReadModifyWriteRule { family_name: "f".into(), ..Default::default() };
        let modify = v2::ReadModifyWriteRowRequest {
            row_key: "a".into(),
            rules: vec![rule; 3],
            ..Default::default()
        };
        let token = v2::StreamContinuationToken { token: "t".into(), ..Default::default() };
        let from = v2::StreamContinuationTokens { tokens: vec![token; 3] };
        let from = v2::read_change_stream_request::StartFrom::ContinuationTokens(from);
        let stream = v2::ReadChangeStreamRequest { start_from: Some(from), ..Default::default() };
        [check.encode_to_vec(), modify.encode_to_vec(), stream.encode_to_vec()]
    }

    #[test]
    fn a_bulk_may_add_what_is_no_number() {
        let kind = Some(v2::value::Kind::FloatValue(f64::NAN));
        let input = Some(v2::Value { kind, ..Default::default() });
        let add = v2::mutation::AddToCell { input, ..Default::default() };
        let mutation = v2::Mutation { mutation: Some(v2::mutation::Mutation::AddToCell(add)) };
        let entry =
            v2::mutate_rows_request::Entry { mutations: vec![mutation], ..Default::default() };
        let message = v2::MutateRowsRequest { entries: vec![entry], ..Default::default() };
        let message = message.encode_to_vec();
        request_frame(&[&[0, 0, 0, 0, 0, message.len() as u8], &message[..]].concat());
    }

    proptest! {
        #[test]
        fn a_damaged_bulk_is_answered(at: prop::sample::Index, byte: u8) {
            let mut message = bulk();
            message[at.index(bulk().len())] = byte;
            request_frame(&[&[0, 0, 0, 0, 0, message.len() as u8], &message[..]].concat());
        }

        #[test]
        fn a_damaged_request_is_answered(which in 0..3_usize, at: prop::sample::Index, byte: u8) {
            let mut message = requests()[which].clone();
            let at = at.index(message.len());
            message[at] = byte;
            request_frame(&[&[0, 0, 0, 0, 0, message.len() as u8], &message[..]].concat());
        }

        #[test]
        fn any_bytes_are_answered(data in prop::collection::vec(any::<u8>(), 0..200)) {
            super::row_filter(&data);
            super::regex(&data);
            super::sketch(&data);
            super::change_token(&data);
            super::request_frame(&data);
        }

        #[test]
        fn any_message_is_answered(
            cut in any::<u8>(),
            message in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            super::request_frame(&[&[cut, 0, 0, 0, 0, message.len() as u8], &message[..]].concat());
        }
    }
}

//! Tests of the chunker: what a documented client makes of its messages, and how large they are.

use proptest::prelude::*;
use prost::Message;
use tepui_engine::cell::{Cell, FamilyId, PinnedRow, Row};

use super::*;
use crate::chunk_decoder::{DecodedCell, DecodedRow, Decoder};
use crate::filter::FilteredCell;
use crate::frame::{Framed as _, HEADER_BYTES};
use crate::in_place::pinned;
use crate::schema::{FamilySchema, TableSchema};

const FAMILY_COUNT: u32 = 3;

fn families() -> FamilyNames {
    let mut schema = TableSchema::new();
    for _ in 0..FAMILY_COUNT {
        let id = schema.allocate_family_id();
        schema.families.insert(format!("family-{}", id.0), FamilySchema::new(id));
    }
    schema.names()
}

fn cell(family: u32, qualifier: &[u8], timestamp: i64, value: impl Into<Bytes>) -> FilteredCell {
    FilteredCell::from(Cell {
        family: FamilyId(family),
        qualifier: Bytes::copy_from_slice(qualifier),
        timestamp,
        value: value.into(),
    })
}

fn drain(chunker: &mut Chunker) -> Vec<v2::ReadRowsResponse> {
    chunker.flush();
    let held_bytes = chunker.held_bytes();
    let messages = ready(chunker);
    assert_eq!(held_bytes, messages.iter().map(Message::encoded_len).sum::<usize>());
    assert_eq!(chunker.held_bytes(), 0);
    messages
}

/// The messages that are ready, as a client decodes them; their bytes are those that protobuf's own encoder writes.
fn ready(chunker: &mut Chunker) -> Vec<v2::ReadRowsResponse> {
    let decoded = |message: ReadRowsMessage| {
        let bytes = message.len();
        let frame = message.into_frame();
        assert_eq!(frame.len(), HEADER_BYTES + bytes);
        let message = v2::ReadRowsResponse::decode(&frame[HEADER_BYTES..]).unwrap();
        assert!(message.clone().into_frame() == frame);
        message
    };
    std::iter::from_fn(|| chunker.pop()).map(decoded).collect()
}

fn decode(messages: &[v2::ReadRowsResponse]) -> Vec<DecodedRow> {
    let mut decoder = Decoder::new(false);
    for message in messages {
        decoder.push(message.clone().into_frame()).unwrap();
    }
    decoder.finish().unwrap()
}

fn decoded(cell: &FilteredCell) -> DecodedCell {
    DecodedCell {
        family: format!("family-{}", cell.cell.family.0),
        qualifier: cell.cell.qualifier.to_vec(),
        timestamp: cell.cell.timestamp,
        labels: cell.labels.clone(),
        value: cell.cell.value.to_vec(),
    }
}

#[test]
fn cells_make_the_same_messages_as_they_were_read_in_place_and_with_room_for_labels() {
    let mut chunkers = [(); 3].map(|()| Chunker::new(families(), LargeRows::Split));
    for row in 0..300_u32 {
        let key = Bytes::from(format!("row-{row}"));
        let columns = (0..row % 4).map(|column| {
            cell(1 + column / 2, &[b'a'; 3], i64::from(row) * 1_000, vec![7; 100 * row as usize])
        });
        let filtered: Vec<FilteredCell> = columns.collect();
        let plain: Vec<Cell> = filtered.iter().map(|cell| cell.cell.clone()).collect();
        let in_place = pinned(&Row { key: key.clone(), cells: plain.clone() });
        let [of_plain, of_filtered, of_pinned] = &mut chunkers;
        let sent = of_plain.push_row(&key, plain, &());
        assert_eq!(of_filtered.push_row(&key, filtered, &()), sent);
        assert_eq!(of_pinned.push_row(&key, in_place.cells, &in_place.memories), sent);
    }
    let [plain, filtered, pinned] = chunkers.each_mut().map(drain);
    assert!(plain.len() > 10);
    assert_eq!(plain, filtered);
    assert_eq!(plain, pinned);
}

#[test]
fn chunks_say_only_what_changed() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    let cells = vec![
        cell(1, b"a", 2_000, "new"),
        cell(1, b"a", 1_000, "old"),
        cell(1, b"b", 1_000, ""),
        cell(2, b"b", 0, "x"),
    ];
    assert_eq!(chunker.push_row(&"row1".into(), cells, &()), 4);
    assert_eq!(chunker.push_row(&"row2".into(), vec![cell(2, b"b", 0, "y")], &()), 1);
    let messages = drain(&mut chunker);
    assert_eq!(messages.len(), 1);
    let said: Vec<_> = messages[0]
        .chunks
        .iter()
        .map(|c| {
            (
                std::str::from_utf8(&c.row_key).unwrap(),
                c.family_name.as_deref(),
                c.qualifier.as_deref(),
                c.timestamp_micros,
                c.row_status.is_some(),
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            ("row1", Some("family-1"), Some(b"a".as_slice()), 2_000, false),
            ("", None, None, 1_000, false),
            ("", None, Some(b"b".as_slice()), 1_000, false),
            ("", Some("family-2"), Some(b"b".as_slice()), 0, true),
            ("row2", Some("family-2"), Some(b"b".as_slice()), 0, true),
        ]
    );
}

#[test]
fn a_row_without_cells_is_not_sent() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    assert_eq!(chunker.push_row(&"row".into(), Vec::<FilteredCell>::new(), &()), 0);
    let dropped = cell(99, b"q", 0, "dropped family");
    assert_eq!(chunker.push_row(&"row".into(), vec![dropped], &()), 0);
    assert_eq!(drain(&mut chunker), []);
}

#[test]
fn cells_of_unknown_families_are_left_out_and_the_row_is_still_committed() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    chunker.push_row(&"row".into(), vec![cell(1, b"q", 0, "v"), cell(99, b"q", 0, "gone")], &());
    let rows = decode(&drain(&mut chunker));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].cells, [decoded(&cell(1, b"q", 0, "v"))]);
}

#[test]
fn large_values_are_split() {
    let value = Bytes::from(vec![7; 2 * VALUE_PIECE_BYTES_MAX + 5]);
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    chunker.push_row(&"row".into(), vec![cell(1, b"q", 5_000, value.clone())], &());
    let messages = drain(&mut chunker);
    let chunks: Vec<_> = messages.iter().flat_map(|m| &m.chunks).collect();
    let whole = value.len() as i32;
    let sizes: Vec<_> = chunks.iter().map(|c| (c.value.len(), c.value_size)).collect();
    assert_eq!(sizes, [(VALUE_PIECE_BYTES_MAX, whole), (VALUE_PIECE_BYTES_MAX, whole), (5, 0)]);
    assert_eq!(decode(&messages)[0].cells, [decoded(&cell(1, b"q", 5_000, value))]);
}

/// The pieces of a value that is all of a row.
fn pieces(value: impl Into<Bytes>) -> Vec<Bytes> {
    let value = value.into();
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    chunker.push_row(&"row".into(), vec![cell(1, b"q", 5_000, value.clone())], &());
    let messages = drain(&mut chunker);
    assert_eq!(decode(&messages)[0].cells, [decoded(&cell(1, b"q", 5_000, value))]);
    messages.into_iter().flat_map(|message| message.chunks).map(|chunk| chunk.value).collect()
}

#[test]
fn each_piece_of_a_text_is_a_text() {
    // In the first, no character begins at a multiple of three bytes.
    for (text, in_threes) in [
        (format!("a{}", "\u{20ac}".repeat(2_500_000)), false),
        (format!("a{}", "gr\u{fc}n \u{20ac} \u{1f600}".repeat(500_000)), true),
        (format!("a{}", "\u{1f600}".repeat(2_000_000)), true),
        ("plain ".repeat(1_500_000), true),
        // In most of its paragraphs neither; in three of them one does.
        (format!("{}\n", "\u{4e2d}".repeat(5_000)).repeat(500), true),
    ] {
        let pieces = pieces(text);
        assert_eq!(pieces.len(), 3);
        assert!(pieces.iter().all(|piece| std::str::from_utf8(piece).is_ok()));
        let (_, full) = pieces.split_last().unwrap();
        assert!(full.iter().all(|piece| VALUE_PIECE_BYTES_MAX - piece.len() <= 3 * TEXT_ENDS_MAX));
        // Google's client for Node joins them as base64, where it is told to.
        assert_eq!(full.iter().all(|piece| piece.len() % 3 == 0), in_threes);
    }
}

#[test]
fn what_is_no_text_at_the_end_of_a_piece_is_cut_at_the_limit_whatever_stands_there() {
    let mut value = "a".repeat(VALUE_PIECE_BYTES_MAX - 1).into_bytes();
    value.extend("\u{20ac}".repeat(1_000).bytes());
    assert_eq!(pieces(value.clone())[0].len(), VALUE_PIECE_BYTES_MAX - 3, "a text");
    value[VALUE_PIECE_BYTES_MAX - TEXT_LOOK_BYTES - 1] = 0xff;
    assert_eq!(pieces(value.clone())[0].len(), VALUE_PIECE_BYTES_MAX - 3, "what is before it");
    value[VALUE_PIECE_BYTES_MAX - TEXT_LOOK_BYTES] = 0xff;
    assert_eq!(pieces(value)[0].len(), VALUE_PIECE_BYTES_MAX);
}

#[test]
fn a_value_of_exactly_one_piece_is_not_split() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    chunker.push_row(&"row".into(), vec![cell(1, b"q", 0, vec![1; VALUE_PIECE_BYTES_MAX])], &());
    let messages = drain(&mut chunker);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].chunks[0].value_size, 0);
}

#[test]
fn messages_start_small_and_grow() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    for i in 0..6_000_u32 {
        chunker.push_row(
            &i.to_be_bytes().to_vec().into(),
            vec![cell(1, b"q", 0, vec![0; 1_000])],
            &(),
        );
    }
    let sizes: Vec<_> = drain(&mut chunker).iter().map(Message::encoded_len).collect();
    assert!(sizes[0] <= FIRST_MESSAGE_BYTES && sizes[0] > FIRST_MESSAGE_BYTES - 2_000);
    assert_eq!(sizes[..MESSAGES_PER_SIZE], [sizes[0]; MESSAGES_PER_SIZE]);
    let next = sizes[MESSAGES_PER_SIZE];
    assert!(next <= 2 * FIRST_MESSAGE_BYTES && next > sizes[0]);
    let largest = *sizes.iter().max().unwrap();
    assert!(largest <= MESSAGE_BYTES_TARGET && largest > MESSAGE_BYTES_TARGET - 2_000);
}

#[test]
fn the_largest_possible_chunk_fits_a_message() {
    let mut schema = TableSchema::new();
    let id = schema.allocate_family_id();
    schema.families.insert("f".repeat(limits::FAMILY_NAME_CHARS_MAX), FamilySchema::new(id));
    let mut chunker = Chunker::new(schema.names(), LargeRows::SplitNamed);
    let row = Bytes::from(vec![b'r'; limits::ROW_KEY_BYTES_MAX]);
    let qualifier = vec![b'q'; limits::QUALIFIER_BYTES_MAX];
    let value = vec![b'v'; VALUE_PIECE_BYTES_MAX * 2];
    let mut large = cell(1, &qualifier, i64::MAX, value);
    large.labels = vec!["a-label-as-long".to_owned()];
    chunker.push_row(&row, vec![large.clone(), large], &());
    for message in drain(&mut chunker) {
        assert!(message.encoded_len() <= MESSAGE_BYTES_MAX, "{}", message.encoded_len());
    }
}

/// Whether every message ends with the end of a row.
fn ends_rows(messages: &[v2::ReadRowsResponse]) -> bool {
    messages.iter().all(|message| message.chunks.last().unwrap().row_status.is_some())
}

#[test]
fn a_row_that_fits_a_message_is_not_divided() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    let small = || cell(1, b"q", 0, vec![0; FIRST_MESSAGE_BYTES * 2 / 5]);
    for i in 0..50_u32 {
        // Rows of two and of sixty cells, so that neither ends where a message would be full.
        let cells = if i % 7 == 3 { 60 } else { 2 };
        chunker.push_row(&i.to_be_bytes().to_vec().into(), vec![small(); cells], &());
    }
    let almost = vec![cell(1, b"q", 0, vec![0; MESSAGE_BYTES_MAX / 4 - 100]); 4];
    chunker.push_row(&"z".into(), almost, &());
    let messages = drain(&mut chunker);
    assert!(messages.len() > 10);
    assert!(ends_rows(&messages));
    let largest = messages.iter().map(Message::encoded_len).max().unwrap();
    assert!(largest > MESSAGE_BYTES_MAX - 1_000 && largest <= MESSAGE_BYTES_MAX, "{largest}");
    assert_eq!(decode(&messages).len(), 51);
}

#[test]
fn a_larger_row_spans_messages_unless_it_must_be_whole() {
    let value = Bytes::from(vec![3; MESSAGE_BYTES_MAX + 1]);
    let rows = |large_rows| {
        let mut chunker = Chunker::new(families(), large_rows);
        for (key, value) in [("a", "v".into()), ("b", value.clone()), ("c", "v".into())] {
            chunker.push_row(&key.into(), vec![cell(1, b"q", 0, value)], &());
        }
        drain(&mut chunker)
    };
    let split = rows(LargeRows::Split);
    assert!(split.iter().all(|message| message.encoded_len() <= MESSAGE_BYTES_MAX));
    assert!(!ends_rows(&split));
    let whole = rows(LargeRows::Whole);
    assert_eq!(whole.len(), 3);
    assert!(ends_rows(&whole));
    assert_eq!(decode(&split), decode(&whole));
}

#[test]
fn a_message_that_goes_on_with_a_row_names_it_again() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    for row in ["row1", "row2"] {
        let cells = (0..400).map(|i| cell(1, b"q", -i, vec![b'v'; FIRST_MESSAGE_BYTES / 4]));
        chunker.push_row(&row.into(), cells.collect(), &());
    }
    let messages = drain(&mut chunker);
    assert!(messages.len() > 4);
    assert!(messages.iter().all(|m| !m.chunks[0].row_key.is_empty()));
    let named: usize =
        messages.iter().flat_map(|m| &m.chunks).filter(|c| !c.row_key.is_empty()).count();
    let row2_begins_inside =
        messages.iter().any(|m| m.chunks.iter().skip(1).any(|c| c.row_key == "row2"));
    assert_eq!(named, messages.len() + usize::from(row2_begins_inside), "and no other chunk");
    assert_eq!(decode(&messages).len(), 2);
}

#[test]
fn a_message_that_goes_on_with_a_value_names_the_row_only_for_who_needs_it() {
    for (large_rows, expected) in
        [(LargeRows::Split, ["a", "row", ""]), (LargeRows::SplitNamed, ["a", "row", "row"])]
    {
        let mut chunker = Chunker::new(families(), large_rows);
        let value = vec![b'v'; MESSAGE_BYTES_MAX + 1];
        chunker.push_row(&"a".into(), vec![cell(1, b"q", 0, "v")], &());
        chunker.push_row(&"row".into(), vec![cell(1, b"q", 0, value)], &());
        let messages = drain(&mut chunker);
        assert!(messages.iter().all(|m| m.encoded_len() <= MESSAGE_BYTES_MAX));
        let keys: Vec<_> = messages.iter().flat_map(|m| &m.chunks).map(|c| &c.row_key).collect();
        assert_eq!(keys, expected);
    }
}

#[test]
fn scanned_keys_travel_alone_after_the_rows_before_them() {
    let mut chunker = Chunker::new(families(), LargeRows::Split);
    chunker.push_row(&"a".into(), vec![cell(1, b"q", 0, "v")], &());
    chunker.push_scanned("m".into());
    chunker.push_row(&"z".into(), vec![cell(1, b"q", 0, "v")], &());
    let messages = drain(&mut chunker);
    let keys: Vec<_> = messages.iter().map(|m| m.last_scanned_row_key.as_ref()).collect();
    assert_eq!(keys, [b"".as_slice(), b"m", b""]);
    assert_eq!(decode(&messages).len(), 2);
}

/// Sizes of values around the places where something changes.
fn any_value() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        8 => (0..300_usize).boxed(),
        2 => (10_000..FIRST_MESSAGE_BYTES + 100).boxed(),
        1 => (VALUE_PIECE_BYTES_MAX - 40..VALUE_PIECE_BYTES_MAX + 40).boxed(),
        1 => (0..3 * VALUE_PIECE_BYTES_MAX).boxed(),
    ]
    .prop_flat_map(|len| any::<u8>().prop_map(move |byte| Bytes::from(vec![byte; len])))
}

fn any_cell() -> impl Strategy<Value = FilteredCell> {
    let qualifier = prop::sample::select(vec![&b""[..], b"a", b"b\0"]);
    let labels = prop::collection::vec("[a-z0-9-]{1,15}", 0..2);
    (1..=FAMILY_COUNT, qualifier, 0..3_i64, any_value(), labels).prop_map(
        |(family, qualifier, millis, value, labels)| {
            let mut cell = cell(family, qualifier, millis * 1_000, value);
            cell.labels = labels;
            cell
        },
    )
}

/// Rows in which cells are grouped as reads and filters leave them; duplicates stay.
fn any_rows() -> impl Strategy<Value = Vec<Vec<FilteredCell>>> {
    let row = prop::collection::vec(any_cell(), 1..6).prop_map(|mut cells| {
        cells.sort_by(|a, b| {
            (a.cell.family, &a.cell.qualifier, b.cell.timestamp).cmp(&(
                b.cell.family,
                &b.cell.qualifier,
                a.cell.timestamp,
            ))
        });
        cells
    });
    prop::collection::vec(row, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn streams_decode_to_their_rows_and_no_message_is_too_large(
        rows in any_rows(),
        pop_early in any::<bool>(),
        whole in any::<bool>(),
        in_place in any::<bool>(),
        scanned_every in 1..6_usize,
    ) {
        let mut chunker = Chunker::new(families(), if whole { LargeRows::Whole } else { LargeRows::Split });
        let mut messages = Vec::new();
        let mut scanned = 0;
        for (i, cells) in rows.iter().enumerate() {
            let key = format!("row-{i:03}").into();
            if in_place {
                let cells = cells.iter().map(|cell| cell.cell.clone()).collect();
                let PinnedRow { key, memories, cells: pinned } = pinned(&Row { key, cells });
                let labels = rows[i].iter().map(|cell| cell.labels.clone());
                let labelled = pinned.into_iter().zip(labels);
                let labelled = labelled.map(|(cell, labels)| FilteredCell { cell, labels }).collect();
                chunker.push_row(&key, labelled, &memories);
            } else {
                chunker.push_row(&key, cells.clone(), &());
            }
            if i % scanned_every == 0 {
                chunker.push_scanned(format!("row-{i:03}-after").into());
                scanned += 1;
            }
            if pop_early {
                messages.extend(ready(&mut chunker));
            }
        }
        messages.extend(drain(&mut chunker));
        for message in &messages {
            let ends = message.chunks.last().is_none_or(|chunk| chunk.row_status.is_some());
            let fits = message.encoded_len() <= MESSAGE_BYTES_MAX;
            let as_promised = if whole { ends } else { fits };
            prop_assert!(as_promised);
        }
        let mut decoder = Decoder::new(false);
        for message in &messages {
            decoder.push(message.clone().into_frame()).map_err(TestCaseError::fail)?;
        }
        prop_assert_eq!(decoder.scanned.len(), scanned);
        let got = decoder.finish().map_err(TestCaseError::fail)?;
        prop_assert_eq!(got.len(), rows.len());
        for (i, (row, cells)) in got.iter().zip(&rows).enumerate() {
            prop_assert_eq!(&row.key, &Bytes::from(format!("row-{i:03}")));
            let expected: Vec<_> = cells.iter().map(decoded).collect();
            prop_assert!(row.cells == expected, "row {} differs", i);
        }
    }

    #[test]
    fn no_row_takes_more_than_is_reckoned_for_it(rows in any_rows(), timestamp in any::<i64>()) {
        let chunker = Chunker::new(families(), LargeRows::Split);
        let key = [7; 4096];
        for mut cells in rows {
            for cell in &mut cells {
                cell.cell.timestamp = timestamp;
            }
            let mut bytes = 0;
            chunks(&chunker.families, &key, &cells, &(), |chunk| bytes += chunk.bytes_in_message());
            // A value of several chunks is more than a message has room for.
            let most = chunker.bytes_at_most(&key, &cells).unwrap();
            prop_assert!(bytes <= most || most > MESSAGE_BYTES_TARGET, "{} of {}", bytes, most);
        }
    }
}

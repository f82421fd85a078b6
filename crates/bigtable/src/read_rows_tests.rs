//! Tests of what a read makes of rows: limits, messages and progress. Reading from tablets is tested
//! in `tests/table.rs`.

use std::sync::Mutex;

use futures::FutureExt as _;
use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;
use prost::Message as _;
use tepui_engine::aside;
use tepui_engine::cell::{Cell, FamilyId, PinnedCell, Place};

use super::*;
use crate::chunk_decoder::Decoder;
use crate::frame::{Framed as _, HEADER_BYTES};
use crate::schema::{FamilySchema, TableSchema};
use crate::selection::FilterSource;

#[derive(Debug)]
struct NoChance;

impl Rng for NoChance {
    fn next_u64(&self) -> u64 {
        0
    }
}

fn responder(rows_limit: Option<u64>) -> Responder {
    filtering(None, rows_limit)
}

fn filtering(filter: Option<&v2::RowFilter>, rows_limit: Option<u64>) -> Responder {
    let mut schema = TableSchema::new();
    let id = schema.allocate_family_id();
    schema.families.insert("f".into(), FamilySchema::new(id));
    let names = schema.names();
    let selection = Selection::of_read(FilterSource::Message(filter), &names, None).unwrap();
    let chunker = Chunker::new(names, LargeRows::Split);
    Responder::new(selection, chunker, Arc::new(NoChance), rows_limit)
}

fn key(i: usize) -> Bytes {
    format!("row-{i:08}").into()
}

/// A row of one cell; of a family that the table does not have where it shall not be sent.
fn row(i: usize, shown: bool) -> Seen {
    let family = FamilyId(if shown { 1 } else { 9 });
    let cell = Cell { family, qualifier: "q".into(), timestamp: 0, value: "v".into() };
    Seen::Row(Row { key: key(i), cells: vec![cell] })
}

fn drain(responder: &mut Responder) -> Vec<v2::ReadRowsResponse> {
    let decode =
        |m: ReadRowsMessage| v2::ReadRowsResponse::decode(m.into_frame().slice(HEADER_BYTES..));
    std::iter::from_fn(|| responder.pop()).map(|message| decode(message).unwrap()).collect()
}

#[test]
fn reads_are_send() {
    fn is_send<T: Send>() {}
    is_send::<ReadRows>();
}

#[test]
fn the_limit_counts_rows_that_were_sent() {
    let mut responder = responder(Some(2));
    assert!(responder.push(row(0, true)).unwrap());
    assert!(responder.push(row(1, false)).unwrap());
    assert!(responder.push(Seen::Nothing(key(2))).unwrap());
    assert!(!responder.push(row(3, true)).unwrap());
    responder.finish();
    let mut decoder = Decoder::new(false);
    for message in drain(&mut responder) {
        decoder.push(message.into_frame()).unwrap();
    }
    let keys: Vec<_> = decoder.finish().unwrap().into_iter().map(|r| r.key).collect();
    assert_eq!(keys, [key(0), key(3)]);
}

#[test]
fn rows_that_do_not_pass_are_reported_as_scanned_now_and_then() {
    let mut responder = responder(None);
    let mut messages = Vec::new();
    for i in 0..25_000 {
        let seen = if i % 2 == 0 { row(i, false) } else { Seen::Nothing(key(i)) };
        assert!(responder.push(seen).unwrap());
        messages.extend(drain(&mut responder));
    }
    responder.finish();
    assert!(drain(&mut responder).is_empty());
    let scanned: Vec<_> = messages.iter().map(|m| m.last_scanned_row_key.clone()).collect();
    assert_eq!(scanned, [key(9_999), key(19_999)]);
}

#[test]
fn a_rare_row_does_not_wait_for_a_full_message() {
    let mut responder = responder(None);
    responder.push(row(0, true)).unwrap();
    let mut messages = Vec::new();
    for i in 1..10_000 {
        assert!(messages.is_empty(), "nothing is due before row 10,000");
        responder.push(row(i, false)).unwrap();
        messages.extend(drain(&mut responder));
    }
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[0].chunks[0].row_key, key(0));
    assert_eq!(messages[1].last_scanned_row_key, key(9_999));
}

#[test]
fn a_row_that_is_sent_when_progress_is_due_is_not_reported_twice() {
    let mut responder = responder(None);
    let mut messages = Vec::new();
    for i in 0..10_000 {
        responder.push(row(i, i == 9_999)).unwrap();
        messages.extend(drain(&mut responder));
    }
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].chunks[0].row_key, key(9_999));
}

#[test]
fn marks_of_the_engine_are_passed_on_at_once() {
    let mut responder = responder(None);
    responder.push(row(0, true)).unwrap();
    responder.push(Seen::Mark(key(500))).unwrap();
    let messages = drain(&mut responder);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages[1].last_scanned_row_key, key(500));
}

fn range_end(key: Option<Bytes>, records: u64) -> Seen {
    Seen::RangeEnd { key, records }
}

/// The keys that are reported, and those of rows that are sent (in brackets), in the order of the messages.
fn said(responder: &mut Responder) -> Vec<String> {
    let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
    let mut said = Vec::new();
    for message in drain(responder) {
        said.extend(message.chunks.iter().map(|chunk| format!("[{}]", text(&chunk.row_key))));
        let scanned = Some(&message.last_scanned_row_key).filter(|key| !key.is_empty());
        said.extend(scanned.map(text));
    }
    said
}

#[test]
fn ranges_that_show_nothing_are_reported_as_scanned_now_and_then() {
    let mut responder = responder(None);
    for i in 0..10_000 {
        assert!(said(&mut responder).is_empty(), "nothing is due before range 10,000");
        responder.push(range_end(Some(key(i)), 0)).unwrap();
    }
    assert_eq!(said(&mut responder), ["row-00009999"]);
    // Sooner where there is much in them that does not show.
    for i in 0..10 {
        assert!(said(&mut responder).is_empty());
        responder.push(range_end(Some(key(i)), LOOKED_AT_CELLS_MAX / 10)).unwrap();
    }
    assert_eq!(said(&mut responder), ["row-00000009"]);
}

#[test]
fn a_report_at_the_end_of_a_range_names_the_last_row_that_was_not_sent() {
    let end_of_a_long_range = |rows: &[(usize, bool)]| {
        let mut responder = responder(None);
        for (i, shown) in rows {
            responder.push(row(*i, *shown)).unwrap();
        }
        responder.push(range_end(None, 0)).unwrap();
        responder.push(range_end(None, LOOKED_AT_CELLS_MAX)).unwrap();
        said(&mut responder)
    };
    assert_eq!(end_of_a_long_range(&[(1, true), (2, false)]), ["[row-00000001]", "row-00000002"]);
    // A row that was sent says itself how far the read has come.
    assert_eq!(end_of_a_long_range(&[(1, false), (2, true)]), ["[row-00000002]"]);
    assert_eq!(end_of_a_long_range(&[]), [""; 0]);
}

#[test]
fn wide_rows_are_counted_by_their_cells() {
    let mut responder = responder(None);
    let Seen::Row(one) = row(0, false) else { unreachable!() };
    for i in 0..100 {
        let cells = vec![one.cells[0].clone(); 1_000];
        responder.push(Seen::Row(Row { key: key(i), cells })).unwrap();
    }
    let messages = drain(&mut responder);
    assert_eq!(messages.len(), 1);
    assert_eq!(messages[0].last_scanned_row_key, key(99));
}

#[test]
fn rows_of_large_values_are_counted_by_their_bytes() {
    let mut responder = responder(None);
    let Seen::Row(mut one) = row(0, false) else { unreachable!() };
    one.cells[0].value = vec![0; LOOKED_AT_BYTES_MAX / 4].into();
    for i in 0..8 {
        responder.push(Seen::Row(Row { key: key(i), cells: one.cells.clone() })).unwrap();
        let reported = if i % 4 == 3 { vec![format!("row-{i:08}")] } else { Vec::new() };
        assert_eq!(said(&mut responder), reported);
    }
}

#[test]
fn rows_of_which_much_is_copied_hold_up_no_others() {
    let responder = responder(None);
    let pace = |cells: usize, value_bytes: usize| {
        let Seen::Row(mut one) = row(0, true) else { unreachable!() };
        one.cells[0].value = vec![0; value_bytes].into();
        let cells = vec![one.cells[0].clone(); cells];
        let seen = Seen::Row(Row { key: key(0), cells });
        responder.pace(&seen, seen.row_bytes())
    };
    let small = SHARED_VALUE_BYTES_MIN - 1;
    assert_eq!(pace(WIDE_ROW_CELLS - 1, small), Pace::Long);
    assert_eq!(pace(COPIED_ROW_BYTES / small + 1, small), Pace::Long);
    assert_eq!(pace(COPIED_ROW_BYTES / small - 1, small), Pace::Short);
    assert_eq!(pace(10, 100), Pace::Short);
    // Left where they are.
    assert_eq!(pace(100, SHARED_VALUE_BYTES_MIN), Pace::Short);
    assert_eq!(pace(1_000, SHARED_VALUE_BYTES_MIN), Pace::Short);
    assert_eq!(pace(1, 64 << 20), Pace::Short);
}

#[test]
fn fewer_rows_are_read_ahead_where_rows_are_large_or_few_are_wanted() {
    let max = POINT_READS_MAX;
    let mut reader = RowReader::new(Pieces::new(), false, &Projection::default());
    assert_eq!(reader.window(None), POINT_READS_FIRST);
    (reader.point_reads_max, reader.largest_row_bytes) = (max, 1_000);
    assert_eq!(reader.window(None), max);
    assert_eq!(reader.window(Some(3)), 3);
    reader.ahead_bytes_max = 6_000;
    assert_eq!(reader.window(None), 6);
    reader.ahead_bytes_max = POINT_READS_BYTES_MAX;
    reader.largest_row_bytes = POINT_READS_BYTES_MAX / 4;
    assert_eq!(reader.window(None), 4);
    reader.largest_row_bytes = POINT_READS_BYTES_MAX * 2;
    assert_eq!(reader.window(None), 0);
}

/// What one read of the device has brought: values of many rows. All of it is there while one of them is.
struct Buffer {
    bytes: Vec<u8>,
    /// Counts those that are there.
    _there: Arc<()>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[test]
fn of_what_a_filter_drops_no_more_than_a_little_memory_is_held() {
    const VALUE_BYTES: usize = 10_000;
    const VALUES: usize = 100;
    const READS: usize = 90;
    let range = v2::ValueRange {
        start_value: Some(v2::value_range::StartValue::StartValueClosed("y".into())),
        end_value: None,
    };
    let filter = v2::row_filter::Filter::ValueRangeFilter(range);
    let mut responder = filtering(Some(&v2::RowFilter { filter: Some(filter) }), None);
    let there = Arc::new(());
    let (mut decoder, mut held_max) = (Decoder::new(false), 0);
    let mut decode = |responder: &mut Responder| {
        for message in drain(responder) {
            decoder.push(message.into_frame()).unwrap();
        }
    };
    for read in 0..READS {
        let mut bytes = vec![0; VALUES * VALUE_BYTES];
        // One row of them passes.
        bytes[read * VALUE_BYTES] = b'z';
        let buffer = Bytes::from_owner(Buffer { bytes, _there: Arc::clone(&there) });
        for i in 0..VALUES {
            let (family, key) = (FamilyId(1), key(read * VALUES + i));
            responder
                .push(if read % 2 == 0 {
                    let value = buffer.slice(i * VALUE_BYTES..(i + 1) * VALUE_BYTES);
                    let cell = Cell { family, qualifier: "q".into(), timestamp: 0, value };
                    Seen::Row(Row { key, cells: vec![cell] })
                } else {
                    let value = Place::new(0, i * VALUE_BYTES, VALUE_BYTES).unwrap();
                    let qualifier = Place::default();
                    let cell = PinnedCell { family, qualifier, timestamp: 0, value };
                    let memories = std::iter::once(buffer.clone()).collect();
                    Seen::Pinned(PinnedRow { key, memories, cells: vec![cell] })
                })
                .unwrap();
            decode(&mut responder);
        }
        drop(buffer);
        held_max = held_max.max(Arc::strong_count(&there) - 1);
    }
    responder.finish();
    decode(&mut responder);
    let rows = decoder.finish().unwrap();
    let keys: Vec<_> = rows.iter().map(|row| row.key.clone()).collect();
    assert_eq!(keys, (0..READS).map(|read| key(read * VALUES + read)).collect::<Vec<_>>());
    assert!(rows.iter().all(|row| row.cells[0].value.len() == VALUE_BYTES));
    assert!(held_max <= 4, "{held_max} reads of a megabyte are in memory at once");
}

/// A helper that carries nothing out before it is told to.
#[derive(Default)]
struct Later(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl aside::Helper for Later {
    fn carry_out(&self, _: Option<TabletId>, work: Box<dyn FnOnce() + Send>) {
        self.0.lock().unwrap().push(work);
    }

    fn patience(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn what_was_made_of_a_large_row_is_copied_by_the_helper_a_message_after_the_other() {
    const VALUE_BYTES: usize = 1 << 20;
    const VALUES: usize = 8;
    let there = Arc::new(());
    let bytes = (0..VALUES * VALUE_BYTES).map(|i| (i % 251) as u8).collect();
    let buffer = Bytes::from_owner(Buffer { bytes, _there: Arc::clone(&there) });
    let cell = |i: usize| Cell {
        family: FamilyId(1),
        qualifier: format!("{i}").into(),
        timestamp: 0,
        value: buffer.slice(i * VALUE_BYTES..(i + 1) * VALUE_BYTES),
    };
    let mut responder = responder(None);
    let row = Row { key: key(0), cells: (0..VALUES).map(cell).collect() };
    let sent: Vec<_> = row.cells.iter().map(|cell| cell.value.to_vec()).collect();
    responder.push(Seen::Row(row)).unwrap();
    responder.finish();
    let mut read = ReadRows {
        reader: None,
        responder,
        failure: None,
        stats: None,
        turn: Turn::default(),
        tablet: None,
        aside: Aside::default(),
        more_pieces_bytes: 0,
    };
    drop(buffer);
    let later = Arc::new(Later::default());
    let lent = aside::lend(Arc::<Later>::clone(&later));
    let mut suspended = Box::pin(read.suspend_aside());
    let mut pieces = 0;
    // Others have their turns between them.
    for _ in 0..3 * VALUES {
        if let Some(done) = (&mut suspended).now_or_never() {
            done.unwrap();
            break;
        }
        let work = std::mem::take(&mut *later.0.lock().unwrap());
        assert!(work.len() <= 1);
        for piece in work {
            pieces += 1;
            piece();
        }
    }
    drop((suspended, lent));
    assert_eq!(pieces, VALUES);
    assert_eq!(Arc::strong_count(&there), 1, "it keeps no memory but its own");
    let mut decoder = Decoder::new(false);
    for message in drain(&mut read.responder) {
        decoder.push(message.into_frame()).unwrap();
    }
    let rows = decoder.finish().unwrap();
    assert!(rows[0].cells.iter().map(|cell| &cell.value).eq(&sent));
}

//! Measurements of the format's hot paths, printed and never judged: they say nothing on a busy machine.
//!
//! ```text
//! cargo test --release -p tepui-engine sst::measure -- --ignored --nocapture --test-threads 1
//! ```

use std::hint::black_box;

use bytes::Bytes;

use super::data::DataBlock;
use super::data_builder::DataBlockBuilder;
use super::frame::mix64;
use crate::cell::{FamilyId, KeyView, Kind, encode_key, row_prefix};
use crate::io::{Clock, SystemClock};

/// Nanoseconds of one call, over `rounds` of them.
pub(super) fn nanos(what: &str, rounds: usize, mut call: impl FnMut(usize)) {
    let clock = SystemClock::new();
    // The best of five: what others do on the machine only adds.
    let best = (0..5)
        .map(|_| {
            let start = clock.monotonic_micros();
            for i in 0..rounds {
                call(i);
            }
            (clock.monotonic_micros() - start) as f64 * 1000.0 / rounds as f64
        })
        .fold(f64::MAX, f64::min);
    eprintln!("{what:<60} {best:8.1} ns");
}

/// A row of 50 bytes without anything in common with others, in the order of `i` by its hash.
pub(super) fn random_row(i: u64) -> Vec<u8> {
    const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    (0..50u64)
        .map(|at| DIGITS[(mix64(i.wrapping_mul(64) + at / 8) >> (at % 8 * 8)) as usize % 32])
        .collect()
}

/// Bytes that do not compress.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (mix64(seed ^ mix64(i / 8)) >> (i % 8 * 8)) as u8).collect()
}

fn block(rows: &[Vec<u8>], columns: usize, value_len: usize) -> DataBlock {
    let mut builder = DataBlockBuilder::new();
    for (i, row) in rows.iter().enumerate() {
        for column in 0..columns {
            let mut key = Vec::new();
            let qualifier = format!("field{column}");
            let (time, seq) =
                (1_700_000_000_000_000 + mix64(i as u64) as i64 % 600_000_000, 1 << 60);
            encode_key(
                row,
                FamilyId(1),
                Some(qualifier.as_bytes()),
                time,
                seq,
                Kind::Value,
                &mut key,
            );
            builder.add(KeyView::parse(&key).unwrap(), &noise(i as u64, value_len));
        }
    }
    DataBlock::parse(Bytes::from(builder.finish())).unwrap()
}

#[test]
#[ignore = "prints figures"]
fn searching_a_data_block() {
    for (count, columns, value_len) in [(12, 1, 256), (1, 10, 256), (2, 10, 256), (46, 1, 256)] {
        let mut rows: Vec<_> = (0..count).map(random_row).collect();
        rows.sort();
        let block = block(&rows, columns, value_len);
        let prefixes: Vec<_> = rows.iter().map(|r| row_prefix(r)).collect();
        let name = format!("{count} rows x {columns}");
        nanos(&format!("find_row, {name}"), 200_000, |i| {
            black_box(block.find_row(&prefixes[i % prefixes.len()]).unwrap());
        });
        nanos(&format!("seek to a row, {name}"), 200_000, |i| {
            black_box(block.seek(&prefixes[i % prefixes.len()]).unwrap());
        });
        nanos(&format!("find_row and walk the row, {name}"), 200_000, |i| {
            let mut next = block.find_row(&prefixes[i % prefixes.len()]).unwrap();
            for _ in 1..columns {
                next = block.after(&next.unwrap()).unwrap();
            }
            black_box(next);
        });
    }
}

//! Rows that need no memory to check: every byte follows from the row's number and the seed.
//!
//! ```text
//! hash  = scatter(number + offset of the seed)        a bijection, so each row has a key of its own
//! key   = "user" | 16 hex digits of hash | hex digits drawn from hash, up to key_bytes
//! value = bytes drawn from (hash, column), incompressible, value_bytes of them
//! ```
//!
//! Row 0, 1, 2 ... therefore arrive in random key order, as YCSB's hashed keys do, each exactly once; and the
//! keys of rows that were never loaded lie between those that were.

use crate::error::{Error, Result};

/// Bytes that every key has: `user` and the digits of its hash.
pub const KEY_BYTES_MIN: usize = 20;
/// Bytes of the longest key: what the Bigtable API allows is 4 KiB.
pub const KEY_BYTES_MAX: usize = 4096;
/// Columns of the widest row: enough to span several blocks, few enough that a row stays a small read.
pub const COLUMNS_MAX: u32 = 1000;
/// Bytes of the largest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Rows that inserts may add to a data set.
const INSERTS_MAX: u64 = 1 << 40;
/// The timestamp of every cell, in microseconds: a row that is written again replaces its cells.
pub const TIMESTAMP_MICROS: i64 = 1_000_000;

const PREFIX: &[u8] = b"user";
const HASH_DIGITS: usize = 16;
const HEX: [u8; 16] = *b"0123456789abcdef";
/// The fractional part of the golden ratio: steps of it visit 64-bit numbers evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The shape of the rows, and the seed that tells one data set from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Dataset {
    /// Rows.
    pub rows: u64,
    /// Bytes of a key, from [`KEY_BYTES_MIN`].
    pub key_bytes: usize,
    /// Columns of a row, named by [`Dataset::qualifier`].
    pub columns: u32,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Another seed makes other keys and values.
    pub seed: u64,
}

/// How much of a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Its length and first bytes: catches the wrong row or column at a cost of nanoseconds.
    Quick,
    /// Every byte.
    Full,
}

/// A bijection of 64-bit numbers: the finalizer of MurmurHash3.
pub fn scatter(number: u64) -> u64 {
    let mut x = number;
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// The inverse of [`scatter`]: the same steps backwards, with the multiplicative inverses.
fn gather(hash: u64) -> u64 {
    let mut x = hash;
    x ^= x >> 33;
    x = x.wrapping_mul(0x9cb4_b2f8_1293_37db);
    x ^= x >> 33;
    x = x.wrapping_mul(0x4f74_430c_22a5_4005);
    x ^ (x >> 33)
}

fn push_hex(out: &mut Vec<u8>, number: u64, digits: usize) {
    let mut text = [0; HASH_DIGITS];
    let mut rest = number;
    for digit in text.iter_mut().rev() {
        *digit = HEX.get((rest & 15) as usize).copied().unwrap_or(b'0');
        rest >>= 4;
    }
    out.extend(text.iter().take(digits));
}

impl Dataset {
    /// An error that says which limit the shape breaks.
    pub fn validate(&self) -> Result<()> {
        let limits = [
            ("rows", self.rows, 1, 1 << 40),
            ("key bytes", self.key_bytes as u64, KEY_BYTES_MIN as u64, KEY_BYTES_MAX as u64),
            ("columns", u64::from(self.columns), 1, u64::from(COLUMNS_MAX)),
            ("value bytes", self.value_bytes as u64, 1, VALUE_BYTES_MAX as u64),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most).contains(&value) {
                return Err(Error::failed(format!("{value} {what}: from {least} to {most}")));
            }
        }
        Ok(())
    }

    fn hash(&self, row: u64) -> u64 {
        scatter(row.wrapping_add(scatter(self.seed)))
    }

    /// The key of row `row`. Rows from [`Dataset::rows`] on are absent.
    pub fn key(&self, row: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.key_bytes);
        self.key_into(row, &mut key);
        key
    }

    /// The same into a buffer, which is cleared first.
    pub fn key_into(&self, row: u64, out: &mut Vec<u8>) {
        out.clear();
        self.key_of_hash(self.hash(row), out);
    }

    fn key_of_hash(&self, hash: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFIX);
        push_hex(out, hash, HASH_DIGITS);
        let mut state = hash;
        while out.len() < self.key_bytes {
            state = state.wrapping_add(GOLDEN);
            push_hex(out, scatter(state), (self.key_bytes - out.len()).min(HASH_DIGITS));
        }
    }

    /// The number of the loaded row with this key, if there is one.
    pub fn row_of(&self, key: &[u8]) -> Option<u64> {
        let digits = key.strip_prefix(PREFIX)?.get(..HASH_DIGITS)?;
        let hash = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        let row = gather(hash).wrapping_sub(scatter(self.seed));
        (row < self.rows && self.key(row) == key).then_some(row)
    }

    /// How many rows are to be expected from this one on, in the order of their keys or against it: keys are hashes, so what
    /// is left of the rows is what is left of the numbers.
    pub fn rows_from(&self, row: u64, reverse: bool) -> u64 {
        let hash = self.hash(row);
        let left = if reverse { hash } else { !hash };
        ((u128::from(self.rows) * u128::from(left)) >> u64::BITS) as u64
    }

    /// `field0` and so on.
    pub fn qualifier(column: u32) -> Vec<u8> {
        format!("field{column}").into_bytes()
    }

    fn value_state(&self, row: u64, column: u32) -> u64 {
        scatter(self.hash(row) ^ GOLDEN.wrapping_mul(u64::from(column) + 1))
    }

    /// The value of a cell.
    pub fn value(&self, row: u64, column: u32) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes + 8);
        let mut state = self.value_state(row, column);
        while value.len() < self.value_bytes {
            state = state.wrapping_add(GOLDEN);
            value.extend_from_slice(&scatter(state).to_le_bytes());
        }
        value.truncate(self.value_bytes);
        value
    }

    /// Compares a value that was read with what was loaded.
    pub fn check(&self, row: u64, column: u32, value: &[u8], depth: Depth) -> Result<()> {
        let wrong = || {
            Error::mismatch(format!("row {row} column {column}: not the value that was written"))
        };
        if value.len() != self.value_bytes {
            return Err(Error::mismatch(format!(
                "row {row} column {column}: {} bytes where {} were written",
                value.len(),
                self.value_bytes
            )));
        }
        let mut state = self.value_state(row, column);
        let words = match depth {
            Depth::Quick => 1,
            Depth::Full => usize::MAX,
        };
        // A word at a time as a number: what it costs is in the figures of whatever is measured.
        let (whole, rest) = value.as_chunks();
        for word in whole.iter().take(words) {
            state = state.wrapping_add(GOLDEN);
            if scatter(state) != u64::from_le_bytes(*word) {
                return Err(wrong());
            }
        }
        if whole.len() < words
            && !scatter(state.wrapping_add(GOLDEN)).to_le_bytes().starts_with(rest)
        {
            return Err(wrong());
        }
        Ok(())
    }

    /// The same rows and all that runs may insert behind them: whose keys a scan may show.
    #[must_use]
    pub fn with_inserts(&self) -> Self {
        Self { rows: self.rows.saturating_add(INSERTS_MAX), ..*self }
    }

    /// Bytes of user data in a row: key, qualifiers and values.
    pub fn row_bytes(&self) -> u64 {
        let qualifiers: usize = (0..self.columns).map(|c| Self::qualifier(c).len()).sum();
        (self.key_bytes + qualifiers + self.columns as usize * self.value_bytes) as u64
    }

    /// Bytes of user data in all rows.
    pub fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dataset() -> Dataset {
        Dataset { rows: 1000, key_bytes: 50, columns: 2, value_bytes: 100, seed: 7 }
    }

    #[test]
    fn rows_are_distinct_repeatable_and_of_the_asked_size() {
        let d = dataset();
        let keys: std::collections::HashSet<_> = (0..d.rows).map(|row| d.key(row)).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.iter().all(|key| key.len() == 50));
        assert_eq!(d.value(3, 0), d.value(3, 0));
        assert_ne!(d.value(3, 0), d.value(3, 1));
        assert_ne!(d.value(3, 0), d.value(4, 0));
        assert_eq!(d.value(3, 1).len(), 100);
        assert_eq!(d.row_bytes(), 50 + 12 + 200);
        let other = Dataset { seed: 8, ..d };
        assert!((0..1000).all(|row| d.row_of(&other.key(row)).is_none()));
    }

    #[test]
    fn absent_keys_lie_between_loaded_ones_and_are_none_of_them() {
        let d = dataset();
        let mut keys: Vec<_> = (0..d.rows).map(|row| d.key(row)).collect();
        keys.sort();
        let inside = (d.rows..2 * d.rows)
            .map(|row| d.key(row))
            .filter(|key| keys.binary_search(key).is_err() && keys[0] < *key && *key < keys[999])
            .count();
        assert!(inside > 990, "{inside}");
    }

    #[test]
    fn a_wrong_byte_anywhere_is_found_by_a_full_check_and_a_wrong_row_by_a_quick_one() {
        let d = dataset();
        let value = d.value(5, 1);
        assert!(d.check(5, 1, &value, Depth::Full).is_ok());
        assert!(d.check(6, 1, &value, Depth::Quick).is_err());
        assert!(d.check(5, 0, &value, Depth::Quick).is_err());
        assert!(d.check(5, 1, &value[..99], Depth::Quick).is_err());
        for at in 0..value.len() {
            let mut wrong = value.clone();
            wrong[at] ^= 1;
            assert!(d.check(5, 1, &wrong, Depth::Full).is_err(), "byte {at}");
        }
    }

    #[test]
    fn about_as_many_rows_follow_one_as_are_expected_from_it_on() {
        let d = dataset();
        let mut keys: Vec<_> = (0..d.rows).map(|row| (d.key(row), row)).collect();
        keys.sort();
        for (at, (_, row)) in (0..).zip(keys) {
            // Three standard deviations in the middle.
            assert!(d.rows_from(row, false).abs_diff(d.rows - at) < 48, "{at}");
            assert!(d.rows_from(row, true).abs_diff(at) < 48, "{at}");
        }
    }

    proptest! {
        #[test]
        fn a_key_tells_its_row(row in 0u64..1_000_000, seed: u64, key_bytes in KEY_BYTES_MIN..100) {
            let d = Dataset { rows: 1_000_000, key_bytes, seed, ..dataset() };
            prop_assert_eq!(d.row_of(&d.key(row)), Some(row));
            prop_assert_eq!(d.row_of(&d.key(row + 1_000_000)), None);
        }

        #[test]
        fn no_key_makes_the_reader_of_keys_panic(key: Vec<u8>) {
            prop_assert_eq!(dataset().row_of(&key), None);
        }
    }
}

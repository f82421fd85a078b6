//! YCSB-shaped rows that need no memory to check: every byte follows from the row's number.

use std::fmt::Write as _;

/// Shape of the rows.
#[derive(Debug, Clone, Copy)]
pub struct Dataset {
    pub rows: u64,
    pub columns: u32,
    pub column_bytes: usize,
}

/// A bijection of 64-bit numbers (the finalizer of MurmurHash3): scatters consecutive numbers, so that
/// rows arrive in random order as YCSB's hashed keys do, each exactly once.
fn scatter(number: u64) -> u64 {
    let mut x = number;
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

impl Dataset {
    /// The key of row `number`: `user` and 20 digits.
    pub fn key(number: u64) -> Vec<u8> {
        let mut key = String::with_capacity(24);
        write!(key, "user{:020}", scatter(number)).expect("a string takes any text");
        key.into_bytes()
    }

    /// `field0` and so on.
    pub fn qualifier(column: u32) -> Vec<u8> {
        format!("field{column}").into_bytes()
    }

    /// The value of a cell: incompressible, and a function of its key and column.
    pub fn value(self, key: &[u8], column: u32) -> Vec<u8> {
        let mut state = u64::from(column).wrapping_add(1);
        for byte in key {
            state = scatter(state ^ u64::from(*byte));
        }
        let mut value = Vec::with_capacity(self.column_bytes + 8);
        while value.len() < self.column_bytes {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            value.extend_from_slice(&scatter(state).to_le_bytes());
        }
        value.truncate(self.column_bytes);
        value
    }

    /// Bytes of user data in a row: key, qualifiers and values.
    pub fn row_bytes(self) -> u64 {
        let qualifiers: usize = (0..self.columns).map(|c| Self::qualifier(c).len()).sum();
        (24 + qualifiers + self.columns as usize * self.column_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_distinct_and_repeatable() {
        let dataset = Dataset { rows: 1000, columns: 2, column_bytes: 100 };
        let keys: std::collections::HashSet<_> = (0..dataset.rows).map(Dataset::key).collect();
        assert_eq!(keys.len(), 1000);
        let key = Dataset::key(7);
        assert_eq!(dataset.value(&key, 0), dataset.value(&key, 0));
        assert_ne!(dataset.value(&key, 0), dataset.value(&key, 1));
        assert_eq!(dataset.value(&key, 1).len(), 100);
    }
}

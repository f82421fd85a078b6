//! Aggregates: how the operands of one cell combine, for reads and compactions alike.
//!
//! Sums, minima and maxima are of 64-bit integers, big-endian, 8 bytes; what other aggregates keep is up to
//! them ([`crate::schema::Combine`]). All are associative and commutative, which is what lets a compaction combine
//! any contiguous run of operands before the rest of the cell is in sight.

use bytes::Bytes;

use crate::schema::{Aggregate, Combined};

/// The number in 8 bytes; `None` for any other length.
pub(crate) fn decode(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_be_bytes)
}

/// Operands of one cell, combined.
#[derive(Debug)]
pub(crate) enum State {
    /// Of a sum, minimum or maximum.
    Number(i64),
    /// Of another aggregate.
    Opaque(Box<dyn Combined>),
}

impl State {
    /// The state that is one operand; `None` where that is malformed.
    pub(crate) fn begin(how: Aggregate, operand: &[u8]) -> Option<Self> {
        match how {
            Aggregate::Opaque(combine) => combine.begin(operand).map(Self::Opaque),
            Aggregate::Sum | Aggregate::Min | Aggregate::Max => decode(operand).map(Self::Number),
        }
    }

    /// Adds an operand or a base of the same aggregate; returns false and changes nothing where that is malformed.
    pub(crate) fn add(&mut self, how: Aggregate, operand: &[u8]) -> bool {
        let state = match self {
            Self::Opaque(state) => return state.add(operand),
            Self::Number(state) => state,
        };
        let Some(number) = decode(operand) else { return false };
        *state = match how {
            Aggregate::Sum => state.wrapping_add(number),
            Aggregate::Min => (*state).min(number),
            Aggregate::Max => (*state).max(number),
            // The state began with the same aggregate.
            Aggregate::Opaque(_) => return false,
        };
        true
    }

    /// Its bytes.
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Self::Number(state) => Bytes::copy_from_slice(&state.to_be_bytes()),
            Self::Opaque(state) => state.encode(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined(how: Aggregate, a: i64, b: i64) -> Bytes {
        let mut state = State::begin(how, &a.to_be_bytes()).unwrap();
        assert!(state.add(how, &b.to_be_bytes()));
        state.encode()
    }

    #[test]
    fn sums_wrap_and_bounds_hold() {
        assert_eq!(combined(Aggregate::Sum, i64::MAX, 1), &i64::MIN.to_be_bytes()[..]);
        assert_eq!(combined(Aggregate::Min, -3, 2), &(-3_i64).to_be_bytes()[..]);
        assert_eq!(combined(Aggregate::Max, -3, 2), &2_i64.to_be_bytes()[..]);
    }

    #[test]
    fn only_eight_bytes_are_a_number() {
        assert_eq!(decode(&(-42_i64).to_be_bytes()), Some(-42));
        for bad in [&[0; 7][..], &[0; 9], &[]] {
            assert_eq!(decode(bad), None);
            assert!(State::begin(Aggregate::Sum, bad).is_none());
            let mut state = State::Number(7);
            assert!(!state.add(Aggregate::Sum, bad));
            assert_eq!(state.encode(), &7_i64.to_be_bytes()[..]);
        }
    }
}

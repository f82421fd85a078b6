//! Aggregates: how the operands of one cell combine.
//!
//! Operands and states are 64-bit integers, big-endian, 8 bytes. All three operations are associative
//! and commutative, which is what lets a compaction combine any contiguous run of operands before the
//! rest of the cell is in sight.

use bytes::Bytes;

use crate::schema::Aggregate;

/// The number in an operand or a state; `None` where it is not 8 bytes.
pub(crate) fn decode(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_be_bytes)
}

/// The bytes of a state.
pub(crate) fn encode(state: i64) -> Bytes {
    Bytes::copy_from_slice(&state.to_be_bytes())
}

/// Two operands, or an operand and a state, as one.
pub(crate) fn combine(aggregate: Aggregate, a: i64, b: i64) -> i64 {
    match aggregate {
        Aggregate::Sum => a.wrapping_add(b),
        Aggregate::Min => a.min(b),
        Aggregate::Max => a.max(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_wrap_and_bounds_hold() {
        assert_eq!(combine(Aggregate::Sum, i64::MAX, 1), i64::MIN);
        assert_eq!(combine(Aggregate::Min, -3, 2), -3);
        assert_eq!(combine(Aggregate::Max, -3, 2), 2);
    }

    #[test]
    fn only_eight_bytes_decode() {
        assert_eq!(decode(&encode(-42)), Some(-42));
        assert_eq!(decode(&[0; 7]), None);
        assert_eq!(decode(&[0; 9]), None);
        assert_eq!(decode(&[]), None);
    }
}

//! The value of a record of kind [`Kind::ValueElsewhere`](crate::cell::Kind): where the cell's value lies.
//!
//! ```text
//! file u64 LE | offset varint | bytes in the file varint | bytes of the value varint
//! ```

use crate::codec::{Malformed, Parsed, Reader, put_u32, put_u64};
use crate::sst::frame::{FRAME_BYTES_MAX, TRAILER_LEN};
use crate::sst::{BLOCK_BYTES_MAX, FileId};

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValuePointer {
    /// The value file.
    pub file: FileId,
    /// The first byte of the value's frame.
    pub offset: u64,
    /// Bytes of the frame, trailer included.
    pub stored_len: u32,
    /// Bytes of the value.
    pub value_len: u32,
}

impl ValuePointer {
    /// Appends the encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.file.to_le_bytes());
        put_u64(out, self.offset);
        put_u32(out, self.stored_len);
        put_u32(out, self.value_len);
    }

    /// Reads an encoding, which must be all of `bytes`. The lengths are within what a frame may have.
    pub fn decode(bytes: &[u8]) -> Parsed<Self> {
        let mut input = Reader::new(bytes);
        let pointer = Self {
            file: input.fixed_u64()?,
            offset: input.u64()?,
            stored_len: input.u32()?,
            value_len: input.u32()?,
        };
        input.finish()?;
        let stored = pointer.stored_len as usize;
        if !(TRAILER_LEN..=FRAME_BYTES_MAX).contains(&stored)
            || pointer.value_len as usize > BLOCK_BYTES_MAX
            || pointer.offset.checked_add(u64::from(pointer.stored_len)).is_none()
        {
            return Err(Malformed::whole("a pointer to a value has lengths that no value has"));
        }
        Ok(pointer)
    }

    /// The first byte after the frame.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.stored_len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POINTER: ValuePointer = ValuePointer {
        file: 0x0123_4567_89AB_CDEF,
        offset: 300,
        stored_len: 10_009,
        value_len: 10_000,
    };

    #[test]
    fn a_pointer_reads_back_as_it_was_written_and_as_the_format_says() {
        let mut bytes = Vec::new();
        POINTER.encode(&mut bytes);
        let written =
            [0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45, 0x23, 0x01, 0xAC, 0x02, 0x99, 0x4E, 0x90, 0x4E];
        assert_eq!(bytes, written);
        assert_eq!(ValuePointer::decode(&bytes), Ok(POINTER));
        for len in 0..bytes.len() {
            assert!(ValuePointer::decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        bytes.push(0);
        assert!(ValuePointer::decode(&bytes).is_err(), "something follows");
    }

    #[test]
    fn a_pointer_with_impossible_lengths_is_refused() {
        let refused = |pointer: ValuePointer| {
            let mut bytes = Vec::new();
            pointer.encode(&mut bytes);
            ValuePointer::decode(&bytes).is_err()
        };
        assert!(refused(ValuePointer { stored_len: 3, ..POINTER }), "less than a trailer");
        assert!(refused(ValuePointer { stored_len: u32::MAX, ..POINTER }));
        assert!(refused(ValuePointer { value_len: u32::MAX, ..POINTER }));
        assert!(refused(ValuePointer { offset: u64::MAX, ..POINTER }), "wraps around");
    }

    proptest! {
        #[test]
        fn random_pointers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(pointer) = ValuePointer::decode(&bytes) {
                prop_assert!(pointer.end() >= pointer.offset);
            }
        }
    }
}

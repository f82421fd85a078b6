//! The small numbers of the format: varints, zigzag, and a bounds-checked reader.
//!
//! ```text
//! varint: 7 bits a byte, least significant first, the top bit set on every byte but the last; 64 bits at most
//! zigzag: 0, -1, 1, -2 ... as 0, 1, 2, 3 ...: a small difference of either sign is a short varint
//! fixed:  little-endian
//! ```
//!
//! Nothing here panics, whatever the bytes are. A decoder says *what* is malformed; whoever knows the
//! file and the offset makes an [`Error`](crate::Error) of it.

use bytes::Bytes;

/// What a decoder found wrong with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// A decoder's result.
pub(super) type Parsed<T> = Result<T, Malformed>;

/// Bytes of the longest varint.
const VARINT_BYTES_MAX: u32 = 10;

/// Appends a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Maps small differences of either sign to small numbers.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// How many leading bytes two strings share.
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// `bytes[start..start + len]` sharing memory, or what is wrong.
pub(super) fn slice(bytes: &Bytes, start: usize, len: usize) -> Parsed<Bytes> {
    match start.checked_add(len) {
        Some(end) if end <= bytes.len() => Ok(bytes.slice(start..end)),
        _ => Err(Malformed("a range reaches past the end of its block")),
    }
}

/// Reads forward through bytes that may be anything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    /// From the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// From byte `at`, which may lie past the end.
    pub(super) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The offset of the next byte.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Whether everything was read.
    pub(super) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next byte.
    #[inline]
    pub(super) fn u8(&mut self) -> Parsed<u8> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed("cut short"))?;
        self.at += 1;
        Ok(byte)
    }

    /// The next `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(len).ok_or(Malformed("cut short"))?;
        let taken = self.bytes.get(self.at..end).ok_or(Malformed("cut short"))?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed("cut short"))
    }

    /// A fixed 16-bit number.
    pub(super) fn u16(&mut self) -> Parsed<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// A fixed 32-bit number.
    pub(super) fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A fixed 64-bit number.
    pub(super) fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A varint.
    #[inline]
    pub(super) fn varint(&mut self) -> Parsed<u64> {
        let first = self.u8()?;
        if first < 0x80 { Ok(u64::from(first)) } else { self.varint_rest(u64::from(first & 0x7F)) }
    }

    fn varint_rest(&mut self, mut value: u64) -> Parsed<u64> {
        for i in 1..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7F);
            if i == VARINT_BYTES_MAX - 1 && bits > 1 {
                break;
            }
            value |= bits << (7 * i);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    /// A varint that counts bytes or things in memory.
    #[inline]
    pub(super) fn varint_usize(&mut self) -> Parsed<usize> {
        usize::try_from(self.varint()?).map_err(|_| Malformed("a length is out of range"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_overlong_varint_is_refused() {
        assert!(Input::new(&[0x80; 11]).varint().is_err());
        let mut eleven = vec![0xFF; 9];
        eleven.push(0x02);
        assert!(Input::new(&eleven).varint().is_err(), "65 bits");
        assert!(Input::new(&[0x80]).varint().is_err(), "cut short");
    }

    proptest! {
        #[test]
        fn numbers_read_back_as_written(value: u64, signed: i64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_varint(&mut out, zigzag(signed));
            let mut input = Input::new(&out);
            prop_assert_eq!(input.varint(), Ok(value));
            prop_assert_eq!(input.varint().map(unzigzag), Ok(signed));
            prop_assert!(input.is_empty());
        }
    }
}

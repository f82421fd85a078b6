//! The little codec that all formats share: varints, fixed numbers, length-prefixed bytes, and readers that
//! check every bound.
//!
//! ```text
//! varint   7 bits per byte, low bits first, high bit set on all bytes but the last; the shortest
//!          form only (one value has one encoding, so equal records are equal bytes)
//! i64      zigzag (0, -1, 1, -2 ... become 0, 1, 2, 3 ...), then varint
//! bytes    varint length | the bytes
//! fixed    16, 32 or 64 bits, low byte first
//! ```
//!
//! A reader never panics, never reads past its input and never allocates from a length that it read:
//! what it hands out are slices of the input. Its errors are [`Malformed`], small enough for hot
//! decoders, which become [`ErrorKind::Corruption`] by `?`, or by
//! [`Malformed::in_file`] where the file and the record's offset are known.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, ErrorKind};

/// Bytes of the longest varint: 64 bits in groups of 7.
pub const VARINT_BYTES_MAX: usize = 10;

/// Input that no encoder wrote: what is wrong, and at which byte of the reader's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// Byte of the reader's input, from 0.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// A decoder's result.
pub type Parsed<T> = Result<T, Malformed>;

impl Malformed {
    /// The error "`what` is wrong" of an input as a whole, or of parts of it that do not fit together.
    pub const fn whole(what: &'static str) -> Self {
        Self { at: 0, what }
    }

    /// The error as corruption of `file`, where the reader's input starts at byte `base`.
    pub fn in_file(self, file: impl fmt::Display, base: u64) -> Error {
        Error::corruption(file, base.saturating_add(self.at as u64), self.what)
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.what)
    }
}

impl std::error::Error for Malformed {}

impl From<Malformed> for Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(ErrorKind::Corruption, malformed.to_string())
    }
}

/// Why a record that verified cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// No encoder wrote it.
    Malformed(Malformed),
    /// It has what is not known here, and records are looked at only where they verify: a newer version wrote it.
    Newer(Malformed),
}

impl Unreadable {
    /// The kind of the error.
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::Malformed(_) => ErrorKind::Corruption,
            Self::Newer(_) => ErrorKind::InvalidArgument,
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Newer(malformed) => write!(f, "{malformed}: a newer version wrote it"),
        }
    }
}

impl From<Malformed> for Unreadable {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<Unreadable> for Error {
    fn from(unreadable: Unreadable) -> Self {
        Self::new(unreadable.kind(), unreadable.to_string())
    }
}

/// Maps numbers near 0, of either sign, to small ones.
pub fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// How many leading bytes two strings share.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// `bytes[start..start + len]` sharing memory, or what is wrong.
pub fn slice(bytes: &Bytes, start: usize, len: usize) -> Parsed<Bytes> {
    match start.checked_add(len) {
        Some(end) if end <= bytes.len() => Ok(bytes.slice(start..end)),
        _ => Err(Malformed { at: start, what: "a range reaches past the end of the input" }),
    }
}

/// Appends `value` as a varint.
pub fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends `value` as a varint; the same bytes as [`put_u64`] of it.
pub fn put_u32(out: &mut Vec<u8>, value: u32) {
    put_u64(out, u64::from(value));
}

/// Appends `value` in zigzag form as a varint.
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_u64(out, zigzag(value));
}

/// Appends `value` after its length.
pub fn put_bytes(out: &mut Vec<u8>, value: &[u8]) {
    put_u64(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Reads what the `put` functions wrote, from a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// A reader at byte `at` of `bytes`, which may lie past the end: then every read fails.
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The byte that is read next, from the start of the input.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The error "`what` is wrong at the byte that is read next".
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// Succeeds where everything is read.
    pub fn finish(&self) -> Parsed<()> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed("bytes after the end")) }
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Parsed<&'a [u8]> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| self.malformed("ends too early"))?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let early = self.malformed("ends too early");
        self.take(N)?.try_into().map_err(|_| early)
    }

    /// The next byte.
    #[inline]
    pub fn u8(&mut self) -> Parsed<u8> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.malformed("ends too early"))?;
        self.at += 1;
        Ok(byte)
    }

    /// The next two bytes, low byte first.
    pub fn fixed_u16(&mut self) -> Parsed<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes, low byte first.
    pub fn fixed_u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes, low byte first.
    pub fn fixed_u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A varint. Longer forms than needed and values beyond 64 bits are refused.
    #[inline]
    pub fn u64(&mut self) -> Parsed<u64> {
        // Most numbers of every format have one byte; blocks are walked through here.
        match self.bytes.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_u64(),
        }
    }

    /// A varint of several bytes.
    fn long_u64(&mut self) -> Parsed<u64> {
        let start = self.at;
        // Up to eight bytes at once: sequences and timestamps take five to seven, and a loop over them was
        // half of the time to decode a record.
        if let Some(word) = self.bytes.get(start..).and_then(|b| b.first_chunk::<8>()) {
            let word = u64::from_le_bytes(*word);
            let stops = !word & 0x8080_8080_8080_8080;
            if stops != 0 {
                // Everything up to the first byte without the top bit, and of each byte 7 bits.
                let kept = word & (stops ^ (stops - 1)) & 0x7F7F_7F7F_7F7F_7F7F;
                let len = stops.trailing_zeros() as usize / 8 + 1;
                if len > 1 && kept >> (8 * (len - 1)) == 0 {
                    return Err(Malformed { at: start, what: "varint is longer than needed" });
                }
                let x = (kept & 0x007F_007F_007F_007F) | ((kept & 0x7F00_7F00_7F00_7F00) >> 1);
                let x = (x & 0x0000_3FFF_0000_3FFF) | ((x & 0x3FFF_0000_3FFF_0000) >> 2);
                self.at += len;
                return Ok((x & 0x0FFF_FFFF) | ((x & 0x0FFF_FFFF_0000_0000) >> 4));
            }
        }
        let bad = |what| Malformed { at: start, what };
        let mut value = 0u64;
        for i in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            if i == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(bad("varint exceeds 64 bits"));
            }
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte & 0x80 == 0 {
                if byte == 0 && i > 0 {
                    return Err(bad("varint is longer than needed"));
                }
                return Ok(value);
            }
        }
        Err(bad("varint exceeds 64 bits"))
    }

    /// A varint that counts bytes or things in memory.
    #[inline]
    pub fn usize(&mut self) -> Parsed<usize> {
        let start = self.at;
        let far = Malformed { at: start, what: "a length is out of range" };
        usize::try_from(self.u64()?).map_err(|_| far)
    }

    /// A varint of at most 32 bits.
    pub fn u32(&mut self) -> Parsed<u32> {
        let start = self.at;
        let value = self.u64()?;
        u32::try_from(value).map_err(|_| Malformed { at: start, what: "varint exceeds 32 bits" })
    }

    /// A zigzag varint.
    pub fn i64(&mut self) -> Parsed<i64> {
        self.u64().map(unzigzag)
    }

    /// Length-prefixed bytes.
    pub fn bytes(&mut self) -> Parsed<&'a [u8]> {
        let start = self.at;
        let early = Malformed { at: start, what: "length exceeds the input" };
        let len = usize::try_from(self.u64()?).map_err(|_| early)?;
        self.take(len).map_err(|_| early)
    }

    /// Length-prefixed UTF-8.
    pub fn str(&mut self) -> Parsed<&'a str> {
        let start = self.at;
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Malformed { at: start, what: "text is not UTF-8" })
    }
}

/// [`Reader`] over shared memory: byte strings come out as [`Bytes`] that share it, without a copy.
#[derive(Debug, Clone)]
pub struct BytesReader {
    bytes: Bytes,
    at: usize,
}

impl BytesReader {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads with the slice reader, and keeps its position where it succeeded.
    fn read<'s, T>(&'s mut self, read: impl FnOnce(&mut Reader<'s>) -> Parsed<T>) -> Parsed<T> {
        let mut reader = Reader { bytes: &self.bytes, at: self.at };
        let value = read(&mut reader)?;
        self.at = reader.at;
        Ok(value)
    }

    /// The last `len` bytes before the position.
    fn behind(&self, len: usize) -> Bytes {
        self.bytes.slice(self.at.saturating_sub(len)..self.at)
    }

    /// The byte that is read next, from the start of the input.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.remaining() == 0
    }

    /// The error "`what` is wrong at the byte that is read next".
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    /// Succeeds where everything is read.
    pub fn finish(&self) -> Parsed<()> {
        if self.is_empty() { Ok(()) } else { Err(self.malformed("bytes after the end")) }
    }

    /// The same of a record that a newer version may have more in than is known here.
    pub fn finish_known(&self) -> Result<(), Unreadable> {
        self.finish().map_err(Unreadable::Newer)
    }

    /// The next `len` bytes, shared.
    pub fn take(&mut self, len: usize) -> Parsed<Bytes> {
        let len = self.read(|r| r.take(len).map(<[u8]>::len))?;
        Ok(self.behind(len))
    }

    /// The next byte.
    pub fn u8(&mut self) -> Parsed<u8> {
        self.read(|r| r.u8())
    }

    /// The next eight bytes, low byte first.
    pub fn fixed_u64(&mut self) -> Parsed<u64> {
        self.read(|r| r.fixed_u64())
    }

    /// A varint.
    pub fn u64(&mut self) -> Parsed<u64> {
        self.read(|r| r.u64())
    }

    /// A varint that counts bytes or things in memory.
    pub fn usize(&mut self) -> Parsed<usize> {
        self.read(|r| r.usize())
    }

    /// A varint of at most 32 bits.
    pub fn u32(&mut self) -> Parsed<u32> {
        self.read(|r| r.u32())
    }

    /// A zigzag varint.
    pub fn i64(&mut self) -> Parsed<i64> {
        self.read(|r| r.i64())
    }

    /// Length-prefixed bytes, shared.
    pub fn bytes(&mut self) -> Parsed<Bytes> {
        let len = self.read(|r| r.bytes().map(<[u8]>::len))?;
        Ok(self.behind(len))
    }

    /// Length-prefixed UTF-8, copied.
    pub fn string(&mut self) -> Parsed<String> {
        self.read(|r| r.str().map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    enum Item {
        Fixed(u64),
        U64(u64),
        U32(u32),
        I64(i64),
        Bytes(Vec<u8>),
        Text(String),
    }

    fn item() -> impl Strategy<Value = Item> {
        // Shifts give every length of varint a fair share.
        prop_oneof![
            any::<u64>().prop_map(Item::Fixed),
            (any::<u64>(), 0u32..64).prop_map(|(v, s)| Item::U64(v >> s)),
            (any::<u32>(), 0u32..32).prop_map(|(v, s)| Item::U32(v >> s)),
            (any::<i64>(), 0u32..64).prop_map(|(v, s)| Item::I64(v >> s)),
            proptest::collection::vec(any::<u8>(), 0..300).prop_map(Item::Bytes),
            "[a-zé]{0,20}".prop_map(Item::Text),
        ]
    }

    fn put(out: &mut Vec<u8>, item: &Item) {
        match item {
            Item::Fixed(v) => out.extend_from_slice(&v.to_le_bytes()),
            Item::U64(v) => put_u64(out, *v),
            Item::U32(v) => put_u32(out, *v),
            Item::I64(v) => put_i64(out, *v),
            Item::Bytes(v) => put_bytes(out, v),
            Item::Text(v) => put_bytes(out, v.as_bytes()),
        }
    }

    proptest! {
        #[test]
        fn what_was_put_is_read_back(items in proptest::collection::vec(item(), 0..30)) {
            let mut out = Vec::new();
            for item in &items {
                put(&mut out, item);
            }
            let mut slices = Reader::new(&out);
            let mut shared = BytesReader::new(Bytes::from(out.clone()));
            for want in &items {
                let (a, b) = match want {
                    Item::Fixed(_) => {
                        (Item::Fixed(slices.fixed_u64()?), Item::Fixed(shared.fixed_u64()?))
                    }
                    Item::U64(_) => (Item::U64(slices.u64()?), Item::U64(shared.u64()?)),
                    Item::U32(_) => (Item::U32(slices.u32()?), Item::U32(shared.u32()?)),
                    Item::I64(_) => (Item::I64(slices.i64()?), Item::I64(shared.i64()?)),
                    Item::Bytes(_) => (
                        Item::Bytes(slices.bytes()?.to_vec()),
                        Item::Bytes(shared.bytes()?.to_vec()),
                    ),
                    Item::Text(_) => (Item::Text(slices.str()?.into()), Item::Text(shared.string()?)),
                };
                prop_assert_eq!(&a, want);
                prop_assert_eq!(&b, want);
                prop_assert_eq!(slices.position(), shared.position());
            }
            prop_assert!(slices.finish().is_ok() && shared.finish().is_ok());
        }

        #[test]
        fn every_cut_of_an_encoding_is_refused(v in any::<u64>(), tail in proptest::collection::vec(any::<u8>(), 1..40)) {
            let mut out = Vec::new();
            put_u64(&mut out, v);
            put_bytes(&mut out, &tail);
            for len in 0..out.len() {
                let mut r = Reader::new(&out[..len]);
                prop_assert!(r.u64().and_then(|_| r.bytes()).is_err());
            }
        }

        #[test]
        fn random_bytes_never_panic_and_accepted_varints_are_canonical(
            raw in proptest::collection::vec(any::<u8>(), 0..200),
            choices in proptest::collection::vec(0u8..9, 1..40),
        ) {
            let mut slices = Reader::new(&raw);
            let mut shared = BytesReader::new(Bytes::from(raw.clone()));
            for choice in choices {
                let at = slices.position();
                let agree = match choice {
                    0 => {
                        let read = slices.u64();
                        if let Ok(v) = read {
                            let mut again = Vec::new();
                            put_u64(&mut again, v);
                            prop_assert_eq!(&again[..], &raw[at..slices.position()]);
                        }
                        read == shared.u64()
                    }
                    1 => slices.u32() == shared.u32(),
                    2 => slices.i64() == shared.i64(),
                    3 => slices.bytes().map(<[u8]>::to_vec) == shared.bytes().map(|b| b.to_vec()),
                    4 => slices.str().map(str::to_owned) == shared.string(),
                    5 => slices.take(3).map(<[u8]>::to_vec) == shared.take(3).map(|b| b.to_vec()),
                    6 => slices.take(usize::MAX).is_err() && shared.take(usize::MAX).is_err(),
                    _ => slices.u8() == shared.u8(),
                };
                prop_assert!(agree);
                // A failed slice read may stand anywhere inside its input; start over together.
                prop_assert!(slices.position() <= raw.len() && shared.position() <= raw.len());
                slices.at = shared.at;
            }
        }
    }

    #[test]
    fn fixed_numbers_are_little_endian_and_need_all_their_bytes() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Reader::new(&bytes).fixed_u16(), Ok(0x0201));
        assert_eq!(Reader::new(&bytes).fixed_u32(), Ok(0x0403_0201));
        assert_eq!(Reader::new(&bytes).fixed_u64(), Ok(0x0807_0605_0403_0201));
        assert_eq!(Reader::at(&bytes, 6).fixed_u16(), Ok(0x0807));
        let early = |at| Malformed { at, what: "ends too early" };
        assert_eq!(Reader::at(&bytes, 7).fixed_u16(), Err(early(7)));
        assert_eq!(Reader::at(&bytes, 5).fixed_u32(), Err(early(5)));
        assert_eq!(Reader::at(&bytes, 1).fixed_u64(), Err(early(1)));
    }

    #[test]
    fn a_reader_past_the_end_reads_nothing() {
        for at in [3, 4, usize::MAX] {
            let reader = Reader::at(b"abc", at);
            assert!(reader.is_empty() && reader.clone().u8().is_err());
            assert!(reader.clone().u64().is_err() && reader.clone().usize().is_err());
            assert!(reader.clone().fixed_u16().is_err() && reader.clone().take(1).is_err());
        }
        assert_eq!(Reader::at(b"abc", 3).take(0), Ok(&b""[..]));
        assert!(Reader::at(b"abc", 4).take(0).is_err());
    }

    #[test]
    fn slices_are_within_their_input_and_share_it() {
        let bytes = Bytes::from_static(b"abcd");
        assert_eq!(slice(&bytes, 1, 2).unwrap().as_ptr(), bytes[1..].as_ptr());
        assert_eq!(slice(&bytes, 4, 0).unwrap().len(), 0);
        for (start, len) in [(3, 2), (5, 0), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(slice(&bytes, start, len).is_err(), "{start} {len}");
        }
        assert_eq!(common_prefix(b"abx", b"abyz"), 2);
        assert_eq!((common_prefix(b"", b"a"), common_prefix(b"ab", b"ab")), (0, 2));
    }

    #[test]
    fn zigzag_puts_numbers_near_zero_first() {
        assert_eq!(
            [0, -1, 1, -2, i64::MAX, i64::MIN].map(zigzag),
            [0, 1, 2, 3, u64::MAX - 1, u64::MAX]
        );
        assert!([0, -1, 1, i64::MAX, i64::MIN].iter().all(|v| unzigzag(zigzag(*v)) == *v));
    }

    #[test]
    fn overlong_and_overflowing_varints_are_refused() {
        for bad in [&[0x80, 0x00][..], &[0x81, 0x80, 0x00], &[0xFF; 10], &[0x80; 11]] {
            assert!(Reader::new(bad).u64().is_err(), "{bad:?}");
        }
        let max = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        assert_eq!(Reader::new(&max).u64(), Ok(u64::MAX));
        assert!(Reader::new(&max).u32().is_err());
    }

    #[test]
    fn a_length_beyond_the_input_is_refused_at_its_own_place() {
        let mut out = vec![7];
        put_u64(&mut out, u64::MAX);
        let mut reader = Reader::new(&out);
        assert_eq!(reader.u8(), Ok(7));
        assert_eq!(reader.bytes(), Err(Malformed { at: 1, what: "length exceeds the input" }));
    }

    #[test]
    fn errors_name_file_and_offset() {
        let error = Malformed { at: 3, what: "odd" }.in_file("dir/FILE", 100);
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(error.message(), "dir/FILE: offset 103: odd");
        assert_eq!(Error::from(Malformed { at: 3, what: "odd" }).kind(), ErrorKind::Corruption);
    }

    #[test]
    fn shared_byte_strings_are_not_copied() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"payload");
        let input = Bytes::from(out);
        let read = BytesReader::new(input.clone()).bytes().unwrap();
        assert_eq!(read.as_ptr(), input[1..].as_ptr());
    }
}

//! The last bytes of an SST: where everything else begins.
//!
//! ```text
//! properties    offset u64 LE | len u64 LE
//! top index     offset u64 LE | len u64 LE
//! filter index  offset u64 LE | len u64 LE      0, 0 without a filter
//! dictionary    offset u64 LE | len u64 LE      0, 0 without a dictionary
//! file id       u64 LE
//! version       u32 LE
//! reserved      u32 LE, zero; read with the version
//! checksum      u64 LE     xxh3-64 of the bytes before it, seeded with mix(file id, offset of the footer)
//! magic         "TEPUISST"
//! ```
//!
//! The seed covers the footer's place, so a file that was cut or extended does not open. A later version keeps the
//! footer's length, and its bytes from the file id on: so a file of a later version is told from a damaged one.

use super::frame::{FRAME_BYTES_MAX, TRAILER_LEN, footer_checksum, newer_version, verify_footer};
use super::{FORMAT_VERSION, FileId, PAGE_BYTES};
use crate::codec::{Malformed, Parsed, Reader};

/// Bytes of the footer.
pub(super) const FOOTER_LEN: usize = 4 * 16 + 8 + 4 + 4 + 8 + 8;

/// The last bytes of every SST.
pub(super) const MAGIC: &[u8; 8] = b"TEPUISST";

/// Where a block's frame lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Handle {
    /// Its first byte in the file.
    pub(super) offset: u64,
    /// Its bytes, trailer included.
    pub(super) len: u32,
}

impl Handle {
    /// The first byte after it.
    pub(super) fn end(self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether the frame comes right behind `before`: at once, or with the zeros between them that fill a
    /// page.
    pub(super) fn follows(self, before: Self) -> bool {
        self.offset.checked_sub(before.end()).is_some_and(|gap| gap < PAGE_BYTES as u64)
    }

    /// A handle read from disk: its frame must lie before `end`.
    pub(super) fn checked(offset: u64, len: u64, end: u64) -> Parsed<Self> {
        let fits = offset.checked_add(len).is_some_and(|e| e <= end);
        if !fits || len < TRAILER_LEN as u64 || len > FRAME_BYTES_MAX as u64 {
            return Err(Malformed::whole("a handle points outside the file"));
        }
        Ok(Self { offset, len: len as u32 })
    }
}

/// The footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) properties: Handle,
    pub(super) top_index: Handle,
    pub(super) filter_index: Option<Handle>,
    pub(super) dictionary: Option<Handle>,
}

impl Footer {
    /// Appends the footer of `file`, to lie at `offset`.
    pub(super) fn encode(&self, file: FileId, offset: u64, out: &mut Vec<u8>) {
        let start = out.len();
        let none = Handle::default();
        for handle in [
            self.properties,
            self.top_index,
            self.filter_index.unwrap_or(none),
            self.dictionary.unwrap_or(none),
        ] {
            out.extend_from_slice(&handle.offset.to_le_bytes());
            out.extend_from_slice(&u64::from(handle.len).to_le_bytes());
        }
        out.extend_from_slice(&file.to_le_bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        let covered = out.get(start..).unwrap_or_default();
        let checksum = footer_checksum(covered, file, offset);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(MAGIC);
    }

    /// The version of the footer of `file` that was found at `offset`, where a newer one than this wrote it.
    pub(super) fn newer_version(bytes: &[u8], file: FileId, offset: u64) -> Option<u64> {
        newer_version(bytes, *MAGIC, FORMAT_VERSION, file, offset)
    }

    /// Reads the footer of `file` that was found at `offset`.
    pub(super) fn decode(bytes: &[u8], file: FileId, offset: u64) -> Parsed<Self> {
        let mut input = Reader::new(bytes);
        let covered = input.take(FOOTER_LEN - 16)?;
        let checksum = input.fixed_u64()?;
        if input.take(MAGIC.len())? != MAGIC || !input.is_empty() {
            return Err(Malformed::whole("not an SST, or cut short: the magic is missing"));
        }
        let mut input = Reader::new(covered);
        let mut pairs = [(0, 0); 4];
        for pair in &mut pairs {
            *pair = (input.fixed_u64()?, input.fixed_u64()?);
        }
        let [properties, top_index, filter_index, dictionary] = pairs;
        let stored_file = input.fixed_u64()?;
        match input.fixed_u64()? {
            version if version == u64::from(FORMAT_VERSION) => {}
            1 => {
                return Err(Malformed::whole(
                    "the SST has format version 1, which was never released; this build reads version 2",
                ));
            }
            _ => {
                verify_footer(covered, checksum, stored_file, file, offset)?;
                return Err(Malformed::whole(
                    "the SST has a format version that this build does not know",
                ));
            }
        }
        verify_footer(covered, checksum, stored_file, file, offset)?;
        let required = |(at, len)| Handle::checked(at, len, offset);
        let optional = |pair| if pair == (0, 0) { Ok(None) } else { required(pair).map(Some) };
        Ok(Self {
            properties: required(properties)?,
            top_index: required(top_index)?,
            filter_index: optional(filter_index)?,
            dictionary: optional(dictionary)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hex, unhex};

    fn footer() -> Footer {
        Footer {
            properties: Handle { offset: 100, len: 50 },
            top_index: Handle { offset: 60, len: 40 },
            filter_index: None,
            dictionary: Some(Handle { offset: 20, len: 40 }),
        }
    }

    /// Of file 0x0708090a0b0c0d0e, at 350: the lines are those of the drawing above.
    const STORED: &str = concat!(
        "2c010000000000003200000000000000",
        "dc000000000000005000000000000000",
        "96000000000000003c00000000000000",
        "64000000000000002800000000000000",
        "0e0d0c0b0a090807",
        "02000000",
        "00000000",
        "b95f1cd118812f57",
        "5445505549535354",
    );

    #[test]
    fn a_footer_on_a_disk_is_read_as_it_was_written() {
        let footer = Footer {
            properties: Handle { offset: 300, len: 50 },
            top_index: Handle { offset: 220, len: 80 },
            filter_index: Some(Handle { offset: 150, len: 60 }),
            dictionary: Some(Handle { offset: 100, len: 40 }),
        };
        let file = 0x0708_090a_0b0c_0d0e;
        let mut bytes = Vec::new();
        footer.encode(file, 350, &mut bytes);
        assert_eq!(hex(&bytes), STORED);
        assert_eq!(Footer::decode(&unhex(STORED), file, 350), Ok(footer));
    }

    #[test]
    fn a_footer_reads_back_only_at_its_own_place() {
        let mut bytes = Vec::new();
        footer().encode(9, 150, &mut bytes);
        assert_eq!(bytes.len(), FOOTER_LEN);
        assert_eq!(Footer::decode(&bytes, 9, 150), Ok(footer()));
        assert!(Footer::decode(&bytes, 9, 151).is_err());
        assert!(Footer::decode(&bytes, 10, 150).is_err());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::decode(&flipped, 9, 150).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(Footer::decode(&bytes[..len], 9, 150).is_err());
        }
    }

    #[test]
    fn a_file_of_another_version_is_told_from_a_damaged_one() {
        // The second has a bit in the zeros behind its version.
        for (version, word) in
            [(1u64, "version 1"), ((1 << 32) | 2, "does not know"), (3, "does not know")]
        {
            let mut bytes = Vec::new();
            footer().encode(9, 150, &mut bytes);
            bytes[72..80].copy_from_slice(&version.to_le_bytes());
            assert_eq!(Footer::newer_version(&bytes, 9, 150), None, "the checksum is another's");
            let checksum = footer_checksum(&bytes[..80], 9, 150);
            bytes[80..88].copy_from_slice(&checksum.to_le_bytes());
            let error = Footer::decode(&bytes, 9, 150).unwrap_err();
            assert!(error.what.contains(word), "{error:?}");
            assert_eq!(Footer::newer_version(&bytes, 9, 150), (version > 2).then_some(version));
            assert_eq!(Footer::newer_version(&bytes, 9, 151), None, "another place");
        }
    }

    #[test]
    fn a_flipped_version_is_damage() {
        let mut bytes = Vec::new();
        footer().encode(9, 150, &mut bytes);
        assert_eq!(Footer::newer_version(&bytes, 9, 150), None);
        bytes[72] ^= 1;
        assert_eq!(Footer::newer_version(&bytes, 9, 150), None);
        let error = Footer::decode(&bytes, 9, 150).unwrap_err();
        assert!(error.what.contains("checksum"), "{error:?}");
    }

    #[test]
    fn a_frame_follows_another_across_less_than_a_page() {
        let before = Handle { offset: 100, len: 50 };
        let at = |offset| Handle { offset, len: 10 };
        assert!(at(150).follows(before) && at(150 + PAGE_BYTES as u64 - 1).follows(before));
        assert!(!at(149).follows(before) && !at(150 + PAGE_BYTES as u64).follows(before));
    }

    #[test]
    fn a_handle_past_the_footer_is_refused() {
        let mut wrong = footer();
        wrong.properties.len = 51;
        let mut bytes = Vec::new();
        wrong.encode(9, 150, &mut bytes);
        assert!(Footer::decode(&bytes, 9, 150).is_err());
    }
}

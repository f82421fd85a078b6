//! Record files: the framing shared by commit-log segments, tablet manifests and the meta store.
//!
//! A record file is written once from its beginning to its end. It is the only kind of file whose tail
//! may be half-written after a crash, so its format must tell two things apart that look alike: a *torn
//! tail*, bytes that were never promised to anyone and may be cut; and *damage*, bytes that were synced
//! and promised and are not what they were. Cutting damage loses acknowledged writes in silence;
//! refusing to start over a torn tail makes every power loss an outage.
//!
//! ```text
//! file:    header, 32 bytes | record | record | ... | (zeros, where space was laid out ahead)
//!
//! header:  magic [8] | version u8 | zero [7] | file id u64 LE | xxh3-64 of the 24 bytes before, u64 LE
//!
//! record:  length u32 LE | check u32 LE | durable u64 LE | digest u64 LE | payload [length]
//!          |------------------- 24 bytes ------------------------------|
//!
//! check    the low half of xxh3-64 over (file id, offset of the record, length, durable), each u64 LE
//! durable  bytes of this file that were known to be synced when the record was written
//! digest   xxh3-64 of the payload, seeded with xxh3-64 over (file id, offset of the record)
//! ```
//!
//! Every checksum covers the file's id and the record's offset: a record that a disk or a copy put at
//! another offset, or in a file with another id, does not verify, and neither do the old bytes of a
//! recycled block. It does verify at its own offset of a file with the same id, which the magic in the
//! header is all that tells from its own: the lists of segments and of change files have id 1 each time
//! that they are written anew, the files of each tablet's manifest are numbered from 1 on, and so are
//! those of the meta store. There nothing tells older bytes of the same place from the file's.
//!
//! # Torn or damaged
//!
//! The reader takes records one after the other. Where the bytes at offset X are not a record that
//! verifies, it scans forward for one that does and says `durable > X`. Such a record is a *witness*: its
//! writer had seen a sync return that covered X, so X was promised, and what is there now is damage.
//!
//! ```text
//!        group 1, synced           group 2: its sync had not returned
//! | A  durable 32 | B  durable 32 || C  durable 120 | D  durable 120 |
//!   32              76               120              164
//!
//! B unreadable, C readable: C says that 120 bytes were synced, and B lies below: damage.
//! C unreadable, D readable: D says 120, too; C at 120 is not covered: a torn tail, cut at 120.
//!                           The disk wrote D's page before C's; nobody was promised either.
//! D unreadable:             nothing after it: a torn tail, cut at 164.
//! ```
//!
//! No witness by the end of the file means a torn tail: the file's valid length is X. A tail of zeros
//! alone is a clean end that is said to be cut by zero bytes. When B is the last synced group and
//! nothing was written after its sync there is no witness for it. The commit log therefore writes a
//! *marker* record after a moment of idleness, whose only content is its `durable`; a journal
//! ([`crate::manifest::journal`]) writes one behind every record; and a file that is known to be complete
//! (a segment with a successor) is read as [`Tail::Sealed`], in which every unreadable byte is damage. What
//! the framing alone cannot see is a file that was cut short exactly at a record's end; the commit log
//! closes that gap for sealed segments (`log::segment`).
//!
//! A record's header has a check of its own so that the scan costs one short hash per byte, and so that
//! a header that verifies can be believed: the scan then steps over the payload, never into it, and
//! bytes that a user stored are not searched for records.

mod file;
mod reader;
mod salvage;
mod writer;

pub use file::RecordFile;
pub use reader::{RecordReader, Tail, TailEnd};
pub use salvage::Salvage;
pub use writer::RecordWriter;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a file's header.
pub const FILE_HEADER_BYTES: u64 = 32;

/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: u64 = 24;

/// Bytes of one payload: a request is 256 MiB at most, and its encoding may need a little more. Larger
/// would let a damaged length ask for more memory; smaller would refuse a legal request.
pub const RECORD_BYTES_MAX: u64 = 300 << 20;

/// The framing's version, in every file header.
pub const FORMAT_VERSION: u8 = 1;

/// Ends the message of every error over damage.
pub(crate) const ADVICE: &str = "nothing was changed. Restore the file from a backup, or run \
     `tepui repair DIR` to keep what is readable";

/// What a file is for; the first bytes of its header.
pub type Magic = [u8; 8];

/// A record that verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where its header starts.
    pub offset: u64,
    /// Bytes of the file that were known to be synced when it was written.
    pub durable: u64,
    /// Its payload; may share memory with its neighbours.
    pub payload: Bytes,
}

/// The fields of a record's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    length: u64,
    durable: u64,
    digest: u64,
}

impl Header {
    fn encode(self, file_id: u64, offset: u64) -> [u8; RECORD_HEADER_BYTES as usize] {
        let mut bytes = [0; RECORD_HEADER_BYTES as usize];
        let parts: [&[u8]; 4] = [
            &(self.length as u32).to_le_bytes(),
            &header_check(file_id, offset, self.length, self.durable).to_le_bytes(),
            &self.durable.to_le_bytes(),
            &self.digest.to_le_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// The header at `offset` of a file of `file_len` bytes, if it verifies. The cheap tests come first.
    fn decode(bytes: &[u8], file_id: u64, offset: u64, file_len: u64) -> Option<Self> {
        let length = u64::from(u32::from_le_bytes(bytes.get(0..4)?.try_into().ok()?));
        let check = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?);
        let durable = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let digest = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        (durable <= offset
            && length <= RECORD_BYTES_MAX
            && offset < file_len
            && check == header_check(file_id, offset, length, durable))
        .then_some(Self { length, durable, digest })
    }

    /// The offset after the record.
    fn end(self, offset: u64) -> u64 {
        offset + RECORD_HEADER_BYTES + self.length
    }
}

fn header_check(file_id: u64, offset: u64, length: u64, durable: u64) -> u32 {
    let mut bytes = [0; 32];
    let fields = [file_id, offset, length, durable].map(u64::to_le_bytes);
    for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *to = from;
    }
    xxh3_64(&bytes) as u32
}

/// The seed of a payload's digest.
fn digest_seed(file_id: u64, offset: u64) -> u64 {
    let mut bytes = [0; 16];
    let fields = [file_id, offset].map(u64::to_le_bytes);
    for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *to = from;
    }
    xxh3_64(&bytes)
}

fn digest(file_id: u64, offset: u64, payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, digest_seed(file_id, offset))
}

fn encode_file_header(magic: Magic, file_id: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES as usize);
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&[FORMAT_VERSION, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&file_id.to_le_bytes());
    let check = xxh3_64(&bytes);
    bytes.extend_from_slice(&check.to_le_bytes());
    bytes
}

/// What a file header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// What the file is for.
    pub magic: Magic,
    /// The framing's version. The zeros behind it are read with it, so that a later version may use them.
    pub version: u64,
    /// The file's id.
    pub file_id: u64,
}

impl FileHeader {
    /// The header at the start of `bytes`, if it is whole and verifies.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, check) = bytes.get(..FILE_HEADER_BYTES as usize)?.split_at_checked(24)?;
        let check = u64::from_le_bytes(check.try_into().ok()?);
        let header = Self {
            magic: body.get(..8)?.try_into().ok()?,
            version: u64::from_le_bytes(body.get(8..16)?.try_into().ok()?),
            file_id: u64::from_le_bytes(body.get(16..24)?.try_into().ok()?),
        };
        (xxh3_64(body) == check).then_some(header)
    }
}

/// Whether the bytes at `at` of a file, of which these are all, are a record's header.
pub(crate) fn is_record_header(file: &[u8], file_id: u64, at: u64) -> bool {
    let bytes = file.get(at as usize..).unwrap_or_default();
    Header::decode(bytes, file_id, at, file.len() as u64).is_some()
}

/// The bytes of a file with a single record, as they are before its first sync.
pub fn first_image(magic: Magic, file_id: u64, payload: &[u8]) -> Vec<u8> {
    let offset = FILE_HEADER_BYTES;
    let digest = digest(file_id, offset, payload);
    let header = Header { length: payload.len() as u64, durable: 0, digest };
    let mut bytes = encode_file_header(magic, file_id);
    bytes.extend_from_slice(&header.encode(file_id, offset));
    bytes.extend_from_slice(payload);
    bytes
}

#[cfg(test)]
mod tests;

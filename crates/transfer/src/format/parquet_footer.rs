//! The schema in the footer of a Parquet file, looked at before it is believed: its reader makes room for as many columns
//! as a group says it has, and goes as deep as groups are nested.
//!
//! ```text
//! file = "PAR1", pages, FileMetaData, u32 LE bytes of it, "PAR1"
//! FileMetaData = 1: version, 2: list of SchemaElement, ...          Thrift, in its compact protocol
//! SchemaElement = 5: number of children, ...                        depth first, the root before all
//! ```

use parquet::errors::Result as ParquetResult;
use parquet::file::reader::ChunkReader;

/// How deep columns may be nested: those of rows are three deep.
const LEVELS_MAX: usize = 64;

const MAGIC: &[u8] = b"PAR1";
const TAIL_BYTES: u64 = 8;

/// The fields of the structures.
const SCHEMA: i64 = 2;
const CHILDREN: i64 = 5;

/// Types of Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;

/// Refuses a file whose schema claims more than it has. What else is wrong with the file, its reader says.
pub fn check(file: &impl ChunkReader) -> Result<(), String> {
    match footer(file) {
        Ok(Some(bytes)) => {
            let children = Thrift { bytes: &bytes }.children();
            check_tree(&children.ok_or("the schema in its footer is cut off or damaged")?)
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// The metadata at the end of a file; `None` where there is none.
fn footer(file: &impl ChunkReader) -> ParquetResult<Option<bytes::Bytes>> {
    let Some(at) = file.len().checked_sub(TAIL_BYTES) else { return Ok(None) };
    let tail = file.get_bytes(at, TAIL_BYTES as usize)?;
    let Some((length, magic)) = tail.split_first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length);
    match at.checked_sub(u64::from(length)) {
        Some(begin) if magic == MAGIC => file.get_bytes(begin, length as usize).map(Some),
        _ => Ok(None),
    }
}

/// Whether the elements, each with the number of its children, are one tree, and not too deep.
fn check_tree(children: &[i64]) -> Result<(), String> {
    // Of each group that the next element is in, how many of its children are still to come.
    let mut open: Vec<usize> = Vec::new();
    for (at, claimed) in children.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let behind = children.len() - at - 1;
        let Some(count) = usize::try_from(*claimed).ok().filter(|count| *count <= behind) else {
            return Err(format!(
                "a column of {claimed} columns in a schema that has {behind} more"
            ));
        };
        open.push(count);
        if open.len() > LEVELS_MAX {
            return Err(format!("columns nested more than {LEVELS_MAX} deep"));
        }
    }
    Ok(())
}

/// What is left of a structure. Every method is `None` where that ends too soon, or is none.
struct Thrift<'a> {
    bytes: &'a [u8],
}

impl<'a> Thrift<'a> {
    /// The number of children of each element of the schema; none where the metadata has no schema.
    fn children(&mut self) -> Option<Vec<i64>> {
        let mut children = Vec::new();
        let mut last = 0;
        while let (id, kind @ 1..) = self.field(&mut last)? {
            if id != SCHEMA || kind != LIST {
                self.skip(kind, LEVELS_MAX)?;
                continue;
            }
            let (kind, count) = self.list()?;
            if kind != STRUCT {
                return None;
            }
            // Each takes a byte at least, so this ends with the bytes, whatever the count is.
            for _ in 0..count {
                children.push(self.element()?);
            }
            break;
        }
        Some(children)
    }

    fn element(&mut self) -> Option<i64> {
        let (mut last, mut children) = (0, 0);
        while let (id, kind @ 1..) = self.field(&mut last)? {
            if id == CHILDREN && kind == I32 {
                children = self.integer()?;
            } else {
                self.skip(kind, LEVELS_MAX)?;
            }
        }
        Some(children)
    }

    /// The number and the type of the next field; the type is 0 at the end of a structure.
    fn field(&mut self, last: &mut i64) -> Option<(i64, u8)> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some((*last, 0));
        }
        *last = match byte >> 4 {
            0 => self.integer()?,
            delta => last.checked_add(i64::from(delta))?,
        };
        Some((*last, byte & 0x0f))
    }

    /// The type of a list's elements, and how many.
    fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Some((byte & 0x0f, count))
    }

    /// Passes over a field's value.
    fn skip(&mut self, kind: u8, levels: usize) -> Option<()> {
        let within = levels.checked_sub(1)?;
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.take(1).map(drop),
            I16..=I64 => self.varint().map(drop),
            DOUBLE => self.take(8).map(drop),
            BINARY => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.take(length).map(drop)
            }
            LIST | SET => {
                let (kind, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(kind, within))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_element(kinds >> 4, within)?;
                    self.skip_element(kinds & 0x0f, within)
                })
            }
            STRUCT => {
                let mut last = 0;
                while let (_, kind @ 1..) = self.field(&mut last)? {
                    self.skip(kind, within)?;
                }
                Some(())
            }
            _ => None,
        }
    }

    /// The same for an element, which has a byte also where a field has its value in its type.
    fn skip_element(&mut self, kind: u8, levels: usize) -> Option<()> {
        match kind {
            TRUE | FALSE => self.take(1).map(drop),
            kind => self.skip(kind, levels),
        }
    }

    fn integer(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::super::golden::golden_file;
    use super::*;

    /// A file that is nothing but a footer with a schema.
    fn file_of(children: &[i64]) -> Bytes {
        let mut footer = vec![0x15, 0x02, 0x19, 0xfc];
        assert!(children.len() < 0x80);
        footer.push(children.len() as u8);
        for count in children {
            // Field 5, of 32 bits.
            footer.push(0x55);
            let mut zigzag = (count << 1) as u64 ^ (count >> 63) as u64;
            while zigzag > 0x7f {
                footer.push(zigzag as u8 | 0x80);
                zigzag >>= 7;
            }
            footer.extend([zigzag as u8, 0]);
        }
        footer.push(0);
        let length = footer.len() as u32;
        [b"PAR1", &footer[..], &length.to_le_bytes(), b"PAR1"].concat().into()
    }

    #[test]
    fn a_schema_that_is_no_tree_of_its_columns_or_too_deep_is_refused() {
        check(&file_of(&[2, 0, 1, 0])).unwrap();
        check(&file_of(&[])).unwrap();
        for (children, word) in [
            (&[1][..], "a column of 1 columns"),
            (&[2, i64::from(i32::MAX), 0], "a column of 2147483647 columns"),
            (&[-1, 0], "a column of -1 columns"),
            (&[1; 100], "deep"),
        ] {
            let error = check(&file_of(children)).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_schema_that_others_wrote_is_read_and_one_that_is_cut_off_refused() {
        let mut whole = Vec::new();
        crate::files::open(&golden_file("rows.parquet")).unwrap().read_to_end(&mut whole).unwrap();
        let whole = Bytes::from(whole);
        let bytes = footer(&whole).unwrap().unwrap();
        let children = Thrift { bytes: &bytes }.children().unwrap();
        assert_eq!(children, [2, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(Thrift { bytes: &bytes[..20] }.children(), None);
        check(&whole).unwrap();
        assert!(footer(&whole.slice(..whole.len() - 1)).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let length = bytes.len() as u32;
            let file = [&bytes[..], &length.to_le_bytes(), b"PAR1"].concat();
            let _ = check(&Bytes::from(file));
            let _ = Thrift { bytes: &bytes }.skip(STRUCT, LEVELS_MAX);
        }
    }
}

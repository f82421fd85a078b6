//! Cells as HBase's `KeyValueCodec` writes them behind a message.
//!
//! ```text
//! cell: length u32 | key length u32 | value length u32 | key | value        all big-endian
//! key:  row length u16 | row | family length u8 | family | qualifier | timestamp u64 | type u8
//! ```

use tepui_bench::{Error, Result};

/// Bytes of a key behind the qualifier: timestamp and type.
const KEY_TAIL_BYTES: usize = 9;

/// A cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell<'a> {
    /// The row's key.
    pub row: &'a [u8],
    /// The column, without its family.
    pub qualifier: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Cells one behind the other.
#[derive(Debug)]
pub struct Cells<'a>(pub &'a [u8]);

fn number<const N: usize>(bytes: &mut &[u8]) -> Option<usize> {
    let (number, rest) = bytes.split_at_checked(N)?;
    *bytes = rest;
    Some(number.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
}

fn part<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (part, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

impl<'a> Cells<'a> {
    fn take(&mut self) -> Option<Cell<'a>> {
        let length = number::<4>(&mut self.0)?;
        let mut cell = part(&mut self.0, length)?;
        let (key_length, value_length) = (number::<4>(&mut cell)?, number::<4>(&mut cell)?);
        let mut key = part(&mut cell, key_length)?;
        // Tags may follow, which nobody wrote.
        let value = part(&mut cell, value_length)?;
        let row_length = number::<2>(&mut key)?;
        let row = part(&mut key, row_length)?;
        let family_length = number::<1>(&mut key)?;
        part(&mut key, family_length)?;
        let (qualifier, _) = key.split_at_checked(key.len().checked_sub(KEY_TAIL_BYTES)?)?;
        Some(Cell { row, qualifier, value })
    }

    /// The next cell, which must be there.
    pub fn next(&mut self) -> Result<Cell<'a>> {
        self.take().ok_or_else(|| Error::failed("HBase sent a block of cells that breaks off"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row `r`, the family `cf`, the qualifier `field0`, the value `v`.
    fn block() -> Vec<u8> {
        let mut key = vec![0, 1, b'r', 2, b'c', b'f'];
        key.extend(b"field0");
        key.extend([0, 0, 0, 0, 0, 0, 0, 7, 4]);
        let mut cell = u32::try_from(key.len()).unwrap().to_be_bytes().to_vec();
        cell.extend([0, 0, 0, 1]);
        cell.extend(&key);
        cell.push(b'v');
        let mut block = u32::try_from(cell.len()).unwrap().to_be_bytes().to_vec();
        block.extend(cell);
        block
    }

    #[test]
    fn cells_come_one_after_the_other() {
        let two = [block(), block()].concat();
        let mut cells = Cells(&two);
        let cell = Cell { row: b"r", qualifier: b"field0", value: b"v" };
        assert_eq!((cells.next().unwrap(), cells.next().unwrap()), (cell, cell));
        assert!(cells.next().is_err());
    }

    #[test]
    fn a_block_that_breaks_off_or_lies_is_an_error() {
        let whole = block();
        for length in 0..whole.len() {
            assert!(Cells(&whole[..length]).next().is_err(), "{length}");
        }
        for at in 0..12 {
            let mut wrong = whole.clone();
            wrong[at] = 0xff;
            assert!(Cells(&wrong).next().is_err(), "{at}");
        }
    }
}

//! Hadoop's integers of variable length: one byte for -112 to 127; else a byte that says the sign and how many
//! bytes follow, big endian, of the number or, where it is negative, of its complement.

use std::io::Read;

/// Writes one.
pub fn put(output: &mut Vec<u8>, value: i64) {
    if (-112..=127).contains(&value) {
        output.push(value as i8 as u8);
        return;
    }
    let (magnitude, first) = if value < 0 { (!value as u64, -120) } else { (value as u64, -112) };
    let bytes = 8 - magnitude.leading_zeros() as usize / 8;
    output.push((first - bytes as i8) as u8);
    output.extend(magnitude.to_be_bytes().into_iter().skip(8 - bytes));
}

/// Reads one; none where the input ends before its first byte.
pub fn read(input: &mut impl Read) -> std::io::Result<Option<i64>> {
    let mut first = [0];
    if input.read(&mut first)? == 0 {
        return Ok(None);
    }
    rest(first, input).map(Some)
}

/// Reads one that must be there.
pub fn expect(input: &mut impl Read) -> std::io::Result<i64> {
    let mut first = [0];
    input.read_exact(&mut first)?;
    rest(first, input)
}

fn rest([first]: [u8; 1], input: &mut impl Read) -> std::io::Result<i64> {
    let first = first as i8;
    let (bytes, negative) = match first {
        -112.. => return Ok(i64::from(first)),
        -120..=-113 => (-112 - i16::from(first), false),
        _ => (-120 - i16::from(first), true),
    };
    let mut value = 0u64;
    for _ in 0..bytes {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        value = value << 8 | u64::from(byte[0]);
    }
    Ok(if negative { !(value as i64) } else { value as i64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_hadoops_bytes() {
        for (value, bytes) in [
            (0, &[0][..]),
            (127, &[0x7f]),
            (-112, &[0x90]),
            (128, &[0x8f, 0x80]),
            (255, &[0x8f, 0xff]),
            (256, &[0x8e, 0x01, 0x00]),
            (-113, &[0x87, 0x70]),
            (-256, &[0x87, 0xff]),
            (-257, &[0x86, 0x01, 0x00]),
            (i64::MAX, &[0x88, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            (i64::MIN, &[0x80, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ] {
            let mut written = Vec::new();
            put(&mut written, value);
            assert_eq!(written, bytes, "{value}");
            assert_eq!(expect(&mut &bytes[..]).unwrap(), value);
            assert_eq!(read(&mut &bytes[..]).unwrap(), Some(value));
            if bytes.len() > 1 {
                assert!(expect(&mut &bytes[..bytes.len() - 1]).is_err());
            }
        }
        assert_eq!(read(&mut &b""[..]).unwrap(), None);
    }
}

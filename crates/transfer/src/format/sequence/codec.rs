//! Hadoop's compression codecs. Zlib is what Google's template writes; the others are read for HBase's exports.
//!
//! Snappy and LZ4 have no frame of their own; Hadoop cuts what it compresses into chunks:
//!
//! ```text
//! ( u32 bytes once decompressed, ( u32 length, compressed chunk )+ )*
//! ```

use std::io::{Cursor, Read, Write as _};

use crate::error::{Error, Result};

/// A codec, by its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    Zlib,
    Gzip,
    Bzip2,
    Zstd,
    Snappy,
    Lz4,
}

/// The class that stands for zlib, which is what is written.
pub const ZLIB_CLASS: &str = "org.apache.hadoop.io.compress.DefaultCodec";

/// What a byte of LZ4 stands for at most: one that adds its value to the length of a match, its format has it.
const LZ4_EXPANSION_MAX: usize = 255;
/// What else the first and the last byte of a match stand for, rounded up.
const LZ4_EXPANSION_EXTRA: usize = 64;

impl Codec {
    /// The codec of a class.
    pub fn of_class(class: &str) -> Result<Self> {
        let name = class.strip_prefix("org.apache.hadoop.io.compress.").unwrap_or(class);
        match name {
            "DefaultCodec" | "DeflateCodec" => Ok(Self::Zlib),
            "GzipCodec" => Ok(Self::Gzip),
            "BZip2Codec" => Ok(Self::Bzip2),
            "ZStandardCodec" => Ok(Self::Zstd),
            "SnappyCodec" => Ok(Self::Snappy),
            "Lz4Codec" => Ok(Self::Lz4),
            _ => Err(Error::failed(format!("compressed with {class}, which is not known here"))),
        }
    }

    /// Decompresses; an error where that makes more than `bytes_max`.
    pub fn decompress(self, compressed: &[u8], bytes_max: usize) -> Result<Vec<u8>> {
        let mut output = Vec::new();
        let read = |reader: &mut dyn Read, output: &mut Vec<u8>| {
            reader.take(bytes_max as u64 + 1).read_to_end(output)
        };
        let done = match self {
            Self::Zlib => read(&mut flate2::read::ZlibDecoder::new(compressed), &mut output),
            Self::Gzip => read(&mut flate2::read::MultiGzDecoder::new(compressed), &mut output),
            Self::Bzip2 => read(&mut bzip2::read::MultiBzDecoder::new(compressed), &mut output),
            Self::Zstd => zstd::stream::read::Decoder::with_buffer(compressed)
                .and_then(|mut decoder| read(&mut decoder, &mut output)),
            Self::Snappy | Self::Lz4 => self.chunks(compressed, bytes_max, &mut output),
        };
        done.map_err(|error| Error::failed(format!("{self:?}: {error}")))?;
        if output.len() > bytes_max {
            return Err(Error::failed(format!("{self:?}: more than {bytes_max} bytes at once")));
        }
        Ok(output)
    }

    fn chunks(
        self,
        compressed: &[u8],
        bytes_max: usize,
        output: &mut Vec<u8>,
    ) -> std::io::Result<usize> {
        let wrong = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidData, why);
        let mut input = Cursor::new(compressed);
        let length = compressed.len() as u64;
        while input.position() < length {
            let end = output.len() + number(&mut input)?;
            if end > bytes_max {
                return Err(wrong(format!("more than {bytes_max} bytes at once")));
            }
            while output.len() < end {
                let bytes = number(&mut input)?;
                let from = input.position() as usize;
                let chunk = compressed.get(from..from.saturating_add(bytes));
                let chunk = chunk.ok_or_else(|| wrong("a chunk is cut off".to_owned()))?;
                input.set_position((from + bytes) as u64);
                let room = end - output.len();
                let plain = match self {
                    Self::Snappy => {
                        let claimed = snap::raw::decompress_len(chunk);
                        if claimed.map_err(|e| wrong(e.to_string()))? > room {
                            return Err(wrong("a chunk is larger than its block".to_owned()));
                        }
                        let plain = snap::raw::Decoder::new().decompress_vec(chunk);
                        plain.map_err(|e| wrong(e.to_string()))?
                    }
                    _ => {
                        // So much is made and cleared for each chunk: by what is claimed, it would be a gigabyte for one of a byte.
                        let most = chunk.len() * LZ4_EXPANSION_MAX + LZ4_EXPANSION_EXTRA;
                        lz4_flex::block::decompress(chunk, room.min(most))
                            .map_err(|e| wrong(e.to_string()))?
                    }
                };
                if plain.is_empty() || plain.len() > room {
                    return Err(wrong("a chunk is not what its block says".to_owned()));
                }
                output.extend_from_slice(&plain);
            }
        }
        Ok(output.len())
    }
}

fn number(input: &mut impl Read) -> std::io::Result<usize> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes) as usize)
}

/// Compresses as [`ZLIB_CLASS`] does it.
pub fn zlib(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Codec; 6] =
        [Codec::Zlib, Codec::Gzip, Codec::Bzip2, Codec::Zstd, Codec::Snappy, Codec::Lz4];

    fn framed(chunks: &[(usize, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (plain, chunk) in chunks {
            bytes.extend((*plain as u32).to_be_bytes());
            bytes.extend((chunk.len() as u32).to_be_bytes());
            bytes.extend(chunk);
        }
        bytes
    }

    fn compressed(codec: Codec, plain: &[u8]) -> Vec<u8> {
        match codec {
            Codec::Zlib => zlib(plain).unwrap(),
            Codec::Gzip => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            Codec::Bzip2 => {
                let mut encoder =
                    bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
                encoder.write_all(plain).unwrap();
                encoder.finish().unwrap()
            }
            Codec::Zstd => zstd::encode_all(plain, 1).unwrap(),
            Codec::Snappy => framed(
                &plain
                    .chunks(100)
                    .map(|c| (c.len(), snap::raw::Encoder::new().compress_vec(c).unwrap()))
                    .collect::<Vec<_>>(),
            ),
            Codec::Lz4 => framed(
                &plain
                    .chunks(100)
                    .map(|c| (c.len(), lz4_flex::block::compress(c)))
                    .collect::<Vec<_>>(),
            ),
        }
    }

    #[test]
    fn what_is_compressed_comes_back_and_no_more_than_was_allowed() {
        let plain: Vec<u8> = (0..1000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        for codec in ALL {
            let bytes = compressed(codec, &plain);
            assert_eq!(codec.decompress(&bytes, plain.len()).unwrap(), plain, "{codec:?}");
            assert!(codec.decompress(&bytes, plain.len() - 1).is_err(), "{codec:?}");
            assert!(codec.decompress(&bytes[..bytes.len() - 9], plain.len()).is_err(), "{codec:?}");
        }
    }

    #[test]
    fn many_tiny_chunks_of_a_large_block_take_no_longer_than_their_bytes() {
        // A chunk of one byte clears no more than that: clearing what the block claims for each would be some terabytes.
        let (tiny, claimed) = (200_000, 30 << 20);
        let chunk = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
        let rest = lz4_flex::block::compress(&vec![0; claimed - tiny]);
        let begun = [&(claimed as u32).to_be_bytes()[..], &chunk(&[0x10, 7]).repeat(tiny)].concat();
        let bytes = [begun, chunk(&rest)].concat();
        let plain = Codec::Lz4.decompress(&bytes, 1 << 30).unwrap();
        assert_eq!(plain.len(), claimed);
        assert!(plain.starts_with(&vec![7; tiny]) && plain.ends_with(&vec![0; claimed - tiny]));
    }

    #[test]
    fn an_unknown_codec_is_named() {
        let error = Codec::of_class("com.hadoop.compression.lzo.LzoCodec").unwrap_err();
        assert!(error.to_string().contains("LzoCodec"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decompressed_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for codec in ALL {
                if let Ok(plain) = codec.decompress(&bytes, 10_000) {
                    prop_assert!(plain.len() <= 10_000);
                }
            }
        }
    }
}

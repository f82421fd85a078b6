//! Fingerprint2011, the hash that Google's sketches are made with: whoever counts the same value elsewhere
//! (BigQuery, ZetaSketch) gets the same sketch.
//!
//! Source: Geoff Pike's function as Guava publishes it (`Hashing.fingerprint2011`, Apache License 2.0), in 64-bit
//! arithmetic that wraps, bytes loaded little-endian.

#![expect(clippy::many_single_char_names, reason = "the names of the published function")]

const K0: u64 = 0xa5b8_5c5e_198e_d849;
const K1: u64 = 0x8d58_ac26_afe1_2e47;
const K2: u64 = 0xc47b_6e9e_3a97_0ed3;
const K3: u64 = 0xc6a4_a793_5bd1_e995;

/// Bytes up to which the short form is used.
const SHORT_MAX: usize = 32;
/// Bytes up to which the middle form is used, and of one step of the long form.
const BLOCK: usize = 64;

/// The fingerprint of `bytes`; never 0 or 1.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    let result = if bytes.len() <= SHORT_MAX {
        short(bytes, K0 ^ K1 ^ K2)
    } else if bytes.len() <= BLOCK {
        middle(bytes)
    } else {
        long(bytes)
    };
    let first = if bytes.len() >= 8 { load(bytes, 0) } else { K0 };
    let last = if bytes.len() >= 9 { load_from_end(bytes, 8) } else { K0 };
    match join(result.wrapping_add(last), first) {
        reserved @ (0 | 1) => reserved.wrapping_sub(2),
        result => result,
    }
}

/// Eight bytes at `at`; those past the end are zeros.
fn load(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    for (to, from) in word.iter_mut().zip(rest) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}

/// Eight bytes that begin `back` before the end.
fn load_from_end(bytes: &[u8], back: usize) -> u64 {
    load(bytes, bytes.len().saturating_sub(back))
}

fn mix(value: u64) -> u64 {
    value ^ (value >> 47)
}

fn join(high: u64, low: u64) -> u64 {
    let a = mix((low ^ high).wrapping_mul(K3));
    mix((high ^ a).wrapping_mul(K3)).wrapping_mul(K3)
}

/// Murmur's, with a seed.
fn short(bytes: &[u8], seed: u64) -> u64 {
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(K3);
    for word in words {
        hash = (hash ^ mix(load(word, 0).wrapping_mul(K3)).wrapping_mul(K3)).wrapping_mul(K3);
    }
    if !rest.is_empty() {
        hash = (hash ^ load(rest, 0)).wrapping_mul(K3);
    }
    mix(mix(hash).wrapping_mul(K3))
}

fn middle(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    let mut z = load(bytes, 24);
    let mut a =
        load(bytes, 0).wrapping_add(length.wrapping_add(load_from_end(bytes, 16)).wrapping_mul(K0));
    let mut b = a.wrapping_add(z).rotate_right(52);
    let mut c = a.rotate_right(37);
    a = a.wrapping_add(load(bytes, 8));
    c = c.wrapping_add(a.rotate_right(7));
    a = a.wrapping_add(load(bytes, 16));
    let head = (a.wrapping_add(z), b.wrapping_add(a.rotate_right(31)).wrapping_add(c));
    a = load(bytes, 16).wrapping_add(load_from_end(bytes, 32));
    z = load_from_end(bytes, 8);
    b = a.wrapping_add(z).rotate_right(52);
    c = a.rotate_right(37);
    a = a.wrapping_add(load_from_end(bytes, 24));
    c = c.wrapping_add(a.rotate_right(7));
    a = a.wrapping_add(load_from_end(bytes, 16));
    let tail = (a.wrapping_add(z), b.wrapping_add(a.rotate_right(31)).wrapping_add(c));
    let r = mix(head
        .0
        .wrapping_add(tail.1)
        .wrapping_mul(K2)
        .wrapping_add(tail.0.wrapping_add(head.1).wrapping_mul(K0)));
    mix(r.wrapping_mul(K0).wrapping_add(head.1)).wrapping_mul(K2)
}

/// 32 bytes at `at` and two seeds as two words.
fn weak(bytes: &[u8], at: usize, mut a: u64, mut b: u64) -> (u64, u64) {
    let parts = [0, 8, 16, 24].map(|part| load(bytes, at + part));
    let [first, second, third, fourth] = parts;
    a = a.wrapping_add(first);
    b = b.wrapping_add(a).wrapping_add(fourth).rotate_right(51);
    let c = a;
    a = a.wrapping_add(second).wrapping_add(third);
    b = b.wrapping_add(a.rotate_right(23));
    (a.wrapping_add(fourth), b.wrapping_add(c))
}

fn long(bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    let from_end = |back: usize| bytes.len().saturating_sub(back);
    let mut x = load(bytes, 0);
    let mut y = load_from_end(bytes, 16) ^ K1;
    let mut z = load_from_end(bytes, 56) ^ K0;
    let mut v = weak(bytes, from_end(64), length, y);
    let mut w = weak(bytes, from_end(32), length.wrapping_mul(K1), K0);
    z = z.wrapping_add(mix(v.1).wrapping_mul(K1));
    x = z.wrapping_add(x).rotate_right(39).wrapping_mul(K1);
    y = y.rotate_right(33).wrapping_mul(K1);
    // The last bytes, 1 to 64 of them, were taken in above.
    for at in (0..bytes.len().saturating_sub(1) / BLOCK).map(|block| block * BLOCK) {
        x = x
            .wrapping_add(y)
            .wrapping_add(v.0)
            .wrapping_add(load(bytes, at + 16))
            .rotate_right(37)
            .wrapping_mul(K1);
        y = y
            .wrapping_add(v.1)
            .wrapping_add(load(bytes, at + 48))
            .rotate_right(42)
            .wrapping_mul(K1);
        x ^= w.1;
        y ^= v.0;
        z = (z ^ w.0).rotate_right(33);
        v = weak(bytes, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
        w = weak(bytes, at + 32, z.wrapping_add(w.1), y);
        std::mem::swap(&mut z, &mut x);
    }
    join(
        join(v.0, w.0).wrapping_add(mix(y).wrapping_mul(K1)).wrapping_add(z),
        join(v.1, w.1).wrapping_add(x),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Guava's own tests.
    #[test]
    fn fingerprints_are_those_that_guava_publishes() {
        let of =
            |text: &str, times: usize| fingerprint(text.repeat(times).as_bytes()).cast_signed();
        assert_eq!(of("test", 1), 8_473_225_671_271_759_044);
        assert_eq!(of("test", 8), 7_345_148_637_025_587_076);
        assert_eq!(of("test", 64), 4_904_844_928_629_814_570);
        let bytes = [1, 1, 0, 1, 0, 0, 0, 0];
        assert_eq!(fingerprint(&bytes).cast_signed(), -7_885_230_138_691_441_470);
        assert_eq!(short(b"test", 1), 1_618_900_948_208_871_284);
        assert_eq!(short(b"test test test", 1), 12_313_169_684_067_793_560);
    }

    /// Guava's test over inputs of all lengths up to 3,200 bytes, each made from the fingerprints before.
    #[test]
    fn fingerprints_of_all_lengths_are_those_that_guava_publishes() {
        const ITERATIONS: usize = 800;
        let remix = |hash: u64| (hash ^ (hash >> 41)).wrapping_mul(949_921_979);
        let letter = |hash: u64| b'a' + ((hash & 0xf_ffff) % 26) as u8;
        let mut bytes = vec![0_u8; ITERATIONS * 4];
        let (mut len, mut hash) = (0_usize, 0_u64);
        for i in 0..ITERATIONS {
            for step in 0..4 {
                let until = match step {
                    0 => i,
                    1 => i * i % len,
                    2 => i * i * i % len,
                    _ => len,
                };
                hash = remix(hash ^ fingerprint(&bytes[..until]));
                bytes[len] = letter(hash);
                len += 1;
            }
            let x = |at: usize| usize::from(bytes[at]);
            let (x0, x1, x2) = (x(len - 1), x(len - 2), x(len - 3));
            let x3 = bytes[len / 2];
            bytes[((x0 << 16) + (x1 << 8) + x2) % len] ^= x3;
            let x3 = usize::from(x3);
            bytes[((x1 << 16) + (x2 << 8) + x3) % len] ^= (i % 256) as u8;
        }
        assert_eq!(hash, 0xeaa3_b1c9_8526_1632);
    }
}

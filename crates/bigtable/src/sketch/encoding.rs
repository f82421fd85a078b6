//! How a sketch writes down where a hash falls: indexes of registers, runs of zeros, and the two in one number.
//!
//! A hash is cut into an index and a rest; what counts of the rest is ρ, the length of its leading run of zeros and
//! one more. With the precision p the index has p bits; a sparse sketch keeps a longer one, of sp bits:
//!
//! ```text
//! hash     iiiiiiiiiiiiiii jjjjj rrrrrrrrrrrr...      p = 15 bits, sp - p = 5 bits, the rest
//! sparse   value = iiiiiiiiiiiiiiijjjjj               where j is not all zeros: ρ at p follows from j
//!          value = flag | iiiiiiiiiiiiiii | ρ(rest)   where j is all zeros; ρ takes 6 bits
//!          flag  = bit max(sp, p + 6)
//! ```
//!
//! Source: ZetaSketch's description of version 2 in `hllplus-unique.proto` (Google, Apache License 2.0).

/// Bits of ρ in a flagged value.
const RHO_BITS: u32 = 6;

/// The precisions of a sketch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Bits of the index of a register.
    pub normal: u32,
    /// Bits of the index of a sparse value; at least as many.
    pub sparse: u32,
}

impl Precision {
    /// The least bits of an index that the format allows.
    pub const NORMAL_MIN: u32 = 10;
    /// The most.
    pub const NORMAL_MAX: u32 = 24;
    /// The most of a sparse index.
    pub const SPARSE_MAX: u32 = 25;

    /// The number of registers.
    pub const fn registers(self) -> usize {
        1 << self.normal
    }

    /// The largest ρ of a register.
    pub const fn rho_max(self) -> u8 {
        (64 - self.normal + 1) as u8
    }

    /// Bits by which a sparse index is longer.
    const fn more(self) -> u32 {
        self.sparse - self.normal
    }

    /// What tells a value with a ρ from one without.
    pub const fn flag(self) -> u32 {
        let bits =
            if self.sparse > self.normal + RHO_BITS { self.sparse } else { self.normal + RHO_BITS };
        1 << bits
    }

    /// What a sparse value says but for its ρ: values of the same key are of the same index, and ascend as their
    /// keys do.
    pub const fn key(self, value: u32) -> u32 {
        if value & self.flag() == 0 { value } else { value & !((1 << RHO_BITS) - 1) }
    }

    /// The sparse value of a hash.
    pub fn value(self, hash: u64) -> u32 {
        let index = (hash >> (64 - self.sparse)) as u32;
        self.value_of(index, rho(hash, 64 - self.sparse))
    }

    fn value_of(self, index: u32, rho_of_rest: u8) -> u32 {
        if index & mask(self.more()) != 0 {
            index
        } else {
            self.flag() | ((index >> self.more()) << RHO_BITS) | u32::from(rho_of_rest)
        }
    }

    /// Takes a sparse value apart; `None` for one that no hash has.
    pub fn parse(self, value: u32) -> Option<Sparse> {
        if value & self.flag() == 0 {
            let is_valid = value < 1 << self.sparse && value & mask(self.more()) != 0;
            return is_valid.then_some(Sparse { index: value, rho_of_rest: None });
        }
        let register = (value ^ self.flag()) >> RHO_BITS;
        let rho = (value & mask(RHO_BITS)) as u8;
        let is_valid = value < self.flag() << 1
            && register < 1 << self.normal
            && (1..=64 - self.sparse + 1).contains(&u32::from(rho));
        is_valid.then_some(Sparse { index: register << self.more(), rho_of_rest: Some(rho) })
    }

    /// The register of a sparse value, and its ρ.
    pub fn register(self, sparse: Sparse) -> (usize, u8) {
        let register = (sparse.index >> self.more()) as usize;
        let rho = match sparse.rho_of_rest {
            None => rho(u64::from(sparse.index), self.more()),
            Some(rho) => rho + self.more() as u8,
        };
        (register, rho)
    }

    /// The sparse value of another precision in this one, which must be less by both.
    pub fn lower(self, from: Self, sparse: Sparse) -> u32 {
        let less = from.sparse - self.sparse;
        // Where no ρ is kept, some of the lower bits are set: in those cut off, or in those that are not, and
        // then none is needed here either.
        let rho_of_rest = shortened(sparse.index, sparse.rho_of_rest.unwrap_or(1), less);
        self.value_of(sparse.index >> less, rho_of_rest)
    }

    /// A register of another precision in this one, which must be less or the same: its index, and its ρ.
    pub fn lower_register(self, from: Self, register: usize, rho: u8) -> (usize, u8) {
        let less = from.normal - self.normal;
        (register >> less, shortened(register as u32, rho, less))
    }
}

/// A sparse value, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sparse {
    index: u32,
    /// Of the bits behind the index; only where the index alone does not give the ρ of its register.
    rho_of_rest: Option<u8>,
}

/// ρ of the bits behind an index that loses its last `less` bits, where `rho` was that of those behind all of it.
fn shortened(index: u32, before: u8, less: u32) -> u8 {
    if index & mask(less) == 0 { before + less as u8 } else { rho(u64::from(index), less) }
}

/// The leading zeros of the last `bits` bits, and one more. At most 64 bits.
fn rho(word: u64, bits: u32) -> u8 {
    let rest = word.checked_shl(64 - bits).unwrap_or(0);
    (rest.leading_zeros().min(bits) + 1) as u8
}

/// The last `bits` bits, fewer than 32.
const fn mask(bits: u32) -> u32 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rho_counts_leading_zeros_and_one_more() {
        assert_eq!(rho(0b0001, 4), 4);
        assert_eq!(rho(0b1000, 4), 1);
        assert_eq!(rho(0b1_0000, 4), 5);
        assert_eq!(rho(0, 0), 1);
        assert_eq!(rho(1, 64), 64);
    }

    proptest! {
        #[test]
        fn a_hash_means_the_same_by_every_way_to_a_lower_precision(
            // Hashes with long runs of zeros, which are what is hard, come as often as others.
            hash in any::<u64>(),
            kept in 0..64_u32,
            (normal, sparse) in (15..=24_u32).prop_flat_map(|n| (Just(n), n.max(20)..=25)),
        ) {
            let hash = hash & !(u64::MAX >> kept);
            let (from, to) = (Precision { normal, sparse }, Precision { normal: 15, sparse: 20 });
            let value = from.value(hash);
            let parsed = from.parse(value).unwrap();
            prop_assert_eq!(to.lower(from, parsed), to.value(hash));
            let direct = to.register(to.parse(to.value(hash)).unwrap());
            let (register, rho) = from.register(parsed);
            prop_assert_eq!(to.lower_register(from, register, rho), direct);
            prop_assert_eq!(direct.0, (hash >> 49) as usize);
            prop_assert!(direct.1 <= to.rho_max());
        }
    }
}

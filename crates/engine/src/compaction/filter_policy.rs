//! Which filter each level gets: the fewest false reads for a given memory.
//!
//! A point read of an absent row asks the filter of every run (an L0 file, or a level). What it reads in vain
//! is the sum of their false-positive rates, whatever their sizes; what a filter costs is bits times entries.
//! So bits are spent where they are cheap: the optimum makes each run's rate proportional to its size
//! (Dayan, Athanassoulis, Idreos, "Monkey", 2017). The last level has most of the entries and gets the form
//! that is smallest for what it does; the small runs above it get twice its bits for a fraction of its memory.
//!
//! ```text
//! a full tree    entries   12 bits everywhere   this policy, 11.7 bits on average
//! L0, 4 files    2 % each  0.62 % each          Bloom, 20 bits   0.1 % each
//! next to last   8 %       0.62 %               fuse, 16 bits    0.002 %
//! last           83 %      0.62 %               fuse, 8 bits     0.4 %
//! in vain                  3.7 reads of 100     0.8 reads of 100
//! ```
//!
//! Forms come in steps, so the optimum is looked for among them: for a price per bit, each run takes the form
//! with the least (rate + price x bits x share); the price is the smallest that keeps to the memory. Flushes
//! and L0 files are always Bloom, which is built in a fraction of the time; they are rewritten soon.

use super::shape::LAST_LEVEL;
use crate::options::EngineOptions;
use crate::sst::FilterKind;

/// A filter as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) kind: FilterKind,
    /// Bits per key of a Bloom filter, and of the one that stands in where a fuse filter cannot be built.
    pub(crate) bits_per_key: u32,
}

/// A form to choose: bits per entry and false positives, as measured on partitions of a page.
#[derive(Debug, Clone, Copy)]
struct Form {
    filter: Filter,
    bits: f64,
    rate: f64,
}

/// False positives of cache-line-blocked Bloom filters by bits per key, from the first. Beyond 20 bits the
/// lines that happen to be fuller decide, and more bits gain next to nothing.
const BLOOM_BITS_MIN: u32 = 4;
const BLOOM_RATES: [f64; 17] = [
    0.160, 0.105, 0.068, 0.046, 0.031, 0.019, 0.0125, 0.0091, 0.0062, 0.0046, 0.0034, 0.0027,
    0.0021, 0.0017, 0.0014, 0.0012, 0.0010,
];

/// Bits per entry of fuse filters: slots of 1.25 entries.
const FUSE8_BITS: f64 = 10.0;
const FUSE16_BITS: f64 = 20.0;

/// Halvings of the search for a price: it starts between 0 and 1 and ends finer than any two forms differ.
const PRICE_STEPS: u32 = 50;

/// A part of the tree that a read asks as one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Run {
    /// Its part of all entries.
    pub(crate) share: f64,
    /// Whether it may only have a Bloom filter.
    pub(crate) bloom: bool,
}

fn forms(bloom: bool) -> impl Iterator<Item = Form> {
    let blooms = BLOOM_RATES.iter().zip(BLOOM_BITS_MIN..).map(|(rate, bits)| Form {
        filter: Filter { kind: FilterKind::Bloom, bits_per_key: bits },
        bits: f64::from(bits),
        rate: *rate,
    });
    let fuses = [
        (FilterKind::Fuse8, FUSE8_BITS, 1.0 / 256.0),
        (FilterKind::Fuse16, FUSE16_BITS, 1.0 / 65536.0),
    ];
    let fuses = fuses.into_iter().filter(move |_| !bloom).map(|(kind, bits, rate)| Form {
        filter: Filter { kind, bits_per_key: bits as u32 },
        bits,
        rate,
    });
    blooms.chain(fuses)
}

/// The form of a run at a price per bit.
fn choose(run: Run, price: f64) -> Option<Form> {
    let cost = |form: &Form| form.rate + price * form.bits * run.share;
    forms(run.bloom).min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// Bits per entry on average, and reads in vain per read of an absent row.
#[cfg(test)]
fn figures(runs: &[Run], filters: &[Filter]) -> (f64, f64) {
    let chosen = runs.iter().zip(filters).filter_map(|(run, filter)| {
        forms(false).find(|form| form.filter == *filter).map(|form| (run.share, form))
    });
    chosen.fold((0.0, 0.0), |(bits, rate), (share, form)| {
        (bits + share * form.bits, rate + form.rate)
    })
}

/// The filters with the fewest reads in vain whose memory is at most `bits` per entry on average; the smallest
/// there are, where that is less.
pub(crate) fn assign(runs: &[Run], bits: f64) -> Vec<Filter> {
    let at =
        |price: f64| -> Vec<Form> { runs.iter().filter_map(|run| choose(*run, price)).collect() };
    let memory = |forms: &[Form]| -> f64 {
        runs.iter().zip(forms).map(|(run, form)| run.share * form.bits).sum()
    };
    let (mut cheap, mut dear) = (0.0, 1.0);
    for _ in 0..PRICE_STEPS {
        let middle = f64::midpoint(cheap, dear);
        if memory(&at(middle)) > bits {
            cheap = middle;
        } else {
            dear = middle;
        }
    }
    at(dear).into_iter().map(|form| form.filter).collect()
}

/// The runs of a tree that is as full as its options let it become: L0 files, then the levels that a tablet
/// ten times the base level and more has. Deeper trees have small levels besides, which get the same as the
/// one above the last.
fn full_tree(options: &EngineOptions) -> Vec<Run> {
    let ratio = options.level_ratio.max(2) as f64;
    let above = options.base_level_bytes as f64;
    let last = above * ratio;
    let flush = options.memtable_bytes as f64;
    let files = options.l0_compaction_files.max(1);
    let total = above + last + flush * files as f64;
    let l0 = Run { share: flush / total, bloom: true };
    let mut runs = vec![l0; files];
    runs.push(Run { share: above / total, bloom: false });
    runs.push(Run { share: last / total, bloom: false });
    runs
}

/// The filter of files that are written to a level; `None` where the options say that there are none.
pub(crate) fn filter_for(options: &EngineOptions, level: u8) -> Option<Filter> {
    let bits = options.sst.filter_bits_per_key;
    if bits == 0 {
        return None;
    }
    let runs = full_tree(options);
    let filters = assign(&runs, f64::from(bits));
    let at = match level {
        0 => 0,
        LAST_LEVEL => runs.len().checked_sub(1)?,
        _ => runs.len().checked_sub(2)?,
    };
    filters.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn flat(runs: &[Run], bits: u32) -> Vec<Filter> {
        vec![Filter { kind: FilterKind::Bloom, bits_per_key: bits }; runs.len()]
    }

    #[test]
    fn the_default_tree_reads_in_vain_a_quarter_as_often_as_with_flat_bits() {
        let options = EngineOptions::default();
        let runs = full_tree(&options);
        let bits = options.sst.filter_bits_per_key;
        let filters = assign(&runs, f64::from(bits));
        let (memory, rate) = figures(&runs, &filters);
        assert!(memory <= f64::from(bits), "{memory} {filters:?}");
        let (_, flat_rate) = figures(&runs, &flat(&runs, bits));
        assert!(rate * 4.0 < flat_rate, "{rate} {flat_rate} {filters:?}");
        assert_eq!(filter_for(&options, LAST_LEVEL).unwrap().kind, FilterKind::Fuse8);
        assert_eq!(filter_for(&options, LAST_LEVEL - 1).unwrap().kind, FilterKind::Fuse16);
        assert_eq!(filter_for(&options, 0).unwrap().kind, FilterKind::Bloom);
        assert!(filter_for(&options, 0).unwrap().bits_per_key >= 14);
    }

    #[test]
    fn no_filter_stays_no_filter() {
        let mut options = EngineOptions::default();
        options.sst.filter_bits_per_key = 0;
        assert_eq!(filter_for(&options, 0), None);
    }

    proptest! {
        #[test]
        fn smaller_runs_never_get_fewer_bits_and_flat_bits_are_never_better(
            sizes in prop::collection::vec(1u32..100_000, 1..8),
            bits in 6u32..20,
        ) {
            let total: f64 = sizes.iter().map(|s| f64::from(*s)).sum();
            let runs: Vec<Run> = sizes
                .iter()
                .map(|s| Run { share: f64::from(*s) / total, bloom: false })
                .collect();
            let filters = assign(&runs, f64::from(bits));
            let (memory, rate) = figures(&runs, &filters);
            prop_assert!(memory <= f64::from(bits) + 1e-9);
            let rate_of = |i: usize| figures(&runs[i..=i], &filters[i..=i]).1;
            for (i, a) in sizes.iter().enumerate() {
                for (j, b) in sizes.iter().enumerate() {
                    prop_assert!(a >= b || rate_of(i) <= rate_of(j), "{a} {b}");
                }
            }
            // A price cannot mix two forms of equal runs, so compare with what its memory buys flat.
            let (_, flat_rate) = figures(&runs, &flat(&runs, memory.floor().max(4.0) as u32));
            prop_assert!(rate <= flat_rate + 1e-9, "{rate} {flat_rate}");
        }
    }
}

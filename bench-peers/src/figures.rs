//! Names of the figures that bars take from `Store::figures` of Tepui's store. A figure that the store does not give
//! makes its bar short, with the name in the line.

use std::fmt;

use tepui_bench::Store;

use crate::sample::{Series, Spread};

/// Counter: SSTs that point reads met with the row between their first and last.
pub const FILTER_LOOKUPS: &str = "filter_lookups";
/// Counter: of these, those where a filter was asked.
pub const FILTER_PROBES: &str = "filter_probes";
/// Counter: of these, those where it said that the SST has nothing.
pub const FILTER_NEGATIVES: &str = "filter_negatives";
/// Gauge: bytes of index and filters that stay in memory whatever is read: top levels and pinned partitions.
pub const PINNED_BYTES: &str = "index_filter_pinned_bytes";
/// Gauge: bytes of index and filters if all of them are in memory.
pub const INDEX_FILTER_BYTES: &str = "index_filter_bytes";

/// Counter: bytes that flushes wrote.
pub const FLUSH_BYTES: &str = "flush_bytes";
/// Counter: bytes that compactions read.
pub const COMPACTION_READ_BYTES: &str = "compaction_read_bytes";

/// Files of each level of a tree, from level 0 on.
#[derive(Debug, PartialEq, Eq)]
pub struct Levels(Vec<u64>);

impl Levels {
    /// As they were after the last run of a series.
    pub fn of(series: &Series) -> Self {
        let figures = series.samples.last().map(|sample| &sample.figures);
        Self::from(|name| figures.and_then(|figures| figures.get(name).copied()))
    }

    /// As they are in a store.
    pub fn now(store: &dyn Store) -> Self {
        let figures = store.figures();
        Self::from(|name| figures.iter().find(|f| f.name == name).map(|f| f.value))
    }

    fn from(find: impl Fn(&str) -> Option<f64>) -> Self {
        let files = (0..).map_while(|level| find(&format!("level_{level}_files")));
        Self(files.map(|files| files as u64).collect())
    }

    /// Why it is no tree of a server that is written to: level 0 or all levels between it and the last are empty.
    pub fn doubt(&self) -> Option<String> {
        let full = match self.0.as_slice() {
            [first, between @ .., _] => *first > 0 && between.iter().any(|files| *files > 0),
            _ => false,
        };
        (!full).then(|| format!("not the tree of a server that is written to: {self}"))
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.0.iter().enumerate().filter(|(_, files)| **files > 0);
        let levels: Vec<_> = held.map(|(level, files)| format!("{files} in {level}")).collect();
        write!(f, "files of levels: {}", levels.join(", "))
    }
}

/// One figure over another, round by round; the name of the one that is missing otherwise.
pub fn ratio(series: &Series, over: &'static str, under: &'static str) -> Result<Spread, String> {
    let find = |name: &'static str| {
        let found: Vec<f64> =
            series.samples.iter().filter_map(|s| s.figures.get(name).copied()).collect();
        if found.len() == series.samples.len() { Ok(found) } else { Err(missing(name)) }
    };
    let (over, under) = (find(over)?, find(under)?);
    Ok(Spread::of(over.iter().zip(&under).map(|(a, b)| a / b)))
}

/// What is said of a figure that is not there.
pub fn missing(name: &str) -> String {
    format!("the store gives no figure `{name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_without_a_level_0_or_without_levels_below_it_is_doubted() {
        let levels = |files: [f64; 4]| {
            Levels::from(|name| {
                let level = name.strip_prefix("level_")?.strip_suffix("_files")?;
                files.get(level.parse::<usize>().ok()?).copied()
            })
        };
        assert_eq!(levels([2.0, 0.0, 5.0, 60.0]).doubt(), None);
        assert_eq!(
            levels([2.0, 0.0, 5.0, 60.0]).to_string(),
            "files of levels: 2 in 0, 5 in 2, 60 in 3"
        );
        for empty in [[0.0, 0.0, 5.0, 60.0], [2.0, 0.0, 0.0, 60.0], [0.0, 0.0, 0.0, 1.0]] {
            assert!(levels(empty).doubt().is_some());
        }
        assert!(Levels::from(|_| None).doubt().is_some());
    }

    #[test]
    fn a_figure_that_is_missing_is_named() {
        let series = Series { store: String::new(), workload: String::new(), samples: Vec::new() };
        assert!(ratio(&series, "a", "b").unwrap().median.is_nan());
        let sample = crate::sample::Sample {
            figures: [("a".to_owned(), 3.0), ("b".to_owned(), 2.0)].into(),
            ..Default::default()
        };
        let series = Series { samples: vec![sample], ..series };
        assert!((ratio(&series, "a", "b").unwrap().median - 1.5).abs() < 1e-9);
        assert!(ratio(&series, "a", "c").unwrap_err().contains("`c`"));
    }
}

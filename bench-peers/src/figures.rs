//! Names of the figures that bars take from `Store::figures` of Tepui's store. A figure that the store does not give
//! makes its bar short, with the name in the line.

use crate::sample::{Series, Spread};

/// Counter: SSTs that point reads met with the row between their first and last.
pub const FILTER_LOOKUPS: &str = "filter_lookups";
/// Counter: of these, those where a filter was asked.
pub const FILTER_PROBES: &str = "filter_probes";
/// Gauge: bytes of index and filters that stay in memory whatever is read: top levels and pinned partitions.
pub const PINNED_BYTES: &str = "index_filter_pinned_bytes";
/// Gauge: bytes of index and filters if all of them are in memory.
pub const INDEX_FILTER_BYTES: &str = "index_filter_bytes";

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

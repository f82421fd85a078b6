//! RocksDB's settings beside one another, where an argument cannot settle which is better: uncached and cached point
//! reads, present and absent, with each. `Settings::best` is what won.

use tepui_bench::{OpKind, Result};

use crate::bars::{Bench, Entrant, IN_FLIGHT, THREADS};
use crate::rocks::{Filter, How, Rocks, Settings, Waiting};
use crate::stores;

/// The cache of the uncached runs is this part of the data.
const CACHE_PART: u64 = 60;

fn variants() -> Vec<(&'static str, Settings)> {
    let best = Settings::best();
    let mut all = vec![
        ("best", best),
        ("bloom", Settings { filter: Filter::Bloom(10.0), ..best }),
        ("no-hash-index", Settings { hash_index: false, ..best }),
        ("lz4", Settings { lz4: true, aligned: false, ..best }),
    ];
    if cfg!(feature = "newest") {
        all.push(("unaligned", Settings { aligned: false, ..best }));
        all.push(("interpolation", Settings { interpolation: true, ..best }));
        all.push(("hyper-clock", Settings { hyper_clock: true, ..best }));
    }
    all
}

/// Runs every variant, uncached and cached, which the table at the end shows.
pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    for (label, cache) in
        [("uncached", dataset.bytes() / CACHE_PART), ("cached", dataset.bytes() * 2)]
    {
        let open: Vec<(String, Rocks)> = variants()
            .into_iter()
            .map(|(name, settings)| {
                let rocks = stores::rocks_variant(bench, &dataset, name, &settings, cache)?;
                Ok((name.to_owned(), rocks))
            })
            .collect::<Result<_>>()?;
        let mut ways: Vec<Rocks> =
            open.iter().map(|(name, rocks)| rocks.named(&format!("RocksDB {name}"))).collect();
        if label == "uncached"
            && let Some((_, best)) = open.first()
        {
            ways.push(best.used(How { waiting: Waiting::MultiGet, ..How::default() }));
        }
        for rocks in &ways {
            if label == "cached" {
                bench.warm_whole(rocks, &dataset)?;
            }
        }
        let (threads, in_flight) = if label == "cached" { (1, 1) } else { (THREADS, IN_FLIGHT) };
        for (name, kind) in [("get", OpKind::Get), ("get-absent", OpKind::GetAbsent)] {
            let workload = bench.workload(&format!("{name} {label}"), kind, threads, in_flight);
            let entrants: Vec<_> = ways.iter().map(|way| Entrant::Store(way, &workload)).collect();
            bench.contest(&dataset, &entrants)?;
        }
    }
    Ok(())
}

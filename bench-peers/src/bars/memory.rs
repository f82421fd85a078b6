//! Memory of index and filters for a GB of data.

use tepui_bench::{Result, Store};

use super::{Bench, whole_cache};
use crate::figures::{self, INDEX_FILTER_BYTES, Levels, PINNED_BYTES};
use crate::report::{Bar, Line};
use crate::rocks::Settings;
use crate::sample::Spread;
use crate::stores;

const GROUP: &str = "memory";
const GB: f64 = 1e9;
const MB: f64 = 1e6;

fn figure(store: &dyn Store, name: &str) -> Option<f64> {
    store.figures().iter().find(|f| f.name == name).map(|f| f.value)
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let dataset = bench.sizes.narrow();
    let per_gb = |bytes: f64| Spread::exact(bytes / MB / (dataset.bytes() as f64 / GB));
    let tepui = stores::tepui_at_rest(bench, &dataset, whole_cache(&dataset))?;
    bench.warm_whole(&tepui, &dataset)?;
    let asked = [
        ("pinned", PINNED_BYTES, Bar::AtMost(1.0)),
        ("everything cached", INDEX_FILTER_BYTES, Bar::Published),
    ];
    for (what, figure_name, bar) in asked {
        let name = format!("memory of index and filters for a GB of data: {what}");
        let levels = Levels::now(&tepui);
        bench.say(match figure(&tepui, figure_name) {
            Some(bytes) => {
                let line = Line::new(GROUP, name, per_gb(bytes), bar).unit("MB");
                line.note(levels.to_string()).unless(levels.doubt())
            }
            None => Line::missing(GROUP, name, bar, figures::missing(figure_name)),
        });
    }
    let rocks = stores::rocks(bench, &dataset, &Settings::best(), whole_cache(&dataset))?;
    if let (Some(index), Some(filter)) =
        (figure(&rocks, "index_bytes"), figure(&rocks, "filter_bytes"))
    {
        let name = "the same in RocksDB, everything cached";
        let note = format!("index {:.1} MB, filters {:.1} MB in all", index / MB, filter / MB);
        let line = Line::new(GROUP, name, per_gb(index + filter), Bar::Published);
        bench.say(line.unit("MB").note(note));
    }
    Ok(())
}

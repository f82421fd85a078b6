//! YCSB beside Google's emulator: the same clients, the same rows, one server at a time in turns. The emulator keeps
//! everything in memory and syncs nothing; Tepui syncs every write before it answers.

use tepui_bench::bars::{Bar, Line};
use tepui_bench::contest::{Contest, Entrant, RATE_MIN};
use tepui_bench::{OpKind, Result, Store as _, Workload};

use crate::bench::Bench;
use crate::emulator::Emulator;
use crate::host::{Host, Settings};

pub(super) const GROUP: &str = "emulator";
const TABLE: &str = "usertable";

pub fn run(bench: &mut Bench) -> Result<()> {
    let Some(program) = bench.emulator.clone() else {
        let why = "it needs --emulator, which `make bench-server` builds with Go; \
                   --skip emulator leaves it out"
            .to_owned();
        let bar = Bar::AtLeast(RATE_MIN);
        bench.say(Line::missing(GROUP, "YCSB over Google's emulator: rate", bar, why));
        return Ok(());
    };
    let dataset = bench.rows_of_ten(bench.sizes.rows);
    let settings = Settings::with_cache(bench.cache_for(&dataset));
    let host = Host::start(&bench.dir.join("emulator"), settings)?;
    let tepui = bench.clients("tepui", host.endpoint()?, TABLE)?;
    let mut emulator = Emulator::start(&program, &bench.dir, &bench.progress)?;
    let google = bench.clients("Google's emulator", emulator.endpoint()?, TABLE)?;
    for server in [&tepui, &google] {
        if server.ensure_table(&bench.progress)? || !server.holds(&dataset, &bench.progress)? {
            server.load(&dataset, &bench.progress)?;
        }
    }
    let progress = bench.progress.clone();
    host.settle(&progress)?;
    let contest = Contest {
        dataset: &dataset,
        shape: bench.workload(Workload::of("", OpKind::GetFamily)),
        rounds: bench.sizes.rounds,
        progress: &progress,
    };
    // A server in this process is not held: what it has left to do is not for the emulator's turns.
    let settle = || host.settle(&progress);
    let ours = Entrant::new(&tepui, None).settled_by(&settle);
    let mut entrants = [ours, Entrant::new(&google, Some(emulator.child()))];
    let runs = contest.run(GROUP, &mut entrants, &mut |line| bench.say(line))?;
    bench.runs.extend(runs);
    host.stop()
}

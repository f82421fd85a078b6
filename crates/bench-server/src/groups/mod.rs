//! The bars, by what they need.
//!
//! ```text
//! round 1:  A  B  C      a contest: every entrant once a round, in turns, so that what disturbs the machine
//! round 2:  A  B  C      disturbs all; a ratio is taken round by round, a figure is the median of its rounds
//! ```

mod bad_clients;
mod emulated;
pub mod overload;
mod reads;
mod slow_sync;
mod ycsb;

use tepui_bench::Result;

use crate::bench::Bench;

/// A group of bars.
pub struct Group {
    /// Its name on the command line and in reports.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    run: fn(&mut Bench) -> Result<()>,
}

/// All groups, in the order in which they run.
pub const GROUPS: &[Group] = &[
    Group {
        name: "reads",
        about: "ReadRows of one cached row beside a bare gRPC echo: rate, processor time, allocations",
        run: reads::run,
    },
    Group {
        name: "ycsb",
        about: "YCSB A on a hot row and zipfian over uniform; latencies at 70 % of the best rate",
        run: ycsb::run,
    },
    Group {
        name: "sync",
        about: "increments of one row and of many on a device that syncs in 2 ms",
        run: slow_sync::run,
    },
    Group {
        name: "overload",
        about: "twice the rate that the server sustains: what reached it, gaps between writes, refusals",
        run: overload::processor,
    },
    Group {
        name: "overload-disk",
        about: "the same with a disk that takes 32 MiB/s of log, flushes and compactions together",
        run: overload::disk,
    },
    Group {
        name: "bad-clients",
        about: "what others see of clients that do not read, send too much, or cancel",
        run: bad_clients::run,
    },
    Group {
        name: "emulator",
        about: "YCSB beside Google's emulator; needs --emulator",
        run: emulated::run,
    },
];

impl Group {
    /// Whether it needs Google's emulator, which is not everywhere.
    pub fn needs_emulator(&self) -> bool {
        self.name == emulated::GROUP
    }

    /// Runs the group.
    pub fn run(&self, bench: &mut Bench) -> Result<()> {
        (self.run)(bench).map_err(|error| error.context(self.name))
    }
}

//! What the threads of a kind use, told by their names: a server in this process is its threads.

use std::ops::Sub;

use crate::counting;

/// What some threads have used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Processor time, user and system, in nanoseconds.
    pub cpu_nanos: u64,
    /// Allocations.
    pub allocations: u64,
    /// Syncs of a server's files, where it counts them.
    pub syncs: u64,
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            cpu_nanos: self.cpu_nanos.saturating_sub(before.cpu_nanos),
            allocations: self.allocations.saturating_sub(before.allocations),
            syncs: self.syncs.saturating_sub(before.syncs),
        }
    }
}

/// What the threads of this process whose names start so have used so far. One that has ended is not in it.
pub fn used(prefix: &str) -> Used {
    #[expect(clippy::disallowed_methods, reason = "the kernel's own files")]
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Used::default() };
    let mut all = Used::default();
    for task in tasks.flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if !read("comm").starts_with(prefix) {
            continue;
        }
        // The first field is the time on a processor, in nanoseconds.
        let on_cpu = read("schedstat");
        all.cpu_nanos += on_cpu.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let id = task.file_name().to_str().and_then(|name| name.parse().ok());
        all.allocations += id.map_or(0, counting::of_thread);
    }
    all
}

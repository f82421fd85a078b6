//! The value files that the SSTs of a view name. With inserts alone every SST of the last level names nearly every one, and at terabytes of
//! values there are millions of names: so they are kept from one view to the next, and an edit is told by what its SSTs name.

use std::collections::HashMap;
use std::sync::Arc;

use crate::sst::FileId;
use crate::values::{ValueFile, ValueFiles};

/// The value files that an SST names, and the bytes of each.
pub(super) type Names = [(Arc<ValueFile>, u64)];

/// The value files that some SSTs name.
#[derive(Debug, Clone, Default)]
pub(crate) struct NamedFiles {
    /// By number.
    pub(crate) files: Arc<ValueFiles>,
    /// How many of the SSTs name each.
    counts: Arc<HashMap<FileId, u32>>,
}

impl NamedFiles {
    /// Once the SSTs that name `added` have come, and those that name `gone` are there no more. Looks at no others.
    pub(super) fn after<'a>(
        &self,
        added: impl IntoIterator<Item = &'a Names>,
        gone: impl IntoIterator<Item = &'a Names>,
    ) -> Self {
        let mut next = self.clone();
        let mut added = added.into_iter().flatten().peekable();
        if added.peek().is_some() {
            let counts = Arc::make_mut(&mut next.counts);
            let mut new = Vec::new();
            for (file, _) in added {
                let count = counts.entry(file.id()).or_default();
                if *count == 0 {
                    new.push((file.id(), Arc::clone(file)));
                }
                *count += 1;
            }
            if !new.is_empty() {
                Arc::make_mut(&mut next.files).extend(new);
            }
        }
        let mut gone = gone.into_iter().flatten().peekable();
        if gone.peek().is_some() {
            let counts = Arc::make_mut(&mut next.counts);
            let mut old = Vec::new();
            for (file, _) in gone {
                let id = file.id();
                let Some(count) = counts.get_mut(&id) else { continue };
                *count -= 1;
                if *count == 0 {
                    counts.remove(&id);
                    old.push(id);
                }
            }
            if !old.is_empty() {
                let files = Arc::make_mut(&mut next.files);
                for id in old {
                    files.remove(&id);
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::cache::QuickBlockCache;
    use crate::io::{Clock, Env, InlineIo, MemoryFiles, SeededRng, SystemClock, ThreadSpawner};
    use crate::layout::Layout;
    use crate::store::SstStore;

    /// Of so many value files; there are none of these on the disk.
    fn value_files(clock: &Arc<dyn Clock>, count: u64) -> Vec<Arc<ValueFile>> {
        let env = Env {
            files: Arc::new(MemoryFiles::new()),
            io: Arc::new(InlineIo),
            clock: Arc::clone(clock),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let cache = Arc::new(QuickBlockCache::new(1));
        let store = SstStore::new(env, Layout::new(Path::new("/data")), cache);
        (0..count).map(|id| store.values().open(id)).collect()
    }

    fn names(files: &[Arc<ValueFile>], ids: impl IntoIterator<Item = usize>) -> Box<Names> {
        ids.into_iter().map(|id| (Arc::clone(&files[id]), 1)).collect()
    }

    fn ids(named: &NamedFiles) -> Vec<FileId> {
        let mut ids: Vec<_> = named.files.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    #[test]
    fn a_value_file_stays_until_the_last_sst_that_names_it_is_gone() {
        let files = value_files(&clock(), 6);
        let [a, b, c] = [0..3, 2..5, 4..6].map(|ids| names(&files, ids));
        let first = NamedFiles::default().after([&*a, &*b], []);
        assert_eq!(ids(&first), [0, 1, 2, 3, 4]);
        let second = first.after([&*c], [&*b]);
        assert_eq!(ids(&second), [0, 1, 2, 4, 5]);
        assert_eq!(ids(&second.after([], [&*a, &*c])), Vec::<FileId>::new());
        assert_eq!(ids(&first), [0, 1, 2, 3, 4], "readers of the view before have theirs");
    }

    #[test]
    fn an_edit_that_brings_no_value_file_and_takes_none_away_leaves_the_map_as_it_is() {
        let files = value_files(&clock(), 4);
        let all = names(&files, 0..4);
        let first = NamedFiles::default().after([&*all, &*all], []);
        let rewritten = first.after([&*all], [&*all]);
        assert!(Arc::ptr_eq(&first.files, &rewritten.files));
        let untouched = first.after([&*names(&files, [])], []);
        assert!(Arc::ptr_eq(&first.counts, &untouched.counts));
    }

    /// Figures, with `--ignored --nocapture`.
    #[test]
    #[ignore = "prints how long an edit takes"]
    fn an_edit_beside_ssts_that_all_name_every_value_file() {
        for (ssts, count) in [(200, 5_000), (80, 16_384), (320, 16_384)] {
            let clock = clock();
            let files = value_files(&clock, count + 1);
            let all: Vec<Box<Names>> =
                (0..ssts).map(|_| names(&files, 0..count as usize)).collect();
            let flushed = names(&files, [count as usize]);
            let timed = |what: &dyn Fn() -> NamedFiles| {
                let begun = clock.monotonic_micros();
                let named = what();
                let took = clock.monotonic_micros() - begun;
                (named, Duration::from_micros(took))
            };
            let anew = || {
                let names = all.iter().flat_map(|names| names.iter());
                let files: ValueFiles =
                    names.map(|(file, _)| (file.id(), Arc::clone(file))).collect();
                NamedFiles { files: Arc::new(files), counts: Arc::default() }
            };
            let (_, of_all) = timed(&anew);
            let first = NamedFiles::default().after(all.iter().map(|names| &**names), []);
            let (_, flush) = timed(&|| first.after([&*flushed], []));
            let some = || all.iter().take(4).map(|names| &**names);
            let (_, merge) = timed(&|| first.after(some(), some()));
            println!(
                "{ssts} SSTs, {count} value files: all {of_all:?}, a flush {flush:?}, 4 SSTs rewritten {merge:?}"
            );
        }
    }
}

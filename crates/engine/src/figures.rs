//! What the files of tablets come to, each counted once: tables that were restored from a backup share theirs with it, and
//! with the table that it was made of.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::db::Engine;
use crate::manifest::LEVELS;

/// The files of all tablets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileFigures {
    /// SSTs by level. One that tablets have at several levels counts at each.
    pub level_files: Vec<u64>,
    /// Bytes of these that tablets show.
    pub level_bytes: Vec<u64>,
    /// Value files that SSTs name.
    pub value_files: u64,
    /// Bytes of these on disk.
    pub value_file_bytes: u64,
    /// Of these bytes, what no SST names any more.
    pub value_garbage_bytes: u64,
}

/// How much of each file is shown by whoever shows most of it.
#[derive(Debug)]
pub(crate) struct Shown<K>(HashMap<K, Parts>);

/// What is shown of a file.
#[derive(Debug, Default)]
struct Parts {
    /// Who showed a part of it last.
    holder: usize,
    /// What that one shows, all its parts together.
    bytes: u64,
    /// The most of any.
    most: u64,
}

impl<K: Eq + Hash> Shown<K> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Notes a part of a file that a holder shows. Holders come one after another.
    pub(crate) fn note(&mut self, holder: usize, file: K, bytes: u64) {
        let parts = self.0.entry(file).or_default();
        if parts.holder != holder {
            parts.holder = holder;
            parts.bytes = 0;
        }
        parts.bytes = parts.bytes.saturating_add(bytes);
        parts.most = parts.most.max(parts.bytes);
    }

    /// What is shown of a file; 0 where nobody has it.
    pub(crate) fn bytes(&self, file: &K) -> u64 {
        self.0.get(file).map_or(0, |parts| parts.most)
    }

    /// All files, each with what is shown of it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, u64)> {
        self.0.iter().map(|(file, parts)| (file, parts.most))
    }
}

impl Engine {
    /// Figures of the files of all tablets. Takes a look at every list of files, and reads nothing.
    pub fn file_figures(&self) -> FileFigures {
        let (mut ssts, mut values) = (Shown::new(), HashSet::new());
        let mut figures = FileFigures {
            level_files: vec![0; LEVELS],
            level_bytes: vec![0; LEVELS],
            ..FileFigures::default()
        };
        for (holder, tablet) in self.tablets().iter().enumerate() {
            let view = tablet.hold();
            for sst in view.version.ssts() {
                ssts.note(holder, (sst.level, sst.id), sst.bytes);
            }
            for file in view.values.files.values().filter(|file| values.insert(file.id())) {
                figures.value_files += 1;
                figures.value_file_bytes += file.frame_bytes();
                figures.value_garbage_bytes += file.garbage_bytes();
            }
        }
        for ((level, _), shown) in ssts.iter() {
            let level = usize::from(*level);
            let sums = figures.level_files.get_mut(level).zip(figures.level_bytes.get_mut(level));
            if let Some((files, bytes)) = sums {
                *files += 1;
                *bytes = bytes.saturating_add(shown);
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_one_holder_add_up_and_those_of_several_do_not() {
        let mut shown = Shown::new();
        for (holder, file, bytes) in [(0, 7, 10), (0, 7, 5), (0, 8, 1), (1, 7, 12), (2, 7, 9)] {
            shown.note(holder, file, bytes);
        }
        let of = |shown: &Shown<i32>| {
            let mut all: Vec<_> = shown.iter().map(|(file, bytes)| (*file, bytes)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(of(&shown), [(7, 15), (8, 1)]);
        shown.note(3, 7, 9);
        shown.note(3, 7, 9);
        assert_eq!(of(&shown), [(7, 18), (8, 1)]);
    }
}

//! A meta store in memory, whose disk can be made to fail.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tepui_engine::manifest::{MetaChange, MetaEntry, MetaExpect, MetaStore};
use tepui_engine::{Error as EngineError, ErrorKind};

#[derive(Debug, Default)]
pub(crate) struct MemoryMeta {
    entries: Mutex<(u64, BTreeMap<String, MetaEntry>)>,
    /// While it is set every commit fails.
    pub fails: AtomicBool,
    /// While it is set there is no room for a commit that creates an entry.
    pub is_full: AtomicBool,
    /// While it is set the disk has no room for a commit that does not only remove.
    pub disk_is_full: AtomicBool,
    /// While it is set every commit is made, and fails nevertheless, as after a sync that failed.
    pub answers_are_lost: AtomicBool,
}

impl MetaStore for MemoryMeta {
    fn get(&self, key: &str) -> tepui_engine::Result<Option<MetaEntry>> {
        Ok(self.entries.lock().unwrap().1.get(key).cloned())
    }

    fn list(&self, prefix: &str) -> tepui_engine::Result<Vec<(String, MetaEntry)>> {
        let entries = self.entries.lock().unwrap();
        let matching = entries.1.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(matching.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    fn commit(&self, changes: &[MetaChange]) -> tepui_engine::Result<u64> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(EngineError::new(ErrorKind::Io, "the disk says no").in_doubt());
        }
        let mut guard = self.entries.lock().unwrap();
        let (revision, entries) = &mut *guard;
        for change in changes {
            let there = entries.get(&change.key).map(|entry| entry.revision);
            let holds = match change.expect {
                MetaExpect::Any => true,
                MetaExpect::Absent => there.is_none(),
                MetaExpect::Revision(expected) => there == Some(expected),
            };
            if !holds {
                return Err(EngineError::new(ErrorKind::AlreadyExists, "changed meanwhile"));
            }
        }
        let creates =
            |change: &MetaChange| change.value.is_some() && !entries.contains_key(&change.key);
        if self.is_full.load(Ordering::Relaxed) && changes.iter().any(creates) {
            return Err(EngineError::overloaded("it is full", Duration::from_secs(1)));
        }
        let removes = changes.iter().all(|change| change.value.is_none());
        if self.disk_is_full.load(Ordering::Relaxed) && !removes {
            return Err(EngineError::new(ErrorKind::NoSpace, "no space is left"));
        }
        *revision += 1;
        for change in changes {
            match change.value.clone() {
                Some(value) => {
                    entries.insert(change.key.clone(), MetaEntry { value, revision: *revision });
                }
                None => {
                    entries.remove(&change.key);
                }
            }
        }
        if self.answers_are_lost.load(Ordering::Relaxed) {
            return Err(EngineError::new(ErrorKind::Io, "the disk does not say").in_doubt());
        }
        Ok(*revision)
    }
}

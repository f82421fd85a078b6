//! What tablets had at one moment that is the same for all of them, as files: a backup of several.
//!
//! ```text
//! writers locked ─► memtables rotated ─► writers go on
//!                        └─ each is flushed, sooner or later: the version with it, and with nothing that came later
//! ```
//!
//! So who wrote to one tablet, and then to another, is in with the second write only if with the first. Rows that are dropped between the
//! moment and the flush are gone from it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::view::{OpenFiles, View};
use super::{Tablet, TabletId};
use crate::error::Result;
use crate::manifest::Version;
use crate::memtable::Memtable;

/// Files of a moment; none of them goes while this is held. Memtables that were written since are not.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) version: Arc<Version>,
    pub(crate) files: Arc<OpenFiles>,
}

impl Held {
    fn of(view: &View) -> Self {
        Self { version: Arc::clone(&view.version), files: Arc::clone(&view.files) }
    }
}

/// A moment of one tablet, which is over once its memtable of then is flushed.
#[derive(Debug)]
pub(crate) struct Moment {
    tablet: Arc<Tablet>,
    held: Arc<OnceLock<Held>>,
}

/// A moment that somebody waits for: the memtable, and where what it leads to is kept.
#[derive(Debug)]
struct Awaited {
    memtable: Weak<Memtable>,
    held: Weak<OnceLock<Held>>,
}

/// Those of a tablet.
#[derive(Debug, Default)]
pub(super) struct Moments(Mutex<Vec<Awaited>>);

impl Moments {
    fn lock(&self) -> MutexGuard<'_, Vec<Awaited>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, memtable: &Arc<Memtable>, held: &Arc<OnceLock<Held>>) {
        let (memtable, held) = (Arc::downgrade(memtable), Arc::downgrade(held));
        self.lock().push(Awaited { memtable, held });
    }

    /// This memtable is in the files of the view, and nothing later is: nobody else changes them as long as the caller holds the manifest.
    pub(super) fn flushed(&self, memtable: &Arc<Memtable>, view: &View) {
        self.lock().retain(|awaited| {
            let Some(held) = awaited.held.upgrade() else { return false };
            let is_it = std::ptr::eq(awaited.memtable.as_ptr(), Arc::as_ptr(memtable));
            if is_it {
                held.get_or_init(|| Held::of(view));
            }
            !is_it
        });
    }
}

impl Moment {
    /// One moment for all of these: everything written before it is sent to be flushed. Other than here nobody locks the writers of
    /// several tablets.
    pub(crate) fn of_all(tablets: &[Arc<Tablet>]) -> Vec<Self> {
        let by_id: BTreeMap<TabletId, &Arc<Tablet>> = tablets.iter().map(|t| (t.id, t)).collect();
        let writers: Vec<_> = by_id.values().map(|tablet| tablet.lock_writer()).collect();
        let moments = tablets.iter().map(|tablet| {
            let held = Arc::default();
            tablet.rotate(&tablet.view.load());
            let view = tablet.view.load();
            match view.waiting.last() {
                Some(memtable) => tablet.moments.wait_for(memtable, &held),
                None => drop(held.get_or_init(|| Held::of(&view))),
            }
            Self { tablet: Arc::clone(tablet), held }
        });
        let moments = moments.collect();
        drop(writers);
        if let Some(tablet) = tablets.first() {
            tablet.core.bell.ring();
        }
        moments
    }

    /// The same once all of it is in files. Where one of their flushes meanwhile lacks room, which what is held may be keeping, nothing is held while that
    /// is waited for, and the moment is a later one.
    pub(crate) async fn in_files(tablets: &[Arc<Tablet>]) -> Result<Vec<Self>> {
        loop {
            let retries = || tablets.iter().map(|t| t.flush_retries.load(Relaxed)).sum::<u64>();
            let before = retries();
            let moments = Self::of_all(tablets);
            for moment in &moments {
                let is_over = || moment.held.get().is_some() || retries() != before;
                moment.tablet.until_flushed(is_over).await?;
            }
            if moments
                .iter()
                .all(|moment| moment.held.get().is_some() || moment.tablet.is_dropped())
            {
                return Ok(moments);
            }
            drop(moments);
            for tablet in tablets {
                tablet.flush().await?;
            }
        }
    }

    /// What the tablet had then, once that is in files; `None` where it was dropped before.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.get()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use futures::executor::block_on;

    use super::*;
    use crate::cell::{FamilyId, Mutation, RowBatch, RowRange};
    use crate::db::{Engine, EngineOptions};
    use crate::io::{Env, InlineIo, ManualClock, MemoryFiles, SeededRng, ThreadSpawner};
    use crate::schema::{FamilyOptions, TabletSchema};

    fn write(tablet: &Tablet, row: &'static str) {
        let (family, value) = (FamilyId(1), Bytes::from_static(b"v"));
        let put = Mutation::Put { family, qualifier: Bytes::new(), timestamp: 1000, value };
        let row = Bytes::from_static(row.as_bytes());
        block_on(tablet.apply(RowBatch { row, mutations: vec![put] })).unwrap();
    }

    fn rows(moment: &Moment) -> u64 {
        let held = moment.held().unwrap();
        held.files.values().map(|file| file.reader().unwrap().properties().rows).sum()
    }

    #[test]
    fn what_is_written_after_a_moment_of_several_tablets_is_in_none_of_them_whenever_they_are_flushed()
     {
        let env = Env {
            files: Arc::new(MemoryFiles::new()),
            io: Arc::new(InlineIo),
            clock: Arc::new(ManualClock::new(1_767_225_600_000_000)),
            rng: Arc::new(SeededRng::new(1)),
            spawner: Arc::new(ThreadSpawner),
        };
        let options = EngineOptions { background: false, ..EngineOptions::default() };
        let engine = Engine::open(env, Path::new("/data"), options).unwrap();
        let tablets = [RowRange::new("", "m"), RowRange::new("m", "x"), RowRange::new("x", "")];
        let tablets = tablets.map(|range| engine.create_tablet(range).unwrap());
        for tablet in &tablets {
            let families = [(FamilyId(1), FamilyOptions::default())].into();
            tablet.set_schema(Arc::new(TabletSchema { families }));
        }
        let [orders, index, idle] = &tablets;
        write(orders, "a1");
        write(index, "n1");
        // One is asked for twice.
        let asked = [orders, index, idle, orders].map(Arc::clone);
        let moments = Moment::of_all(&asked);
        write(orders, "a2");
        write(index, "n2");
        write(idle, "x2");
        for tablet in [index, idle, orders] {
            block_on(tablet.flush()).unwrap();
            tablet.compact_fully().unwrap();
        }
        assert_eq!(moments.iter().map(rows).collect::<Vec<_>>(), [1, 1, 0, 1]);
        let now = block_on(Moment::in_files(&asked)).unwrap();
        assert_eq!(now.iter().map(rows).collect::<Vec<_>>(), [2, 2, 1, 2]);
    }
}

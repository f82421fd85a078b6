//! The horizon: up to where changes were removed, so that no reader takes for silence what is not here any more.
//!
//! ```text
//! <seq>.horizon             of all tablets      16 hex digits each, empty files
//! <seq>-<tablet>.horizon    of one tablet
//! ```
//!
//! A file of changes has those of some tablets, and goes when the time of these is over; others keep theirs for longer and
//! have lost nothing by it. So each tablet has a horizon of its own, at the last of its own changes that went, and one for all stands for what nobody can tell
//! whose it was. A name that says less than another one counts for nothing. Where no file can be made for want of room, which what
//! goes then is to give, the one that says less takes the new name.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cell::Seq;
use crate::error::{ErrorKind, Result};
use crate::io::Files;
use crate::layout::parse_number;

/// The end of the name of a file that tells a horizon.
pub(crate) const HORIZON: &str = ".horizon";

/// The name of the file that says that changes of all tablets up to `seq` are not kept any more.
pub(crate) fn horizon_name(seq: Seq) -> String {
    format!("{seq:016x}{HORIZON}")
}

/// The same of one tablet.
pub(super) fn horizon_name_of(tablet: u64, seq: Seq) -> String {
    format!("{seq:016x}-{tablet:016x}{HORIZON}")
}

/// What the name of a file says: up to where, and of which tablet, if not of all.
pub(super) fn parse(name: &str) -> Option<(Seq, Option<u64>)> {
    match name.split_once('-') {
        None => parse_number(name, "", HORIZON).map(|seq| (seq, None)),
        Some((seq, tablet)) => {
            Some((parse_number(seq, "", "")?, Some(parse_number(tablet, "", HORIZON)?)))
        }
    }
}

/// Reads what could be a name, for fuzzing.
pub(crate) fn fuzz(name: &str) {
    let written = parse(name).map(|(seq, tablet)| match tablet {
        None => horizon_name(seq),
        Some(tablet) => horizon_name_of(tablet, seq),
    });
    assert!(written.is_none_or(|written| written == name), "a horizon has one name");
}

/// The horizons of a directory. One thread raises them; any may ask.
#[derive(Debug, Default)]
pub(super) struct Horizons {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    of_all: Seq,
    of_tablets: HashMap<u64, Seq>,
}

impl Horizons {
    /// Reads the names in a directory, and removes those that say less than others, as far as they can be. Blocks.
    pub(super) fn open(files: &dyn Files, dir: &Path) -> Result<Self> {
        let mut furthest: HashMap<Option<u64>, (Seq, String)> = HashMap::new();
        let mut less = Vec::new();
        for entry in files.list(dir)? {
            let Some((seq, tablet)) = parse(&entry.name) else { continue };
            match furthest.get(&tablet) {
                Some((known, _)) if *known >= seq => less.push(entry.name),
                _ => less.extend(furthest.insert(tablet, (seq, entry.name)).map(|(_, name)| name)),
            }
        }
        for name in less {
            super::remove_or_tell(files, &dir.join(name));
        }
        let mut state = State::default();
        for (tablet, (seq, _)) in furthest {
            match tablet {
                None => state.of_all = seq,
                Some(tablet) => drop(state.of_tablets.insert(tablet, seq)),
            }
        }
        Ok(Self { state: Mutex::new(state) })
    }

    /// Of positions of this tablet below, not all changes are here any more.
    pub(super) fn of(&self, tablet: u64) -> Seq {
        let state = self.lock();
        state.of_tablets.get(&tablet).copied().unwrap_or(0).max(state.of_all)
    }

    /// The furthest of all.
    pub(super) fn furthest(&self) -> Seq {
        let state = self.lock();
        state.of_tablets.values().copied().max().unwrap_or(0).max(state.of_all)
    }

    /// Durably says of tablets, or of all (`None`), that their changes are not here any more up to a sequence each. `sync` makes
    /// the names in `dir` durable. Blocks.
    pub(super) fn raise(
        &self,
        files: &dyn Files,
        dir: &Path,
        to: &BTreeMap<Option<u64>, Seq>,
        sync: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // What is to be said, and what says less, if it is there.
        let mut names = Vec::new();
        {
            let state = self.lock();
            let of_all = state.of_all.max(to.get(&None).copied().unwrap_or(0));
            for (tablet, seq) in to {
                match tablet {
                    None if *seq > state.of_all => {
                        names.push((horizon_name(*seq), horizon_name(state.of_all)));
                    }
                    None => {}
                    Some(tablet) => {
                        let before = state.of_tablets.get(tablet).copied().unwrap_or(0);
                        if *seq > before.max(of_all) {
                            let less = horizon_name_of(*tablet, before);
                            names.push((horizon_name_of(*tablet, *seq), less));
                        }
                    }
                }
            }
        }
        if names.is_empty() {
            return Ok(());
        }
        let mut renames = Vec::new();
        for (name, less) in &names {
            let (path, less) = (dir.join(name), dir.join(less));
            if files.exists(&path)? {
                continue;
            }
            // Empty: it is durable as a whole when the directory is.
            match files.create(&path) {
                Err(error) if error.kind() == ErrorKind::NoSpace && files.exists(&less)? => {
                    renames.push((less, path));
                }
                made => drop(made?),
            }
        }
        // Once nothing lacks a file: what is said less of is not here any more.
        for (less, path) in renames {
            files.rename(&less, &path)?;
        }
        sync()?;
        {
            let mut state = self.lock();
            for (tablet, seq) in to {
                match tablet {
                    None => state.of_all = state.of_all.max(*seq),
                    Some(tablet) => {
                        let of_tablet = state.of_tablets.entry(*tablet).or_default();
                        *of_tablet = (*seq).max(*of_tablet);
                    }
                }
            }
        }
        for (_, less) in names {
            remove(files, dir, &less)?;
        }
        Ok(())
    }

    /// Those that have a file each, in the order of their tablets; that of all (`None`) first.
    pub(super) fn all(&self) -> Vec<(Seq, Option<u64>)> {
        let state = self.lock();
        let of_tablets = state.of_tablets.iter().map(|(tablet, seq)| (*seq, Some(*tablet)));
        // What says no more than that of all may have none.
        let mut all: Vec<_> = of_tablets.filter(|(seq, _)| *seq > state.of_all).collect();
        all.extend((state.of_all > 0).then_some((state.of_all, None)));
        all.sort_unstable_by_key(|(_, tablet)| *tablet);
        all
    }

    /// Forgets tablets that keep no changes any more; the names of their files, which are to be [removed](Self::remove).
    pub(super) fn forget(&self, keeps: impl Fn(u64) -> bool) -> Vec<String> {
        let mut state = self.lock();
        let gone = state.of_tablets.extract_if(|tablet, _| !keeps(*tablet));
        gone.map(|(tablet, seq)| horizon_name_of(tablet, seq)).collect()
    }

    /// Removes files of tablets that were forgotten. Blocks.
    pub(super) fn remove(files: &dyn Files, dir: &Path, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|name| remove(files, dir, name))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(files: &dyn Files, dir: &Path, name: &str) -> Result<()> {
    let path = dir.join(name);
    if files.exists(&path)? { files.remove(&path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::io::{Fault, FaultFiles, FaultOp, MemoryFiles};

    fn names(files: &MemoryFiles, dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            files.list(dir).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names
    }

    #[test]
    fn of_several_horizons_the_furthest_counts_and_stays() {
        let files = MemoryFiles::new();
        let dir = Path::new("/changes");
        files.create_dir_all(dir).unwrap();
        for seq in [7, 900, 30] {
            files.put_contents(&dir.join(horizon_name(seq)), Vec::new());
            files.put_contents(&dir.join(horizon_name_of(5, seq + 10)), Vec::new());
        }
        let horizons = Horizons::open(&files, dir).unwrap();
        assert_eq!((horizons.of(4), horizons.of(5), horizons.furthest()), (900, 910, 910));
        assert_eq!(names(&files, dir), [horizon_name(900), horizon_name_of(5, 910)]);
    }

    #[test]
    fn a_tablet_has_a_horizon_of_its_own_until_it_keeps_no_changes() {
        let files = MemoryFiles::new();
        let dir = Path::new("/changes");
        files.create_dir_all(dir).unwrap();
        let horizons = Horizons::open(&files, dir).unwrap();
        let raise = |horizons: &Horizons, to: &[(Option<u64>, Seq)]| {
            let to = to.iter().copied().collect();
            horizons.raise(&files, dir, &to, || files.sync_dir(dir)).unwrap();
        };
        raise(&horizons, &[(Some(1), 50), (Some(2), 50)]);
        raise(&horizons, &[(Some(2), 70)]);
        raise(&horizons, &[(Some(2), 60)]);
        assert_eq!([1, 2, 3].map(|tablet| horizons.of(tablet)), [50, 70, 0]);
        let again = Horizons::open(&files, dir).unwrap();
        assert_eq!([1, 2, 3].map(|tablet| again.of(tablet)), [50, 70, 0]);
        let all = [(50, Some(1)), (70, Some(2))];
        assert_eq!((horizons.all(), again.all()), (all.into(), all.into()));
        let forgotten = again.forget(|tablet| tablet == 1);
        Horizons::remove(&files, dir, &forgotten).unwrap();
        assert_eq!(names(&files, dir), [horizon_name_of(1, 50)]);
        raise(&again, &[(None, 80), (Some(2), 60), (Some(3), 90)]);
        assert_eq!([1, 2, 3].map(|tablet| again.of(tablet)), [80, 80, 90]);
        let name = horizon_name_of(2, 60);
        assert!(!names(&files, dir).contains(&name), "it says less than that of all");
        assert_eq!(again.all(), [(80, None), (90, Some(3))]);
    }

    #[test]
    fn where_no_file_can_be_made_a_horizon_rises_in_the_one_that_it_has() {
        let (files, dir) = (MemoryFiles::new(), Path::new("/changes"));
        files.create_dir_all(dir).unwrap();
        let faults = FaultFiles::new(Arc::new(files.clone()));
        let horizons = Horizons::open(&faults, dir).unwrap();
        let raise = |to: &[(Option<u64>, Seq)]| {
            let to = to.iter().copied().collect();
            horizons.raise(&faults, dir, &to, || faults.sync_dir(dir))
        };
        raise(&[(None, 20), (Some(1), 50)]).unwrap();
        faults.inject(Fault::new(FaultOp::Create).kind(ErrorKind::NoSpace).sticky());
        raise(&[(None, 30), (Some(1), 70)]).unwrap();
        assert_eq!(names(&files, dir), [horizon_name(30), horizon_name_of(1, 70)]);
        assert_eq!([1, 2].map(|tablet| horizons.of(tablet)), [70, 30]);
        // One that has none is not said to have risen, nor is another with it, which rises by itself.
        let both = raise(&[(Some(1), 80), (Some(2), 60)]);
        assert_eq!(both.unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!([1, 2].map(|tablet| horizons.of(tablet)), [70, 30]);
        raise(&[(Some(1), 90)]).unwrap();
        assert_eq!(horizons.of(1), 90);
        let again = Horizons::open(&files, dir).unwrap();
        assert_eq!([1, 2].map(|tablet| again.of(tablet)), [90, 30]);
    }
}

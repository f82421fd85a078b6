//! Everything that the admin API creates besides tables, durably: instances, clusters, app profiles, backups, authorized
//! views, schema bundles, IAM policies, long-running operations. Each is a protobuf message under its kind and its
//! full name.
//!
//! ```text
//! key    resources/KIND/FULL NAME       resources/instance/projects/p/instances/i
//! value  version u8 = 1 | the kind's message, protobuf
//! ```
//!
//! A change of any number of resources is one commit of the meta store: after a crash all of it is there or none. What is
//! kept beside the resources, as tables are, can be part of it ([`Change::commit`]).
//! Memory follows the commit, so readers see what is durable alone, in the buffer that the meta store has. They take no lock: each kind's entries are an
//! immutable map that a change replaces by another, which shares what is as it was. Changes exclude each other, and block: they are made off the cores' runtimes.
//!
//! A new kind is a message that implements [`Resource`] and a line in [`KINDS`]. An entry of a kind that is not there
//! stops the start, with its name: a server that ignored it would promise less than the one that wrote it.
//!
//! `tepui check` decodes each of these entries and counts none of them as a table ([`super::entry_of`]); `tepui
//! inspect` lists them with all other entries of the meta store.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, Deref};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use prost::Message;
use rpds::RedBlackTreeMapSync;
use tepui_bigtable::error::{Code, Error, Result};
use tepui_engine::manifest::{MetaChange, MetaExpect, MetaStore};
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

use super::authorized_views::ViewRecord;
use super::record::{newer, of_version};
use crate::api::instances::Instance;
use crate::api::{admin, longrunning};
use crate::backups::record::BackupRecord;
use crate::iam::policies::PolicyRecord;
use crate::limits::SWEPT_PER_CHANGE_MAX;

/// Before the kind in every key.
pub(super) const PREFIX: &str = "resources/";

/// The version of an entry that is written, and the only one that is read.
const VERSION: u8 = 1;

/// What can be kept here.
pub trait Resource: Message + Default + Clone + 'static {
    /// The kind: part of the key, so never changed. Without a slash.
    const KIND: &'static str;
    /// What an error calls it.
    const NOUN: &'static str;
    /// Whether that which it is in may not be deleted while it is there, as a backup's cluster.
    const HOLDS: bool = false;
}

/// A resource as of its last change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<R> {
    /// What is durable.
    pub value: R,
    /// Differs from that of every other change of any resource.
    pub revision: u64,
    /// Of the bytes that are durable. Unlike the revision it is known before the commit, so that an operation of the same
    /// commit can tell it.
    pub digest: u64,
}

impl<R> Stored<R> {
    /// What it is, as the text that clients send back: another content has another.
    pub fn etag(&self) -> String {
        format!("{:016x}", self.digest)
    }
}

/// Every kind that there is.
const KINDS: &[Kind] = &[
    Kind::of::<Instance>(),
    Kind::of::<admin::Cluster>(),
    Kind::of::<admin::AppProfile>(),
    Kind::of::<BackupRecord>(),
    Kind::of::<longrunning::Operation>(),
    Kind::of::<crate::bundles::BundleRecord>(),
    Kind::of::<ViewRecord>(),
    Kind::of::<PolicyRecord>(),
];

impl Resource for longrunning::Operation {
    const KIND: &'static str = "operation";
    const NOUN: &'static str = "operation";
}

/// A resource without its type.
#[derive(Clone)]
struct Entry {
    revision: u64,
    /// Of its message.
    bytes: usize,
    /// A [`Stored`] of the kind's type.
    stored: Arc<dyn Any + Send + Sync>,
}

impl Entry {
    fn new<R: Resource>(value: R, revision: u64, digest: u64) -> Self {
        let bytes = value.encoded_len();
        Self { revision, bytes, stored: Arc::new(Stored { value, revision, digest }) }
    }

    fn typed<R: Resource>(&self) -> Option<Arc<Stored<R>>> {
        Arc::clone(&self.stored).downcast().ok()
    }
}

/// The resources of a kind, by full name. Changed by its own functions only, which keep the sum.
#[derive(Clone, Default)]
struct Entries {
    by_name: RedBlackTreeMapSync<String, Entry>,
    /// Of all messages and their names.
    bytes: usize,
}

impl Entries {
    fn insert(&mut self, name: String, entry: Entry) {
        self.remove(&name);
        self.bytes += name.len() + entry.bytes;
        self.by_name.insert_mut(name, entry);
    }

    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.by_name.get(name) {
            self.bytes -= name.len() + entry.bytes;
            self.by_name.remove_mut(name);
        }
    }
}

impl Deref for Entries {
    type Target = RedBlackTreeMapSync<String, Entry>;

    fn deref(&self) -> &Self::Target {
        &self.by_name
    }
}

/// A kind without its type.
struct Kind {
    name: &'static str,
    noun: &'static str,
    holds: bool,
    /// An entry from the bytes behind the version, with its revision and its digest.
    decode: fn(&[u8], u64, u64) -> Result<Entry, prost::DecodeError>,
}

impl Kind {
    const fn of<R: Resource>() -> Self {
        Self {
            name: R::KIND,
            noun: R::NOUN,
            holds: R::HOLDS,
            decode: |bytes, revision, digest| Ok(Entry::new(R::decode(bytes)?, revision, digest)),
        }
    }
}

/// Checks an entry of the meta store; whether it is a resource's.
pub(super) fn check_entry(key: &str, value: &[u8]) -> Result<bool> {
    if !key.starts_with(PREFIX) {
        return Ok(false);
    }
    decode(key, value, 0).map(|_| true)
}

/// The resource of an entry of the meta store; `None` for one of another kind.
pub(super) fn read<R: Resource>(key: &str, value: &[u8]) -> Result<Option<Arc<Stored<R>>>> {
    decode(key, value, 0).map(|(_, _, entry)| entry.typed())
}

/// The kind's number, the name and the entry of a key and its value.
fn decode<'k>(key: &'k str, value: &[u8], revision: u64) -> Result<(usize, &'k str, Entry)> {
    let damaged = |what: String| Error::data_loss(format!("catalog entry {key}: {what}"));
    let path = key.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/'));
    let (kind, name) = path.ok_or_else(|| damaged("no resource has such a key".to_owned()))?;
    let found = KINDS.iter().enumerate().find(|(_, known)| known.name == kind);
    let (number, kind) = found
        .ok_or_else(|| newer(key, format_args!("resources of kind {kind:?} are not known here")))?;
    let rest = of_version(key, value, VERSION)?;
    let entry = (kind.decode)(rest, revision, xxh3_64(value));
    let entry = entry.map_err(|error| damaged(format!("offset 1: {error}")))?;
    Ok((number, name, entry))
}

/// The key of a resource of the kind with this number in [`KINDS`], where one has it: for fuzzing.
pub(super) fn key_of_kind(number: usize, name: &str) -> Option<String> {
    KINDS.get(number).map(|kind| format!("{PREFIX}{}/{name}", kind.name))
}

fn key<R: Resource>(name: &str) -> String {
    format!("{PREFIX}{}/{name}", R::KIND)
}

/// Told the names of what a change has made, changed or removed, of a kind each, once readers see it: by whoever makes the change,
/// and before another.
type Follower = Box<dyn Fn(&Resources, &Changed) + Send + Sync>;

/// The names of what a change has changed.
pub struct Changed(Vec<(usize, String)>);

impl Changed {
    /// Those of a kind.
    pub fn of<R: Resource>(&self) -> impl Iterator<Item = &str> {
        let kind = kind_number::<R>();
        let of_kind = self.0.iter().filter(move |(of, _)| *of == kind);
        of_kind.map(|(_, name)| name.as_str())
    }
}

/// All resources of one server.
pub struct Resources {
    meta: Arc<dyn MetaStore>,
    /// In the order of [`KINDS`].
    kinds: Vec<ArcSwap<Entries>>,
    follower: OnceLock<Follower>,
    /// Held by the one change under way, over its durable part too.
    changing: Mutex<()>,
    /// Sent to whenever readers see a change, for those who wait for one.
    changed: watch::Sender<()>,
}

impl Debug for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resources").finish_non_exhaustive()
    }
}

impl Resources {
    /// Reads all. An entry that cannot be read, or whose kind is unknown, is an error that names it.
    pub fn open(meta: Arc<dyn MetaStore>) -> Result<Self> {
        let mut kinds: Vec<_> = KINDS.iter().map(|_| Entries::default()).collect();
        for (key, stored) in meta.list(PREFIX)? {
            let (number, name, entry) = decode(&key, &stored.value, stored.revision)?;
            if let Some(entries) = kinds.get_mut(number) {
                entries.insert(name.to_owned(), entry);
            }
        }
        let kinds = kinds.into_iter().map(ArcSwap::from_pointee).collect();
        let (changing, changed) = (Mutex::new(()), watch::Sender::new(()));
        Ok(Self { meta, kinds, follower: OnceLock::new(), changing, changed })
    }

    /// From now on `follower` is told of every change. Once only: there is one.
    pub fn follow(&self, follower: impl Fn(&Self, &Changed) + Send + Sync + 'static) {
        let is_first = self.follower.set(Box::new(follower)).is_ok();
        assert!(is_first, "there is one follower");
    }

    /// The resource of a name.
    pub fn get<R: Resource>(&self, name: &str) -> Option<Arc<Stored<R>>> {
        self.entries::<R>().load().get(name).and_then(Entry::typed)
    }

    /// The resource of a name; `NOT_FOUND` where there is none.
    pub fn find<R: Resource>(&self, name: &str) -> Result<Arc<Stored<R>>> {
        self.get(name).ok_or_else(|| missing::<R>(name))
    }

    /// Up to `limit` resources whose names start with `prefix`, in name order, those after the name `after` only.
    pub fn list<R: Resource>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Arc<Stored<R>>)> {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let entries = self.entries::<R>().load();
        let from_start = entries.range::<str, _>((start, Bound::Unbounded));
        let matching = from_start.take_while(|(name, _)| name.starts_with(prefix));
        let named = matching.filter_map(|(name, entry)| Some((name.clone(), entry.typed()?)));
        named.take(limit).collect()
    }

    /// Bytes of all resources of a kind and of their names.
    pub fn bytes<R: Resource>(&self) -> usize {
        self.entries::<R>().load().bytes
    }

    /// Creates a resource; `ALREADY_EXISTS` where there is one of the name. Blocks.
    pub fn create<R: Resource>(&self, name: &str, value: R) -> Result<Arc<Stored<R>>> {
        self.change_one(name, |change| change.create(name, value))
    }

    /// Changes a resource; `NOT_FOUND` where there is none of the name, and what `change` returns. Blocks.
    pub fn update<R: Resource>(
        &self,
        name: &str,
        change: impl FnOnce(&mut R) -> Result<()>,
    ) -> Result<Arc<Stored<R>>> {
        self.change_one(name, |all| all.update(name, change).map(drop))
    }

    /// Makes all that `work` asks for, in one commit, and returns what it makes of the resource of a name: what was committed,
    /// also where others change it as soon as they may. Blocks.
    pub fn change_one<R: Resource>(
        &self,
        name: &str,
        work: impl FnOnce(&mut Change<'_>) -> Result<()>,
    ) -> Result<Arc<Stored<R>>> {
        let mut change = self.begin();
        work(&mut change)?;
        let made = change.find::<R>(name)?;
        let revision = change.commit(Vec::new())?;
        Ok(Arc::new(Stored { value: made.value.clone(), revision, digest: made.digest }))
    }

    /// Deletes a resource if `allowed` has nothing against it; `NOT_FOUND` where there is none of the name. Blocks.
    pub fn delete<R: Resource>(
        &self,
        name: &str,
        allowed: impl FnOnce(&R) -> Result<()>,
    ) -> Result<()> {
        self.change(|change| {
            allowed(&change.find::<R>(name)?.value)?;
            change.delete::<R>(name)
        })
    }

    /// Removes by `remove` what of a kind is `gone`: so many in one change at most that a full disk takes it, and that others have
    /// their turn in between. Returns how many. Blocks.
    pub fn sweep<R: Resource>(
        &self,
        is_gone: impl Fn(&str, &R) -> bool,
        remove: impl Fn(&mut Change<'_>, &str) -> Result<()>,
    ) -> Result<usize> {
        let all = self.entries::<R>().load_full();
        let of_gone = |(name, entry): &(&String, &Entry)| {
            entry.typed::<R>().is_some_and(|stored| is_gone(name, &stored.value))
        };
        let mut gone = all.iter().filter(of_gone).map(|(name, _)| name.as_str());
        let mut swept = 0;
        loop {
            // Looked for between the changes, so that whoever waits for one begins it meanwhile.
            let portion: Vec<_> = gone.by_ref().take(SWEPT_PER_CHANGE_MAX).collect();
            if portion.is_empty() {
                return Ok(swept);
            }
            swept += self.change(|change| {
                let mut swept = 0;
                for name in portion {
                    // Somebody may have deleted it meanwhile, or made another of the name.
                    if self.get::<R>(name).is_some_and(|stored| is_gone(name, &stored.value)) {
                        remove(change, name)?;
                        swept += 1;
                    }
                }
                Ok(swept)
            })?;
        }
    }

    /// Makes all that `work` asks for, in one commit; nothing where it returns an error. No other change comes
    /// between what `work` reads through its argument and the commit. Blocks.
    pub fn change<T>(&self, work: impl FnOnce(&mut Change<'_>) -> Result<T>) -> Result<T> {
        let mut change = self.begin();
        let done = work(&mut change)?;
        change.commit(Vec::new())?;
        Ok(done)
    }

    /// Begins a change: no other comes between this and its end. One that is dropped does nothing. Blocks.
    pub fn begin(&self) -> Change<'_> {
        let changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        Change { resources: self, staged: BTreeMap::new(), _changing: changing }
    }

    /// Shows what a commit with this revision has made durable.
    fn show(&self, staged: BTreeMap<String, Staged>, revision: u64) {
        let mut maps: BTreeMap<usize, Entries> = BTreeMap::new();
        let changed = staged.values().map(|staged| (staged.kind, staged.name.clone()));
        let changed = Changed(changed.collect());
        for staged in staged.into_values() {
            let Some(kind) = self.kinds.get(staged.kind) else { continue };
            let map = maps.entry(staged.kind).or_insert_with(|| Entries::clone(&kind.load()));
            match staged.after {
                Some(after) => {
                    let digest = after.digest();
                    map.insert(staged.name, (after.seal)(after.value, revision, digest));
                }
                None => map.remove(&staged.name),
            }
        }
        for (number, map) in maps {
            if let Some(kind) = self.kinds.get(number) {
                kind.store(Arc::new(map));
            }
        }
        if let Some(follower) = self.follower.get() {
            follower(self, &changed);
        }
        self.changed.send_replace(());
    }

    /// Waits until resources are as `wanted` finds them: it looks now and after every change.
    pub async fn until<T>(&self, mut wanted: impl FnMut() -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(found) = wanted() {
                return found;
            }
            // The sender is kept as long as `self`.
            changes.changed().await.unwrap_or_default();
        }
    }

    fn entries<R: Resource>(&self) -> &ArcSwap<Entries> {
        self.kinds.get(kind_number::<R>()).expect("there is a map for each kind")
    }
}

/// The place of a type in [`KINDS`].
fn kind_number<R: Resource>() -> usize {
    let found = KINDS.iter().position(|kind| kind.name == R::KIND);
    found.expect("each Resource has a line in KINDS")
}

/// The error for a resource that is not there.
pub fn missing<R: Resource>(name: &str) -> Error {
    Error::not_found(format!("{} {name:?} not found", R::NOUN))
}

/// What one commit is to do.
pub struct Change<'a> {
    resources: &'a Resources,
    /// By key.
    staged: BTreeMap<String, Staged>,
    /// Keeps other changes out.
    _changing: MutexGuard<'a, ()>,
}

struct Staged {
    kind: usize,
    name: String,
    /// The revision of what is in the store.
    before: Option<u64>,
    /// What is to be there.
    after: Option<After>,
}

struct After {
    bytes: Bytes,
    value: Box<dyn Any>,
    seal: fn(Box<dyn Any>, u64, u64) -> Entry,
}

impl After {
    fn digest(&self) -> u64 {
        xxh3_64(&self.bytes)
    }
}

impl Change<'_> {
    /// Makes the change, and with it what is `beside` the resources, in one commit; its revision. Where there is nothing to
    /// do, nothing is committed, and the revision is 0. Blocks.
    pub fn commit(mut self, beside: Vec<MetaChange>) -> Result<u64> {
        self.try_commit(beside)
    }

    /// The same; what fails can be made smaller and tried again, before any other change.
    pub fn try_commit(&mut self, mut beside: Vec<MetaChange>) -> Result<u64> {
        beside.extend(self.staged.iter().map(|(key, staged)| MetaChange {
            key: key.clone(),
            expect: staged.before.map_or(MetaExpect::Absent, MetaExpect::Revision),
            value: staged.after.as_ref().map(|after| after.bytes.clone()),
        }));
        if beside.is_empty() {
            return Ok(0);
        }
        let committed = self.resources.meta.commit(&beside);
        let revision = committed.map_err(|error| error.context("catalog of resources"))?;
        self.resources.show(std::mem::take(&mut self.staged), revision);
        Ok(revision)
    }

    /// Whether the store has more bytes with this change, and what is `beside` it, than before.
    pub fn takes_room(&self, beside: &[MetaChange]) -> Result<bool> {
        let staged = self
            .staged
            .iter()
            .map(|(key, staged)| (key, staged.after.as_ref().map(|after| &after.bytes)));
        let beside = beside.iter().map(|change| (&change.key, change.value.as_ref()));
        let (mut before, mut after) = (0, 0);
        for (key, value) in staged.chain(beside) {
            let stored = self.resources.meta.get(key)?;
            before += stored.map_or(0, |entry| key.len() + entry.value.len());
            after += value.map_or(0, |value| key.len() + value.len());
        }
        Ok(after > before)
    }

    /// The value of a name as this change leaves it so far; the revision of one that it makes is not known yet, and 0.
    pub fn get<R: Resource>(&self, name: &str) -> Option<Arc<Stored<R>>> {
        match self.staged.get(&key::<R>(name)) {
            None => self.resources.get(name),
            Some(Staged { after: None, .. }) => None,
            Some(Staged { after: Some(after), .. }) => {
                let value = after.value.downcast_ref::<R>()?.clone();
                Some(Arc::new(Stored { value, revision: 0, digest: after.digest() }))
            }
        }
    }

    /// The same; `NOT_FOUND` where there is none.
    pub fn find<R: Resource>(&self, name: &str) -> Result<Arc<Stored<R>>> {
        self.get(name).ok_or_else(|| missing::<R>(name))
    }

    /// Creates a resource; `ALREADY_EXISTS` where there is one of the name.
    pub fn create<R: Resource>(&mut self, name: &str, value: R) -> Result<()> {
        if self.get::<R>(name).is_some() {
            let noun = R::NOUN;
            return Err(Error::new(Code::AlreadyExists, format!("{noun} {name:?} already exists")));
        }
        self.put(name, value);
        Ok(())
    }

    /// Changes a resource, and returns what it is to be; `NOT_FOUND` where there is none of the name.
    pub fn update<R: Resource>(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut R) -> Result<()>,
    ) -> Result<R> {
        let mut value = self.find::<R>(name)?.value.clone();
        change(&mut value)?;
        self.put(name, value.clone());
        Ok(value)
    }

    /// Makes the resource of a name what it is to be, whether there is one or not.
    pub fn put<R: Resource>(&mut self, name: &str, value: R) {
        let mut bytes = Vec::with_capacity(1 + value.encoded_len());
        bytes.push(VERSION);
        value.encode_raw(&mut bytes);
        let bytes = Bytes::from(bytes);
        // What a client gave shares the buffer of its whole request, which may be much larger, and would stay as long.
        let own = R::decode(bytes.slice(1..)).expect("what was encoded can be decoded");
        let after = After { bytes, value: Box::new(own), seal: seal::<R> };
        self.stage::<R>(name, Some(after));
    }

    /// Deletes a resource; `NOT_FOUND` where there is none of the name.
    pub fn delete<R: Resource>(&mut self, name: &str) -> Result<()> {
        self.find::<R>(name)?;
        self.stage::<R>(name, None);
        Ok(())
    }

    /// Leaves all resources of a kind as they are; false where they were to be left anyhow.
    pub fn leave<R: Resource>(&mut self) -> bool {
        let kind = kind_number::<R>();
        let before = self.staged.len();
        self.staged.retain(|_, staged| staged.kind != kind);
        self.staged.len() < before
    }

    /// Something in what has this name that [holds](Resource::HOLDS) it: what it is called, and its name.
    pub fn held_under(&self, name: &str) -> Option<(&'static str, String)> {
        let below = format!("{name}/");
        let holding = KINDS.iter().zip(&self.resources.kinds).filter(|(kind, _)| kind.holds);
        holding.into_iter().find_map(|(kind, of_kind)| {
            let entries = of_kind.load();
            let mut from =
                entries.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded));
            let (found, _) = from.next().filter(|(found, _)| found.starts_with(&below))?;
            Some((kind.noun, found.clone()))
        })
    }

    /// Deletes what has this name, of whatever kind, and all whose names go on from it with a slash: an instance and
    /// what is in it, a table's views and policies. Operations stay: their names start with their numbers.
    pub fn delete_under(&mut self, name: &str) {
        let below = format!("{name}/");
        for (kind, (known, of_kind)) in KINDS.iter().zip(&self.resources.kinds).enumerate() {
            let key = |name: &str| format!("{PREFIX}{}/{name}", known.name);
            // Looked up, not looked for among all that is staged: that may be thousands of other names' deletions.
            self.staged.remove(&key(name));
            let keys_below = key(&below);
            let staged_below = self
                .staged
                .range::<str, _>((Bound::Included(keys_below.as_str()), Bound::Unbounded));
            let staged_below = staged_below.take_while(|(key, _)| key.starts_with(&keys_below));
            for key in staged_below.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                self.staged.remove(&key);
            }
            let entries = of_kind.load();
            let itself = entries.get_key_value(name);
            let from_below =
                entries.range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded));
            let inside = from_below.take_while(|(found, _)| found.starts_with(&below));
            for (found, entry) in itself.into_iter().chain(inside) {
                let before = Some(entry.revision);
                let staged = Staged { kind, name: found.clone(), before, after: None };
                self.staged.insert(key(found), staged);
            }
        }
    }

    fn stage<R: Resource>(&mut self, name: &str, after: Option<After>) {
        let before = self.resources.get::<R>(name).map(|stored| stored.revision);
        let key = key::<R>(name);
        if before.is_none() && after.is_none() {
            self.staged.remove(&key);
            return;
        }
        let staged = Staged { kind: kind_number::<R>(), name: name.to_owned(), before, after };
        self.staged.insert(key, staged);
    }
}

fn seal<R: Resource>(value: Box<dyn Any>, revision: u64, digest: u64) -> Entry {
    let value = value.downcast::<R>().expect("what was staged for a kind is of its type");
    Entry::new(*value, revision, digest)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::api::admin::authorized_view::{AuthorizedView as Type, SubsetView};
    use crate::bundles::BundleRecord;
    use crate::catalog::memory_meta::MemoryMeta;
    use longrunning::Operation;

    const A: &str = "projects/p/instances/i";

    fn named(name: &str) -> Operation {
        Operation { name: name.to_owned(), ..Operation::default() }
    }

    fn names(
        resources: &Resources,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<String> {
        resources
            .list::<Operation>(prefix, after, limit)
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    #[test]
    fn resources_survive_a_restart_with_their_etags() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        let made = resources.create(A, named("one")).unwrap();
        let changed = resources.update(A, |o: &mut Operation| {
            o.done = true;
            Ok(())
        });
        let changed = changed.unwrap();
        assert_ne!(made.etag(), changed.etag());
        let again = Resources::open(meta.clone()).unwrap();
        assert_eq!(again.get::<Operation>(A), Some(changed));
        again.delete::<Operation>(A, |_| Ok(())).unwrap();
        assert_eq!(Resources::open(meta).unwrap().get::<Operation>(A), None);
    }

    #[test]
    fn what_is_there_is_not_created_and_what_is_not_is_neither_changed_nor_deleted() {
        let resources = Resources::open(Arc::new(MemoryMeta::default())).unwrap();
        let untouched = |_: &mut Operation| -> Result<()> { panic!("there is nothing to change") };
        assert_eq!(resources.update(A, untouched).unwrap_err().kind(), Code::NotFound);
        let error = resources.delete::<Operation>(A, |_| Ok(())).unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (Code::NotFound, &*format!("operation {A:?} not found"))
        );
        resources.create(A, named("one")).unwrap();
        let error = resources.create(A, named("two")).unwrap_err();
        assert_eq!(error.kind(), Code::AlreadyExists);
        assert_eq!(resources.get::<Operation>(A).unwrap().value, named("one"));
    }

    #[test]
    fn a_refused_or_failed_change_leaves_all_of_its_resources_as_they_were() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        let before = resources.create(A, named("one")).unwrap();
        let refused = resources.change(|change| {
            change.put("b", named("b"));
            change.delete::<Operation>(A)?;
            Err::<(), _>(Error::failed_precondition("no"))
        });
        assert_eq!(refused.unwrap_err().kind(), Code::FailedPrecondition);
        let refuse = |_: &Operation| Err(Error::failed_precondition("no"));
        assert!(resources.delete(A, refuse).is_err());
        meta.fails.store(true, Ordering::Relaxed);
        assert!(resources.delete::<Operation>(A, |_| Ok(())).is_err());
        assert!(resources.create("b", named("b")).is_err());
        for resources in [&resources, &Resources::open(meta).unwrap()] {
            assert_eq!(resources.get::<Operation>(A).as_ref(), Some(&before));
            assert_eq!(names(resources, "", None, 10), [A]);
        }
    }

    #[test]
    fn what_is_beside_the_resources_is_there_with_them_or_not_at_all() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        let table = |expect| {
            let value = Some(Bytes::from_static(b"t"));
            vec![MetaChange { key: "tables/t".to_owned(), expect, value }]
        };
        let commit = |expect| {
            let mut change = resources.begin();
            change.put(A, named("one"));
            change.commit(table(expect))
        };
        assert!(commit(MetaExpect::Revision(7)).is_err(), "somebody has changed the table");
        assert!(meta.list("").unwrap().is_empty() && resources.get::<Operation>(A).is_none());
        let revision = commit(MetaExpect::Absent).unwrap();
        let there = meta.list("").unwrap();
        assert_eq!(there.len(), 2);
        assert!(there.iter().all(|(_, entry)| entry.revision == revision), "one commit");
        assert_eq!(resources.get::<Operation>(A).unwrap().revision, revision);
        let mut dropped = resources.begin();
        dropped.put("b", named("b"));
        drop(dropped);
        assert_eq!(names(&resources, "", None, 10), [A]);
        assert_eq!(resources.begin().commit(Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_resource_does_not_keep_the_request_that_made_it() {
        let resources = Resources::open(Arc::new(MemoryMeta::default())).unwrap();
        let subset =
            |prefix: Bytes| SubsetView { row_prefixes: vec![prefix], ..Default::default() };
        let view = |prefix| admin::AuthorizedView {
            authorized_view: Some(Type::SubsetView(subset(prefix))),
            ..admin::AuthorizedView::default()
        };
        let record = |prefix| ViewRecord { table: 1, view: Some(view(prefix)) };
        let request = Bytes::from(vec![b'x'; 1 << 20]);
        resources.create(A, record(request.slice(..3))).unwrap();
        let changed = resources.update(A, |kept: &mut ViewRecord| {
            *kept = record(request.slice(..4));
            Ok(())
        });
        let prefix = &changed.unwrap().value.subset().row_prefixes[0];
        assert_eq!(prefix, "xxxx");
        assert!(request.is_unique(), "nothing else has it");
    }

    #[test]
    fn the_etag_of_a_change_is_known_before_its_commit() {
        let resources = Resources::open(Arc::new(MemoryMeta::default())).unwrap();
        let within = resources.change(|change| {
            change.create(A, named("one"))?;
            Ok(change.find::<Operation>(A)?.etag())
        });
        assert_eq!(within.unwrap(), resources.get::<Operation>(A).unwrap().etag());
    }

    #[test]
    fn a_change_sees_what_it_has_done_so_far() {
        let resources = Resources::open(Arc::new(MemoryMeta::default())).unwrap();
        resources.create(A, named("one")).unwrap();
        let seen = resources.change(|change| {
            change.delete::<Operation>(A)?;
            assert!(change.delete::<Operation>(A).is_err());
            change.create(A, named("two"))?;
            change.create("b", named("b"))?;
            change.delete::<Operation>("b")?;
            change.find::<Operation>(A).map(|stored| stored.value.clone())
        });
        assert_eq!(seen.unwrap(), named("two"));
        assert_eq!(names(&resources, "", None, 10), [A]);
        assert_eq!(resources.get::<Operation>(A).unwrap().value, named("two"));
    }

    #[test]
    fn listing_goes_by_name_within_a_prefix_and_continues_after_a_name() {
        let resources = Resources::open(Arc::new(MemoryMeta::default())).unwrap();
        for name in ["p/i/c", "p/i/a", "p/i/b", "p/j/a", "p/h/z"] {
            resources.create(name, named(name)).unwrap();
        }
        assert_eq!(names(&resources, "p/i/", None, 10), ["p/i/a", "p/i/b", "p/i/c"]);
        assert_eq!(names(&resources, "p/i/", Some("p/i/a"), 1), ["p/i/b"]);
        assert_eq!(names(&resources, "p/i/", Some("p/i/c"), 1), [""; 0]);
        assert_eq!(names(&resources, "p/i/", Some("p/"), 1), ["p/i/a"]);
    }

    #[test]
    fn what_is_under_a_name_goes_with_it_and_its_neighbours_stay() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        for name in ["p/i", "p/i/x", "p/i/x/y", "p/i-2", "p/i2", "p"] {
            resources.create(name, named(name)).unwrap();
        }
        resources
            .change(|change| {
                for new in ["p/i/new", "p/i-3", "p/i3", "p/i/new/y"] {
                    change.put(new, named(new));
                }
                change.put("p/i", BundleRecord::default());
                change.delete_under("p/i");
                Ok(())
            })
            .unwrap();
        for resources in [resources, Resources::open(meta).unwrap()] {
            assert_eq!(names(&resources, "", None, 10), ["p", "p/i-2", "p/i-3", "p/i2", "p/i3"]);
            assert!(resources.get::<BundleRecord>("p/i").is_none());
        }
    }

    /// The bytes of operations and views, which are those of all of them.
    fn counted(resources: &Resources) -> [usize; 2] {
        fn of<R: Resource>(resources: &Resources) -> usize {
            let all = resources.list::<R>("", None, usize::MAX);
            let sizes = all.iter().map(|(name, stored)| name.len() + stored.value.encoded_len());
            assert_eq!(resources.bytes::<R>(), sizes.sum::<usize>());
            resources.bytes::<R>()
        }
        [of::<Operation>(resources), of::<ViewRecord>(resources)]
    }

    #[test]
    fn the_bytes_of_a_kind_are_those_of_all_of_it_after_every_change() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        assert_eq!(counted(&resources), [0, 0]);
        resources.create(A, named("one")).unwrap();
        resources.create("b", named(&"long".repeat(99))).unwrap();
        let [both, _] = counted(&resources);
        for name in ["longer than before", "short"] {
            let rename = |operation: &mut Operation| {
                *operation = named(name);
                Ok(())
            };
            resources.update("b", rename).unwrap();
            assert_ne!(counted(&resources)[0], both);
        }
        resources
            .change(|change| {
                for name in [A, "c"] {
                    change.put(name, named("put"));
                    change.put(name, named("put again"));
                }
                change.put(&format!("{A}/x"), named("x"));
                change.put(&format!("{A}/y"), ViewRecord { table: 7, view: None });
                change.put("v", ViewRecord { table: 8, view: None });
                change.create("gone", named("as soon as made"))?;
                change.delete::<Operation>("gone")
            })
            .unwrap();
        let before = counted(&resources);
        assert_eq!(counted(&Resources::open(meta.clone()).unwrap()), before);
        let refused = resources.change(|change| {
            change.put("d", named("d"));
            change.delete::<Operation>("not there")
        });
        assert!(refused.is_err());
        assert_eq!(counted(&resources), before);
        resources.create("d", named("d")).unwrap();
        meta.fails.store(true, Ordering::Relaxed);
        let before = counted(&resources);
        assert!(resources.create("e", named("e")).is_err());
        assert!(resources.delete::<Operation>("d", |_| Ok(())).is_err());
        assert_eq!(counted(&resources), before);
        meta.fails.store(false, Ordering::Relaxed);
        resources.delete::<Operation>("d", |_| Ok(())).unwrap();
        counted(&resources);
        let under = resources.change(|change| {
            change.put(&format!("{A}/new"), named("new"));
            change.delete_under(A);
            Ok(())
        });
        under.unwrap();
        counted(&resources);
        let swept = resources.sweep::<ViewRecord>(
            |_, view| view.table == 8,
            |change, name| change.delete::<ViewRecord>(name),
        );
        assert_eq!((swept, counted(&resources)[1]), (Ok(1), 0));
        for name in ["b", "c"] {
            resources.delete::<Operation>(name, |_| Ok(())).unwrap();
        }
        assert_eq!(counted(&resources), [0, 0]);
        assert_eq!(counted(&Resources::open(meta).unwrap()), [0, 0]);
    }

    #[test]
    fn what_is_swept_goes_in_commits_that_a_full_disk_takes() {
        let meta = Arc::new(MemoryMeta::default());
        let resources = Resources::open(meta.clone()).unwrap();
        let name = |i: usize| format!("projects/p/instances/i/tables/t/authorizedViews/{i:05}");
        let count = 2 * SWEPT_PER_CHANGE_MAX + 1;
        resources
            .change(|change| {
                for i in 0..=count {
                    change.put(&name(i), ViewRecord { table: 1, view: None });
                }
                Ok(())
            })
            .unwrap();
        let revision = || resources.create("x", named("x")).unwrap().revision;
        let before = revision();
        resources.delete::<Operation>("x", |_| Ok(())).unwrap();
        meta.disk_is_full.store(true, Ordering::Relaxed);
        let swept = resources.sweep::<ViewRecord>(
            |found, _| found != name(7),
            |change, name| {
                change.delete_under(name);
                Ok(())
            },
        );
        assert_eq!(swept, Ok(count));
        meta.disk_is_full.store(false, Ordering::Relaxed);
        assert_eq!(revision() - before, 1 + 3 + 1, "one for each portion");
        let left = resources.list::<ViewRecord>("", None, 10);
        assert_eq!(left.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), [name(7)]);
    }

    #[test]
    fn entries_that_cannot_be_read_stop_the_start_by_name() {
        let good = {
            let mut bytes = vec![VERSION];
            named("one").encode(&mut bytes).unwrap();
            bytes
        };
        let newer = [&[2], &good[1..]].concat();
        let older = [&[0], &good[1..]].concat();
        let (damage, no_damage) = (Code::DataLoss, Code::FailedPrecondition);
        for (key, value, code, what) in [
            ("resources/operation/a", &[][..], damage, "it is empty"),
            ("resources/operation/a", &older, damage, "version 0 is not known"),
            ("resources/operation/a", &newer, no_damage, "version 2 is not known"),
            ("resources/operation/a", &good[..good.len() - 1], damage, "offset 1"),
            ("resources/teapot/a", &good, no_damage, "kind \"teapot\" are not known"),
            ("resources/operation", &good, damage, "no resource has such a key"),
        ] {
            let meta = MemoryMeta::default();
            let value = Some(Bytes::copy_from_slice(value));
            let change = MetaChange { key: key.to_owned(), expect: MetaExpect::Any, value };
            meta.commit(&[change]).unwrap();
            let error = Resources::open(Arc::new(meta)).unwrap_err();
            assert_eq!(error.kind(), code);
            assert!(error.message().contains(key) && error.message().contains(what), "{error}");
        }
        assert!(check_entry("resources/operation/a", &good).unwrap());
        assert!(!check_entry("tables/a", b"").unwrap());
    }
}

//! Authorized views as they are kept: their definitions, durably, and compiled for the requests that go through them.
//!
//! A view belongs to one table, not to a name of a table: its record has the table's incarnation. So a deleted table
//! takes its views along and brings them back, and a new table of the name has none of them, without a commit over
//! both. Records of tables that are gone for good are swept with them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tepui_bigtable::authorized_view::AuthorizedView;
use tepui_bigtable::error::{Error, Result};

use super::resources::{Change, Resource, Resources, Stored, missing};
use crate::api::admin;
use crate::api::admin::authorized_view::{AuthorizedView as Type, SubsetView};
use crate::limits::{COMPILED_VIEWS_BYTES_MAX, COMPILED_VIEWS_MAX};
use crate::names;

/// What is kept of a view, under its full name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ViewRecord {
    /// The incarnation of its table.
    #[prost(fixed64, tag = "1")]
    pub table: u64,
    /// As the client gave it, without the etag, which is made of the record.
    #[prost(message, optional, tag = "2")]
    pub view: Option<admin::AuthorizedView>,
}

impl Resource for ViewRecord {
    const KIND: &'static str = "authorized-view";
    const NOUN: &'static str = "authorized view";
}

impl ViewRecord {
    /// What the view lets through.
    pub fn subset(&self) -> SubsetView {
        match self.view.as_ref().and_then(|view| view.authorized_view.clone()) {
            Some(Type::SubsetView(subset)) => subset,
            None => SubsetView::default(),
        }
    }

    /// Whether it is protected from deletion, and its table with it.
    pub fn is_protected(&self) -> bool {
        self.view.as_ref().is_some_and(|view| view.deletion_protection)
    }
}

/// Bytes of an entry of the compiled views, beside those of its name and its view: what the map has of it.
const ENTRY_BYTES: usize = 2 * size_of::<(String, (u64, Arc<AuthorizedView>))>();

/// Views that were compiled, by name, each with the revision that it was compiled from.
#[derive(Default)]
struct Compiled {
    views: HashMap<String, (u64, Arc<AuthorizedView>)>,
    /// Of all of them.
    bytes: usize,
}

impl Compiled {
    fn bytes_of(name: &str, view: &AuthorizedView) -> usize {
        ENTRY_BYTES + name.len() + view.bytes()
    }

    fn remove(&mut self, name: &str) {
        if let Some((_, view)) = self.views.remove(name) {
            self.bytes -= Self::bytes_of(name, &view);
        }
    }

    /// Keeps a view. Where there is no room, those go of which `is_current` says that they are no longer what is stored, and then all: those in
    /// use come back with their next request.
    fn insert(
        &mut self,
        name: &str,
        revision: u64,
        view: Arc<AuthorizedView>,
        is_current: impl Fn(&str, u64) -> bool,
    ) {
        self.remove(name);
        let more = Self::bytes_of(name, &view);
        if !self.has_room(more) {
            self.retain(is_current);
        }
        if !self.has_room(more) {
            *self = Self::default();
        }
        self.bytes += more;
        self.views.insert(name.to_owned(), (revision, view));
    }

    fn has_room(&self, more: usize) -> bool {
        self.views.len() < COMPILED_VIEWS_MAX && self.bytes + more <= COMPILED_VIEWS_BYTES_MAX
    }

    fn retain(&mut self, is_current: impl Fn(&str, u64) -> bool) {
        let bytes = &mut self.bytes;
        self.views.retain(|name, (revision, view)| {
            let stays = is_current(name, *revision);
            if !stays {
                *bytes -= Self::bytes_of(name, view);
            }
            stays
        });
    }
}

/// The authorized views of one server.
pub struct AuthorizedViews {
    resources: Arc<Resources>,
    compiled: RwLock<Compiled>,
}

impl fmt::Debug for AuthorizedViews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizedViews").finish_non_exhaustive()
    }
}

impl AuthorizedViews {
    /// Over these resources.
    pub fn new(resources: Arc<Resources>) -> Self {
        Self { resources, compiled: RwLock::default() }
    }

    /// What they are kept in.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// The view of a name, of the table with this incarnation; `NOT_FOUND` where there is none.
    pub fn find(&self, name: &str, table: u64) -> Result<Arc<Stored<ViewRecord>>> {
        let found = self.resources.get::<ViewRecord>(name);
        found
            .filter(|stored| stored.value.table == table)
            .ok_or_else(|| missing::<ViewRecord>(name))
    }

    /// The same, to go through.
    pub fn compiled(&self, name: &str, table: u64) -> Result<Arc<AuthorizedView>> {
        let stored = self.find(name, table)?;
        let compiled = self.compiled.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((revision, view)) = compiled.views.get(name)
            && *revision == stored.revision
        {
            return Ok(Arc::clone(view));
        }
        drop(compiled);
        let view = Arc::new(AuthorizedView::compile(&stored.value.subset())?);
        let mut compiled = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        // What was changed or deleted meanwhile is forgotten already, and would be kept for nobody.
        if self.is_stored(name, stored.revision) {
            let is_current = |name: &str, revision| self.is_stored(name, revision);
            compiled.insert(name, stored.revision, Arc::clone(&view), is_current);
        }
        Ok(view)
    }

    /// Lets go of what was compiled of a view that was changed or deleted since.
    pub fn forget(&self, name: &str) {
        self.compiled.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The same of all.
    fn forget_changed(&self) {
        let mut compiled = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        compiled.retain(|name, revision| self.is_stored(name, revision));
    }

    fn is_stored(&self, name: &str, revision: u64) -> bool {
        let stored = self.resources.get::<ViewRecord>(name);
        stored.is_some_and(|stored| stored.revision == revision)
    }

    /// Up to `limit` views of a table in name order, those after the name `after` only.
    pub fn list(
        &self,
        table_name: &str,
        table: u64,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, Arc<Stored<ViewRecord>>)> {
        let prefix = format!("{table_name}{}", names::AUTHORIZED_VIEWS);
        let mut all = self.resources.list::<ViewRecord>(&prefix, after, usize::MAX);
        all.retain(|(_, stored)| stored.value.table == table);
        all.truncate(limit);
        all
    }

    /// Removes the views of tables that are gone for good, by what `incarnation` knows of tables; returns how many.
    /// Blocks.
    pub fn sweep(&self, incarnation: impl Fn(&str) -> Option<u64>) -> Result<usize> {
        let is_gone = |name: &str, record: &ViewRecord| {
            let table = names::split_view(name).and_then(|(table, _)| incarnation(table));
            table != Some(record.table)
        };
        let swept = self.resources.sweep(is_gone, |change, name| {
            change.delete_under(name);
            Ok(())
        });
        // Those that went with their table or instance, too.
        self.forget_changed();
        swept
    }

    /// Refuses the deletion of a table or instance of whose views some are protected; `name` is the table's or the
    /// instance's.
    pub fn check_unprotected(&self, name: &str, is_live: impl Fn(&str, u64) -> bool) -> Result<()> {
        let all = self.resources.list::<ViewRecord>(&format!("{name}/"), None, usize::MAX);
        let of_live_table = |view: &str, record: &ViewRecord| {
            names::split_view(view).is_some_and(|(table, _)| is_live(table, record.table))
        };
        let protected = all.into_iter().find(|(view, stored)| {
            stored.value.is_protected() && of_live_table(view, &stored.value)
        });
        match protected {
            None => Ok(()),
            Some((view, _)) => Err(Error::failed_precondition(format!(
                "authorized view {view:?} is protected from deletion, and {name:?} with it; update the view's \
                 deletion_protection first"
            ))),
        }
    }
}

/// Within a change: the view of a name, of the table with this incarnation; `NOT_FOUND` where there is none.
pub fn find_within(change: &Change<'_>, name: &str, table: u64) -> Result<Arc<Stored<ViewRecord>>> {
    let found = change.get::<ViewRecord>(name);
    found.filter(|stored| stored.value.table == table).ok_or_else(|| missing::<ViewRecord>(name))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::api::admin::authorized_view::FamilySubsets;
    use crate::catalog::memory_meta::MemoryMeta;

    const TABLE: u64 = 7;

    fn views() -> AuthorizedViews {
        AuthorizedViews::new(Arc::new(Resources::open(Arc::<MemoryMeta>::default()).unwrap()))
    }

    fn name(i: usize) -> String {
        format!("projects/p/instances/i/tables/t/authorizedViews/{i:05}")
    }

    /// A view of so many prefixes of qualifiers.
    fn record(prefixes: u16) -> ViewRecord {
        let prefix = |i: u16| Bytes::from((2 * i + 1).to_be_bytes().to_vec());
        let columns = FamilySubsets {
            qualifier_prefixes: (0..prefixes).map(prefix).collect(),
            ..FamilySubsets::default()
        };
        let subset = SubsetView {
            row_prefixes: vec![Bytes::new()],
            family_subsets: [("f".to_owned(), columns)].into(),
        };
        let view = admin::AuthorizedView {
            authorized_view: Some(Type::SubsetView(subset)),
            ..admin::AuthorizedView::default()
        };
        ViewRecord { table: TABLE, view: Some(view) }
    }

    impl AuthorizedViews {
        fn put(&self, i: usize, record: ViewRecord) {
            let put = |change: &mut Change<'_>| {
                change.put(&name(i), record);
                Ok(())
            };
            self.resources.change(put).unwrap();
        }

        /// The number of compiled views and their bytes, which are those that are counted.
        fn kept(&self) -> (usize, usize) {
            let compiled = self.compiled.read().unwrap();
            let each = compiled.views.iter();
            let bytes: usize = each.map(|(name, (_, view))| Compiled::bytes_of(name, view)).sum();
            assert_eq!(compiled.bytes, bytes);
            (compiled.views.len(), bytes)
        }
    }

    #[test]
    fn compiled_views_take_no_more_than_their_bytes_however_many_there_are() {
        let views = views();
        let mut most = 0;
        for i in 0..20 {
            views.put(i, record(16_000));
            views.compiled(&name(i), TABLE).unwrap();
            let (_, bytes) = views.kept();
            assert!(bytes <= COMPILED_VIEWS_BYTES_MAX, "{bytes}");
            most = most.max(bytes);
        }
        assert!(most > COMPILED_VIEWS_BYTES_MAX / 2, "{most}");
        let again = || views.compiled(&name(19), TABLE).unwrap();
        assert!(Arc::ptr_eq(&again(), &again()), "it is compiled once");
    }

    #[test]
    fn what_is_no_longer_stored_goes_before_what_is() {
        let views = views();
        for i in 0..4 {
            views.put(i, record(16_000));
            views.compiled(&name(i), TABLE).unwrap();
        }
        let stays = views.compiled(&name(0), TABLE).unwrap();
        for i in 1..4 {
            views.resources.delete::<ViewRecord>(&name(i), |_| Ok(())).unwrap();
        }
        for i in 4..7 {
            views.put(i, record(16_000));
            views.compiled(&name(i), TABLE).unwrap();
        }
        assert!(Arc::ptr_eq(&stays, &views.compiled(&name(0), TABLE).unwrap()));
        assert_eq!(views.kept().0, 4);
    }

    #[test]
    fn nothing_is_kept_of_a_view_that_was_changed_or_deleted() {
        let views = views();
        for i in 0..3 {
            views.put(i, record(1));
            views.compiled(&name(i), TABLE).unwrap();
        }
        views.put(0, record(2));
        views.forget(&name(0));
        assert_eq!(views.kept().0, 2);
        let changed = views.compiled(&name(0), TABLE).unwrap();
        assert!(Arc::ptr_eq(&changed, &views.compiled(&name(0), TABLE).unwrap()));
        views.resources.delete::<ViewRecord>(&name(1), |_| Ok(())).unwrap();
        // The third view's table is gone.
        assert_eq!(views.sweep(|_| None).unwrap(), 2);
        assert_eq!(views.kept(), (0, 0));
    }
}

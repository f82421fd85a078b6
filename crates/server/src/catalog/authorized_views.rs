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
use crate::limits::COMPILED_VIEWS_MAX;
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

/// A view that was compiled, with the revision that it was compiled from.
type Compiled = (u64, Arc<AuthorizedView>);

/// The authorized views of one server.
pub struct AuthorizedViews {
    resources: Arc<Resources>,
    compiled: RwLock<HashMap<String, Compiled>>,
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
        if let Some((revision, view)) = compiled.get(name)
            && *revision == stored.revision
        {
            return Ok(Arc::clone(view));
        }
        drop(compiled);
        let view = Arc::new(AuthorizedView::compile(&stored.value.subset())?);
        let mut compiled = self.compiled.write().unwrap_or_else(PoisonError::into_inner);
        if compiled.len() >= COMPILED_VIEWS_MAX {
            // Those in use come back with their next request; views that are gone do not.
            compiled.clear();
        }
        compiled.insert(name.to_owned(), (stored.revision, Arc::clone(&view)));
        Ok(view)
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
        self.resources.change(|change| {
            let mut swept = 0;
            for (name, stored) in self.resources.list::<ViewRecord>("", None, usize::MAX) {
                let table = names::split_view(&name).and_then(|(table, _)| incarnation(table));
                if table != Some(stored.value.table) {
                    change.delete_under(&name);
                    swept += 1;
                }
            }
            Ok(swept)
        })
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

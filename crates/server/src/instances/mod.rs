//! Instances, their clusters and their app profiles: what may be created and changed, and what requests for rows may do
//! by them.
//!
//! One server serves every instance, and every cluster of an instance is this server: clusters are records, with the
//! nodes and the location that the user wrote into them. Only their names have an effect: tables show a state for each,
//! and app profiles route to them.
//!
//! An instance that nobody created needs no record: tables can be made in it, and it has one cluster,
//! [`IMPLICIT_CLUSTER`]. Creating it later adopts its tables. Where the operator sets `server.strict_instances` there are
//! no such instances.

pub mod clusters;
pub mod profiles;
mod routes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::Clock;
use tokio::sync::Semaphore;

use crate::api::admin;
use crate::api::instances::{CreateInstanceRequest, Edition, Instance};
use crate::catalog::Catalog;
use crate::catalog::host::Host;
use crate::catalog::resources::{Change, Resource, Resources, missing};
use crate::limits::{
    CLUSTERS_MAX, DISPLAY_NAME_CHARS_MAX, INSTANCE_LISTINGS_MAX, INSTANCES_MAX, LABEL_BYTES_MAX,
    LABEL_CHARS_MAX, LABELS_MAX,
};
use crate::names;
use crate::services::timestamp;
use routes::Routes;

/// The id of the one cluster of an instance that nobody created.
pub const IMPLICIT_CLUSTER: &str = "tepui";

/// Its zone.
pub const IMPLICIT_ZONE: &str = "local";

impl Resource for Instance {
    const KIND: &'static str = "instance";
    const NOUN: &'static str = "instance";
}

impl Resource for admin::Cluster {
    const KIND: &'static str = "cluster";
    const NOUN: &'static str = "cluster";
}

impl Resource for admin::AppProfile {
    const KIND: &'static str = "app-profile";
    const NOUN: &'static str = "app profile";
}

/// The instances of one server.
#[derive(Debug)]
pub struct Instances {
    resources: Arc<Resources>,
    clock: Arc<dyn Clock>,
    is_strict: bool,
    /// As of the last change: whoever makes one makes them anew.
    routes: Arc<ArcSwap<Routes>>,
    /// Turns of [`INSTANCE_LISTINGS_MAX`].
    pub(crate) listings: Arc<Semaphore>,
}

impl Instances {
    /// Those in the catalog; where `is_strict`, there are no others. Once for these resources, before they are changed.
    pub fn new(resources: Arc<Resources>, clock: Arc<dyn Clock>, is_strict: bool) -> Self {
        let routes = Routes::follow(&resources);
        let listings = Arc::new(Semaphore::new(INSTANCE_LISTINGS_MAX));
        Self { resources, clock, is_strict, routes, listings }
    }

    /// Within a change: creates an instance with its clusters and the app profile `default`.
    pub fn create(
        &self,
        change: &mut Change<'_>,
        request: &CreateInstanceRequest,
    ) -> Result<Instance> {
        let name = names::new_instance(&request.parent, &request.instance_id)?;
        let given = request
            .instance
            .as_ref()
            .ok_or_else(|| Error::invalid_argument("instance must be set"))?;
        if !given.tags.is_empty() {
            return Err(Error::unimplemented(
                "instance.tags are not supported: there is no resource manager that knows them; use labels",
            ));
        }
        let mut instance = Instance {
            name: name.clone(),
            state: admin::instance::State::Ready.into(),
            create_time: Some(timestamp(self.clock.now_micros())),
            ..Instance::default()
        };
        set_display_name(&mut instance, &given.display_name)?;
        instance.r#type = match instance_type(given.r#type)? {
            admin::instance::Type::Development => admin::instance::Type::Development.into(),
            _ => admin::instance::Type::Production.into(),
        };
        set_labels(&mut instance, &given.labels)?;
        set_edition(&mut instance, given.edition)?;
        if request.clusters.is_empty() || request.clusters.len() > CLUSTERS_MAX {
            return Err(Error::invalid_argument(format!(
                "clusters: an instance has 1 to {CLUSTERS_MAX} of them, got {}",
                request.clusters.len()
            )));
        }
        if is_development(&instance) && request.clusters.len() != 1 {
            return Err(Error::invalid_argument(
                "clusters: an instance of type DEVELOPMENT has exactly one",
            ));
        }
        let mut all = Vec::new();
        for (id, cluster) in &request.clusters {
            let full_name = names::new_cluster(&name, id)?;
            let cluster = clusters::new(full_name, cluster, is_development(&instance));
            all.push(cluster.map_err(|error| error.context(format_args!("clusters[{id:?}]")))?);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        for (i, cluster) in all.iter().enumerate() {
            let beside = clusters::check_beside(cluster, all.split_at(i).0);
            let id = names::id_of(&cluster.name);
            beside.map_err(|error| error.context(format_args!("clusters[{id:?}]")))?;
        }
        let first = all.first().map(|cluster| names::id_of(&cluster.name)).unwrap_or_default();
        let profile = profiles::default_profile(&name, first);
        change.create(&name, instance.clone())?;
        let (parent, prefix) = (&request.parent, format!("{}/instances/", request.parent));
        let there = self.resources.list::<Instance>(&prefix, None, INSTANCES_MAX);
        if there.len() >= INSTANCES_MAX {
            return Err(Error::resource_exhausted(format!(
                "{parent:?} has {INSTANCES_MAX} instances, the most that there may be: delete one that nobody needs, or take another project"
            )));
        }
        for cluster in all {
            change.create(&cluster.name.clone(), cluster)?;
        }
        change.create(&profile.name.clone(), profile)?;
        Ok(instance)
    }

    /// The instance of a name.
    pub fn get(&self, name: &str) -> Result<Instance> {
        names::check_instance("name", name)?;
        self.resources.find::<Instance>(name).map(|stored| stored.value.clone())
    }

    /// All instances of a project, by name.
    pub fn list(&self, parent: &str) -> Result<Vec<Instance>> {
        names::check_project("parent", parent)?;
        let prefix = format!("{parent}/instances/");
        let all = self.resources.list::<Instance>(&prefix, None, usize::MAX);
        Ok(all.into_iter().map(|(_, stored)| stored.value.clone()).collect())
    }

    /// Within a change: changes what the mask names.
    pub fn update(
        &self,
        change: &mut Change<'_>,
        given: &Instance,
        mask: Option<&prost_types::FieldMask>,
    ) -> Result<Instance> {
        let paths = mask_paths(mask)?;
        names::check_instance("instance.name", &given.name)?;
        change.update(&given.name, |instance: &mut Instance| {
            for path in paths {
                match path {
                    "display_name" => set_display_name(instance, &given.display_name)?,
                    "labels" => set_labels(instance, &given.labels)?,
                    "type" => set_type(instance, given.r#type)?,
                    "edition" => set_edition(instance, given.edition)?,
                    other => {
                        return Err(not_updatable(other, "display_name, labels, type, edition"));
                    }
                }
            }
            Ok(())
        })
    }

    /// Changes the display name, and the type where one is given: what `UpdateInstance` does. Blocks.
    pub fn replace(&self, given: &Instance) -> Result<Instance> {
        names::check_instance("instance.name", &given.name)?;
        let replaced = self.resources.update(&given.name, |instance: &mut Instance| {
            set_display_name(instance, &given.display_name)?;
            set_type(instance, given.r#type)
        });
        replaced.map(|stored| stored.value.clone())
    }

    /// Deletes an instance and all that is in it, tables included, for good. Refused where a table is protected, or
    /// where there is something that outlives tables, like a backup, and where `allowed` says so, which may change more in the
    /// same commit. Blocks.
    pub fn delete<H: Host>(
        &self,
        name: &str,
        tables: &Catalog<H>,
        allowed: impl FnOnce(&mut Change<'_>) -> Result<()>,
    ) -> Result<()> {
        names::check_instance("name", name)?;
        // Its tables go in the same commit, and nothing comes to be meanwhile that would keep them.
        let mut change = self.resources.begin();
        change.find::<Instance>(name)?;
        check_not_held(&change, name)?;
        change.delete_under(name);
        tables.delete_instance(name, |removals| {
            allowed(&mut change)?;
            change.commit(removals).map(drop)
        })?;
        tracing::info!(instance = name, "instance deleted");
        Ok(())
    }

    /// Whether tables may be made and served in an instance: `NOT_FOUND` for one that nobody created, where there
    /// are no such.
    pub fn check(&self, instance: &str) -> Result<()> {
        self.check_same(instance, None)
    }

    /// When the instance of this name was created; `None` where nobody did. Tells it from earlier and later ones.
    pub fn created(&self, instance: &str) -> Option<prost_types::Timestamp> {
        self.resources.get::<Instance>(instance).and_then(|stored| stored.value.create_time)
    }

    /// The same, and `ABORTED` for an instance that was [created](Self::created) at `before`, when something was asked for in it,
    /// and is not there any more. One that nobody had created then may have been since.
    pub fn check_same(&self, instance: &str, before: Option<prost_types::Timestamp>) -> Result<()> {
        if !self.is_strict && before.is_none() {
            return Ok(());
        }
        // Looked up once: it may go at any moment.
        let stored = self.resources.get::<Instance>(instance);
        if self.is_strict && stored.is_none() {
            return Err(missing::<Instance>(instance));
        }
        if before.is_none() || stored.and_then(|stored| stored.value.create_time) == before {
            return Ok(());
        }
        Err(Error::aborted(format!("instance {instance:?} was deleted meanwhile")))
    }

    /// The ids of an instance's clusters: [`IMPLICIT_CLUSTER`] where nobody created it.
    pub fn cluster_ids(&self, instance: &str) -> Vec<String> {
        let clusters = self.clusters(instance);
        let ids: Vec<_> = clusters.iter().map(|c| names::id_of(&c.name).to_owned()).collect();
        if ids.is_empty() { vec![IMPLICIT_CLUSTER.to_owned()] } else { ids }
    }

    /// The clusters that an instance was given, by name.
    fn clusters(&self, instance: &str) -> Vec<admin::Cluster> {
        let prefix = format!("{instance}/clusters/");
        let all = self.resources.list::<admin::Cluster>(&prefix, None, CLUSTERS_MAX);
        all.into_iter().map(|(_, stored)| stored.value.clone()).collect()
    }

    /// Whether one of an instance's clusters was created for hard disks.
    pub fn is_on_hard_disks(&self, instance: &str) -> bool {
        let clusters = self.clusters(instance);
        clusters.iter().any(|c| c.default_storage_type() == admin::StorageType::Hdd)
    }

    /// Refuses what there is only in instances on SSD.
    pub fn check_on_ssd(&self, instance: &str, what: &str) -> Result<()> {
        if self.is_on_hard_disks(instance) {
            return Err(Error::failed_precondition(format!(
                "{what} are for instances on SSD; {instance:?} is on HDD"
            )));
        }
        Ok(())
    }
}

/// Refuses to delete what something is in that must be deleted by itself.
fn check_not_held(change: &Change<'_>, name: &str) -> Result<()> {
    match change.held_under(name) {
        None => Ok(()),
        Some((noun, held)) => Err(Error::failed_precondition(format!(
            "{name:?} cannot be deleted while {noun} {held:?} is in it: delete that first"
        ))),
    }
}

/// The paths of a mask, each once, where it was named last: a request has room for half a million times the same, of which each
/// would copy what it names. There must be some.
pub(crate) fn mask_paths(mask: Option<&prost_types::FieldMask>) -> Result<Vec<&str>> {
    let all = mask.map_or(&[][..], |mask| &mask.paths);
    if all.is_empty() {
        return Err(Error::invalid_argument("A non-empty 'update_mask' must be specified"));
    }
    let mut seen = HashSet::new();
    let from_last = all.iter().rev().map(String::as_str);
    let mut paths: Vec<_> = from_last.filter(|path| seen.insert(*path)).collect();
    paths.reverse();
    Ok(paths)
}

/// The error for a path of a mask that cannot be updated.
pub(crate) fn not_updatable(path: &str, updatable: &str) -> Error {
    Error::invalid_argument(format!(
        "update_mask: {path:?} cannot be updated; what can be: {updatable}"
    ))
}

fn is_development(instance: &Instance) -> bool {
    instance.r#type == i32::from(admin::instance::Type::Development)
}

fn instance_type(number: i32) -> Result<admin::instance::Type> {
    admin::instance::Type::try_from(number)
        .map_err(|_| Error::invalid_argument(format!("instance.type: {number} is unknown")))
}

fn set_display_name(instance: &mut Instance, given: &str) -> Result<()> {
    let chars = given.chars().count();
    if chars == 0 || chars > DISPLAY_NAME_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "instance.display_name must have 1 to {DISPLAY_NAME_CHARS_MAX} characters, got {chars}"
        )));
    }
    given.clone_into(&mut instance.display_name);
    Ok(())
}

/// A development instance becomes one for production, and never the other way round. No type leaves it as it is.
fn set_type(instance: &mut Instance, given: i32) -> Result<()> {
    let given = match instance_type(given)? {
        admin::instance::Type::Unspecified => return Ok(()),
        given => i32::from(given),
    };
    if given != instance.r#type && !is_development(instance) {
        return Err(Error::invalid_argument(
            "instance.type: an instance of type PRODUCTION cannot become DEVELOPMENT",
        ));
    }
    instance.r#type = given;
    Ok(())
}

fn set_edition(instance: &mut Instance, given: i32) -> Result<()> {
    instance.edition = match Edition::try_from(given) {
        Ok(Edition::Unspecified) => Edition::Enterprise.into(),
        Ok(edition) => edition.into(),
        Err(_) => {
            let what = format!("instance.edition: {given} is unknown");
            return Err(Error::invalid_argument(what));
        }
    };
    Ok(())
}

fn set_labels(instance: &mut Instance, given: &HashMap<String, String>) -> Result<()> {
    if given.len() > LABELS_MAX {
        return Err(Error::invalid_argument(format!(
            "instance.labels: {} are too many: limit {LABELS_MAX}",
            given.len()
        )));
    }
    for (key, value) in given {
        let starts_well = key.chars().next().is_some_and(is_caseless_letter);
        if !starts_well || !is_label(key) || !is_label(value) {
            return Err(Error::invalid_argument(format!(
                "instance.labels: {key:?} = {value:?}: keys and values are of lower-case letters, numbers, '_' and '-', \
                 at most {LABEL_CHARS_MAX} characters and less than {LABEL_BYTES_MAX} bytes; keys start with a letter"
            )));
        }
    }
    instance.labels.clone_from(given);
    Ok(())
}

fn is_label(text: &str) -> bool {
    text.chars().all(|c| is_caseless_letter(c) || c.is_numeric() || matches!(c, '_' | '-'))
        && text.chars().count() <= LABEL_CHARS_MAX
        && text.len() < LABEL_BYTES_MAX
}

/// A lower-case letter, or one of a script without case.
fn is_caseless_letter(c: char) -> bool {
    c.is_alphabetic() && !c.is_uppercase()
}

#[cfg(test)]
mod tests;

//! App profiles: how a program's requests are routed, and whether its single-row transactions are allowed.
//!
//! All clusters are this server, so a route changes nothing and transactions through different clusters do not conflict.
//! What is enforced: a profile must be there, transactions must be allowed by it, and one for Data Boost only reads. By a
//! profile's priority its requests give way to others ([`crate::services`]); what is for Data Boost, whose reads are to cost
//! a cluster's other users nothing, has the lowest.
//!
//! Etags are not given out: Google's service does not either, and its clients' tests compare. One that is sent matches
//! nothing that was given out, and fails.

use std::collections::HashSet;

use tepui_bigtable::error::{Error, Result, Shown, start_of};
use tepui_engine::pressure;

use super::{Instances, mask_paths, not_updatable};
use crate::api::admin;
use crate::api::admin::AppProfile;
use crate::api::admin::app_profile::data_boost_isolation_read_only::ComputeBillingOwner;
use crate::api::admin::app_profile::{
    Isolation, MultiClusterRoutingUseAny, Priority, RoutingPolicy, SingleClusterRouting,
    StandardIsolation,
};
use crate::api::instances::Instance;
use crate::catalog::resources::{Change, missing};
use crate::limits::{
    APP_PROFILE_ID_CHARS_MAX, APP_PROFILES_MAX, CLUSTERS_MAX, DESCRIPTION_BYTES_MAX,
};
use crate::names;

/// The profile of requests that name none.
pub(super) const DEFAULT: &str = "default";

const UPDATABLE: &str = "description, single_cluster_routing, multi_cluster_routing_use_any, standard_isolation, \
                         data_boost_isolation_read_only, priority";

/// What a request does with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Writes without reading.
    Write,
    /// Reads and writes a row in one: `CheckAndMutateRow` and `ReadModifyWriteRow`.
    Transaction,
    /// Reads a change stream, which is that of one cluster.
    ChangeStream,
}

impl Instances {
    /// Whether a request on a table may do this by its app profile, and with which priority. An instance that nobody
    /// created has any profile, and allows all. Takes no lock.
    pub fn allow(&self, table: &str, profile: &str, access: Access) -> Result<pressure::Priority> {
        let instance = names::instance_of(table);
        let routes = self.routes();
        let Some(routes) = routes.of(instance) else {
            return self.check(instance).map(|()| pressure::Priority::High);
        };
        let profile = if profile.is_empty() { DEFAULT } else { profile };
        // An id that is too long is that of no profile: its start says which is meant.
        let name = || {
            let id = start_of(profile, APP_PROFILE_ID_CHARS_MAX);
            format!("{instance}/appProfiles/{id}")
        };
        let route = routes.by(profile).ok_or_else(|| missing::<AppProfile>(&name()))?;
        if access == Access::Transaction && !route.allows_transactions {
            return Err(Error::failed_precondition(
                "Single-row transactions are not allowed by this app profile",
            ));
        }
        if access == Access::ChangeStream && !route.is_single_cluster {
            return Err(Error::failed_precondition(format!(
                "change streams need an app profile with single-cluster routing, which {:?} is not",
                name()
            )));
        }
        if matches!(access, Access::Write | Access::Transaction) && route.is_data_boost {
            return Err(Error::failed_precondition(format!(
                "app profile {:?} is for Data Boost, which only reads",
                name()
            )));
        }
        Ok(route.priority)
    }

    /// Creates an app profile. Nothing that a profile may ask for is worth a warning here. Blocks.
    pub fn create_profile(
        &self,
        parent: &str,
        id: &str,
        given: Option<&AppProfile>,
    ) -> Result<AppProfile> {
        let name = names::new_app_profile(parent, id)?;
        let given = given.ok_or_else(|| Error::invalid_argument("app_profile must be set"))?;
        if let Some(RoutingPolicy::MultiClusterRoutingUseAny(any)) = &given.routing_policy {
            check_distinct(any)?;
        }
        let mut profile = AppProfile { name: name.clone(), etag: String::new(), ..given.clone() };
        self.resources.change(|change| {
            change.find::<Instance>(parent)?;
            self.check_profile(&mut profile)?;
            change.create(&name, profile.clone())?;
            let prefix = format!("{parent}/appProfiles/");
            let there = self.resources.list::<AppProfile>(&prefix, None, APP_PROFILES_MAX);
            if there.len() >= APP_PROFILES_MAX {
                return Err(Error::failed_precondition(format!(
                    "instance {parent:?} has {APP_PROFILES_MAX} app profiles, the most that there may be"
                )));
            }
            Ok(())
        })?;
        Ok(profile)
    }

    /// The app profile of a name.
    pub fn get_profile(&self, name: &str) -> Result<AppProfile> {
        names::check_app_profile("name", name)?;
        self.resources.find::<AppProfile>(name).map(|stored| stored.value.clone())
    }

    /// Up to `limit` app profiles of an instance, or of a project where the instance is `-`, those after the name
    /// `after` only.
    pub fn list_profiles(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<AppProfile>> {
        let prefix = self.listed_under(parent)?;
        if after.is_some_and(|after| !after.starts_with(&prefix)) {
            let what = format!("bad page_token {:?}", after.unwrap_or_default());
            return Err(Error::invalid_argument(what));
        }
        let page = self.resources.list::<AppProfile>(&prefix, after, limit);
        Ok(page.into_iter().map(|(_, stored)| stored.value.clone()).collect())
    }

    /// Within a change: changes what the mask names.
    pub fn update_profile(
        &self,
        change: &mut Change<'_>,
        given: &AppProfile,
        mask: Option<&prost_types::FieldMask>,
        ignore_warnings: bool,
    ) -> Result<AppProfile> {
        let name = &given.name;
        names::check_app_profile("app_profile.name", name)?;
        let paths = mask_paths(mask)?;
        change.update::<AppProfile>(name, |profile| {
            if !given.etag.is_empty() {
                return Err(Error::aborted(format!(
                    "app profile {name:?} has been changed since etag {:?}: get it again",
                    given.etag
                )));
            }
            let allowed = allows_transactions(profile);
            for path in paths {
                set(profile, given, path)?;
            }
            self.check_profile(profile)?;
            if names::id_of(name) == DEFAULT && is_data_boost(profile) {
                return Err(Error::invalid_argument(
                    "the app profile default cannot be made one for Data Boost: it serves writes too",
                ));
            }
            if allowed && !allows_transactions(profile) && !ignore_warnings {
                return Err(Error::failed_precondition(
                    "Single-row transactions that use this app profile will fail; set ignore_warnings to go on",
                ));
            }
            Ok(())
        })
    }

    /// Deletes an app profile, which always deserves a warning, where that is `allowed`. Blocks.
    pub fn delete_profile(
        &self,
        name: &str,
        ignore_warnings: bool,
        allowed: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        names::check_app_profile("name", name)?;
        self.resources.delete::<AppProfile>(name, |_| {
            allowed()?;
            if names::id_of(name) == DEFAULT {
                return Err(Error::failed_precondition(
                    "the app profile default cannot be deleted",
                ));
            }
            if !ignore_warnings {
                return Err(Error::failed_precondition(
                    "Deleting an app profile will cause all requests using it to fail; \
                     set ignore_warnings to go on",
                ));
            }
            Ok(())
        })
    }

    /// Checks a profile and fills in what is left open.
    fn check_profile(&self, profile: &mut AppProfile) -> Result<()> {
        check_description(profile)?;
        let instance = names::instance_of(&profile.name);
        let known = |field: &str, id: &str| {
            let name = format!("{instance}/clusters/{id}");
            match self.resources.get::<admin::Cluster>(&name) {
                Some(_) => Ok(()),
                None => Err(Error::invalid_argument(format!(
                    "app_profile.{field}: cluster {id:?} is not in instance {instance:?}"
                ))),
            }
        };
        match &profile.routing_policy {
            Some(RoutingPolicy::SingleClusterRouting(single)) => {
                known("single_cluster_routing.cluster_id", &single.cluster_id)?;
            }
            Some(RoutingPolicy::MultiClusterRoutingUseAny(any)) => {
                for id in &any.cluster_ids {
                    known("multi_cluster_routing_use_any.cluster_ids", id)?;
                }
            }
            None => {
                return Err(Error::invalid_argument(
                    "app_profile.routing_policy: one of single_cluster_routing and \
                     multi_cluster_routing_use_any must be set",
                ));
            }
        }
        profile.isolation = Some(isolation(profile)?);
        Ok(())
    }
}

fn check_description(profile: &AppProfile) -> Result<()> {
    if profile.description.len() > DESCRIPTION_BYTES_MAX {
        return Err(Error::invalid_argument(format!(
            "app_profile.description is longer than {DESCRIPTION_BYTES_MAX} bytes"
        )));
    }
    Ok(())
}

/// Refuses clusters that are named twice, to no purpose: thousands of them would be kept. And more than an instance can have.
fn check_distinct(any: &MultiClusterRoutingUseAny) -> Result<()> {
    let count = any.cluster_ids.len();
    if count > CLUSTERS_MAX {
        return Err(Error::invalid_argument(format!(
            "app_profile.multi_cluster_routing_use_any.cluster_ids names {count} clusters; an instance has at most {CLUSTERS_MAX}"
        )));
    }
    let mut seen = HashSet::new();
    match any.cluster_ids.iter().find(|id| !seen.insert(id.as_str())) {
        None => Ok(()),
        Some(twice) => Err(Error::invalid_argument(format!(
            "app_profile.multi_cluster_routing_use_any.cluster_ids names {} more than once",
            Shown(twice)
        ))),
    }
}

/// The profile that a new instance has: to one cluster, with transactions, which are safe whatever the cluster.
pub(super) fn default_profile(instance: &str, cluster_id: &str) -> AppProfile {
    let routing = SingleClusterRouting {
        cluster_id: cluster_id.to_owned(),
        allow_transactional_writes: true,
    };
    AppProfile {
        name: format!("{instance}/appProfiles/{DEFAULT}"),
        routing_policy: Some(RoutingPolicy::SingleClusterRouting(routing)),
        isolation: Some(standard(Priority::High)),
        ..AppProfile::default()
    }
}

fn standard(priority: Priority) -> Isolation {
    Isolation::StandardIsolation(StandardIsolation { priority: priority.into() })
}

pub(super) fn allows_transactions(profile: &AppProfile) -> bool {
    matches!(
        &profile.routing_policy,
        Some(RoutingPolicy::SingleClusterRouting(SingleClusterRouting {
            allow_transactional_writes: true,
            ..
        }))
    )
}

pub(super) fn is_single_cluster(profile: &AppProfile) -> bool {
    matches!(profile.routing_policy, Some(RoutingPolicy::SingleClusterRouting(_)))
}

pub(super) fn is_data_boost(profile: &AppProfile) -> bool {
    matches!(profile.isolation, Some(Isolation::DataBoostIsolationReadOnly(_)))
}

pub(super) fn priority(profile: &AppProfile) -> pressure::Priority {
    let priority = match &profile.isolation {
        Some(Isolation::DataBoostIsolationReadOnly(_)) => return pressure::Priority::Low,
        Some(Isolation::StandardIsolation(isolation)) => isolation.priority(),
        _ => Priority::Unspecified,
    };
    match priority {
        Priority::Low => pressure::Priority::Low,
        Priority::Medium => pressure::Priority::Medium,
        Priority::High | Priority::Unspecified => pressure::Priority::High,
    }
}

/// A profile's isolation with what is left open filled in; the deprecated priority in its new place.
#[expect(deprecated, reason = "older clients set the priority in its old place")]
fn isolation(profile: &AppProfile) -> Result<Isolation> {
    let number = match &profile.isolation {
        None => 0,
        Some(Isolation::Priority(priority)) => *priority,
        Some(Isolation::StandardIsolation(isolation)) => isolation.priority,
        Some(Isolation::DataBoostIsolationReadOnly(boost)) => {
            let host_pays = i32::from(ComputeBillingOwner::HostPays);
            if boost.compute_billing_owner != Some(host_pays) {
                return Err(Error::invalid_argument(
                    "app_profile.data_boost_isolation_read_only.compute_billing_owner must be HOST_PAYS",
                ));
            }
            if !is_single_cluster(profile) || allows_transactions(profile) {
                return Err(Error::invalid_argument(
                    "app_profile.data_boost_isolation_read_only: Data Boost needs single_cluster_routing \
                     without allow_transactional_writes",
                ));
            }
            return Ok(Isolation::DataBoostIsolationReadOnly(*boost));
        }
    };
    match Priority::try_from(number) {
        Ok(Priority::Unspecified) => Ok(standard(Priority::High)),
        Ok(priority) => Ok(standard(priority)),
        Err(_) => {
            Err(Error::invalid_argument(format!("app_profile: priority {number} is unknown")))
        }
    }
}

/// Sets the part of a profile that a mask's path names.
#[expect(deprecated, reason = "older clients set the priority in its old place")]
fn set(profile: &mut AppProfile, given: &AppProfile, path: &str) -> Result<()> {
    let unset = || {
        Error::invalid_argument(format!(
            "update_mask names {path:?}, which app_profile does not set"
        ))
    };
    let (field, part) = path.split_once('.').unwrap_or((path, ""));
    match (field, &given.routing_policy, &given.isolation) {
        ("description", ..) if part.is_empty() => {
            check_description(given)?;
            given.description.clone_into(&mut profile.description);
        }
        // Sent back with what was read; it is looked at whether the mask names it or not.
        ("etag", ..) if part.is_empty() => {}
        ("single_cluster_routing", Some(RoutingPolicy::SingleClusterRouting(new)), _) => {
            let mut single = match profile.routing_policy.take() {
                Some(RoutingPolicy::SingleClusterRouting(single)) => single,
                _ => SingleClusterRouting::default(),
            };
            match part {
                "" => single = new.clone(),
                "cluster_id" => single.cluster_id.clone_from(&new.cluster_id),
                "allow_transactional_writes" => {
                    single.allow_transactional_writes = new.allow_transactional_writes;
                }
                _ => return Err(not_updatable(path, UPDATABLE)),
            }
            profile.routing_policy = Some(RoutingPolicy::SingleClusterRouting(single));
        }
        (
            "multi_cluster_routing_use_any",
            Some(RoutingPolicy::MultiClusterRoutingUseAny(new)),
            _,
        ) => {
            let mut any = match profile.routing_policy.take() {
                Some(RoutingPolicy::MultiClusterRoutingUseAny(any)) => any,
                _ => MultiClusterRoutingUseAny::default(),
            };
            // What was taken before may stay.
            if matches!(part, "" | "cluster_ids") && any.cluster_ids != new.cluster_ids {
                check_distinct(new)?;
            }
            match part {
                "" => any = new.clone(),
                "cluster_ids" => any.cluster_ids.clone_from(&new.cluster_ids),
                "row_affinity" => any.affinity.clone_from(&new.affinity),
                _ => return Err(not_updatable(path, UPDATABLE)),
            }
            profile.routing_policy = Some(RoutingPolicy::MultiClusterRoutingUseAny(any));
        }
        ("standard_isolation", _, Some(new @ Isolation::StandardIsolation(_)))
            if ["", "priority"].contains(&part) =>
        {
            profile.isolation = Some(*new);
        }
        ("priority", _, Some(new @ Isolation::Priority(_))) if part.is_empty() => {
            profile.isolation = Some(*new);
        }
        (
            "data_boost_isolation_read_only",
            _,
            Some(new @ Isolation::DataBoostIsolationReadOnly(_)),
        ) if ["", "compute_billing_owner"].contains(&part) => {
            profile.isolation = Some(*new);
        }
        (
            "single_cluster_routing"
            | "multi_cluster_routing_use_any"
            | "standard_isolation"
            | "priority"
            | "data_boost_isolation_read_only",
            ..,
        ) => return Err(unset()),
        _ => return Err(not_updatable(path, UPDATABLE)),
    }
    Ok(())
}

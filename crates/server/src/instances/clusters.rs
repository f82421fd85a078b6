//! Clusters: records of what the user asked for. All of them are this server, whatever their nodes and locations.

use std::collections::HashMap;

use prost::Message as _;
use tepui_bigtable::error::{Error, Result};

use super::{Instances, check_not_held, is_development, mask_paths, not_updatable};
use crate::api::admin;
use crate::api::admin::app_profile::RoutingPolicy;
use crate::api::admin::cluster::{ClusterAutoscalingConfig, ClusterConfig, Config};
use crate::api::admin::create_cluster_metadata::TableProgress;
use crate::api::admin::{AutoscalingLimits, AutoscalingTargets, StorageType};
use crate::api::instances::Instance;
use crate::catalog::resources::{Change, missing};
use crate::limits::{CLUSTERS_MAX, SERVE_NODES_MAX, TOLD_REQUEST_BYTES_MAX};
use crate::names;

/// The processor's use in percent that an autoscaler may aim at.
const CPU_PERCENTS: std::ops::RangeInclusive<i32> = 10..=80;

/// How many times its least nodes a cluster may scale to.
const SCALE_MAX: i64 = 10;

const UPDATABLE: &str = "serve_nodes, cluster_config.cluster_autoscaling_config and what is in it";

impl Instances {
    /// Within a change: creates a cluster.
    pub fn create_cluster(
        &self,
        change: &mut Change<'_>,
        parent: &str,
        id: &str,
        given: Option<&admin::Cluster>,
    ) -> Result<admin::Cluster> {
        let name = names::new_cluster(parent, id)?;
        let given = given.ok_or_else(|| Error::invalid_argument("cluster must be set"))?;
        let others = self.clusters(parent);
        let mut given = given.clone();
        if let (0, Some(other)) = (given.default_storage_type, others.first()) {
            given.default_storage_type = other.default_storage_type;
        }
        let cluster = new(name.clone(), &given, false)?;
        if is_development(&change.find::<Instance>(parent)?.value) {
            return Err(Error::failed_precondition(
                "an instance of type DEVELOPMENT has one cluster; make it PRODUCTION first",
            ));
        }
        change.create(&name, cluster.clone())?;
        check_beside(&cluster, &others)?;
        if others.len() >= CLUSTERS_MAX {
            return Err(Error::failed_precondition(format!(
                "instance {parent:?} has {CLUSTERS_MAX} clusters, the most that there may be"
            )));
        }
        Ok(cluster)
    }

    /// The cluster of a name.
    pub fn get_cluster(&self, name: &str) -> Result<admin::Cluster> {
        names::check_cluster("name", name)?;
        self.resources.find::<admin::Cluster>(name).map(|stored| stored.value.clone())
    }

    /// Checks that there is such a cluster; an instance that nobody created has [`super::IMPLICIT_CLUSTER`].
    pub fn check_cluster(&self, name: &str) -> Result<()> {
        names::check_cluster("parent", name)?;
        let instance = names::instance_of(name);
        self.check(instance)?;
        if self.cluster_ids(instance).iter().any(|id| id == names::id_of(name)) {
            return Ok(());
        }
        Err(missing::<admin::Cluster>(name))
    }

    /// All clusters of an instance, or of a project where the instance is `-`; by name.
    pub fn list_clusters(&self, parent: &str) -> Result<Vec<admin::Cluster>> {
        let prefix = self.listed_under(parent)?;
        let all = self.resources.list::<admin::Cluster>(&prefix, None, usize::MAX);
        Ok(all.into_iter().map(|(_, stored)| stored.value.clone()).collect())
    }

    /// What the names of what is in an instance start with, or in a project where the instance is `-`.
    pub(super) fn listed_under(&self, parent: &str) -> Result<String> {
        names::check_instance("parent", parent)?;
        match parent.strip_suffix("/-") {
            Some(all_instances) => Ok(format!("{all_instances}/")),
            None => {
                self.resources.find::<Instance>(parent)?;
                Ok(format!("{parent}/"))
            }
        }
    }

    /// Within a change: sets the nodes of a cluster that does not scale by itself, which is what `UpdateCluster` does.
    pub fn replace_cluster(
        &self,
        change: &mut Change<'_>,
        given: &admin::Cluster,
    ) -> Result<admin::Cluster> {
        names::check_cluster("cluster.name", &given.name)?;
        change.update(&given.name, |cluster: &mut admin::Cluster| {
            let immutable = [
                ("location", given.location.is_empty() || given.location == cluster.location),
                (
                    "default_storage_type",
                    [0, cluster.default_storage_type].contains(&given.default_storage_type),
                ),
                (
                    "node_scaling_factor",
                    [0, cluster.node_scaling_factor].contains(&given.node_scaling_factor),
                ),
            ];
            if let Some((field, _)) = immutable.iter().find(|(_, is_same)| !is_same) {
                let what = format!("{field} of a cluster cannot be changed");
                return Err(Error::invalid_argument(what));
            }
            if given.config.is_some() || cluster.config.is_some() {
                return Err(Error::invalid_argument(
                    "UpdateCluster does not change autoscaling; use PartialUpdateCluster",
                ));
            }
            set_nodes(cluster, given.serve_nodes)
        })
    }

    /// Within a change: changes what the mask names. The nodes of a cluster that scales by itself stay, as documented.
    pub fn update_cluster(
        &self,
        change: &mut Change<'_>,
        given: &admin::Cluster,
        mask: Option<&prost_types::FieldMask>,
    ) -> Result<admin::Cluster> {
        let paths = mask_paths(mask)?;
        names::check_cluster("cluster.name", &given.name)?;
        change.update(&given.name, |cluster: &mut admin::Cluster| {
            let (mut sets_nodes, mut sets_config) = (false, false);
            for path in paths {
                match path.strip_prefix("cluster_config") {
                    None if path == "serve_nodes" => sets_nodes = true,
                    Some(rest) => {
                        update_config(cluster, given, rest)
                            .ok_or_else(|| not_updatable(path, UPDATABLE))?;
                        sets_config = true;
                    }
                    None => return Err(not_updatable(path, UPDATABLE)),
                }
            }
            if cluster.config.is_some() {
                if sets_nodes && sets_config && given.serve_nodes != 0 {
                    return Err(Error::invalid_argument(
                        "serve_nodes and cluster_config.cluster_autoscaling_config cannot both be set; \
                         leave this unset, with both in the mask, to turn autoscaling off",
                    ));
                }
                return check_autoscaling(cluster);
            }
            if sets_nodes { set_nodes(cluster, given.serve_nodes) } else { Ok(()) }
        })
    }

    /// Within a change: deletes a cluster; not the last of its instance, nor one that an app profile routes to alone, nor one with
    /// backups.
    pub fn delete_cluster(&self, change: &mut Change<'_>, name: &str) -> Result<()> {
        names::check_cluster("name", name)?;
        let instance = names::instance_of(name);
        let id = names::id_of(name);
        change.find::<admin::Cluster>(name)?;
        if self.cluster_ids(instance).len() == 1 {
            return Err(Error::failed_precondition(format!(
                "cluster {name:?} is the last of its instance: delete the instance"
            )));
        }
        let profiles = format!("{instance}/appProfiles/");
        let profiles = self.resources.list::<admin::AppProfile>(&profiles, None, usize::MAX);
        let by_name = profiles.iter().find(|(_, stored)| match &stored.value.routing_policy {
            Some(RoutingPolicy::SingleClusterRouting(single)) => single.cluster_id == id,
            Some(RoutingPolicy::MultiClusterRoutingUseAny(any)) => {
                any.cluster_ids.iter().any(|routed| routed == id)
            }
            None => false,
        });
        if let Some((profile, _)) = by_name {
            return Err(Error::failed_precondition(format!(
                "app profile {profile:?} routes to cluster {id:?}: change or delete it first"
            )));
        }
        check_not_held(change, name)?;
        change.delete_under(name);
        Ok(())
    }
}

/// A cluster as it is kept, from what was given for it; output-only fields are passed over.
pub(super) fn new(
    name: String,
    given: &admin::Cluster,
    is_development: bool,
) -> Result<admin::Cluster> {
    names::check_location("location", &given.location)?;
    if given.encryption_config.as_ref().is_some_and(|config| !config.kms_key_name.is_empty()) {
        return Err(Error::unimplemented(
            "encryption_config: keys of customers are not supported; encrypt the disk of the data directory",
        ));
    }
    let storage = match StorageType::try_from(given.default_storage_type) {
        Ok(StorageType::Unspecified) => StorageType::Ssd,
        Ok(storage) => storage,
        Err(_) => return Err(Error::invalid_argument("default_storage_type is unknown")),
    };
    if admin::cluster::NodeScalingFactor::try_from(given.node_scaling_factor).is_err() {
        return Err(Error::invalid_argument("node_scaling_factor is unknown"));
    }
    let mut cluster = admin::Cluster {
        name,
        location: given.location.clone(),
        state: admin::cluster::State::Ready.into(),
        default_storage_type: storage.into(),
        node_scaling_factor: given.node_scaling_factor,
        config: given.config,
        ..admin::Cluster::default()
    };
    if is_development {
        if given.serve_nodes != 0 || given.config.is_some() {
            return Err(Error::invalid_argument(
                "serve_nodes and cluster_config must not be set in an instance of type DEVELOPMENT",
            ));
        }
        cluster.serve_nodes = 1;
        return Ok(cluster);
    }
    match autoscaling(&cluster) {
        None => {
            cluster.config = None;
            let least = step(&cluster);
            set_nodes(
                &mut cluster,
                if given.serve_nodes == 0 { least } else { given.serve_nodes },
            )?;
        }
        Some(_) if given.serve_nodes != 0 => {
            return Err(Error::invalid_argument(
                "only one of serve_nodes and cluster_config.cluster_autoscaling_config can be set",
            ));
        }
        Some(_) => check_autoscaling(&mut cluster)?,
    }
    Ok(cluster)
}

/// Checks that a cluster can be in one instance with others: in a zone of its own, on the same storage.
pub(super) fn check_beside(cluster: &admin::Cluster, others: &[admin::Cluster]) -> Result<()> {
    for other in others {
        let id = names::id_of(&other.name);
        if names::id_of(&cluster.location) == names::id_of(&other.location) {
            return Err(Error::invalid_argument(format!(
                "location: cluster {id:?} is in {:?}, and clusters of an instance are in different zones",
                other.location
            )));
        }
        if cluster.default_storage_type != other.default_storage_type {
            return Err(Error::invalid_argument(format!(
                "default_storage_type: cluster {id:?} is on {}, and all clusters of an instance are on the same",
                other.default_storage_type().as_str_name()
            )));
        }
    }
    Ok(())
}

/// Nodes come in steps of this many.
fn step(cluster: &admin::Cluster) -> i32 {
    let double = i32::from(admin::cluster::NodeScalingFactor::NodeScalingFactor2x);
    if cluster.node_scaling_factor == double { 2 } else { 1 }
}

fn set_nodes(cluster: &mut admin::Cluster, nodes: i32) -> Result<()> {
    let step = step(cluster);
    if !(1..=SERVE_NODES_MAX).contains(&nodes) || nodes % step != 0 {
        return Err(Error::invalid_argument(format!(
            "serve_nodes must be 1 to {SERVE_NODES_MAX}, in steps of {step}; got {nodes}"
        )));
    }
    cluster.serve_nodes = nodes;
    Ok(())
}

fn autoscaling(cluster: &admin::Cluster) -> Option<ClusterAutoscalingConfig> {
    match cluster.config {
        Some(Config::ClusterConfig(config)) => config.cluster_autoscaling_config,
        None => None,
    }
}

/// Changes the part of the autoscaling that the rest of a mask's path names; `None` for one that cannot be updated.
fn update_config(cluster: &mut admin::Cluster, given: &admin::Cluster, rest: &str) -> Option<()> {
    let new = autoscaling(given);
    let part = rest.strip_prefix(".cluster_autoscaling_config").unwrap_or(rest);
    if part.is_empty() {
        let config = |config| ClusterConfig { cluster_autoscaling_config: Some(config) };
        cluster.config = new.map(config).map(Config::ClusterConfig);
        return Some(());
    }
    let new = new.unwrap_or_default();
    let mut config = autoscaling(cluster).unwrap_or_default();
    let (new_limits, new_targets) =
        (new.autoscaling_limits.unwrap_or_default(), new.autoscaling_targets.unwrap_or_default());
    let limits = config.autoscaling_limits.get_or_insert_default();
    let targets = config.autoscaling_targets.get_or_insert_default();
    match part {
        ".autoscaling_limits" => *limits = new_limits,
        ".autoscaling_limits.min_serve_nodes" => {
            limits.min_serve_nodes = new_limits.min_serve_nodes;
        }
        ".autoscaling_limits.max_serve_nodes" => {
            limits.max_serve_nodes = new_limits.max_serve_nodes;
        }
        ".autoscaling_targets" => *targets = new_targets,
        ".autoscaling_targets.cpu_utilization_percent" => {
            targets.cpu_utilization_percent = new_targets.cpu_utilization_percent;
        }
        ".autoscaling_targets.storage_utilization_gib_per_node" => {
            targets.storage_utilization_gib_per_node = new_targets.storage_utilization_gib_per_node;
        }
        _ => return None,
    }
    cluster.config =
        Some(Config::ClusterConfig(ClusterConfig { cluster_autoscaling_config: Some(config) }));
    Some(())
}

/// Checks the autoscaling of a cluster that has one, and brings its nodes within the limits.
fn check_autoscaling(cluster: &mut admin::Cluster) -> Result<()> {
    let wrong = |what: String| {
        Error::invalid_argument(format!("cluster_config.cluster_autoscaling_config.{what}"))
    };
    let Some(mut config) = autoscaling(cluster) else {
        cluster.config = None;
        return Ok(());
    };
    let AutoscalingLimits { min_serve_nodes: min, max_serve_nodes: max } = config
        .autoscaling_limits
        .ok_or_else(|| wrong("autoscaling_limits must be set".to_owned()))?;
    let step = step(cluster);
    let is_ordered = (1..=max).contains(&min) && max <= SERVE_NODES_MAX;
    if !is_ordered
        || i64::from(max) > SCALE_MAX * i64::from(min)
        || min % step != 0
        || max % step != 0
    {
        return Err(wrong(format!(
            "autoscaling_limits: nodes from 1 to {SERVE_NODES_MAX} in steps of {step}, the most at most {SCALE_MAX} \
             times the least; got {min} to {max}"
        )));
    }
    let targets: &mut AutoscalingTargets = config
        .autoscaling_targets
        .as_mut()
        .ok_or_else(|| wrong("autoscaling_targets must be set".to_owned()))?;
    if !CPU_PERCENTS.contains(&targets.cpu_utilization_percent) {
        return Err(wrong(format!(
            "autoscaling_targets.cpu_utilization_percent must be 10 to 80, got {}",
            targets.cpu_utilization_percent
        )));
    }
    let gib = if cluster.default_storage_type == i32::from(StorageType::Hdd) {
        8_192..=16_384
    } else {
        2_560..=5_120
    };
    if targets.storage_utilization_gib_per_node == 0 {
        targets.storage_utilization_gib_per_node = *gib.start();
    }
    if !gib.contains(&targets.storage_utilization_gib_per_node) {
        return Err(wrong(format!(
            "autoscaling_targets.storage_utilization_gib_per_node must be {} to {} for this storage, got {}",
            gib.start(),
            gib.end(),
            targets.storage_utilization_gib_per_node
        )));
    }
    cluster.serve_nodes = cluster.serve_nodes.clamp(min, max);
    cluster.config =
        Some(Config::ClusterConfig(ClusterConfig { cluster_autoscaling_config: Some(config) }));
    Ok(())
}

/// What a new cluster has to copy: nothing, since it is where the tables are already. Of tables whose names would make its
/// operation large none is told.
pub fn copied(tables: impl Iterator<Item = (String, u64)>) -> HashMap<String, TableProgress> {
    let progress = |bytes| TableProgress {
        estimated_size_bytes: bytes,
        estimated_copied_bytes: bytes,
        state: admin::create_cluster_metadata::table_progress::State::Completed.into(),
    };
    let tables =
        tables.map(|(name, bytes)| (name, progress(i64::try_from(bytes).unwrap_or(i64::MAX))));
    let told = admin::CreateClusterMetadata { tables: tables.collect(), ..Default::default() };
    if told.encoded_len() > TOLD_REQUEST_BYTES_MAX { HashMap::new() } else { told.tables }
}

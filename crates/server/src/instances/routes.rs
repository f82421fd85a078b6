//! What app profiles do with requests for rows, ready to be looked up by every one of them: whether they let a request
//! through, and which cluster answers it, as the header that clients' metrics read.
//!
//! ```text
//! clusters, app profiles ── a change makes those of its instance anew, off the cores ─► looked up: no lock, no allocation
//! ```

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use prost::Message as _;
use tepui_engine::pressure::Priority;
use tonic::metadata::BinaryMetadataValue;

use super::profiles::{self, DEFAULT};
use super::{IMPLICIT_CLUSTER, IMPLICIT_ZONE, Instances};
use crate::api::admin::app_profile::RoutingPolicy;
use crate::api::admin::{AppProfile, Cluster};
use crate::api::v2::ResponseParams;
use crate::catalog::resources::Resources;
use crate::names;

/// What the app profiles of all instances that were created do.
#[derive(Debug, Clone)]
pub(super) struct Routes {
    implicit: Answerer,
    instances: HashMap<String, Arc<Profiles>>,
}

/// A cluster that answers requests.
#[derive(Debug, Clone)]
struct Answerer {
    cluster: Arc<str>,
    /// Its id and its zone as clients' metrics read them.
    location: BinaryMetadataValue,
}

/// The app profiles of an instance.
#[derive(Debug)]
pub(super) struct Profiles {
    /// The first cluster, which answers where a profile names none.
    first: Answerer,
    by_id: HashMap<String, Route>,
}

/// What an app profile does.
#[derive(Debug)]
pub(super) struct Route {
    answerer: Answerer,
    pub(super) allows_transactions: bool,
    pub(super) is_single_cluster: bool,
    pub(super) is_data_boost: bool,
    pub(super) priority: Priority,
}

impl Routes {
    /// Those of these resources, kept so by whoever changes them: requests only look them up.
    pub(super) fn follow(resources: &Resources) -> Arc<ArcSwap<Self>> {
        let implicit = answerer(IMPLICIT_CLUSTER, IMPLICIT_ZONE);
        let none = Self { implicit, instances: HashMap::new() };
        let clusters = resources.list::<Cluster>("", None, usize::MAX);
        let all = clusters.iter().map(|(name, _)| names::instance_of(name)).collect();
        let routes = Arc::new(ArcSwap::from_pointee(none.renewed(resources, all)));
        let followed = Arc::clone(&routes);
        resources.follow(move |resources, changed| {
            let names = changed.of::<Cluster>().chain(changed.of::<AppProfile>());
            let instances: BTreeSet<_> = names.map(names::instance_of).collect();
            if !instances.is_empty() {
                followed.store(Arc::new(followed.load().renewed(resources, instances)));
            }
        });
        routes
    }

    /// The same with those of some instances as they are now. The others', which may have thousands of profiles each, are shared.
    fn renewed(&self, resources: &Resources, instances: BTreeSet<&str>) -> Self {
        let mut renewed = self.clone();
        for instance in instances {
            match Profiles::of(resources, instance) {
                Some(profiles) => renewed.instances.insert(instance.to_owned(), Arc::new(profiles)),
                None => renewed.instances.remove(instance),
            };
        }
        renewed
    }

    /// The profiles of an instance; `None` for one that nobody created.
    pub(super) fn of(&self, instance: &str) -> Option<&Profiles> {
        self.instances.get(instance).map(Arc::as_ref)
    }

    /// The id of the cluster that answers requests by this app profile to what has this name.
    pub(super) fn cluster(&self, name: &str, profile: &str) -> Arc<str> {
        Arc::clone(&self.answerer(name, profile).cluster)
    }

    /// Which cluster answers requests by this app profile to what has this name.
    fn answerer(&self, name: &str, profile: &str) -> &Answerer {
        let Some(profiles) = self.of(names::instance_of(name)) else { return &self.implicit };
        let route = profiles.by(if profile.is_empty() { DEFAULT } else { profile });
        route.map_or(&profiles.first, |route| &route.answerer)
    }
}

impl Profiles {
    /// Those that an instance has; `None` for one that nobody created.
    fn of(resources: &Resources, instance: &str) -> Option<Self> {
        let of_cluster = |cluster: &Cluster| {
            answerer(names::id_of(&cluster.name), names::id_of(&cluster.location))
        };
        let clusters = resources.list::<Cluster>(&format!("{instance}/clusters/"), None, 1);
        let first = of_cluster(&clusters.first()?.1.value);
        let mut by_id = HashMap::new();
        let prefix = format!("{instance}/appProfiles/");
        for (name, profile) in resources.list::<AppProfile>(&prefix, None, usize::MAX) {
            let profile = &profile.value;
            let routed = match &profile.routing_policy {
                Some(RoutingPolicy::SingleClusterRouting(routing)) => Some(&routing.cluster_id),
                Some(RoutingPolicy::MultiClusterRoutingUseAny(any)) => any.cluster_ids.first(),
                None => None,
            };
            let routed = routed
                .and_then(|id| resources.get::<Cluster>(&format!("{instance}/clusters/{id}")))
                .map(|cluster| of_cluster(&cluster.value));
            let route = Route {
                answerer: routed.unwrap_or_else(|| first.clone()),
                allows_transactions: profiles::allows_transactions(profile),
                is_single_cluster: profiles::is_single_cluster(profile),
                is_data_boost: profiles::is_data_boost(profile),
                priority: profiles::priority(profile),
            };
            by_id.insert(names::id_of(&name).to_owned(), route);
        }
        Some(Self { first, by_id })
    }

    /// What the profile of an id does.
    pub(super) fn by(&self, id: &str) -> Option<&Route> {
        self.by_id.get(id)
    }
}

impl Instances {
    /// The routes as of the last change.
    pub(super) fn routes(&self) -> Guard<Arc<Routes>> {
        self.routes.load()
    }

    /// Which cluster answers requests by this app profile to what has this name, and its zone, as clients' metrics read it:
    /// the first of those that the profile names, else of all. Takes no lock, and allocates nothing.
    pub fn location(&self, name: &str, profile: &str) -> BinaryMetadataValue {
        self.routes().answerer(name, profile).location.clone()
    }

    /// The id of the same cluster.
    pub fn cluster(&self, name: &str, profile: &str) -> Arc<str> {
        self.routes().cluster(name, profile)
    }
}

fn answerer(cluster: &str, zone: &str) -> Answerer {
    let (zone_id, cluster_id) = (Some(zone.to_owned()), Some(cluster.to_owned()));
    let params = ResponseParams { zone_id, cluster_id, afe_id: None };
    let location = BinaryMetadataValue::from_bytes(&params.encode_to_vec());
    Answerer { cluster: cluster.into(), location }
}

//! `google.bigtable.admin.v2.BigtableInstanceAdmin`: instances, clusters and app profiles, by the rules of
//! [`crate::instances`]. A change is done when it is answered, so the operations here are finished ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tepui_bigtable::error::Result as TepuiResult;
use tepui_engine::cell::RowRange;
use tepui_engine::io::Clock;
use tepui_engine::tablet::TabletId;
use tonic::{Response, Status};

use super::changes::{Changes as _, finished, told};
use super::{Iam, Tables, blocking_alone, invalid, page, page_size, timestamp};
use crate::api::longrunning::Operation;
use crate::api::{admin, instances as api};
use crate::backups::times;
use crate::catalog::authorized_views::AuthorizedViews;
use crate::grpc::Request;
use crate::hot_tablets::{Hot, HotTablets, Left};
use crate::instances::{Instances, clusters};
use crate::metrics::rpc::Recorder;
use crate::names;
use crate::operations::Operations;
use crate::status::from_error;

const INSTANCE_TYPE: &str = "google.bigtable.admin.v2.Instance";
const CLUSTER_TYPE: &str = "google.bigtable.admin.v2.Cluster";
const APP_PROFILE_TYPE: &str = "google.bigtable.admin.v2.AppProfile";

/// The service. Cheap to clone: every core has one.
#[derive(Clone)]
pub struct InstanceAdminService {
    pub(crate) instances: Arc<Instances>,
    pub(crate) tables: Arc<Tables>,
    pub(crate) views: Arc<AuthorizedViews>,
    pub(crate) operations: Arc<Operations>,
    pub(crate) hot_tablets: Arc<HotTablets>,
    pub(crate) iam: Iam,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) recorder: Recorder,
}

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl InstanceAdminService {
    pub(super) async fn on_create_instance(
        &self,
        request: Request<api::CreateInstanceRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let change = self.operation(move |service, change, times| {
            let instance = service.instances.create(change, &request)?;
            let metadata = api::CreateInstanceMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            Ok(finished(
                &instance.name,
                ("CreateInstanceMetadata", &metadata),
                (INSTANCE_TYPE, &instance),
            ))
        });
        let created = change.await?;
        tracing::info!(operation = created.get_ref().name, "instance created");
        Ok(created)
    }

    pub(super) async fn on_get_instance(
        &self,
        request: Request<admin::GetInstanceRequest>,
    ) -> Result<Response<api::Instance>, Status> {
        answer(self.instances.get(&request.get_ref().name))
    }

    /// All of them: the API's paging is withdrawn, and its token ignored.
    pub(super) async fn on_list_instances(
        &self,
        request: Request<admin::ListInstancesRequest>,
    ) -> Result<Response<api::ListInstancesResponse>, Status> {
        let parent = request.into_inner().parent;
        let list = move |instances: &Instances| instances.list(&parent);
        let instances = listed(&self.instances, list).await?;
        Ok(Response::new(api::ListInstancesResponse { instances }))
    }

    pub(super) async fn on_update_instance(
        &self,
        request: Request<api::Instance>,
    ) -> Result<Response<api::Instance>, Status> {
        let request = request.into_inner();
        self.change(move |service, _| service.instances.replace(&request)).await
    }

    pub(super) async fn on_partial_update_instance(
        &self,
        request: Request<api::PartialUpdateInstanceRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let given = request.instance.clone().ok_or_else(|| invalid("instance must be set"))?;
        let change = self.operation(move |service, change, times| {
            let mask = request.update_mask.as_ref();
            let instance = service.instances.update(change, &given, mask)?;
            let metadata = api::UpdateInstanceMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            Ok(finished(
                &instance.name,
                ("UpdateInstanceMetadata", &metadata),
                (INSTANCE_TYPE, &instance),
            ))
        });
        change.await
    }

    pub(super) async fn on_delete_instance(
        &self,
        request: Request<admin::DeleteInstanceRequest>,
    ) -> Result<Response<()>, Status> {
        let name = request.into_inner().name;
        let change = self.change(move |service, times| {
            let Self { instances, tables, views, operations, .. } = service;
            let is_live =
                |table: &str, of| tables.get(table).is_ok_and(|e| e.record.incarnation == of);
            instances.delete(&name, tables, |change| {
                times.check_asked()?;
                views.check_unprotected(&name, is_live)?;
                operations.abort_within(change, &name)
            })
        });
        change.await
    }

    pub(super) async fn on_create_cluster(
        &self,
        request: Request<admin::CreateClusterRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let change = self.operation(move |service, change, times| {
            let (parent, id) = (&request.parent, &request.cluster_id);
            let given = request.cluster.as_ref();
            let cluster = service.instances.create_cluster(change, parent, id, given)?;
            let tables = service.tables.list(parent, None, usize::MAX);
            let sizes = tables.iter().map(|entry| {
                let tablets = entry.table.tablets().map(|(_, tablet)| tablet.stats());
                (entry.record.name.clone(), tablets.map(|stats| stats.stored_bytes()).sum())
            });
            let metadata = admin::CreateClusterMetadata {
                tables: clusters::copied(sizes),
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            Ok(finished(
                &cluster.name,
                ("CreateClusterMetadata", &metadata),
                (CLUSTER_TYPE, &cluster),
            ))
        });
        change.await
    }

    pub(super) async fn on_get_cluster(
        &self,
        request: Request<admin::GetClusterRequest>,
    ) -> Result<Response<admin::Cluster>, Status> {
        answer(self.instances.get_cluster(&request.get_ref().name))
    }

    /// All of them: the API's paging is withdrawn, and its token ignored.
    pub(super) async fn on_list_clusters(
        &self,
        request: Request<admin::ListClustersRequest>,
    ) -> Result<Response<admin::ListClustersResponse>, Status> {
        let parent = request.into_inner().parent;
        let list = move |instances: &Instances| instances.list_clusters(&parent);
        let clusters = listed(&self.instances, list).await?;
        Ok(Response::new(admin::ListClustersResponse { clusters, ..Default::default() }))
    }

    pub(super) async fn on_update_cluster(
        &self,
        request: Request<admin::Cluster>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let change = self.operation(move |service, change, times| {
            let cluster = service.instances.replace_cluster(change, &request)?;
            let metadata = admin::UpdateClusterMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            Ok(finished(
                &cluster.name,
                ("UpdateClusterMetadata", &metadata),
                (CLUSTER_TYPE, &cluster),
            ))
        });
        change.await
    }

    pub(super) async fn on_partial_update_cluster(
        &self,
        request: Request<admin::PartialUpdateClusterRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let given = request.cluster.clone().ok_or_else(|| invalid("cluster must be set"))?;
        let change = self.operation(move |service, change, times| {
            let mask = request.update_mask.as_ref();
            let cluster = service.instances.update_cluster(change, &given, mask)?;
            let metadata = admin::PartialUpdateClusterMetadata {
                original_request: told(request),
                request_time: times.requested(),
                finish_time: times.now(),
            };
            let metadata = ("PartialUpdateClusterMetadata", &metadata);
            Ok(finished(&cluster.name, metadata, (CLUSTER_TYPE, &cluster)))
        });
        change.await
    }

    pub(super) async fn on_delete_cluster(
        &self,
        request: Request<admin::DeleteClusterRequest>,
    ) -> Result<Response<()>, Status> {
        let name = request.into_inner().name;
        let change = self.change(move |service, times| {
            service.views.resources().change(|change| {
                times.check_asked()?;
                service.instances.delete_cluster(change, &name)
            })
        });
        change.await
    }

    /// `ignore_warnings` has nothing to ignore: nothing that a new profile may ask for is unsafe.
    pub(super) async fn on_create_app_profile(
        &self,
        request: Request<admin::CreateAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        let request = request.into_inner();
        let change = self.change(move |service, _| {
            let (parent, id) = (&request.parent, &request.app_profile_id);
            service.instances.create_profile(parent, id, request.app_profile.as_ref())
        });
        change.await
    }

    pub(super) async fn on_get_app_profile(
        &self,
        request: Request<admin::GetAppProfileRequest>,
    ) -> Result<Response<admin::AppProfile>, Status> {
        answer(self.instances.get_profile(&request.get_ref().name))
    }

    pub(super) async fn on_list_app_profiles(
        &self,
        request: Request<admin::ListAppProfilesRequest>,
    ) -> Result<Response<admin::ListAppProfilesResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        // A token is the name of the last profile of the page before.
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        // One more than asked for tells whether there is a next page.
        let found = self.instances.list_profiles(&request.parent, after, size.saturating_add(1));
        let found = found.map_err(|error| from_error(&error))?;
        let (app_profiles, has_more) = page(found.into_iter(), size);
        let last = app_profiles.last().filter(|_| has_more).map(|profile| profile.name.clone());
        Ok(Response::new(admin::ListAppProfilesResponse {
            next_page_token: last.unwrap_or_default(),
            app_profiles,
            failed_locations: Vec::new(),
        }))
    }

    pub(super) async fn on_update_app_profile(
        &self,
        request: Request<admin::UpdateAppProfileRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let given = request.app_profile.ok_or_else(|| invalid("app_profile must be set"))?;
        let (mask, ignore_warnings) = (request.update_mask, request.ignore_warnings);
        let change = self.operation(move |service, change, _| {
            let Self { instances, .. } = service;
            let profile =
                instances.update_profile(change, &given, mask.as_ref(), ignore_warnings)?;
            let metadata = ("UpdateAppProfileMetadata", &admin::UpdateAppProfileMetadata {});
            Ok(finished(&profile.name, metadata, (APP_PROFILE_TYPE, &profile)))
        });
        change.await
    }

    /// The hottest first.
    pub(super) async fn on_list_hot_tablets(
        &self,
        request: Request<admin::ListHotTabletsRequest>,
    ) -> Result<Response<admin::ListHotTabletsResponse>, Status> {
        let request = request.into_inner();
        let service = self.clone();
        let list = move |instances: &Instances| service.list_hot_tablets(instances, &request);
        listed(&self.instances, list).await.map(Response::new)
    }

    fn list_hot_tablets(
        &self,
        instances: &Instances,
        request: &admin::ListHotTabletsRequest,
    ) -> TepuiResult<admin::ListHotTabletsResponse> {
        let cluster = &request.parent;
        instances.check_cluster(cluster)?;
        let size = page_size(request.page_size)?;
        let (start, end) = (request.start_time.as_ref(), request.end_time.as_ref());
        let (start, end) = (start.map(times::micros), end.map(times::micros));
        let now = self.clock.now_micros();
        let left = Left::of(cluster, start, end, &request.page_token, now)?;
        let mut all = left.list(&self.hot_tablets);
        let places = self.places(names::instance_of(cluster), &all);
        all.retain(|hot| places.contains_key(&hot.tablet));
        let shown = all.iter().filter_map(|hot| hot_tablet(cluster, hot, &places));
        let (hot_tablets, has_more) = page(shown, size);
        let last = all.get(hot_tablets.len().saturating_sub(1)).filter(|_| has_more);
        let next_page_token = last.map(|last| left.behind(last)).unwrap_or_default();
        Ok(admin::ListHotTabletsResponse { hot_tablets, next_page_token })
    }

    /// Where in an instance the tablets are of which there is something to tell; others are not there.
    fn places(&self, instance: &str, hot: &[Hot]) -> TabletPlaces {
        let wanted: HashSet<TabletId> = hot.iter().map(|hot| hot.tablet).collect();
        let mut places = TabletPlaces::new();
        if wanted.is_empty() {
            return places;
        }
        for entry in self.tables.list(instance, None, usize::MAX) {
            let wanted = entry.table.tablets().filter(|(_, tablet)| wanted.contains(&tablet.id()));
            places.extend(
                wanted.map(|(range, tablet)| {
                    (tablet.id(), (entry.record.name.clone(), range.clone()))
                }),
            );
        }
        places
    }

    pub(super) async fn on_delete_app_profile(
        &self,
        request: Request<admin::DeleteAppProfileRequest>,
    ) -> Result<Response<()>, Status> {
        let admin::DeleteAppProfileRequest { name, ignore_warnings } = request.into_inner();
        let change = self.change(move |service, times| {
            let asked = || times.check_asked();
            service.instances.delete_profile(&name, ignore_warnings, asked)
        });
        change.await
    }
}

/// Makes a list off the core that has no pages, and may be of megabytes, or of which each page takes as long as all. It has the room for its
/// answer by now, and waits for no change.
async fn listed<T: Send + 'static>(
    instances: &Arc<Instances>,
    list: impl FnOnce(&Instances) -> TepuiResult<T> + Send + 'static,
) -> Result<T, Status> {
    let instances = Arc::clone(instances);
    let turn = Arc::clone(&instances.listings).acquire_owned().await;
    let turn = turn.expect("turns are never closed");
    blocking_alone(move || {
        // As long as the thread works, whether anybody waits for it or not.
        let _turn = turn;
        list(&instances)
    })
    .await
}

/// Tablets of an instance, for [`InstanceAdminService::on_list_hot_tablets`].
type TabletPlaces = HashMap<TabletId, (String, RowRange)>;

/// A tablet's hottest window as the API tells of it.
fn hot_tablet(cluster: &str, hot: &Hot, places: &TabletPlaces) -> Option<admin::HotTablet> {
    let (table_name, range) = places.get(&hot.tablet)?;
    // Keys are bytes, and the API tells of them in a text. It calls the end inclusive; but there is no last row before a
    // key, so it is the start of the next tablet here.
    let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
    Some(admin::HotTablet {
        name: format!("{cluster}/hotTablets/{:016x}-{}", hot.tablet.0, hot.start_micros),
        table_name: table_name.clone(),
        start_time: Some(timestamp(hot.start_micros)),
        end_time: Some(timestamp(hot.end_micros)),
        start_key: text(&range.start),
        end_key: text(&range.end),
        node_cpu_usage_percent: hot.cpu_percent,
    })
}

fn answer<T>(result: TepuiResult<T>) -> Result<Response<T>, Status> {
    result.map(Response::new).map_err(|error| from_error(&error))
}

#[cfg(test)]
mod tests {
    use tepui_engine::io::ManualClock;

    use super::super::tests::one_worker;
    use super::*;
    use crate::catalog::memory_meta::MemoryMeta;
    use crate::catalog::resources::Resources;
    use crate::workers;

    #[tokio::test]
    async fn a_list_that_has_no_pages_is_made_beside_the_core() {
        let _lent = one_worker();
        let resources = Arc::new(Resources::open(Arc::<MemoryMeta>::default()).unwrap());
        let clock = Arc::new(ManualClock::new(1_000_000));
        let instances = Arc::new(Instances::new(resources, clock, false));
        let (go, may_go) = std::sync::mpsc::channel::<()>();
        let mut first = Box::pin(workers::run(move || may_go.recv()));
        assert!(futures::poll!(&mut first).is_pending());
        let list = |instances: &Instances| instances.list("projects/p");
        let mut lists: Vec<_> = (0..8).map(|_| Box::pin(listed(&instances, list))).collect();
        for list in &mut lists {
            assert!(futures::poll!(list).is_pending(), "the one thread is busy");
        }
        assert_eq!(instances.listings.available_permits(), 0, "and no more of them queue for it");
        drop(go);
        assert!(first.await.is_some());
        for list in lists {
            assert_eq!(list.await.unwrap(), []);
        }
    }
}

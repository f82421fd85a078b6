//! `GetIamPolicy`, `SetIamPolicy` and `TestIamPermissions` of both admin services: the same on different resources.

use std::sync::Arc;

use tepui_bigtable::error::{Error, Result};
use tonic::{Response, Status};

use super::instances::InstanceAdminService;
use super::tables::TableAdminService;
use super::{Tables, blocking};
use crate::api::iam;
use crate::backups::record::BackupRecord;
use crate::bundles::Bundles;
use crate::catalog::authorized_views::AuthorizedViews;
use crate::grpc::Request;
use crate::iam::permissions::{Kind, check_permission, kind_of};
use crate::iam::policies::{Policies, in_version};
use crate::iam::{Principal, authorize, check_version};
use crate::instances::Instances;
use crate::limits::TESTED_PERMISSIONS_MAX;
use crate::names;
use crate::status::from_error;

/// Policies, and the resources that they are about.
#[derive(Clone)]
pub struct Iam {
    tables: Arc<Tables>,
    views: Arc<AuthorizedViews>,
    instances: Arc<Instances>,
    bundles: Bundles,
    policies: Policies,
}

impl Iam {
    /// About these resources.
    pub fn new(
        tables: Arc<Tables>,
        views: Arc<AuthorizedViews>,
        instances: Arc<Instances>,
        bundles: Bundles,
        policies: Policies,
    ) -> Self {
        Self { tables, views, instances, bundles, policies }
    }

    /// The incarnation of the table that a resource is or is in, 0 where it is in none; `NOT_FOUND` where there is no
    /// such resource.
    fn find(&self, name: &str, serves: &[Kind]) -> Result<u64> {
        let kind = served_kind(name, serves)?;
        // Instances need not be created, unless the server is told so.
        self.instances.check(names::instance_of(name))?;
        let Some(table) = names::table_within(name) else {
            if kind == Kind::Backup {
                self.policies.resources().find::<BackupRecord>(name)?;
            }
            return Ok(0);
        };
        let entry = self.tables.get(table)?;
        let table = entry.record.incarnation;
        match kind {
            Kind::AuthorizedView => drop(self.views.find(name, table)?),
            Kind::SchemaBundle => drop(self.bundles.get(&entry.record, name)?),
            Kind::Instance | Kind::Cluster | Kind::Backup | Kind::Table => {}
        }
        Ok(table)
    }

    fn get_policy(
        &self,
        request: &iam::GetIamPolicyRequest,
        serves: &[Kind],
    ) -> Result<iam::Policy> {
        let requested = request.options.map_or(0, |options| options.requested_policy_version);
        check_version("options.requested_policy_version", requested)?;
        let table = self.find(&request.resource, serves)?;
        Ok(in_version(self.policies.get(&request.resource, table), requested))
    }

    fn set_policy(
        &self,
        request: &iam::SetIamPolicyRequest,
        serves: &[Kind],
    ) -> Result<iam::Policy> {
        let name = &request.resource;
        served_kind(name, serves)?;
        let given = request.policy.as_ref();
        let given = given.ok_or_else(|| Error::invalid_argument("policy must be set"))?;
        let mask = request.update_mask.as_ref().map_or(&[][..], |mask| &mask.paths);
        let set = self.policies.set(name, given, mask, || self.find(name, serves))?;
        tracing::info!(resource = name, bindings = set.bindings.len(), "IAM policy set");
        Ok(set)
    }

    /// Of a resource that is not there nobody has any permission, which is no error: so it is documented.
    fn test(
        &self,
        principal: Option<&Principal>,
        request: iam::TestIamPermissionsRequest,
        serves: &[Kind],
    ) -> Result<Vec<String>> {
        let name = &request.resource;
        let kind = served_kind(name, serves)?;
        let count = request.permissions.len();
        if count > TESTED_PERMISSIONS_MAX {
            return Err(Error::invalid_argument(format!(
                "{count} permissions are asked about; limit {TESTED_PERMISSIONS_MAX}"
            )));
        }
        request.permissions.iter().try_for_each(|asked| check_permission(kind, asked))?;
        let Ok(table) = self.find(name, serves) else {
            return Ok(Vec::new());
        };
        let policies = self.policies.effective(name, table);
        let mut granted = request.permissions;
        granted.retain(|permission| authorize(principal, &policies, permission));
        Ok(granted)
    }

    fn on_get(
        &self,
        request: Request<iam::GetIamPolicyRequest>,
        serves: &[Kind],
    ) -> Result<Response<iam::Policy>, Status> {
        let policy = self.get_policy(request.get_ref(), serves);
        policy.map(Response::new).map_err(|error| from_error(&error))
    }

    async fn on_set(
        &self,
        request: Request<iam::SetIamPolicyRequest>,
        serves: &'static [Kind],
    ) -> Result<Response<iam::Policy>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        blocking(move || this.set_policy(&request, serves)).await.map(Response::new)
    }

    fn on_test(
        &self,
        request: Request<iam::TestIamPermissionsRequest>,
        serves: &[Kind],
    ) -> Result<Response<iam::TestIamPermissionsResponse>, Status> {
        // Who asks is what authentication puts there; without it, anybody.
        let principal = request.extensions().get::<Principal>().cloned();
        let granted = self.test(principal.as_ref(), request.into_inner(), serves);
        let permissions = granted.map_err(|error| from_error(&error))?;
        Ok(Response::new(iam::TestIamPermissionsResponse { permissions }))
    }
}

/// The kind of a resource, which must be among those that the service `serves`.
fn served_kind(name: &str, serves: &[Kind]) -> Result<Kind> {
    let kind = kind_of(name)?;
    if serves.contains(&kind) {
        return Ok(kind);
    }
    Err(Error::invalid_argument(format!(
        "resource {name:?} is not of this service: instances are asked about of BigtableInstanceAdmin, tables, \
         authorized views, schema bundles and backups of BigtableTableAdmin"
    )))
}

/// Writes the three RPCs of a service, for resources of these kinds.
macro_rules! rpcs {
    ($service:ty, $kinds:expr) => {
        impl $service {
            pub(super) async fn on_get_iam_policy(
                &self,
                request: Request<iam::GetIamPolicyRequest>,
            ) -> Result<Response<iam::Policy>, Status> {
                self.iam.on_get(request, $kinds)
            }

            pub(super) async fn on_set_iam_policy(
                &self,
                request: Request<iam::SetIamPolicyRequest>,
            ) -> Result<Response<iam::Policy>, Status> {
                self.iam.on_set(request, $kinds).await
            }

            pub(super) async fn on_test_iam_permissions(
                &self,
                request: Request<iam::TestIamPermissionsRequest>,
            ) -> Result<Response<iam::TestIamPermissionsResponse>, Status> {
                self.iam.on_test(request, $kinds)
            }
        }
    };
}

rpcs!(InstanceAdminService, &[Kind::Instance]);
rpcs!(TableAdminService, &[Kind::Table, Kind::AuthorizedView, Kind::SchemaBundle, Kind::Backup]);

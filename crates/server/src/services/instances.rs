//! `google.bigtable.admin.v2.BigtableInstanceAdmin`. Tables can be made in any instance, so there are no
//! instances to administer yet; every RPC answers UNIMPLEMENTED with its name.

/// The service.
#[derive(Debug, Clone, Default)]
pub struct InstanceAdminService;

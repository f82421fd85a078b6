//! `google.bigtable.admin.v2.BigtableInstanceAdmin`. Tables can be made in any instance, so there are no
//! instances to administer yet; every RPC answers UNIMPLEMENTED with its name.

use crate::metrics::rpc::Recorder;

/// The service.
#[derive(Debug, Clone)]
pub struct InstanceAdminService {
    pub(super) recorder: Recorder,
}

impl InstanceAdminService {
    /// Counts what it is asked.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder }
    }
}

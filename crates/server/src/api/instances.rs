//! Messages of instance administration that hold an [`Instance`], which has an edition: newer than the crate that the
//! other messages come from, and the same on the wire as Google's. Fields that are Google's own business
//! (`satisfies_pzs`, `satisfies_pzi`) are left out.

use std::collections::HashMap;

use prost::Message;

use super::admin;

/// `google.bigtable.admin.v2.Instance`.
#[derive(Clone, PartialEq, Message)]
pub struct Instance {
    /// `projects/PROJECT/instances/INSTANCE`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// For people to read.
    #[prost(string, tag = "2")]
    pub display_name: String,
    /// Output only.
    #[prost(enumeration = "admin::instance::State", tag = "3")]
    pub state: i32,
    /// Production or development.
    #[prost(enumeration = "admin::instance::Type", tag = "4")]
    pub r#type: i32,
    /// The user's own labels.
    #[prost(map = "string, string", tag = "5")]
    pub labels: HashMap<String, String>,
    /// Output only.
    #[prost(message, optional, tag = "7")]
    pub create_time: Option<prost_types::Timestamp>,
    /// Tags of a resource manager. Input only.
    #[prost(map = "string, string", tag = "12")]
    pub tags: HashMap<String, String>,
    /// What Google charges for; kept and without effect.
    #[prost(enumeration = "Edition", tag = "14")]
    pub edition: i32,
}

/// `google.bigtable.admin.v2.Instance.Edition`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Edition {
    /// As [`Self::Enterprise`].
    Unspecified = 0,
    /// The default.
    Enterprise = 1,
    /// The other.
    EnterprisePlus = 2,
}

/// `google.bigtable.admin.v2.CreateInstanceRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateInstanceRequest {
    /// `projects/PROJECT`.
    #[prost(string, tag = "1")]
    pub parent: String,
    /// The id within the project.
    #[prost(string, tag = "2")]
    pub instance_id: String,
    /// The instance.
    #[prost(message, optional, tag = "3")]
    pub instance: Option<Instance>,
    /// Its clusters by their ids.
    #[prost(map = "string, message", tag = "4")]
    pub clusters: HashMap<String, admin::Cluster>,
}

/// `google.bigtable.admin.v2.CreateInstanceMetadata`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateInstanceMetadata {
    /// What was asked.
    #[prost(message, optional, tag = "1")]
    pub original_request: Option<CreateInstanceRequest>,
    /// When.
    #[prost(message, optional, tag = "2")]
    pub request_time: Option<prost_types::Timestamp>,
    /// When it was done.
    #[prost(message, optional, tag = "3")]
    pub finish_time: Option<prost_types::Timestamp>,
}

/// `google.bigtable.admin.v2.PartialUpdateInstanceRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct PartialUpdateInstanceRequest {
    /// The instance, with what is to change.
    #[prost(message, optional, tag = "1")]
    pub instance: Option<Instance>,
    /// What is to change.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<prost_types::FieldMask>,
}

/// `google.bigtable.admin.v2.UpdateInstanceMetadata`.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateInstanceMetadata {
    /// What was asked.
    #[prost(message, optional, tag = "1")]
    pub original_request: Option<PartialUpdateInstanceRequest>,
    /// When.
    #[prost(message, optional, tag = "2")]
    pub request_time: Option<prost_types::Timestamp>,
    /// When it was done.
    #[prost(message, optional, tag = "3")]
    pub finish_time: Option<prost_types::Timestamp>,
}

/// `google.bigtable.admin.v2.ListInstancesResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ListInstancesResponse {
    /// All of the project.
    #[prost(message, repeated, tag = "1")]
    pub instances: Vec<Instance>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_are_those_of_the_api() {
        let instance = Instance {
            name: "projects/p/instances/i".to_owned(),
            display_name: "d".to_owned(),
            state: 1,
            r#type: 2,
            labels: [("k".to_owned(), "v".to_owned())].into(),
            create_time: Some(prost_types::Timestamp { seconds: 1, nanos: 2 }),
            tags: [("t".to_owned(), "u".to_owned())].into(),
            edition: Edition::EnterprisePlus.into(),
        };
        let known = admin::Instance {
            name: instance.name.clone(),
            display_name: instance.display_name.clone(),
            state: 1,
            r#type: 2,
            labels: instance.labels.clone(),
            create_time: instance.create_time,
            tags: instance.tags.clone(),
            ..admin::Instance::default()
        };
        let bytes = instance.encode_to_vec();
        assert_eq!(admin::Instance::decode(bytes.as_slice()).unwrap(), known);
        assert!(
            bytes.ends_with(&[14 << 3, 2]),
            "the edition is a varint under number 14: {bytes:?}"
        );

        let request = admin::CreateInstanceRequest {
            parent: "projects/p".to_owned(),
            instance_id: "i".to_owned(),
            instance: Some(known),
            clusters: [("c".to_owned(), admin::Cluster::default())].into(),
        };
        let decoded = CreateInstanceRequest::decode(request.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded.instance.unwrap().labels, instance.labels);
        assert_eq!((decoded.parent, decoded.instance_id), (request.parent, request.instance_id));
        assert!(decoded.clusters.contains_key("c"));
    }
}

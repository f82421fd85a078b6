//! Requests with schema bundles, and the kind of schema that the messages of [`admin`] leave out: they are the same on the wire, and what is
//! not served can be told from what is not there.

use prost::Message;
use tepui_bigtable::error::{Error, Result};

use super::admin;

/// `google.bigtable.admin.v2.SchemaBundle`.
#[derive(Clone, PartialEq, Message)]
pub struct SchemaBundle {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Descriptors of protocol buffers.
    #[prost(message, optional, tag = "2")]
    pub proto_schema: Option<admin::ProtoSchema>,
    /// What the client knows.
    #[prost(string, tag = "3")]
    pub etag: String,
    /// A schema of Avro, of which nothing is kept.
    #[prost(message, optional, tag = "6")]
    pub avro_schema: Option<()>,
}

/// `google.bigtable.admin.v2.CreateSchemaBundleRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct CreateSchemaBundleRequest {
    /// The table.
    #[prost(string, tag = "1")]
    pub parent: String,
    /// The id within the table.
    #[prost(string, tag = "2")]
    pub schema_bundle_id: String,
    /// The bundle.
    #[prost(message, optional, tag = "3")]
    pub schema_bundle: Option<SchemaBundle>,
}

/// `google.bigtable.admin.v2.UpdateSchemaBundleRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct UpdateSchemaBundleRequest {
    /// The bundle, as it is to be.
    #[prost(message, optional, tag = "1")]
    pub schema_bundle: Option<SchemaBundle>,
    /// What is to change.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<prost_types::FieldMask>,
    /// Whether to go on where readers may break.
    #[prost(bool, tag = "3")]
    pub ignore_warnings: bool,
}

/// What a request gives.
///
/// # Errors
///
/// `INVALID_ARGUMENT` where it gives none; `UNIMPLEMENTED` where it is of Avro.
pub fn given(bundle: Option<SchemaBundle>) -> Result<admin::SchemaBundle> {
    let bundle = bundle.ok_or_else(|| Error::invalid_argument("schema_bundle must be set"))?;
    let SchemaBundle { name, proto_schema, etag, avro_schema } = bundle;
    if avro_schema.is_some() {
        return Err(avro());
    }
    let r#type = proto_schema.map(admin::schema_bundle::Type::ProtoSchema);
    Ok(admin::SchemaBundle { name, etag, r#type })
}

/// What is said of schemas of Avro.
pub fn avro() -> Error {
    Error::unimplemented("avro_schema: schema bundles of Avro are not supported; proto_schema is")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tepui_bigtable::error::Code;

    #[test]
    fn a_schema_of_avro_is_not_taken_for_none() {
        // As a younger client sends it: `avro_schema { schema: "x" }`.
        let sent = [0x1a, 5, 0x32, 3, 0x0a, 1, b'x'];
        let request = CreateSchemaBundleRequest::decode(&sent[..]).unwrap();
        let error = given(request.schema_bundle).unwrap_err();
        assert_eq!(error.kind(), Code::Unimplemented);
        assert!(error.message().contains("avro_schema"), "{error}");
        assert_eq!(given(None).unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn a_bundle_is_the_same_message_as_that_of_the_library() {
        let proto = admin::ProtoSchema { proto_descriptors: "abc".into() };
        let bundle = admin::SchemaBundle {
            name: "n".into(),
            etag: "e".into(),
            r#type: Some(admin::schema_bundle::Type::ProtoSchema(proto)),
        };
        let asked = admin::UpdateSchemaBundleRequest {
            schema_bundle: Some(bundle.clone()),
            update_mask: Some(prost_types::FieldMask { paths: vec!["etag".into()] }),
            ignore_warnings: true,
        };
        let request = UpdateSchemaBundleRequest::decode(&*asked.encode_to_vec()).unwrap();
        assert_eq!((request.update_mask, request.ignore_warnings), (asked.update_mask, true));
        assert_eq!(given(request.schema_bundle).unwrap(), bundle);
    }
}

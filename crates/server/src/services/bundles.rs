//! The RPCs of schema bundles.

use prost_types::FieldMask;
use tepui_bigtable::error::Error;
use tonic::{Response, Status};

use super::changes::{Changes as _, finished};
use super::{TableAdminService, invalid, page, page_size};
use crate::api::longrunning::Operation;
use crate::api::{admin, bundles as given};
use crate::bundles::split;
use crate::grpc::Request;
use crate::names;
use crate::status::from_error;

const BUNDLE_TYPE: &str = "google.bigtable.admin.v2.SchemaBundle";

#[expect(clippy::unused_async, reason = "the generated dispatch awaits every RPC")]
impl TableAdminService {
    pub(super) async fn on_create_schema_bundle(
        &self,
        request: Request<given::CreateSchemaBundleRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let name = names::new_schema_bundle(&request.parent, &request.schema_bundle_id);
        let name = name.map_err(|error| from_error(&error))?;
        let bundle = given::given(request.schema_bundle).map_err(|error| from_error(&error))?;
        let turn = self.bundles.turn().await;
        let change = self.change(move |service, times| {
            let schema = service.bundles.schema(&bundle)?;
            drop(turn);
            service.operations.change(|change| {
                let table = service.served(&request.parent)?;
                let bundle = service.bundles.create(change, &table.record, &name, schema)?;
                let metadata = admin::CreateSchemaBundleMetadata {
                    name: name.clone(),
                    start_time: times.requested(),
                    end_time: times.now(),
                };
                let metadata = ("CreateSchemaBundleMetadata", &metadata);
                Ok(finished(&name, metadata, (BUNDLE_TYPE, &bundle)))
            })
        });
        change.await
    }

    pub(super) async fn on_update_schema_bundle(
        &self,
        request: Request<given::UpdateSchemaBundleRequest>,
    ) -> Result<Response<Operation>, Status> {
        let request = request.into_inner();
        let bundle = given::given(request.schema_bundle).map_err(|error| from_error(&error))?;
        let table = table_of("schema_bundle.name", &bundle.name)?;
        check_mask(request.update_mask.as_ref())?;
        let turn = self.bundles.turn().await;
        let change = self.change(move |service, times| {
            let bundles = &service.bundles;
            let schema = if request.ignore_warnings {
                bundles.schema(&bundle)?
            } else {
                bundles.compared(&service.served(&table)?.record, &bundle)?
            };
            drop(turn);
            service.operations.change(|change| {
                let table = service.served(&table)?;
                let (name, etag) = (&bundle.name, &bundle.etag);
                let bundle = bundles.update(change, &table.record, name, etag, schema)?;
                let metadata = admin::UpdateSchemaBundleMetadata {
                    name: name.clone(),
                    start_time: times.requested(),
                    end_time: times.now(),
                };
                let metadata = ("UpdateSchemaBundleMetadata", &metadata);
                Ok(finished(name, metadata, (BUNDLE_TYPE, &bundle)))
            })
        });
        change.await
    }

    pub(super) async fn on_get_schema_bundle(
        &self,
        request: Request<admin::GetSchemaBundleRequest>,
    ) -> Result<Response<admin::SchemaBundle>, Status> {
        let name = &request.get_ref().name;
        let table = self.served(&table_of("name", name)?);
        let found = table.and_then(|table| self.bundles.get(&table.record, name));
        found.map(Response::new).map_err(|error| from_error(&error))
    }

    pub(super) async fn on_list_schema_bundles(
        &self,
        request: Request<admin::ListSchemaBundlesRequest>,
    ) -> Result<Response<admin::ListSchemaBundlesResponse>, Status> {
        let request = request.into_inner();
        names::check_table("parent", &request.parent).map_err(|error| from_error(&error))?;
        let size = page_size(request.page_size).map_err(|error| from_error(&error))?;
        // A token is the name of the last bundle of the page before.
        let after = Some(request.page_token.as_str()).filter(|token| !token.is_empty());
        if after.is_some_and(|token| split(token).is_none_or(|(table, _)| table != request.parent))
        {
            return Err(invalid(format!("bad page_token {:?}", request.page_token)));
        }
        let table = self.served(&request.parent).map_err(|error| from_error(&error))?;
        // One more than asked for tells whether there is a next page.
        let found = self.bundles.list(&table.record, after, size.saturating_add(1));
        let (schema_bundles, has_more) = page(found.into_iter(), size);
        let last = schema_bundles.last().filter(|_| has_more).map(|bundle| bundle.name.clone());
        Ok(Response::new(admin::ListSchemaBundlesResponse {
            schema_bundles,
            next_page_token: last.unwrap_or_default(),
        }))
    }

    pub(super) async fn on_delete_schema_bundle(
        &self,
        request: Request<admin::DeleteSchemaBundleRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        let table = table_of("name", &request.name)?;
        let deleted = self.change(move |service, times| {
            service.views.resources().change(|change| {
                times.check_asked()?;
                let table = service.served(&table)?;
                service.bundles.delete(change, &table.record, &request.name, &request.etag)
            })
        });
        deleted.await
    }
}

/// The table of a bundle's name; `field` is the request's field, for the error.
fn table_of(field: &str, name: &str) -> Result<String, Status> {
    let bad = || {
        let shape =
            "projects/{project}/instances/{instance}/tables/{table}/schemaBundles/{schema_bundle}";
        Error::invalid_argument(format!("{field} must be of the form {shape}, got {name:?}"))
    };
    let (table, id) = split(name).ok_or_else(|| from_error(&bad()))?;
    if id.is_empty() || names::check_table(field, table).is_err() {
        return Err(from_error(&bad()));
    }
    Ok(table.to_owned())
}

/// Everything that can be updated is the schema; no mask means all. An etag is looked at, whether it is named or not.
fn check_mask(mask: Option<&FieldMask>) -> Result<(), Status> {
    let known = ["proto_schema", "proto_schema.proto_descriptors", "type", "etag", "*"];
    let paths = mask.map_or(&[][..], |mask| &mask.paths);
    match paths.iter().find(|path| !known.contains(&path.as_str())) {
        Some(path) if path.split('.').next() == Some("avro_schema") => {
            Err(from_error(&given::avro()))
        }
        Some(path) => {
            Err(invalid(format!("update_mask: {path:?} cannot be updated; proto_schema alone can")))
        }
        None => Ok(()),
    }
}

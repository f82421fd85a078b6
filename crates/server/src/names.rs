//! Resource names: their shape, and the checks on the parts that a client chooses.
//!
//! ```text
//! projects/PROJECT/instances/INSTANCE                    an instance
//! projects/PROJECT/instances/INSTANCE/tables/TABLE       a table
//!     .../tables/TABLE/authorizedViews/VIEW              an authorized view of it
//! projects/PROJECT/instances/INSTANCE/clusters/CLUSTER   a cluster, and in it
//!                                     .../backups/BACKUP a backup
//! projects/PROJECT/instances/INSTANCE/appProfiles/ID     an app profile
//! ```
//!
//! Project and instance may be anything without a slash: clients of an emulator send placeholders, and
//! instances need not be created. An id is checked where something is created.

use tepui_bigtable::error::{Error, Result, Shown};

use crate::limits::{
    APP_PROFILE_ID_CHARS_MAX, BACKUP_ID_CHARS_MAX, CLUSTER_ID_CHARS_MAX, INSTANCE_ID_CHARS_MAX,
    RESOURCE_NAME_CHARS_MAX, TABLE_ID_CHARS_MAX,
};

/// Checks the shape of a project's name; `field` is the request's field, for the error.
pub fn check_project(field: &str, name: &str) -> Result<()> {
    check_shape(field, name, "projects/{project}", &["projects"])
}

/// Checks the shape of an instance's name; `field` is the request's field, for the error.
pub fn check_instance(field: &str, name: &str) -> Result<()> {
    let shape = "projects/{project}/instances/{instance}";
    check_shape(field, name, shape, &["projects", "instances"])
}

/// Checks the shape of a table's name; `field` is the request's field, for the error.
pub fn check_table(field: &str, name: &str) -> Result<()> {
    let shape = "projects/{project}/instances/{instance}/tables/{table}";
    check_shape(field, name, shape, &["projects", "instances", "tables"])
}

/// Checks the shape of a cluster's name; `field` is the request's field, for the error.
pub fn check_cluster(field: &str, name: &str) -> Result<()> {
    let shape = "projects/{project}/instances/{instance}/clusters/{cluster}";
    check_shape(field, name, shape, &["projects", "instances", "clusters"])
}

/// Checks the shape of a backup's name; `field` is the request's field, for the error.
pub fn check_backup(field: &str, name: &str) -> Result<()> {
    let shape = "projects/{project}/instances/{instance}/clusters/{cluster}/backups/{backup}";
    check_shape(field, name, shape, &["projects", "instances", "clusters", "backups"])
}

/// Checks the shape of an app profile's name; `field` is the request's field, for the error.
pub fn check_app_profile(field: &str, name: &str) -> Result<()> {
    let shape = "projects/{project}/instances/{instance}/appProfiles/{app_profile}";
    check_shape(field, name, shape, &["projects", "instances", "appProfiles"])
}

/// Checks the shape of a zone's name; `field` is the request's field, for the error.
pub fn check_location(field: &str, name: &str) -> Result<()> {
    check_shape(field, name, "projects/{project}/locations/{zone}", &["projects", "locations"])
}

/// The name of a new instance of a project, both checked.
pub fn new_instance(parent: &str, id: &str) -> Result<String> {
    check_project("parent", parent)?;
    let ends_well = id.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let is_well_formed = id.len() >= 3 && is_lower_case_id(id) && ends_well;
    let pattern = "[a-z][a-z0-9-]+[a-z0-9]";
    check_id("instance_id", id, INSTANCE_ID_CHARS_MAX, pattern, is_well_formed)?;
    joined("instance_id", format!("{parent}/instances/{id}"))
}

/// The name of a new cluster of an instance, both checked.
pub fn new_cluster(parent: &str, id: &str) -> Result<String> {
    check_instance("parent", parent)?;
    check_id("cluster_id", id, CLUSTER_ID_CHARS_MAX, "[a-z][-a-z0-9]*", is_lower_case_id(id))?;
    joined("cluster_id", format!("{parent}/clusters/{id}"))
}

/// The name of a new backup in a cluster, both checked.
pub fn new_backup(parent: &str, id: &str) -> Result<String> {
    check_cluster("parent", parent)?;
    check_id("backup_id", id, BACKUP_ID_CHARS_MAX, WORD_PATTERN, is_word(id))?;
    joined("backup_id", format!("{parent}/backups/{id}"))
}

/// The name of a new app profile of an instance, both checked.
pub fn new_app_profile(parent: &str, id: &str) -> Result<String> {
    check_instance("parent", parent)?;
    check_id("app_profile_id", id, APP_PROFILE_ID_CHARS_MAX, WORD_PATTERN, is_word(id))?;
    joined("app_profile_id", format!("{parent}/appProfiles/{id}"))
}

/// The name of a new table of an instance, both checked.
pub fn new_table(parent: &str, id: &str) -> Result<String> {
    check_instance("parent", parent)?;
    check_id("table_id", id, TABLE_ID_CHARS_MAX, WORD_PATTERN, is_word(id))?;
    joined("table_id", format!("{parent}/tables/{id}"))
}

/// The name of a new schema bundle of a table, both checked.
pub fn new_schema_bundle(parent: &str, id: &str) -> Result<String> {
    check_table("parent", parent)?;
    check_id("schema_bundle_id", id, TABLE_ID_CHARS_MAX, WORD_PATTERN, is_word(id))?;
    joined("schema_bundle_id", format!("{parent}/{}/{id}", crate::bundles::COLLECTION))
}

/// The instance that the name of something in it starts with; all of a name that is in none.
pub fn instance_of(name: &str) -> &str {
    let end = name.match_indices('/').nth(3).map_or(name.len(), |(at, _)| at);
    name.get(..end).unwrap_or(name)
}

/// The cluster that a backup's name starts with.
pub fn cluster_of(backup: &str) -> &str {
    backup.rsplit_once("/backups/").map_or(backup, |(cluster, _)| cluster)
}

/// The last part of a name.
pub fn id_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(_, id)| id)
}

/// Between a table's name and the id of its view.
pub const AUTHORIZED_VIEWS: &str = "/authorizedViews/";

/// Checks the shape of an authorized view's name; `field` is the request's field, for the error.
pub fn check_view(field: &str, name: &str) -> Result<()> {
    let shape =
        "projects/{project}/instances/{instance}/tables/{table}/authorizedViews/{authorized_view}";
    check_shape(field, name, shape, &["projects", "instances", "tables", "authorizedViews"])
}

/// The name of a new authorized view of a table, both checked.
pub fn new_view(parent: &str, view_id: &str) -> Result<String> {
    check_table("parent", parent)?;
    let is_well_formed = is_word(view_id);
    check_id("authorized_view_id", view_id, TABLE_ID_CHARS_MAX, WORD_PATTERN, is_well_formed)?;
    joined("authorized_view_id", format!("{parent}{AUTHORIZED_VIEWS}{view_id}"))
}

/// The table of an authorized view's name, and the view's id.
pub fn split_view(name: &str) -> Option<(&str, &str)> {
    // From its end: a table, and what it is in, may have the name of the collection.
    name.rsplit_once(AUTHORIZED_VIEWS)
}

/// The instance of a table's name, and the table's id.
pub fn split_table(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once("/tables/")
}

/// The table that something is in, or is, by its name; `None` for what is in none.
pub fn table_within(name: &str) -> Option<&str> {
    if name.split('/').nth(4) != Some("tables") {
        return None;
    }
    let end = name.match_indices('/').nth(5).map_or(name.len(), |(at, _)| at);
    name.get(..end)
}

/// Checks that a name has these collections and ids, none of them empty; `field` is the request's field, for the error.
pub fn check_collections(field: &str, name: &str, collections: &[&str]) -> Result<()> {
    let shape: Vec<_> =
        collections.iter().map(|collection| format!("{collection}/{{id}}")).collect();
    check_shape(field, name, &shape.join("/"), collections)
}

/// The pattern of ids of tables, authorized views, backups and app profiles.
const WORD_PATTERN: &str = "[_a-zA-Z0-9][-_.a-zA-Z0-9]*";

/// Whether an id is of [`WORD_PATTERN`].
fn is_word(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// `[a-z][-a-z0-9]*`
fn is_lower_case_id(id: &str) -> bool {
    id.starts_with(|c: char| c.is_ascii_lowercase())
        && id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// Checks an id that a client chose: its length, and what was found of its pattern.
fn check_id(
    field: &str,
    id: &str,
    chars_max: usize,
    pattern: &str,
    is_well_formed: bool,
) -> Result<()> {
    if id.is_empty() {
        return Err(Error::invalid_argument(format!("{field} must be non-empty")));
    }
    if id.chars().count() > chars_max {
        let what = format!("{field} {} is too long: limit {chars_max} characters", Shown(id));
        return Err(Error::invalid_argument(what));
    }
    if is_well_formed {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{field} {} does not match {pattern}", Shown(id))))
}

/// The name of something new, of a parent and an id that are checked, if it is one by which that can be asked for. `field` is that of the id, for the error.
fn joined(field: &str, name: String) -> Result<String> {
    if name.len() <= RESOURCE_NAME_CHARS_MAX {
        return Ok(name);
    }
    Err(Error::invalid_argument(format!(
        "{field} makes a name of {} bytes with its parent's: limit {RESOURCE_NAME_CHARS_MAX}",
        name.len()
    )))
}

/// Checks that `name` alternates the given collections with non-empty ids.
fn check_shape(field: &str, name: &str, shape: &str, collections: &[&str]) -> Result<()> {
    let mut parts = name.split('/');
    let well_formed = name.len() <= RESOURCE_NAME_CHARS_MAX
        && collections.iter().all(|collection| {
            parts.next() == Some(*collection) && parts.next().is_some_and(|id| !id.is_empty())
        })
        && parts.next().is_none();
    if well_formed {
        return Ok(());
    }
    if name.len() > RESOURCE_NAME_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "{field} must be of the form {shape} and at most {RESOURCE_NAME_CHARS_MAX} bytes, got {}",
            Shown(name)
        )));
    }
    Err(Error::invalid_argument(format!(
        "{field} must be of the form {shape}, got {}",
        Shown(name)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tepui_bigtable::error::Code;

    #[test]
    fn any_project_and_instance_will_do() {
        for name in [
            "projects/p/instances/i",
            "projects/{{x}}/instances/a b",
            "projects/d.com:p/instances/-",
        ] {
            check_instance("parent", name).unwrap();
        }
    }

    #[test]
    fn names_of_another_shape_are_refused_with_the_field_and_the_shape() {
        for name in [
            "",
            "projects/p",
            "projects//instances/i",
            "projects/p/instances/",
            "projects/p/instances/i/tables/t",
            "x/p/instances/i",
        ] {
            let error = check_instance("parent", name).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{name}");
            assert!(error.message().starts_with("parent must be of the form projects/"), "{error}");
        }
        check_table("name", "projects/p/instances/i/tables/t").unwrap();
        assert!(check_table("name", "projects/p/instances/i").is_err());
        assert!(check_table("name", "projects/p/instances/i/tables/t/x").is_err());
    }

    #[test]
    fn a_name_that_is_too_long_is_not_repeated_in_full() {
        let long = "\u{1}".repeat(1 << 20);
        for (what, checked) in [
            ("name", check_table("table_name", &long)),
            ("id", new_table("projects/p/instances/i", &long).map(drop)),
        ] {
            let error = checked.unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().len() < 2_000, "{what}: {} bytes", error.message().len());
            assert!(error.message().contains("1048576 bytes"), "{what}: {error}");
        }
    }

    #[test]
    fn a_name_with_its_parents_is_no_longer_than_one_that_is_asked_for() {
        type New = fn(&str, &str) -> Result<String>;
        type Check = fn(&str, &str) -> Result<()>;
        let check_bundle: Check = |field, name| {
            let collections = ["projects", "instances", "tables", crate::bundles::COLLECTION];
            check_collections(field, name, &collections)
        };
        let cases: [(&str, &str, New, Check); 7] = [
            ("", "/instances/", new_instance, check_instance),
            ("/instances/i", "/clusters/", new_cluster, check_cluster),
            ("/instances/i/clusters/c", "/backups/", new_backup, check_backup),
            ("/instances/i", "/appProfiles/", new_app_profile, check_app_profile),
            ("/instances/i", "/tables/", new_table, check_table),
            ("/instances/i/tables/t", "/authorizedViews/", new_view, check_view),
            ("/instances/i/tables/t", "/schemaBundles/", new_schema_bundle, check_bundle),
        ];
        for (rest, collection, new, check) in cases {
            let project = RESOURCE_NAME_CHARS_MAX
                - ["projects/", rest, collection, "new"].map(str::len).iter().sum::<usize>();
            let parent = format!("projects/{}{rest}", "p".repeat(project));
            let name = new(&parent, "new").unwrap();
            check("name", &name).unwrap();
            let error = new(&parent, "new1").unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{collection}");
            assert!(error.message().contains("1025 bytes"), "{error}");
        }
    }

    #[test]
    fn table_ids_follow_the_documented_pattern() {
        for id in ["t", "_t", "0-a.B_c", &"x".repeat(50)] {
            new_table("projects/p/instances/i", id).unwrap();
        }
        for id in ["", "-t", ".t", "a b", "a/b", "tä", &"x".repeat(51)] {
            let error = new_table("projects/p/instances/i", id).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument, "{id}");
            assert!(error.message().contains("table_id"), "{error}");
        }
    }

    #[test]
    fn ids_of_instances_clusters_and_profiles_follow_the_documented_patterns() {
        let long = "x".repeat(51);
        let instance = |id: &str| new_instance("projects/p", id);
        let cluster = |id: &str| new_cluster("projects/p/instances/i", id);
        let profile = |id: &str| new_app_profile("projects/p/instances/i", id);
        assert_eq!(instance("a-1").unwrap(), "projects/p/instances/a-1");
        assert_eq!(cluster("c").unwrap(), "projects/p/instances/i/clusters/c");
        assert_eq!(profile("_P.q-1").unwrap(), "projects/p/instances/i/appProfiles/_P.q-1");
        for id in ["", "ab", "1ab", "aBc", "ab-", "a_b", "a/b", &long] {
            assert_eq!(instance(id).unwrap_err().kind(), Code::InvalidArgument, "{id}");
        }
        for id in ["", "1a", "-a", "A", "a_b", "a/b", &long] {
            assert_eq!(cluster(id).unwrap_err().kind(), Code::InvalidArgument, "{id}");
        }
        for id in ["", "-a", ".a", "a b", "a/b", &long] {
            assert_eq!(profile(id).unwrap_err().kind(), Code::InvalidArgument, "{id}");
        }
    }

    #[test]
    fn a_views_name_is_its_tables_and_an_id() {
        let table = "projects/p/instances/i/tables/t";
        let name = new_view(table, "v").unwrap();
        check_view("name", &name).unwrap();
        assert_eq!(split_view(&name), Some((table, "v")));
        assert!(check_view("name", table).is_err());
        let table = "projects/authorizedViews/instances/authorizedViews/tables/authorizedViews";
        for id in ["v", "authorizedViews"] {
            let name = new_view(table, id).unwrap();
            check_view("name", &name).unwrap();
            assert_eq!(split_view(&name), Some((table, id)));
        }
        for (parent, id) in [(table, ""), (table, "a/b"), ("projects/p/instances/i", "v")] {
            assert_eq!(new_view(parent, id).unwrap_err().kind(), Code::InvalidArgument);
        }
    }

    #[test]
    fn names_give_their_instance_and_their_id() {
        let name = "projects/p/instances/i/clusters/c/backups/b";
        assert_eq!((instance_of(name), id_of(name)), ("projects/p/instances/i", "b"));
        assert_eq!(instance_of("projects/p/instances/i"), "projects/p/instances/i");
        assert_eq!((instance_of(""), id_of("")), ("", ""));
    }

    #[test]
    fn what_is_in_a_table_tells_the_table() {
        let table = "projects/p/instances/i/tables/t";
        for name in [table, "projects/p/instances/i/tables/t/schemaBundles/s"] {
            assert_eq!(table_within(name), Some(table), "{name}");
        }
        for name in
            ["", "projects/p/instances/i", "projects/p/instances/i/clusters/tables/backups/b"]
        {
            assert_eq!(table_within(name), None, "{name}");
        }
    }

    #[test]
    fn a_table_name_splits_into_instance_and_id() {
        let name = new_table("projects/p/instances/i", "t").unwrap();
        assert_eq!(split_table(&name), Some(("projects/p/instances/i", "t")));
    }
}

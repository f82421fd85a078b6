//! Resource names: their shape, and the checks on the parts that a client chooses.
//!
//! ```text
//! projects/PROJECT/instances/INSTANCE                    an instance
//! projects/PROJECT/instances/INSTANCE/tables/TABLE       a table
//! ```
//!
//! Project and instance may be anything without a slash: clients of an emulator send placeholders, and
//! instances need not be created. A table's id is checked where one is created.

use tepui_bigtable::error::{Error, Result};

use crate::limits::{RESOURCE_NAME_CHARS_MAX, TABLE_ID_CHARS_MAX};

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

/// The name of a new table of an instance, both checked.
pub fn new_table(parent: &str, table_id: &str) -> Result<String> {
    check_instance("parent", parent)?;
    check_table_id(table_id)?;
    Ok(format!("{parent}/tables/{table_id}"))
}

/// The instance of a table's name, and the table's id.
pub fn split_table(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once("/tables/")
}

/// `[_a-zA-Z0-9][-_.a-zA-Z0-9]*`, at most 50 characters.
fn check_table_id(id: &str) -> Result<()> {
    if id.is_empty() {
        return Err(Error::invalid_argument("table_id must be non-empty"));
    }
    if id.chars().count() > TABLE_ID_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "table_id {id:?} is too long: limit {TABLE_ID_CHARS_MAX} characters"
        )));
    }
    let starts_well = id.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    let goes_on_well =
        id.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if starts_well && goes_on_well {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "table_id {id:?} does not match [_a-zA-Z0-9][-_.a-zA-Z0-9]*"
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
    Err(Error::invalid_argument(format!("{field} must be of the form {shape}, got {name:?}")))
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
    fn a_table_name_splits_into_instance_and_id() {
        let name = new_table("projects/p/instances/i", "t").unwrap();
        assert_eq!(split_table(&name), Some(("projects/p/instances/i", "t")));
    }
}

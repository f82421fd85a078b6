//! A table's column families by name: what requests name and the engine knows by number.
//!
//! A [`TableSchema`] is immutable once shared: a change of the schema is a new value, which the table
//! swaps in and hands down to its tablets. Family numbers are never reused within a table, so a family
//! that is dropped and created again does not see its old cells.

use std::collections::BTreeMap;
use std::sync::Arc;

use tepui_engine::cell::{FamilyId, Seq};
use tepui_engine::schema::{FamilyOptions, GcRule, TabletSchema};

use crate::error::{Error, Result};
use crate::value_type::AggregateType;
use crate::{idempotency, limits};

/// One column family.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilySchema {
    /// Its number in the engine.
    pub id: FamilyId,
    /// Which cells may be collected; `None` keeps everything.
    pub gc: Option<GcRule>,
    /// When that was changed last, in microseconds since 1970; 0 where it never was.
    pub gc_since_micros: i64,
    /// How cells combine in an aggregate family; `None` for an ordinary one.
    pub aggregate: Option<AggregateType>,
    /// The position in the server's history after which it was created; 0 where its table had no change stream then.
    pub created_at: Seq,
}

impl FamilySchema {
    /// An ordinary family that keeps everything.
    pub fn new(id: FamilyId) -> Self {
        Self { id, gc: None, gc_since_micros: 0, aggregate: None, created_at: 0 }
    }
}

/// The column families of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableSchema {
    /// By name.
    pub families: BTreeMap<String, FamilySchema>,
    /// The number that the next family gets. Only grows.
    pub next_family_id: u32,
}

impl Default for TableSchema {
    fn default() -> Self {
        // 0 is the engine's pseudo-family of row tombstones.
        Self { families: BTreeMap::new(), next_family_id: 1 }
    }
}

impl TableSchema {
    /// A schema without families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next family number.
    pub fn allocate_family_id(&mut self) -> FamilyId {
        let id = FamilyId(self.next_family_id);
        self.next_family_id += 1;
        id
    }

    /// The family of a name; `NOT_FOUND` where the table has none, `INVALID_ARGUMENT` where no table
    /// can have one.
    pub fn family(&self, name: &str) -> Result<&FamilySchema> {
        if let Some(family) = self.families.get(name) {
            return Ok(family);
        }
        limits::check_family_name(name)?;
        Err(Error::not_found(format!("Requested column family not found: unknown family {name:?}")))
    }

    /// What the tablets must know.
    pub fn to_tablet_schema(&self) -> TabletSchema {
        let mut families: BTreeMap<FamilyId, FamilyOptions> = self
            .families
            .values()
            .map(|f| {
                let aggregate = f.aggregate.map(|a| a.how);
                let gc_since_micros = f.gc_since_micros;
                (f.id, FamilyOptions { gc: f.gc.clone(), gc_since_micros, aggregate })
            })
            .collect();
        // Only what adds up has tokens; a table without has no rule on their account.
        if self.families.values().any(|family| family.aggregate.is_some()) {
            families.insert(idempotency::FAMILY, idempotency::family_options());
        }
        TabletSchema { families }
    }

    /// The names by number.
    pub fn names(&self) -> FamilyNames {
        let mut names: Vec<(FamilyId, Arc<str>)> =
            self.families.iter().map(|(name, f)| (f.id, Arc::from(name.as_str()))).collect();
        names.sort_unstable_by_key(|(id, _)| *id);
        FamilyNames { names: names.into() }
    }
}

/// The names of a table's families by number. Cheap to clone: every read has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FamilyNames {
    /// By ascending number.
    names: Arc<[(FamilyId, Arc<str>)]>,
}

impl FamilyNames {
    /// The name of a family; `None` for one that the schema does not have (any more).
    pub fn get(&self, id: FamilyId) -> Option<&Arc<str>> {
        let at = self.names.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.names.get(at).map(|(_, name)| name)
    }

    /// All families, by ascending number.
    pub fn iter(&self) -> impl Iterator<Item = (FamilyId, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use tepui_engine::schema::Aggregate;

    use super::*;
    use crate::error::Code;

    fn schema() -> TableSchema {
        let mut schema = TableSchema::new();
        for name in ["zeta", "alpha"] {
            let id = schema.allocate_family_id();
            schema.families.insert(name.to_owned(), FamilySchema::new(id));
        }
        schema
    }

    #[test]
    fn family_numbers_start_at_one_and_are_not_reused() {
        let mut schema = schema();
        assert_eq!(schema.families["zeta"].id, FamilyId(1));
        schema.families.remove("alpha");
        assert_eq!(schema.allocate_family_id(), FamilyId(3));
    }

    #[test]
    fn names_are_found_by_number_and_listed_in_its_order() {
        let names = schema().names();
        assert_eq!(names.get(FamilyId(2)).map(AsRef::as_ref), Some("alpha"));
        assert_eq!(names.get(FamilyId(3)), None);
        let all: Vec<_> = names.iter().collect();
        assert_eq!(all, [(FamilyId(1), "zeta"), (FamilyId(2), "alpha")]);
    }

    #[test]
    fn unknown_family_is_not_found_and_impossible_name_is_invalid() {
        let schema = schema();
        assert_eq!(schema.family("nope").unwrap_err().kind(), Code::NotFound);
        assert_eq!(schema.family("no:pe").unwrap_err().kind(), Code::InvalidArgument);
        assert_eq!(schema.family("").unwrap_err().kind(), Code::InvalidArgument);
    }

    #[test]
    fn tablet_schema_carries_rules_and_aggregates() {
        let mut schema = schema();
        let family = schema.families.get_mut("zeta").unwrap();
        family.gc = Some(GcRule::MaxVersions(3));
        family.gc_since_micros = 7_000;
        family.aggregate = Some(AggregateType::of_numbers(Aggregate::Max));
        let tablet = schema.to_tablet_schema();
        assert_eq!(
            tablet.family(FamilyId(1)),
            Some(&FamilyOptions {
                gc: Some(GcRule::MaxVersions(3)),
                gc_since_micros: 7_000,
                aggregate: Some(Aggregate::Max)
            })
        );
        assert_eq!(tablet.family(FamilyId(2)), Some(&FamilyOptions::default()));
    }
}

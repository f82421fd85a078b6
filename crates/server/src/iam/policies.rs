//! Policies as they are kept: one for a resource that was given one, under the resource's full name.
//!
//! A policy goes with its resource: whoever deletes a resource deletes what is under its name in the same change. A
//! table can be deleted and come back, so the policies of a table and of what is in it have the table's incarnation, as
//! authorized views do ([`crate::catalog::authorized_views`]).

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tepui_bigtable::error::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::permissions::with_parents;
use super::validity::{CONDITIONS_VERSION, check_policy};
use crate::api::{Expr, iam};
use crate::catalog::resources::{Resource, Resources, Stored};
use crate::limits::POLICIES_BYTES_MAX;
use crate::names;

/// The etag of a resource that has no policy, as Google's services have it: clients print it as `ACAB`.
const NO_POLICY_ETAG: &[u8] = &[0x00, 0x20, 0x01];

/// What is kept of a policy.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PolicyRecord {
    /// The incarnation of the table that it is about or in; 0 where it is about none.
    #[prost(fixed64, tag = "1")]
    pub table: u64,
    /// Without the etag, which is made of the record's revision.
    #[prost(message, optional, tag = "2")]
    pub policy: Option<iam::Policy>,
}

impl Resource for PolicyRecord {
    const KIND: &'static str = "iam-policy";
    const NOUN: &'static str = "IAM policy";
}

/// The policies of one server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policies {
    resources: Arc<Resources>,
}

impl Policies {
    /// Among these resources.
    pub fn new(resources: Arc<Resources>) -> Self {
        Self { resources }
    }

    /// What they are kept in.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// The policy of a resource, with its etag; the empty one where none was given. `table` is the incarnation of its
    /// table.
    pub fn get(&self, resource: &str, table: u64) -> iam::Policy {
        shown(self.resources.get::<PolicyRecord>(resource), table)
    }

    /// The policies of a resource and of all above it.
    pub fn effective(&self, resource: &str, table: u64) -> Vec<iam::Policy> {
        let of = |name: &str| {
            let is_in_table = names::table_within(name).is_some();
            self.get(name, if is_in_table { table } else { 0 })
        };
        with_parents(resource).map(of).collect()
    }

    /// Gives a resource a policy, and returns that; one without bindings is none, and is not kept. `table` says of which incarnation its table is, or that the resource
    /// is not there; no resource is deleted meanwhile. Only the bindings change where `mask` names some fields and not
    /// these. Blocks.
    pub fn set(
        &self,
        resource: &str,
        given: &iam::Policy,
        mask: &[String],
        table: impl FnOnce() -> Result<u64>,
    ) -> Result<iam::Policy> {
        check_policy(given)?;
        let sets_bindings = sets_bindings(mask)?;
        let mut change = self.resources.begin();
        let table = table()?;
        let kept = change.get::<PolicyRecord>(resource);
        let is_kept = kept.is_some();
        let now = shown(kept, table);
        check_etag(given, &now)?;
        let bindings = if sets_bindings { given.bindings.clone() } else { now.bindings };
        if bindings.is_empty() {
            if is_kept {
                change.delete::<PolicyRecord>(resource)?;
            }
            change.commit(Vec::new())?;
            return Ok(no_policy());
        }
        let policy =
            iam::Policy { version: version_of(&bindings), bindings, ..iam::Policy::default() };
        let record = PolicyRecord { table, policy: Some(policy.clone()) };
        self.check_room(resource, &record)?;
        change.put(resource, record);
        let revision = change.commit(Vec::new())?;
        Ok(with_etag(policy, revision))
    }

    /// Refuses a policy that is larger than the one before where all policies would have too many bytes: they are in memory, and
    /// instances that nobody created have policies, too.
    fn check_room(&self, resource: &str, record: &PolicyRecord) -> Result<()> {
        let size = |record: &PolicyRecord| resource.len() + record.encoded_len();
        let before = self.resources.get::<PolicyRecord>(resource);
        let before = before.map_or(0, |stored| size(&stored.value));
        let after = size(record);
        let bytes = self.resources.bytes::<PolicyRecord>() - before + after;
        if bytes > POLICIES_BYTES_MAX && after > before {
            return Err(Error::resource_exhausted(format!(
                "with this one all IAM policies would have {bytes} bytes; limit {POLICIES_BYTES_MAX}: set those that nobody needs \
                 to no bindings, or grant to groups"
            )));
        }
        Ok(())
    }

    /// Removes the policies of tables that are gone for good, by what `incarnation` knows of tables; returns how many.
    /// Blocks.
    pub fn sweep(&self, incarnation: impl Fn(&str) -> Option<u64>) -> Result<usize> {
        let is_gone = |name: &str, record: &PolicyRecord| {
            let table = names::table_within(name);
            table.is_some_and(|table| incarnation(table) != Some(record.table))
        };
        self.resources.sweep(is_gone, |change, name| change.delete::<PolicyRecord>(name))
    }
}

/// A policy as clients see it.
fn shown(stored: Option<Arc<Stored<PolicyRecord>>>, table: u64) -> iam::Policy {
    match stored.filter(|stored| stored.value.table == table) {
        None => no_policy(),
        Some(stored) => with_etag(stored.value.policy.clone().unwrap_or_default(), stored.revision),
    }
}

/// That of a resource that has none.
fn no_policy() -> iam::Policy {
    iam::Policy { etag: Bytes::from_static(NO_POLICY_ETAG), ..iam::Policy::default() }
}

/// A policy that is kept, with the revision of its record.
fn with_etag(policy: iam::Policy, revision: u64) -> iam::Policy {
    iam::Policy { etag: Bytes::copy_from_slice(&revision.to_be_bytes()), ..policy }
}

/// Refuses a change of a policy that is not the present one any more. Without an etag, the policy is replaced whatever
/// it is, as IAM does.
fn check_etag(given: &iam::Policy, now: &iam::Policy) -> Result<()> {
    if given.etag.is_empty() {
        return Ok(());
    }
    if given.etag != now.etag {
        return Err(Error::aborted(
            "There were concurrent policy changes. Please retry the whole read-modify-write with exponential backoff.",
        ));
    }
    if now.version == CONDITIONS_VERSION && given.version != CONDITIONS_VERSION {
        return Err(Error::invalid_argument(format!(
            "the policy has conditions: get and set it with version {CONDITIONS_VERSION}, or they are lost"
        )));
    }
    Ok(())
}

/// Whether a mask lets the bindings be set; they are where there is none.
fn sets_bindings(mask: &[String]) -> Result<bool> {
    if let Some(path) = mask.iter().find(|p| !matches!(p.as_str(), "bindings" | "etag" | "version"))
    {
        return Err(Error::invalid_argument(format!(
            "update_mask: {path:?} cannot be set; bindings, etag and version can"
        )));
    }
    Ok(mask.is_empty() || mask.iter().any(|path| path == "bindings"))
}

/// The version that bindings need.
fn version_of(bindings: &[iam::Binding]) -> i32 {
    if bindings.iter().any(|binding| binding.condition.is_some()) {
        CONDITIONS_VERSION
    } else {
        i32::from(!bindings.is_empty())
    }
}

/// The policy for a client that asked for a version of policies: one that does not know conditions sees each binding
/// that has one under a role that says so, as IAM does, so that it cannot take it for an unconditional one.
pub fn in_version(mut policy: iam::Policy, requested: i32) -> iam::Policy {
    if policy.version == CONDITIONS_VERSION && requested != CONDITIONS_VERSION {
        policy.version = 1;
        for binding in &mut policy.bindings {
            if let Some(condition) = binding.condition.take() {
                binding.role =
                    format!("{}_withcond_{:016x}", binding.role, fingerprint(&condition));
            }
        }
    }
    policy
}

/// The same on every machine and in every version.
fn fingerprint(condition: &Expr) -> u64 {
    xxh3_64(
        [&*condition.title, &*condition.description, &*condition.expression].join("\0").as_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::memory_meta::MemoryMeta;
    use tepui_bigtable::Code;
    use tepui_engine::manifest::MetaStore as _;

    const TABLE: &str = "projects/p/instances/i/tables/t";

    fn policies(meta: &Arc<MemoryMeta>) -> Policies {
        Policies::new(Arc::new(Resources::open(Arc::<MemoryMeta>::clone(meta)).unwrap()))
    }

    fn binding(member: &str) -> iam::Binding {
        let (role, members) = ("roles/bigtable.reader".to_owned(), vec![member.to_owned()]);
        iam::Binding { role, members, condition: None }
    }

    fn policy(member: &str) -> iam::Policy {
        iam::Policy { version: 1, bindings: vec![binding(member)], ..iam::Policy::default() }
    }

    fn conditional() -> iam::Policy {
        let condition = Expr {
            title: "hours".to_owned(),
            expression: "request.time < timestamp('2030-01-01T00:00:00Z')".to_owned(),
            ..Expr::default()
        };
        let binding = iam::Binding { condition: Some(condition), ..binding("user:a@b.c") };
        iam::Policy { version: 3, bindings: vec![binding], ..iam::Policy::default() }
    }

    #[test]
    fn a_resource_without_a_policy_has_the_empty_one() {
        let empty = policies(&Arc::default()).get(TABLE, 7);
        let etag = Bytes::from_static(&[0x00, 0x20, 0x01]);
        assert_eq!(empty, iam::Policy { etag, ..iam::Policy::default() });
    }

    #[test]
    fn a_policy_is_changed_by_who_has_seen_it_and_outlives_a_restart() {
        let meta = Arc::default();
        let first = policies(&meta);
        let seen = first.get(TABLE, 7);
        let set = |etag: &Bytes, member: &str| {
            let given = iam::Policy { etag: etag.clone(), ..policy(member) };
            first.set(TABLE, &given, &[], || Ok(7))
        };
        let one = set(&seen.etag, "user:one@b.c").unwrap();
        assert_eq!(one.bindings, [binding("user:one@b.c")]);
        let stale = set(&seen.etag, "user:two@b.c").unwrap_err();
        assert_eq!(stale.kind(), Code::Aborted);
        let two = set(&one.etag, "user:two@b.c").unwrap();
        assert_ne!(two.etag, one.etag);
        set(&Bytes::new(), "user:three@b.c").unwrap();
        assert_eq!(policies(&meta).get(TABLE, 7), first.get(TABLE, 7));
        assert_eq!(first.get(TABLE, 7).bindings, [binding("user:three@b.c")]);
    }

    #[test]
    fn who_sets_a_policy_is_answered_with_that_one_while_others_set_theirs() {
        let policies = policies(&Arc::default());
        std::thread::scope(|scope| {
            for user in ["user:one@b.c", "user:two@b.c", "user:three@b.c"] {
                let policies = &policies;
                scope.spawn(move || {
                    for _ in 0..3_000 {
                        let set = policies.set(TABLE, &policy(user), &[], || Ok(7)).unwrap();
                        assert_eq!(set.bindings, [binding(user)]);
                    }
                });
            }
        });
        let seen = policies.get(TABLE, 7);
        let again = policies.set(TABLE, &seen, &[], || Ok(7)).unwrap();
        assert_eq!(policies.get(TABLE, 7), again, "the etag is told, too");
    }

    #[test]
    fn all_policies_together_have_a_bound() {
        let policies = policies(&Arc::default());
        let member = |n: usize| format!("user:{n:0200}@b.c");
        let mut large = policy("user:a@b.c");
        large.bindings[0].members = (0..1_200).map(member).collect();
        let of = |n: usize| format!("projects/p/instances/i{n}");
        let set = |n: usize| policies.set(&of(n), &large, &[], || Ok(0));
        let (count, error) = (0..).find_map(|n| Some((n, set(n).err()?))).unwrap();
        assert_eq!(error.kind(), Code::ResourceExhausted, "{error}");
        assert!((200..300).contains(&count), "{count}");
        set(0).unwrap();
        policies.set(&of(0), &iam::Policy::default(), &[], || Ok(0)).unwrap();
        set(count).unwrap();
    }

    #[test]
    fn a_policy_without_bindings_takes_no_room() {
        let meta = Arc::default();
        let policies = policies(&meta);
        let none = policies.get(TABLE, 7);
        for name in [TABLE, "projects/p/instances/made-up"] {
            let set = policies.set(name, &iam::Policy::default(), &[], || Ok(7)).unwrap();
            assert_eq!(set, none);
        }
        assert!(meta.list("").unwrap().is_empty());
        let kept = policies.set(TABLE, &policy("user:a@b.c"), &[], || Ok(7)).unwrap();
        let emptied = iam::Policy { bindings: Vec::new(), ..kept };
        assert_eq!(policies.set(TABLE, &emptied, &[], || Ok(7)).unwrap(), none);
        assert_eq!(policies.get(TABLE, 7), none);
        assert!(meta.list("").unwrap().is_empty());
    }

    #[test]
    fn a_mask_says_what_is_set() {
        let policies = policies(&Arc::default());
        policies.set(TABLE, &policy("user:one@b.c"), &[], || Ok(7)).unwrap();
        let mask = |path: &str| vec![path.to_owned()];
        let set = |mask: Vec<String>| policies.set(TABLE, &policy("user:two@b.c"), &mask, || Ok(7));
        assert_eq!(set(mask("etag")).unwrap().bindings, [binding("user:one@b.c")]);
        assert_eq!(set(mask("audit_configs")).unwrap_err().kind(), Code::InvalidArgument);
        assert_eq!(set(mask("bindings")).unwrap().bindings, [binding("user:two@b.c")]);
    }

    #[test]
    fn conditions_are_not_lost_to_a_client_that_does_not_know_them() {
        let policies = policies(&Arc::default());
        let kept = policies.set(TABLE, &conditional(), &[], || Ok(7)).unwrap();
        assert_eq!((kept.version, &kept.bindings), (3, &conditional().bindings));
        assert_eq!(in_version(kept.clone(), 3), kept);
        let old = in_version(kept.clone(), 1);
        assert_eq!((old.version, &old.bindings[0].condition), (1, &None));
        assert!(old.bindings[0].role.starts_with("roles/bigtable.reader_withcond_"));
        let error = policies.set(TABLE, &old, &[], || Ok(7)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        let unconditional = iam::Policy { etag: kept.etag.clone(), ..policy("user:a@b.c") };
        let error = policies.set(TABLE, &unconditional, &[], || Ok(7)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert_eq!(policies.get(TABLE, 7), kept);
    }

    #[test]
    fn a_policy_is_of_one_table_and_swept_with_it() {
        let policies = policies(&Arc::default());
        let view = format!("{TABLE}/authorizedViews/v");
        for name in [TABLE, view.as_str()] {
            policies.set(name, &policy("user:a@b.c"), &[], || Ok(7)).unwrap();
        }
        policies.set("projects/p/instances/i", &policy("user:i@b.c"), &[], || Ok(0)).unwrap();
        assert!(policies.get(TABLE, 8).bindings.is_empty(), "another table of the name");
        let found = policies.effective(&view, 7);
        let members: Vec<_> = found.iter().map(|p| p.bindings[0].members[0].as_str()).collect();
        assert_eq!(members, ["user:a@b.c", "user:a@b.c", "user:i@b.c"]);
        assert_eq!(policies.sweep(|_| Some(7)), Ok(0));
        assert_eq!(policies.sweep(|_| Some(8)), Ok(2));
        assert!(policies.get(TABLE, 7).bindings.is_empty());
        assert!(!policies.get("projects/p/instances/i", 0).bindings.is_empty());
    }

    #[test]
    fn a_resource_that_is_not_there_gets_no_policy() {
        let policies = policies(&Arc::default());
        let missing = || Err(Error::not_found("gone"));
        let error = policies.set(TABLE, &policy("user:a@b.c"), &[], missing).unwrap_err();
        assert_eq!(error.kind(), Code::NotFound);
        assert!(policies.get(TABLE, 7).bindings.is_empty());
    }
}

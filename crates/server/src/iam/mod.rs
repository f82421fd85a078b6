//! Who may do what: policies on resources, and the one place where they are read.
//!
//! ```text
//! principal ─┐                                  instance ◄── cluster ◄── backup
//! permission ─┼─► authorize ─► yes or no           ▲
//! policies ──┘   of the resource and its parents   └── table ◄── authorized view, schema bundle
//! ```
//!
//! What is granted on a resource holds for all below it. A server without authentication knows nobody: its principal is
//! `None`, which may do everything. Authentication gives each request a [`Principal`]; nothing else changes.

pub mod permissions;
pub mod policies;
mod validity;

use crate::api::iam;
use permissions::Role;

pub use validity::{check_policy, check_version};

/// The identities of who asks, as members of bindings are written: `user:alice@example.com`, and the groups that the
/// user is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    identities: Vec<String>,
}

impl Principal {
    /// Somebody with these identities.
    pub fn new(identities: impl IntoIterator<Item = String>) -> Self {
        Self { identities: identities.into_iter().collect() }
    }

    /// Whether a member of a binding means this principal. Addresses are compared without regard to case.
    fn is(&self, member: &str) -> bool {
        self.identities.iter().any(|identity| {
            let domain = member.split_once(':').filter(|(kind, _)| *kind == "domain");
            match domain {
                Some((_, domain)) => {
                    let address = identity.strip_prefix("user:").and_then(|a| a.rsplit_once('@'));
                    address.is_some_and(|(_, of)| of.eq_ignore_ascii_case(domain))
                }
                None => identity.eq_ignore_ascii_case(member),
            }
        })
    }
}

/// Whether the principal may do what the permission names, by the policies of the resource and of its parents.
/// `None` is anybody, on a server that asks nobody who they are.
///
/// A binding with a condition grants nothing: conditions are kept and not evaluated, and what cannot be evaluated
/// must not open anything.
pub fn authorize<'a>(
    principal: Option<&Principal>,
    policies: impl IntoIterator<Item = &'a iam::Policy>,
    permission: &str,
) -> bool {
    let Some(principal) = principal else { return true };
    policies.into_iter().flat_map(|policy| &policy.bindings).any(|binding| {
        binding.condition.is_none()
            && Role::of(&binding.role).is_some_and(|role| role.grants(permission))
            && binding.members.iter().any(|member| principal.is(member))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(role: &str, members: &[&str]) -> iam::Policy {
        let members = members.iter().map(|member| (*member).to_owned()).collect();
        let binding = iam::Binding { role: role.to_owned(), members, condition: None };
        iam::Policy { bindings: vec![binding], ..iam::Policy::default() }
    }

    const READ: &str = "bigtable.tables.readRows";
    const WRITE: &str = "bigtable.tables.mutateRows";

    #[test]
    fn without_authentication_everybody_may_do_everything() {
        assert!(authorize(None, [], WRITE));
    }

    #[test]
    fn a_principal_may_do_what_a_role_grants_on_the_resource_or_above() {
        let alice = Principal::new(
            ["user:alice@example.com", "group:staff@example.com"].map(str::to_owned),
        );
        let may =
            |policies: &[iam::Policy], permission| authorize(Some(&alice), policies, permission);
        assert!(!may(&[], READ));
        let reader =
            |member: &str| policy("roles/bigtable.reader", &["user:bob@example.com", member]);
        for member in [
            "user:alice@example.com",
            "user:Alice@Example.com",
            "group:staff@example.com",
            "domain:example.com",
        ] {
            assert!(may(&[reader(member)], READ), "{member}");
            assert!(may(&[iam::Policy::default(), reader(member)], READ), "{member}");
            assert!(!may(&[reader(member)], WRITE), "{member}");
        }
        for member in [
            "user:carol@example.com",
            "serviceAccount:alice@example.com",
            "domain:ample.com",
            "domain:alice",
        ] {
            assert!(!may(&[reader(member)], READ), "{member}");
        }
        assert!(may(&[policy("roles/bigtable.user", &["user:alice@example.com"])], WRITE));
        assert!(!may(&[policy("projects/p/roles/custom", &["user:alice@example.com"])], READ));
    }

    #[test]
    fn a_binding_with_a_condition_grants_nothing() {
        let alice = Principal::new(["user:alice@example.com".to_owned()]);
        let mut policy = policy("roles/bigtable.admin", &["user:alice@example.com"]);
        assert!(authorize(Some(&alice), [&policy], READ));
        policy.bindings[0].condition = Some(Default::default());
        assert!(!authorize(Some(&alice), [&policy], READ));
    }
}

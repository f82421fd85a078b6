//! What a policy must be to be kept: nothing in it is dropped silently.

use prost::Message as _;
use tepui_bigtable::error::{Error, Result};

use super::permissions::Role;
use crate::api::iam;
use crate::limits::{CONDITION_CHARS_MAX, POLICY_BYTES_MAX, POLICY_MEMBERS_MAX};

/// The version of policies with conditions.
pub const CONDITIONS_VERSION: i32 = 3;

/// Refuses a policy that is not valid, or that could not be kept whole.
pub fn check_policy(policy: &iam::Policy) -> Result<()> {
    check_version("policy.version", policy.version)?;
    if policy.encoded_len() > POLICY_BYTES_MAX {
        return Err(Error::invalid_argument(format!(
            "policy has {} bytes; limit {POLICY_BYTES_MAX}",
            policy.encoded_len()
        )));
    }
    if !policy.audit_configs.is_empty() {
        return Err(Error::invalid_argument(
            "policy.audit_configs cannot be set on Bigtable's resources",
        ));
    }
    let members: usize = policy.bindings.iter().map(|binding| binding.members.len()).sum();
    if members > POLICY_MEMBERS_MAX {
        return Err(Error::invalid_argument(format!(
            "policy has {members} members; limit {POLICY_MEMBERS_MAX}"
        )));
    }
    for (index, binding) in policy.bindings.iter().enumerate() {
        let in_binding = |error: Error| error.context(format!("policy.bindings[{index}]"));
        check_role(&binding.role).map_err(in_binding)?;
        if binding.members.is_empty() {
            return Err(in_binding(Error::invalid_argument("has no members")));
        }
        binding.members.iter().try_for_each(|member| check_member(member)).map_err(in_binding)?;
        if let Some(condition) = &binding.condition {
            if policy.version != CONDITIONS_VERSION {
                return Err(in_binding(Error::invalid_argument(format!(
                    "a policy with conditions must have version {CONDITIONS_VERSION}"
                ))));
            }
            check_condition(condition).map_err(in_binding)?;
        }
    }
    Ok(())
}

/// Refuses a version of policies that there is not.
pub fn check_version(field: &str, version: i32) -> Result<()> {
    if matches!(version, 0 | 1 | CONDITIONS_VERSION) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("{field} must be 0, 1 or 3, got {version}")))
}

fn check_role(role: &str) -> Result<()> {
    let is_custom = || {
        let parts: Vec<&str> = role.split('/').collect();
        matches!(
            parts.as_slice(),
            ["projects" | "organizations", owner, "roles", id] if !owner.is_empty() && !id.is_empty()
        )
    };
    if Role::of(role).is_some() || is_custom() {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "role {role:?} is not supported for this resource: known are roles/bigtable.admin, .editor, .user, .reader and .viewer, \
         roles/owner, roles/editor and roles/viewer, and custom roles (projects/P/roles/R)"
    )))
}

fn check_member(member: &str) -> Result<()> {
    if matches!(member, "allUsers" | "allAuthenticatedUsers") {
        return Err(Error::invalid_argument(format!(
            "member {member:?} is not supported for Bigtable's resources"
        )));
    }
    let is_address = |text: &str| {
        text.split_once('@').is_some_and(|(name, domain)| !name.is_empty() && is_domain(domain))
    };
    let well_formed = match member.split_once(':') {
        Some(("user" | "serviceAccount" | "group", address)) => is_address(address),
        Some(("domain", domain)) => is_domain(domain),
        Some(("deleted", gone)) => match gone.split_once(':') {
            Some(("user" | "serviceAccount" | "group", gone)) => {
                gone.split_once("?uid=").is_some_and(|(address, uid)| {
                    is_address(address)
                        && !uid.is_empty()
                        && uid.bytes().all(|b| b.is_ascii_digit())
                })
            }
            // One of a pool has no number.
            Some(("principal", identity)) => is_federated(identity),
            _ => false,
        },
        Some(("principal" | "principalSet", identity)) => is_federated(identity),
        Some(("projectOwner" | "projectEditor" | "projectViewer", project)) => {
            !project.is_empty() && !has_space(project)
        }
        _ => false,
    };
    if well_formed {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "member {member:?} is not of a form as user:ADDRESS, serviceAccount:ADDRESS, group:ADDRESS or domain:DOMAIN"
    )))
}

/// Whether it is an identity of a federated pool, or a set of these, as IAM writes them.
fn is_federated(identity: &str) -> bool {
    identity.starts_with("//iam.googleapis.com/") && !has_space(identity)
}

fn is_domain(text: &str) -> bool {
    !text.is_empty() && !text.contains(['@', ':', '/', '?']) && !has_space(text)
}

fn has_space(text: &str) -> bool {
    text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// A condition is kept as it is given; whether its expression holds is not asked.
fn check_condition(condition: &crate::api::Expr) -> Result<()> {
    let missing =
        |field: &str| Err(Error::invalid_argument(format!("condition.{field} must be set")));
    if condition.title.is_empty() {
        return missing("title");
    }
    if condition.expression.is_empty() {
        return missing("expression");
    }
    let chars = condition.expression.chars().count();
    if chars > CONDITION_CHARS_MAX {
        return Err(Error::invalid_argument(format!(
            "condition.expression has {chars} characters; limit {CONDITION_CHARS_MAX}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Expr;

    fn binding(role: &str, members: &[&str]) -> iam::Binding {
        let members = members.iter().map(|member| (*member).to_owned()).collect();
        iam::Binding { role: role.to_owned(), members, condition: None }
    }

    fn policy(version: i32, binding: iam::Binding) -> iam::Policy {
        iam::Policy { version, bindings: vec![binding], ..iam::Policy::default() }
    }

    const READER: &str = "roles/bigtable.reader";

    #[test]
    fn members_and_roles_as_iam_writes_them_are_kept() {
        for member in [
            "user:alice@example.com",
            "serviceAccount:app@project.iam.gserviceaccount.com",
            "group:staff@example.com",
            "domain:google.com",
            "deleted:user:alice@example.com?uid=123",
            "principal://iam.googleapis.com/locations/global/workforcePools/p/subject/s",
            "deleted:principal://iam.googleapis.com/locations/global/workforcePools/p/subject/s",
            "projectOwner:my-project",
        ] {
            check_policy(&policy(1, binding(READER, &[member]))).unwrap();
        }
        for role in ["roles/viewer", "projects/p/roles/mine", "organizations/1/roles/ours"] {
            check_policy(&policy(0, binding(role, &["domain:google.com"]))).unwrap();
        }
        check_policy(&iam::Policy::default()).unwrap();
    }

    #[test]
    fn what_is_wrong_with_a_policy_is_said() {
        let condition = |title: &str, expression: &str| {
            let condition = Expr {
                title: title.to_owned(),
                expression: expression.to_owned(),
                ..Expr::default()
            };
            let condition = Some(condition);
            iam::Binding { condition, ..binding(READER, &["domain:google.com"]) }
        };
        let long = "x".repeat(CONDITION_CHARS_MAX + 1);
        let many = vec!["user:a@b.c"; POLICY_MEMBERS_MAX + 1];
        let audited = iam::Policy {
            audit_configs: vec![iam::AuditConfig::default()],
            ..iam::Policy::default()
        };
        let cases = [
            (policy(2, binding(READER, &["domain:google.com"])), "version"),
            (policy(-1, binding(READER, &["domain:google.com"])), "version"),
            (policy(1, binding(READER, &[])), "bindings[0]: has no members"),
            (policy(1, binding(READER, &many)), "members"),
            (policy(1, binding("", &["domain:google.com"])), "role"),
            (policy(1, binding("roles/storage.admin", &["domain:google.com"])), "role"),
            (policy(1, binding("projects//roles/x", &["domain:google.com"])), "role"),
            (policy(1, condition("t", "true")), "version 3"),
            (policy(3, condition("", "true")), "title"),
            (policy(3, condition("t", "")), "expression"),
            (policy(3, condition("t", &long)), "expression"),
            (audited, "audit_configs"),
        ];
        for (bad, text) in cases {
            let error = check_policy(&bad).unwrap_err();
            assert_eq!(error.kind(), tepui_bigtable::Code::InvalidArgument);
            assert!(error.message().contains(text), "{error}");
        }
        for member in [
            "",
            "alice@example.com",
            "user:",
            "user:alice",
            "user:@example.com",
            "user:alice@",
            "user:alice@example.com extra",
            "domain:",
            "domain:a@b",
            "nobody:alice@example.com",
            "allUsers",
            "allAuthenticatedUsers",
            "deleted:user:alice@example.com",
            "deleted:user:alice@example.com?uid=x",
            "deleted:principal://example.com/s",
            "deleted:principalSet://iam.googleapis.com/locations/global/workforcePools/p/group/g",
            "deleted:deleted:principal://iam.googleapis.com/s",
        ] {
            let error = check_policy(&policy(1, binding(READER, &[member]))).unwrap_err();
            assert!(error.message().contains("member"), "{member}: {error}");
        }
        check_policy(&policy(3, condition("t", "true"))).unwrap();
    }
}

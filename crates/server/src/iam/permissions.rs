//! The permissions that there are, the roles that grant them, and the resources on which they can be asked about.

use tepui_bigtable::error::{Error, Result};

use crate::names;

/// A role of Bigtable, or a basic one. Each grants what those before it do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Sees what there is, and no data.
    Viewer,
    /// Reads data.
    Reader,
    /// Writes data.
    User,
    /// Changes everything but policies.
    Editor,
    /// Everything.
    Admin,
}

impl Role {
    /// The role of a name; `None` for a custom role, of which nothing is known here.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name {
            "roles/bigtable.viewer" => Self::Viewer,
            "roles/bigtable.reader" | "roles/viewer" => Self::Reader,
            "roles/bigtable.user" => Self::User,
            "roles/bigtable.editor" | "roles/editor" => Self::Editor,
            "roles/bigtable.admin" | "roles/owner" => Self::Admin,
            _ => return None,
        })
    }

    /// Whether it has a permission.
    pub fn grants(self, permission: &str) -> bool {
        least_role(permission).is_some_and(|least| self >= least)
    }
}

/// What a permission is about, and where that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `projects/P/instances/I`.
    Instance,
    /// `.../clusters/C`: has no policy of its own.
    Cluster,
    /// `.../tables/T`.
    Table,
    /// `.../tables/T/authorizedViews/V`.
    AuthorizedView,
    /// `.../tables/T/schemaBundles/S`.
    SchemaBundle,
    /// `.../clusters/C/backups/B`.
    Backup,
}

impl Kind {
    fn parent(self) -> Option<Self> {
        match self {
            Self::Instance => None,
            Self::Cluster | Self::Table => Some(Self::Instance),
            Self::AuthorizedView | Self::SchemaBundle => Some(Self::Table),
            Self::Backup => Some(Self::Cluster),
        }
    }

    /// Whether it is this kind, or one whose resources lie within those of this kind.
    fn holds(self, other: Self) -> bool {
        let mut at = Some(other);
        while let Some(kind) = at {
            if kind == self {
                return true;
            }
            at = kind.parent();
        }
        false
    }
}

/// The permissions of one kind of thing: its name within them, where its resources are, and the actions with the least
/// role that grants each.
struct Permissions {
    noun: &'static str,
    kind: Kind,
    actions: &'static [(&'static str, Role)],
}

const CRUD: &[(&str, Role)] = &[
    ("create", Role::Editor),
    ("delete", Role::Editor),
    ("get", Role::Viewer),
    ("list", Role::Viewer),
    ("update", Role::Editor),
];

const PERMISSIONS: &[Permissions] = &[
    Permissions { noun: "appProfiles", kind: Kind::Instance, actions: CRUD },
    Permissions {
        noun: "authorizedViews",
        kind: Kind::AuthorizedView,
        actions: &[
            ("create", Role::Editor),
            ("createTagBinding", Role::Admin),
            ("delete", Role::Editor),
            ("deleteTagBinding", Role::Admin),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("listEffectiveTags", Role::Viewer),
            ("listTagBindings", Role::Viewer),
            ("mutateRows", Role::User),
            ("readRows", Role::Reader),
            ("sampleRowKeys", Role::Reader),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions {
        noun: "backups",
        kind: Kind::Backup,
        actions: &[
            ("create", Role::Editor),
            ("delete", Role::Editor),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("read", Role::Editor),
            ("restore", Role::Editor),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions { noun: "clusters", kind: Kind::Cluster, actions: CRUD },
    Permissions { noun: "hotTablets", kind: Kind::Cluster, actions: &[("list", Role::Viewer)] },
    Permissions {
        noun: "instances",
        kind: Kind::Instance,
        actions: &[
            ("create", Role::Editor),
            ("createTagBinding", Role::Admin),
            ("delete", Role::Editor),
            ("deleteTagBinding", Role::Admin),
            ("executeQuery", Role::Reader),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("listEffectiveTags", Role::Viewer),
            ("listTagBindings", Role::Viewer),
            ("ping", Role::Reader),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions {
        noun: "keyvisualizer",
        kind: Kind::Instance,
        actions: &[("get", Role::Viewer), ("list", Role::Viewer)],
    },
    Permissions { noun: "locations", kind: Kind::Instance, actions: &[("list", Role::Viewer)] },
    Permissions {
        noun: "logicalViews",
        kind: Kind::Instance,
        actions: &[
            ("create", Role::Editor),
            ("delete", Role::Editor),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("readRows", Role::Reader),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions {
        noun: "materializedViews",
        kind: Kind::Instance,
        actions: &[
            ("create", Role::Editor),
            ("delete", Role::Editor),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("readRows", Role::Reader),
            ("sampleRowKeys", Role::Reader),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions {
        noun: "schemaBundles",
        kind: Kind::SchemaBundle,
        actions: &[
            ("create", Role::Editor),
            ("delete", Role::Editor),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("setIamPolicy", Role::Admin),
            ("update", Role::Editor),
        ],
    },
    Permissions {
        noun: "tables",
        kind: Kind::Table,
        actions: &[
            ("checkConsistency", Role::Reader),
            ("create", Role::Editor),
            ("delete", Role::Editor),
            ("generateConsistencyToken", Role::Reader),
            ("get", Role::Viewer),
            ("getIamPolicy", Role::Admin),
            ("list", Role::Viewer),
            ("mutateRows", Role::User),
            ("readChangeStream", Role::User),
            ("readRows", Role::Reader),
            ("sampleRowKeys", Role::Reader),
            ("setIamPolicy", Role::Admin),
            ("undelete", Role::Editor),
            ("update", Role::Editor),
        ],
    },
];

/// The kind that a permission, as `bigtable.tables.readRows`, is about, and the least role that grants it.
fn find(permission: &str) -> Option<(Kind, Role)> {
    let (noun, action) = permission.strip_prefix("bigtable.")?.split_once('.')?;
    let of_noun = PERMISSIONS.iter().find(|permissions| permissions.noun == noun)?;
    let (_, least) = of_noun.actions.iter().find(|(known, _)| *known == action)?;
    Some((of_noun.kind, *least))
}

fn least_role(permission: &str) -> Option<Role> {
    find(permission).map(|(_, least)| least)
}

/// Refuses a permission that is none, or that has no meaning on a resource of this kind.
pub fn check_permission(kind: Kind, permission: &str) -> Result<()> {
    match find(permission) {
        Some((about, _)) if kind.holds(about) => Ok(()),
        Some(_) => Err(Error::invalid_argument(format!(
            "Permission {permission} is not valid for this resource."
        ))),
        None if permission.contains('*') => Err(Error::invalid_argument(format!(
            "Permission {permission:?} has a wildcard, which is not allowed; name each permission"
        ))),
        None => Err(Error::invalid_argument(format!("Permission {permission:?} is not known"))),
    }
}

/// The kind of a resource by its name; `INVALID_ARGUMENT` where it has none that can have a policy.
pub fn kind_of(name: &str) -> Result<Kind> {
    let collections: Vec<&str> = name.split('/').step_by(2).collect();
    let kind = match collections.as_slice() {
        ["projects", "instances"] => Kind::Instance,
        ["projects", "instances", "tables"] => Kind::Table,
        ["projects", "instances", "tables", "authorizedViews"] => Kind::AuthorizedView,
        ["projects", "instances", "tables", "schemaBundles"] => Kind::SchemaBundle,
        ["projects", "instances", "clusters", "backups"] => Kind::Backup,
        _ => {
            return Err(Error::invalid_argument(format!(
                "resource must be the name of an instance, table, authorized view, schema bundle or backup, \
                 got {name:?}"
            )));
        }
    };
    names::check_collections("resource", name, &collections)?;
    Ok(kind)
}

/// The name of a resource and those of all above it that can have policies, from the resource up.
pub fn with_parents(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |name| {
        let (parent, _) = name.rsplit_once('/')?.0.rsplit_once('/')?;
        parent.contains("/instances/").then_some(parent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_grant_what_they_are_for() {
        let cases = [
            ("roles/bigtable.viewer", "bigtable.tables.list", true),
            ("roles/bigtable.viewer", "bigtable.tables.readRows", false),
            ("roles/bigtable.reader", "bigtable.authorizedViews.readRows", true),
            ("roles/bigtable.reader", "bigtable.tables.mutateRows", false),
            ("roles/bigtable.user", "bigtable.tables.mutateRows", true),
            ("roles/bigtable.user", "bigtable.tables.update", false),
            ("roles/bigtable.editor", "bigtable.tables.update", true),
            ("roles/bigtable.editor", "bigtable.instances.createTagBinding", false),
            ("roles/bigtable.viewer", "bigtable.locations.list", true),
            ("roles/editor", "bigtable.backups.delete", true),
            ("roles/editor", "bigtable.tables.setIamPolicy", false),
            ("roles/bigtable.admin", "bigtable.tables.setIamPolicy", true),
            ("roles/bigtable.admin", "bigtable.tables.nonsense", false),
            ("roles/owner", "bigtable.instances.delete", true),
            ("roles/viewer", "bigtable.instances.get", true),
        ];
        for (role, permission, grants) in cases {
            assert_eq!(Role::of(role).unwrap().grants(permission), grants, "{role} {permission}");
        }
        assert_eq!(Role::of("projects/p/roles/mine"), None);
    }

    #[test]
    fn a_permission_is_asked_about_on_its_resource_or_one_above() {
        for (kind, permission) in [
            (Kind::Instance, "bigtable.clusters.create"),
            (Kind::Instance, "bigtable.backups.get"),
            (Kind::Instance, "bigtable.authorizedViews.get"),
            (Kind::Table, "bigtable.tables.readRows"),
            (Kind::Table, "bigtable.schemaBundles.get"),
            (Kind::Backup, "bigtable.backups.restore"),
            (Kind::AuthorizedView, "bigtable.authorizedViews.update"),
        ] {
            check_permission(kind, permission).unwrap();
        }
        for (kind, permission) in [
            (Kind::Table, "bigtable.instances.get"),
            (Kind::Table, "bigtable.backups.get"),
            (Kind::AuthorizedView, "bigtable.tables.readRows"),
            (Kind::Backup, "bigtable.clusters.get"),
            (Kind::Instance, "bigtable.tables.*"),
            (Kind::Instance, "bigtable.*"),
            (Kind::Instance, "*"),
            (Kind::Instance, "bigtable.tables"),
            (Kind::Instance, "bigtable.tables.nonsense"),
            (Kind::Instance, "storage.buckets.get"),
            (Kind::Instance, ""),
        ] {
            let error = check_permission(kind, permission).unwrap_err();
            assert_eq!(error.kind(), tepui_bigtable::Code::InvalidArgument, "{permission}");
        }
    }

    #[test]
    fn resources_are_known_by_their_names() {
        let backup = "projects/p/instances/i/clusters/c/backups/b";
        assert_eq!(kind_of("projects/p/instances/i").unwrap(), Kind::Instance);
        assert_eq!(kind_of(backup).unwrap(), Kind::Backup);
        for bad in [
            "",
            "projects/p",
            "projects/p/instances",
            "projects/p/instances/",
            "projects/p/instances/i/tables",
            "projects/p/instances/i/clusters/c",
            "projects//instances/i/tables/t",
            "instances/i",
        ] {
            assert!(kind_of(bad).is_err(), "{bad}");
        }
        let above: Vec<_> = with_parents(backup).collect();
        let cluster = "projects/p/instances/i/clusters/c";
        assert_eq!(above, [backup, cluster, "projects/p/instances/i"]);
    }
}

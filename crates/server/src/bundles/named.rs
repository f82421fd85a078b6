//! What value types name of schema bundles.

use std::collections::BTreeSet;
use std::fmt;

use prost_reflect::DescriptorPool;

use crate::api::admin::Type;
use crate::api::admin::r#type::Kind;
use crate::catalog::record::TableRecord;

/// What a type names of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named<'a> {
    /// The full name of a message.
    Message(&'a str),
    /// The full name of an enum.
    Enum(&'a str),
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(name) => write!(f, "message {name:?}"),
            Self::Enum(name) => write!(f, "enum {name:?}"),
        }
    }
}

impl Named<'_> {
    /// Whether a schema has it.
    pub(super) fn is_in(&self, pool: &DescriptorPool) -> bool {
        match self {
            Self::Message(name) => pool.get_message_by_name(name).is_some(),
            Self::Enum(name) => pool.get_enum_by_name(name).is_some(),
        }
    }
}

/// Messages and enums of a schema, by full name, which outlive its descriptors.
#[derive(Debug, Default)]
pub(super) struct Names {
    messages: BTreeSet<String>,
    enums: BTreeSet<String>,
}

impl Names {
    /// Those that `old` has and `new` does not.
    pub(super) fn lost(old: &DescriptorPool, new: &DescriptorPool) -> Self {
        let messages = old.all_messages().map(|message| message.full_name().to_owned());
        let enums = old.all_enums().map(|of| of.full_name().to_owned());
        Self {
            messages: messages.filter(|name| !Named::Message(name).is_in(new)).collect(),
            enums: enums.filter(|name| !Named::Enum(name).is_in(new)).collect(),
        }
    }

    /// Those of these that a schema has.
    pub(super) fn found<'n>(
        named: impl IntoIterator<Item = Named<'n>>,
        pool: &DescriptorPool,
    ) -> Self {
        let mut found = Self::default();
        for named in named.into_iter().filter(|named| named.is_in(pool)) {
            match named {
                Named::Message(name) => found.messages.insert(name.to_owned()),
                Named::Enum(name) => found.enums.insert(name.to_owned()),
            };
        }
        found
    }

    pub(super) fn has(&self, named: &Named<'_>) -> bool {
        match *named {
            Named::Message(name) => self.messages.contains(name),
            Named::Enum(name) => self.enums.contains(name),
        }
    }
}

/// What of a bundle a table's families name in their value types, each with the family. Row-key schemas name none: their
/// fields are of plain types.
pub(super) fn by_families<'a>(
    table: &'a TableRecord,
    bundle: &'a str,
) -> impl Iterator<Item = (&'a str, Named<'a>)> {
    table.families.iter().flat_map(move |family| {
        let value_type = family.config.as_ref().and_then(|config| config.value_type.as_ref());
        let of_bundle = in_type(value_type).into_iter().filter(move |(id, _)| *id == bundle);
        of_bundle.map(|(_, named)| (family.name.as_str(), named))
    })
}

/// The bundles that a type and the types within it name, and what of each. The type was checked: it is not deep.
pub(super) fn in_type(value_type: Option<&Type>) -> Vec<(&str, Named<'_>)> {
    let mut left: Vec<&Type> = value_type.into_iter().collect();
    let mut named = Vec::new();
    while let Some(kind) = left.pop().map(|of| &of.kind) {
        match kind {
            Some(Kind::ProtoType(t)) => {
                named.push((t.schema_bundle_id.as_str(), Named::Message(&t.message_name)));
            }
            Some(Kind::EnumType(t)) => {
                named.push((t.schema_bundle_id.as_str(), Named::Enum(&t.enum_name)));
            }
            Some(Kind::ArrayType(t)) => left.extend(t.element_type.as_deref()),
            Some(Kind::MapType(t)) => {
                left.extend(t.key_type.as_deref().into_iter().chain(t.value_type.as_deref()));
            }
            Some(Kind::StructType(t)) => {
                left.extend(t.fields.iter().filter_map(|field| field.r#type.as_ref()));
            }
            _ => {}
        }
    }
    named
}

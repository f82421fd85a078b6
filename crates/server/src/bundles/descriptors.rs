//! Descriptors of a schema bundle: whether they are a schema at all, and whether those who read by an older one can read
//! by a newer one.
//!
//! "Can read" means: values that were written by either are decoded by the other into fields of the same names. So
//! messages, enums and their values stay; a field keeps its name, type and cardinality, and may go only where
//! the new schema reserves its number, so that nobody gives that another meaning.

use std::fmt;

use prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use prost_types::FileDescriptorSet;
use tepui_bigtable::error::{Error, Result};

use super::imports;
use super::parse::{self, Room};

/// Incompatibilities that an error lists; more of them say nothing new.
const LISTED_MAX: usize = 10;

/// `INVALID_ARGUMENT` for what is no schema.
pub(super) fn bad(what: impl fmt::Display) -> Error {
    Error::field("proto_schema.proto_descriptors", what)
}

/// The linked schema of a serialized `FileDescriptorSet`; `INVALID_ARGUMENT` where it is none.
pub fn link(bytes: &[u8]) -> Result<DescriptorPool> {
    if bytes.is_empty() {
        return Err(bad("must be a serialized google.protobuf.FileDescriptorSet"));
    }
    let mut room = Room::new();
    let mut file = parse::files(bytes, &mut room)?;
    if file.is_empty() {
        return Err(bad("the FileDescriptorSet has no file"));
    }
    imports::spell_out(&mut file, &mut room)?;
    DescriptorPool::from_file_descriptor_set(FileDescriptorSet { file }).map_err(|error| {
        bad(format_args!(
            "not a schema that is whole: {error}; protoc makes one with --include_imports"
        ))
    })
}

/// What is lost where readers by one schema read by another.
#[derive(Default)]
struct Lost {
    /// Of this, the first.
    listed: Vec<String>,
    count: usize,
}

impl Lost {
    fn add(&mut self, what: fmt::Arguments<'_>) {
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(what.to_string());
        }
    }
}

/// `FAILED_PRECONDITION`, with what is lost, where readers by `old` cannot read by `new`.
pub fn check_compatible(old: &DescriptorPool, new: &DescriptorPool) -> Result<()> {
    let mut lost = Lost::default();
    for message in old.all_messages() {
        match new.get_message_by_name(message.full_name()) {
            Some(now) => compare_messages(&message, &now, &mut lost),
            None => lost.add(format_args!("message {} is gone", message.full_name())),
        }
    }
    for old in old.all_enums() {
        match new.get_enum_by_name(old.full_name()) {
            Some(now) => compare_enums(&old, &now, &mut lost),
            None => lost.add(format_args!("enum {} is gone", old.full_name())),
        }
    }
    if lost.count == 0 {
        return Ok(());
    }
    let more = lost.count - lost.listed.len();
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    Err(Error::failed_precondition(format!(
        "the schema is not compatible with the one before: {}{more}; ignore_warnings updates it all the same",
        lost.listed.join("; ")
    )))
}

fn compare_messages(old: &MessageDescriptor, new: &MessageDescriptor, lost: &mut Lost) {
    // Sorted, and none touches another: so they were linked.
    let reserved: Vec<_> = new.reserved_ranges().collect();
    let is_reserved = |number: u32| {
        let at = reserved.partition_point(|range| range.end <= number);
        reserved.get(at).is_some_and(|range| range.contains(&number))
    };
    for field in old.fields() {
        let name = field.full_name();
        let Some(now) = new.get_field(field.number()) else {
            let number = field.number();
            if !is_reserved(number) {
                lost.add(format_args!(
                    "field {name} is gone and its number {number} is not reserved"
                ));
            }
            continue;
        };
        if now.name() != field.name() {
            lost.add(format_args!("field {name} is named {:?} now", now.name()));
        }
        if type_of(&field) != type_of(&now) {
            lost.add(format_args!("field {name} is of type {} now", type_of(&now)));
        }
        if field.cardinality() != now.cardinality() {
            lost.add(format_args!("field {name} is {:?} now", now.cardinality()));
        }
    }
    for field in new.fields().filter(|field| field.is_required()) {
        let number = field.number();
        if old.get_field(number).is_none() {
            let name = new.full_name();
            lost.add(format_args!("message {name} requires a new field, number {number}"));
        }
    }
}

fn type_of(field: &FieldDescriptor) -> String {
    match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(of) => of.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}

fn compare_enums(old: &EnumDescriptor, new: &EnumDescriptor, lost: &mut Lost) {
    for value in old.values() {
        let name = value.full_name();
        match new.get_value_by_name(value.name()) {
            Some(now) if now.number() == value.number() => {}
            Some(now) => {
                lost.add(format_args!("enum value {name} has the number {} now", now.number()));
            }
            None => lost.add(format_args!("enum value {name} is gone")),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use prost::Message as _;
    use prost_types::field_descriptor_proto::{Label, Type};
    use prost_types::{
        DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
        FileDescriptorProto, FileDescriptorSet, descriptor_proto::ReservedRange,
    };
    use tepui_bigtable::error::Code;

    use super::*;

    /// A field of a message.
    pub fn field(name: &str, number: i32, kind: Type) -> FieldDescriptorProto {
        FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(Label::Optional.into()),
            r#type: Some(kind.into()),
            ..Default::default()
        }
    }

    /// A schema of one message `test.M`, with an enum `test.E` of values by these numbers.
    pub fn schema(message: DescriptorProto, values: &[(&str, i32)]) -> Vec<u8> {
        let value = values.iter().map(|(name, number)| EnumValueDescriptorProto {
            name: Some((*name).to_owned()),
            number: Some(*number),
            options: None,
        });
        let of = EnumDescriptorProto {
            name: Some("E".to_owned()),
            value: value.collect(),
            ..Default::default()
        };
        let file = FileDescriptorProto {
            name: Some("test.proto".to_owned()),
            package: Some("test".to_owned()),
            message_type: vec![DescriptorProto { name: Some("M".to_owned()), ..message }],
            enum_type: vec![of],
            syntax: Some("proto3".to_owned()),
            ..Default::default()
        };
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    /// One with these fields alone.
    pub fn with_fields(fields: Vec<FieldDescriptorProto>) -> Vec<u8> {
        schema(DescriptorProto { field: fields, ..Default::default() }, &[("ZERO", 0)])
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        let unresolved = FieldDescriptorProto {
            type_name: Some(".other.Missing".to_owned()),
            ..field("m", 1, Type::Message)
        };
        let twice = vec![field("a", 1, Type::String), field("b", 1, Type::String)];
        for bad in [
            vec![],
            vec![0xff; 9],
            FileDescriptorSet::default().encode_to_vec(),
            with_fields(vec![unresolved]),
            with_fields(twice),
            with_fields(vec![field("a", 0, Type::String)]),
        ] {
            let error = link(&bad).unwrap_err();
            assert_eq!(error.kind(), Code::InvalidArgument);
            assert!(error.message().contains("proto_schema.proto_descriptors"), "{error}");
        }
        link(&with_fields(vec![field("a", 1, Type::String)])).unwrap();
    }

    #[test]
    fn a_new_schema_may_add_and_reserve_and_no_more() {
        let old = || vec![field("a", 1, Type::String), field("b", 2, Type::Int64)];
        let message = |fields| DescriptorProto { field: fields, ..Default::default() };
        let values = [("ZERO", 0), ("ONE", 1)];
        let before = link(&schema(message(old()), &values)).unwrap();
        let check = |message: DescriptorProto, values: &[(&str, i32)]| {
            check_compatible(&before, &link(&schema(message, values)).unwrap())
        };
        let mut more = old();
        more.push(field("c", 3, Type::Double));
        check(message(more), &[("ZERO", 0), ("ONE", 1), ("TWO", 2)]).unwrap();
        let reserved = ReservedRange { start: Some(2), end: Some(3) };
        let without = vec![field("a", 1, Type::String)];
        let kept = DescriptorProto { reserved_range: vec![reserved], ..message(without.clone()) };
        check(kept, &values).unwrap();

        let changed = |at: usize, field| {
            let mut fields = old();
            fields[at] = field;
            message(fields)
        };
        let repeated = FieldDescriptorProto {
            label: Some(Label::Repeated.into()),
            ..field("a", 1, Type::String)
        };
        for (now, values, why) in [
            (
                message(without),
                &values[..],
                "field test.M.b is gone and its number 2 is not reserved",
            ),
            (changed(0, field("z", 1, Type::String)), &values, "field test.M.a is named \"z\" now"),
            (
                changed(0, field("a", 1, Type::Bytes)),
                &values,
                "field test.M.a is of type bytes now",
            ),
            (changed(0, repeated), &values, "field test.M.a is Repeated now"),
            (message(old()), &values[..1], "enum value test.ONE is gone"),
            (message(old()), &[("ZERO", 0), ("ONE", 2)], "test.ONE has the number 2 now"),
        ] {
            let error = check(now, values).unwrap_err();
            assert_eq!(error.kind(), Code::FailedPrecondition);
            assert!(error.message().contains(why), "{error} has no {why:?}");
        }
        let elsewhere = FileDescriptorSet {
            file: vec![FileDescriptorProto {
                name: Some("other.proto".to_owned()),
                ..Default::default()
            }],
        };
        let error = check_compatible(&before, &link(&elsewhere.encode_to_vec()).unwrap());
        let error = error.unwrap_err();
        assert!(error.message().contains("message test.M is gone; enum test.E is gone"), "{error}");
    }
}

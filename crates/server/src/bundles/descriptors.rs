//! Descriptors of a schema bundle: whether they are a schema at all, and whether those who read by an older one can read
//! by a newer one.
//!
//! "Can read" means: values that were written by either are decoded by the other into fields of the same names. So
//! messages, enums and their values stay; a field or an extension keeps its name, type and cardinality, and may go only where
//! the new schema reserves its number, so that nobody gives that another meaning. A required field does not come or go: readers
//! by the schema that has it refuse values without it. A group is another type than a message: it is written otherwise.

use std::fmt;

use prost_reflect::{
    Cardinality, DescriptorPool, EnumDescriptor, ExtensionDescriptor, FieldDescriptor, Kind,
    MessageDescriptor,
};
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
        let (name, number) = (field.full_name(), field.number());
        match new.get_field(number) {
            Some(now) => {
                if now.name() != field.name() {
                    lost.add(format_args!("field {name} is named {:?} now", now.name()));
                }
                let (before, now) = (Values::of(&field), Values::of(&now));
                compare_values(format_args!("field {name}"), &before, &now, lost);
            }
            None if field.is_required() => {
                lost.add(format_args!("field {name}, which is required, is gone"));
            }
            None if !is_reserved(number) => {
                lost.add(format_args!(
                    "field {name} is gone and its number {number} is not reserved"
                ));
            }
            None => {}
        }
    }
    for field in new.fields().filter(|field| field.is_required()) {
        let number = field.number();
        if old.get_field(number).is_none() {
            let name = new.full_name();
            lost.add(format_args!("message {name} requires a new field, number {number}"));
        }
    }
    if is_of_options(old) {
        return;
    }
    // By name: nothing keeps two of them from having one number.
    for extension in old.extensions() {
        let (name, number) = (extension.full_name(), extension.number());
        match new.parent_pool().get_extension_by_name(name) {
            Some(now) => {
                let of = now.containing_message();
                if (of.full_name(), now.number()) != (old.full_name(), number) {
                    let (of, number) = (of.full_name(), now.number());
                    lost.add(format_args!("extension {name} is number {number} of {of} now"));
                }
                let (before, now) = (Values::of_extension(&extension), Values::of_extension(&now));
                compare_values(format_args!("extension {name}"), &before, &now, lost);
            }
            None if !is_reserved(number) => {
                lost.add(format_args!(
                    "extension {name} is gone and its number {number} is not reserved"
                ));
            }
            None => {}
        }
    }
}

/// Whether it is what options of descriptors are in: no row has a value of it.
fn is_of_options(message: &MessageDescriptor) -> bool {
    message.package_name() == "google.protobuf" && message.name().ends_with("Options")
}

/// What the values of a field or an extension are.
struct Values {
    kind: Kind,
    is_group: bool,
    cardinality: Cardinality,
}

impl Values {
    fn of(field: &FieldDescriptor) -> Self {
        let (is_group, cardinality) = (field.is_group(), field.cardinality());
        Self { kind: field.kind(), is_group, cardinality }
    }

    fn of_extension(extension: &ExtensionDescriptor) -> Self {
        let (is_group, cardinality) = (extension.is_group(), extension.cardinality());
        Self { kind: extension.kind(), is_group, cardinality }
    }

    fn type_name(&self) -> String {
        match &self.kind {
            Kind::Message(message) if self.is_group => format!("group {}", message.full_name()),
            Kind::Message(message) => message.full_name().to_owned(),
            Kind::Enum(of) => of.full_name().to_owned(),
            scalar => format!("{scalar:?}").to_lowercase(),
        }
    }
}

fn compare_values(what: fmt::Arguments<'_>, old: &Values, new: &Values, lost: &mut Lost) {
    let now = new.type_name();
    if old.type_name() != now {
        lost.add(format_args!("{what} is of type {now} now"));
    }
    if old.cardinality != new.cardinality {
        lost.add(format_args!("{what} is {:?} now", new.cardinality));
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
        FileDescriptorProto, FileDescriptorSet,
        descriptor_proto::{ExtensionRange, ReservedRange},
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

    /// A schema in proto2 of a message `test.M`, which has extensions from number 100 on, a message `test.G` and these
    /// extensions of `test.M`.
    fn old_style(
        fields: Vec<FieldDescriptorProto>,
        reserved: &[i32],
        extensions: Vec<FieldDescriptorProto>,
    ) -> DescriptorPool {
        let range = |number: &i32| ReservedRange { start: Some(*number), end: Some(*number + 1) };
        let message = DescriptorProto {
            name: Some("M".to_owned()),
            field: fields,
            reserved_range: reserved.iter().map(range).collect(),
            extension_range: vec![ExtensionRange {
                start: Some(100),
                end: Some(200),
                options: None,
            }],
            ..Default::default()
        };
        let of_group = DescriptorProto { name: Some("G".to_owned()), ..Default::default() };
        let of_m =
            |extension| FieldDescriptorProto { extendee: Some(".test.M".to_owned()), ..extension };
        let file = FileDescriptorProto {
            name: Some("test.proto".to_owned()),
            package: Some("test".to_owned()),
            message_type: vec![message, of_group],
            extension: extensions.into_iter().map(of_m).collect(),
            syntax: Some("proto2".to_owned()),
            ..Default::default()
        };
        link(&FileDescriptorSet { file: vec![file] }.encode_to_vec()).unwrap()
    }

    /// How the schemas of the same name differ, by what an update is refused for.
    fn refused(old: &DescriptorPool, new: &DescriptorPool) -> Option<String> {
        let error = check_compatible(old, new).err()?;
        assert_eq!(error.kind(), Code::FailedPrecondition);
        let (_, why) = error.message().split_once("before: ").unwrap();
        Some(why.split_once("; ignore_warnings").unwrap().0.to_owned())
    }

    #[test]
    fn a_required_field_does_not_go_though_its_number_is_reserved() {
        let required = FieldDescriptorProto {
            label: Some(Label::Required.into()),
            ..field("a", 1, Type::String)
        };
        let old = old_style(vec![required], &[], Vec::new());
        for reserved in [&[][..], &[1]] {
            let why = refused(&old, &old_style(Vec::new(), reserved, Vec::new())).unwrap();
            assert_eq!(why, "field test.M.a, which is required, is gone");
        }
    }

    #[test]
    fn a_group_does_not_become_a_message_nor_a_message_a_group() {
        let of = |kind| {
            let g = FieldDescriptorProto {
                type_name: Some(".test.G".to_owned()),
                ..field("g", 1, kind)
            };
            old_style(vec![g], &[], Vec::new())
        };
        let (group, message) = (of(Type::Group), of(Type::Message));
        assert_eq!(refused(&group, &message).unwrap(), "field test.M.g is of type test.G now");
        assert_eq!(
            refused(&message, &group).unwrap(),
            "field test.M.g is of type group test.G now"
        );
        assert_eq!(refused(&group, &group), None);
    }

    #[test]
    fn a_custom_option_may_go() {
        let of = |extension: Vec<FieldDescriptorProto>| {
            let range = ExtensionRange { start: Some(1000), end: Some(2000), options: None };
            let options = DescriptorProto {
                name: Some("FieldOptions".to_owned()),
                extension_range: vec![range],
                ..Default::default()
            };
            let file = FileDescriptorProto {
                name: Some("options.proto".to_owned()),
                package: Some("google.protobuf".to_owned()),
                message_type: vec![options],
                extension,
                syntax: Some("proto2".to_owned()),
                ..Default::default()
            };
            link(&FileDescriptorSet { file: vec![file] }.encode_to_vec()).unwrap()
        };
        let option = FieldDescriptorProto {
            extendee: Some(".google.protobuf.FieldOptions".to_owned()),
            ..field("masked", 1000, Type::Bool)
        };
        assert_eq!(refused(&of(vec![option]), &of(Vec::new())), None);
    }

    #[test]
    fn an_extension_stays_what_it_is() {
        let of = |extensions| old_style(Vec::new(), &[], extensions);
        let old = of(vec![field("x", 100, Type::String)]);
        let more = of(vec![field("y", 101, Type::Bool), field("x", 100, Type::String)]);
        assert_eq!(refused(&old, &more), None);
        let repeated = FieldDescriptorProto {
            label: Some(Label::Repeated.into()),
            ..field("x", 100, Type::String)
        };
        for (now, why) in [
            (vec![], "extension test.x is gone and its number 100 is not reserved"),
            (vec![field("x", 101, Type::String)], "extension test.x is number 101 of test.M now"),
            (vec![field("z", 100, Type::String)], "extension test.x is gone"),
            (vec![field("x", 100, Type::Bytes)], "extension test.x is of type bytes now"),
            (vec![repeated], "extension test.x is Repeated now"),
        ] {
            let told = refused(&old, &of(now)).unwrap();
            assert!(told.contains(why), "{told} has no {why:?}");
        }
    }
}

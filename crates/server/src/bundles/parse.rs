//! What of a serialized `FileDescriptorSet` is linked: names, numbers, types and imports, within bounds.
//!
//! What is stored are the client's bytes. Left out of what is linked is all that says nothing about who can read which values: options
//! (but whether numbers of an enum may repeat), defaults, and where things are in their source. `prost-reflect` decodes options by
//! what the schema itself says that they are, and takes defaults apart; it panics on some of both.
//!
//! Its names are long: of each thing that is defined it keeps the full name and the path to it, twice. So what these come to is
//! counted before ([`LINKED_NAMES_BYTES_MAX`]), and ranges, which it compares with every field, are few ([`RANGES_MAX`]).

use std::ops::Range;

use prost::Message as _;
use prost_types::descriptor_proto::{ExtensionRange, ReservedRange};
use prost_types::enum_descriptor_proto::EnumReservedRange;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, FieldDescriptorProto, FileDescriptorProto,
    ServiceDescriptorProto,
};
use tepui_bigtable::error::{Error, Result};
use tepui_bigtable::parts::{self, Shape};

use super::descriptors::bad;

/// Fields of the definitions of a bundle that have a length, at most, however deep: those that define something, and their names. A schema of fifty
/// thousand fields has as many, in descriptors of 2 to 3 MB. A message and its name, eight bytes as they come, are nearly a kilobyte once linked:
/// 90 MB in all, and more with long names.
const FIELDS_MAX: usize = 200_000;

/// What counts: files with their imports, messages, enums, services and extensions, and all in these. Options of files and source info are not
/// decoded.
const DEFINITIONS: Shape = Shape::Within(&[(1, &FILE)]);
const FILE: Shape = Shape::One(&[
    (3, &Shape::All),
    (4, &Shape::All),
    (5, &Shape::All),
    (6, &Shape::All),
    (7, &Shape::All),
]);

/// Bytes of the names that linking makes of those of a bundle, at most: of each thing that is defined its full name, the path to it and the
/// name of its file, which an error tells; of each type that is named relatively, all the names that it may mean. A bundle of 4 MiB
/// has some 15 MB of them; one whose package is a hundred thousand names deep would have gigabytes.
const LINKED_NAMES_BYTES_MAX: usize = 64 << 20;

/// Ranges of numbers that a message or an enum reserves or has for extensions, at most, adjacent ones as one. Each field is compared with
/// each; people write some ten.
const RANGES_MAX: usize = 1_000;

/// What a step of the path to a definition takes: the number of a field, and a place among its values.
const PATH_STEP_BYTES: usize = 2 * size_of::<i32>();

/// The one message of options that has to be what it always is where a bundle brings it, and the number of the option.
const ENUM_OPTIONS: &str = "google.protobuf.EnumOptions";
const ALLOW_ALIAS: i32 = 2;

/// A `FileDescriptorSet`, with what is looked at of its files.
#[derive(Clone, PartialEq, prost::Message)]
struct Set {
    #[prost(message, repeated, tag = "1")]
    files: Vec<File>,
}

/// A `FileDescriptorProto` without its options and without its source info, which are not worth decoding.
#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    package: Option<String>,
    #[prost(string, repeated, tag = "3")]
    dependency: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    message_type: Vec<DescriptorProto>,
    #[prost(message, repeated, tag = "5")]
    enum_type: Vec<EnumDescriptorProto>,
    #[prost(message, repeated, tag = "6")]
    service: Vec<ServiceDescriptorProto>,
    #[prost(message, repeated, tag = "7")]
    extension: Vec<FieldDescriptorProto>,
    #[prost(int32, repeated, packed = "false", tag = "10")]
    public_dependency: Vec<i32>,
    #[prost(string, optional, tag = "12")]
    syntax: Option<String>,
}

/// What is left of [`LINKED_NAMES_BYTES_MAX`].
pub(super) struct Room(usize);

impl Room {
    /// All of it.
    pub(super) fn new() -> Self {
        Self(LINKED_NAMES_BYTES_MAX)
    }

    /// Takes so many bytes of it; `INVALID_ARGUMENT` where it has less.
    pub(super) fn take(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            bad(format_args!(
                "the full names of what it defines have more than {LINKED_NAMES_BYTES_MAX} bytes together: shorten packages and names, \
                 nest less, or divide it among several bundles"
            ))
        })?;
        Ok(())
    }
}

/// The files of a serialized `FileDescriptorSet`, with what is to be linked of them alone.
pub(super) fn files(bytes: &[u8], room: &mut Room) -> Result<Vec<FileDescriptorProto>> {
    let fields = parts::count(bytes, &DEFINITIONS);
    if fields > FIELDS_MAX {
        return Err(bad(format_args!(
            "too many messages, fields, enums, values, and names of them: {fields} provided; limit {FIELDS_MAX}: leave out what is not \
             read, or divide it among several bundles"
        )));
    }
    let set = Set::decode(bytes)
        .map_err(|error| bad(format_args!("not a google.protobuf.FileDescriptorSet: {error}")))?;
    set.files.into_iter().map(|file| plain(file, room)).collect()
}

fn plain(file: File, room: &mut Room) -> Result<FileDescriptorProto> {
    let mut file = FileDescriptorProto {
        name: file.name,
        package: file.package,
        dependency: file.dependency,
        public_dependency: file.public_dependency,
        message_type: file.message_type,
        enum_type: file.enum_type,
        service: file.service,
        extension: file.extension,
        syntax: file.syntax.filter(|syntax| !syntax.is_empty()),
        ..FileDescriptorProto::default()
    };
    check_syntax(&file)?;
    // Each package that it is in is defined, too.
    let (package, file_bytes) = (file.package().to_owned(), file.name().len());
    room.take(file_bytes + (1 + package.matches('.').count()) * package.len())?;
    let mut walk = Walk { scope: package, depth: 1, file_bytes, room };
    for message in &mut file.message_type {
        walk.message(message)?;
    }
    for of in &mut file.enum_type {
        walk.an_enum(of)?;
    }
    for service in &mut file.service {
        walk.service(service)?;
    }
    walk.fields(&mut file.extension)?;
    Ok(file)
}

/// Refuses what the linker does not know, on some of which it panics. `UNIMPLEMENTED` for editions, which protoc calls a syntax.
fn check_syntax(file: &FileDescriptorProto) -> Result<()> {
    let name = file.name();
    match file.syntax() {
        "" | "proto2" | "proto3" => Ok(()),
        "editions" => Err(Error::unimplemented(format!(
            "file {name:?} has an edition; editions are not supported: write it in proto2 or proto3"
        ))),
        other => {
            Err(bad(format_args!("file {name:?} has the syntax {other:?}; use proto2 or proto3")))
        }
    }
}

/// A walk through what a file defines, which leaves out what is not linked and counts the names.
struct Walk<'a> {
    /// The full name of what it is in.
    scope: String,
    /// How many steps that is from the file.
    depth: usize,
    file_bytes: usize,
    room: &'a mut Room,
}

impl Walk<'_> {
    /// Something with this name is in what it is in.
    fn define(&mut self, name: &str) -> Result<()> {
        if name.is_empty() {
            return Err(bad(format_args!("something in {:?} has no name", self.scope)));
        }
        let full_name = self.scope.len() + 1 + name.len();
        self.room.take(full_name + PATH_STEP_BYTES * self.depth + self.file_bytes)
    }

    /// Something in it is of this type. A relative name is looked for in all that it is in.
    fn refer(&mut self, name: &str) -> Result<()> {
        if name.is_empty() || name.starts_with('.') {
            return Ok(());
        }
        let places = 3 + self.scope.matches('.').count();
        self.room.take(places * (self.scope.len() + name.len()))
    }

    /// What is in something of this name.
    fn within(&mut self, name: &str, walk: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.define(name)?;
        let outer = self.scope.len();
        if !self.scope.is_empty() {
            self.scope.push('.');
        }
        self.scope.push_str(name);
        self.depth += 1;
        let walked = walk(self);
        self.depth -= 1;
        self.scope.truncate(outer);
        walked
    }

    /// Messages are nested as deep as can be decoded, a hundred.
    fn message(&mut self, message: &mut DescriptorProto) -> Result<()> {
        let name = message.name().to_owned();
        self.within(&name, |walk| {
            message.options = None;
            walk.fields(&mut message.field)?;
            walk.fields(&mut message.extension)?;
            for oneof in &mut message.oneof_decl {
                oneof.options = None;
                walk.define(oneof.name())?;
            }
            for nested in &mut message.nested_type {
                walk.message(nested)?;
            }
            for of in &mut message.enum_type {
                walk.an_enum(of)?;
            }
            let reserved = message.reserved_range.iter().map(|range| (range.start(), range.end()));
            let reserved = walk.merged(reserved.map(half_open))?.into_iter();
            let range = |(start, end)| ReservedRange { start: Some(start), end: Some(end) };
            message.reserved_range = reserved.map(of_half_open).map(range).collect();
            let extended = message.extension_range.iter().map(|range| (range.start(), range.end()));
            let extended = walk.merged(extended.map(half_open))?.into_iter();
            let range =
                |(start, end)| ExtensionRange { start: Some(start), end: Some(end), options: None };
            message.extension_range = extended.map(of_half_open).map(range).collect();
            walk.check_options(message)
        })
    }

    /// The linker writes what it keeps of an enum's options by what a bundle says that they are.
    fn check_options(&self, message: &DescriptorProto) -> Result<()> {
        let is_known = |field: &FieldDescriptorProto| {
            field.number() == ALLOW_ALIAS
                && (field.label(), field.r#type()) == (Label::Optional, Type::Bool)
                && field.type_name().is_empty()
        };
        if self.scope == ENUM_OPTIONS && !message.field.iter().any(is_known) {
            return Err(bad(format_args!(
                "its {ENUM_OPTIONS} has no optional bool allow_alias = {ALLOW_ALIAS}: use google/protobuf/descriptor.proto as it is"
            )));
        }
        Ok(())
    }

    fn fields(&mut self, fields: &mut [FieldDescriptorProto]) -> Result<()> {
        for field in fields {
            (field.options, field.default_value) = (None, None);
            self.define(field.name())?;
            self.refer(field.type_name())?;
            self.refer(field.extendee())?;
        }
        Ok(())
    }

    /// Its values are beside it.
    fn an_enum(&mut self, of: &mut EnumDescriptorProto) -> Result<()> {
        self.define(of.name())?;
        let allow_alias = of.options.take().and_then(|options| options.allow_alias);
        of.options = allow_alias.map(|_| EnumOptions { allow_alias, ..EnumOptions::default() });
        for value in &mut of.value {
            value.options = None;
            self.define(value.name())?;
        }
        // The linker sorts as they come, one by one. The first is the default, and has to stay.
        if let Some((_, others)) = of.value.split_first_mut() {
            others.sort_by_key(|value| value.number());
        }
        let reserved = of.reserved_range.iter();
        let reserved = reserved
            .map(|range| i64::from(range.start())..i64::from(range.end()).saturating_add(1));
        let reserved = self.merged(reserved)?.into_iter().map(|range| EnumReservedRange {
            start: Some(range.start as i32),
            end: Some((range.end - 1) as i32),
        });
        of.reserved_range = reserved.collect();
        Ok(())
    }

    fn service(&mut self, service: &mut ServiceDescriptorProto) -> Result<()> {
        let name = service.name().to_owned();
        self.within(&name, |walk| {
            service.options = None;
            for method in &mut service.method {
                method.options = None;
                walk.define(method.name())?;
                walk.refer(method.input_type())?;
                walk.refer(method.output_type())?;
            }
            Ok(())
        })
    }

    /// Ranges of numbers, sorted, those as one that touch.
    fn merged(&self, ranges: impl Iterator<Item = Range<i64>>) -> Result<Vec<Range<i64>>> {
        let mut ranges: Vec<_> = ranges.filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        if ranges.len() > RANGES_MAX {
            return Err(bad(format_args!(
                "{:?} has {} ranges of reserved numbers or of extensions; limit {RANGES_MAX}: reserve adjacent numbers as one range",
                self.scope,
                ranges.len()
            )));
        }
        Ok(ranges)
    }
}

/// A range of numbers of fields, of which none is negative.
fn half_open((start, end): (i32, i32)) -> Range<i64> {
    i64::from(start.max(0))..i64::from(end)
}

fn of_half_open(range: Range<i64>) -> (i32, i32) {
    (range.start as i32, range.end as i32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost_types::source_code_info::Location;
    use prost_types::{
        EnumValueDescriptorProto, FieldOptions, FileDescriptorSet, MessageOptions,
        MethodDescriptorProto, OneofDescriptorProto, SourceCodeInfo,
    };
    use tepui_bigtable::error::Code;

    use super::super::descriptors::tests::{field, schema};
    use super::super::descriptors::{check_compatible, link};
    use super::*;

    fn refused(bytes: &[u8], says: &str) {
        let error = link(bytes).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(says), "{error} has no {says:?}");
    }

    fn set(file: FileDescriptorProto) -> Vec<u8> {
        FileDescriptorSet { file: vec![file] }.encode_to_vec()
    }

    #[test]
    fn names_that_would_take_gigabytes_once_linked_are_refused() {
        let deep = FileDescriptorProto {
            package: Some("a.".repeat(100_000) + "a"),
            ..FileDescriptorProto::default()
        };
        refused(&set(deep), "full names");
        let fields = (1..5_000).map(|n| field(&format!("f{n}"), n, Type::Bool)).collect();
        let message = DescriptorProto {
            name: Some("M".repeat(100_000)),
            field: fields,
            ..DescriptorProto::default()
        };
        let long = |name: String, message| FileDescriptorProto {
            name: Some(name),
            message_type: vec![message],
            ..FileDescriptorProto::default()
        };
        refused(&set(long("a".to_owned(), message.clone())), "full names");
        let message = DescriptorProto { name: Some("M".to_owned()), ..message };
        refused(&set(long("a".repeat(100_000), message.clone())), "full names");
        link(&set(long("a".to_owned(), message))).unwrap();
    }

    #[test]
    fn definitions_count_before_they_are_decoded_and_source_info_does_not() {
        let named = |count: usize| {
            let message = |n: usize| DescriptorProto {
                name: Some(format!("M{n}")),
                ..DescriptorProto::default()
            };
            let location = Location { path: vec![4, 0], ..Location::default() };
            FileDescriptorProto {
                message_type: (0..count).map(message).collect(),
                source_code_info: Some(SourceCodeInfo { location: vec![location; 300_000] }),
                ..FileDescriptorProto::default()
            }
        };
        // A message and its name each, and the file.
        link(&set(named(FIELDS_MAX / 2 - 1))).unwrap();
        refused(&set(named(FIELDS_MAX / 2)), "200001 provided; limit 200000");
        let empty = [b"\x0a\x80\x89\x7a".as_slice(), &b"\x22\x00".repeat(1_000_000)].concat();
        refused(&empty, "too many messages");
    }

    #[test]
    fn a_message_reserves_few_ranges_and_adjacent_ones_are_one() {
        let reserving = |step: i32| {
            let range = |n: i32| ReservedRange { start: Some(n * step), end: Some(n * step + 1) };
            let reserved_range = (5..2_000).rev().map(range).collect();
            let message = DescriptorProto {
                field: vec![field("a", 1, Type::Bool)],
                reserved_range,
                ..DescriptorProto::default()
            };
            schema(message, &[("ZERO", 0)])
        };
        refused(&reserving(2), "ranges");
        let linked = link(&reserving(1)).unwrap();
        let message = linked.get_message_by_name("test.M").unwrap();
        assert!(message.reserved_ranges().eq(std::iter::once(5..2_000)));
    }

    #[test]
    fn a_number_that_is_reserved_or_for_extensions_is_no_fields() {
        for range in [(1, 3), (2, 3)] {
            let (start, end) = (Some(range.0), Some(range.1));
            let plain = || DescriptorProto {
                field: vec![field("a", 2, Type::Bool)],
                ..DescriptorProto::default()
            };
            let mut reserved = plain();
            reserved.reserved_range = vec![ReservedRange { start, end }];
            let mut extended = plain();
            extended.extension_range = vec![ExtensionRange { start, end, options: None }];
            for message in [reserved, extended] {
                refused(&schema(message, &[("ZERO", 0)]), "range");
            }
        }
    }

    #[test]
    fn an_enum_may_repeat_numbers_where_it_says_so_and_keeps_its_default() {
        let of = |allow_alias, numbers: &[i32]| {
            let value = |(i, number): (usize, &i32)| EnumValueDescriptorProto {
                name: Some(format!("V{i}")),
                number: Some(*number),
                ..EnumValueDescriptorProto::default()
            };
            let options = EnumOptions { allow_alias, ..EnumOptions::default() };
            let of = EnumDescriptorProto {
                name: Some("E".to_owned()),
                value: numbers.iter().enumerate().map(value).collect(),
                options: Some(options),
                ..EnumDescriptorProto::default()
            };
            set(FileDescriptorProto {
                enum_type: vec![of],
                syntax: Some("proto3".to_owned()),
                ..FileDescriptorProto::default()
            })
        };
        let linked = link(&of(Some(true), &[0, 7, 0, -1])).unwrap();
        let found = linked.get_enum_by_name("E").unwrap();
        assert_eq!(found.get_value_by_name("V2").unwrap().number(), 0);
        assert_eq!(found.default_value().number(), 0);
        refused(&of(None, &[0, 7, 0]), "number");
        refused(&of(None, &[-1, 0]), "first");
    }

    #[test]
    fn editions_are_not_supported_and_the_error_says_so() {
        let of = |syntax: &str| {
            let message =
                DescriptorProto { name: Some("M".to_owned()), ..DescriptorProto::default() };
            set(FileDescriptorProto {
                name: Some("m.proto".to_owned()),
                message_type: vec![message],
                syntax: Some(syntax.to_owned()),
                ..FileDescriptorProto::default()
            })
        };
        let error = link(&of("editions")).unwrap_err();
        assert_eq!(error.kind(), Code::Unimplemented);
        assert!(error.message().contains("\"m.proto\" has an edition"), "{error}");
        refused(&of("proto4"), "use proto2 or proto3");
        for syntax in ["proto2", "proto3", ""] {
            link(&of(syntax)).unwrap();
        }
    }

    #[test]
    fn options_are_what_descriptor_proto_says_that_they_are() {
        let options = |label: Label| DescriptorProto {
            name: Some("EnumOptions".to_owned()),
            field: vec![FieldDescriptorProto {
                label: Some(label.into()),
                ..field("allow_alias", ALLOW_ALIAS, Type::Bool)
            }],
            ..DescriptorProto::default()
        };
        let bringing = |message| {
            set(FileDescriptorProto {
                package: Some("google.protobuf".to_owned()),
                message_type: vec![message],
                ..FileDescriptorProto::default()
            })
        };
        link(&bringing(options(Label::Optional))).unwrap();
        refused(&bringing(options(Label::Repeated)), "allow_alias");
        refused(
            &bringing(DescriptorProto { field: Vec::new(), ..options(Label::Optional) }),
            "alias",
        );
    }

    /// Makes schemas of bytes, one byte a choice, of few names and of numbers that are near some bound.
    struct Maker<'a>(std::slice::Iter<'a, u8>);

    impl Maker<'_> {
        fn any<T: Copy>(&mut self, of: &[T]) -> T {
            of[usize::from(self.0.next().copied().unwrap_or(0)) % of.len()]
        }

        fn many<T>(&mut self, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
            (0..self.any(&[0, 1, 2, 3, 1])).map(|_| make(self)).collect()
        }

        fn name(&mut self) -> Option<String> {
            let names = ["a", "b", "c", "d", "a.b", "EnumOptions", "E", "é", ""];
            self.any(&names.map(Some)).map(str::to_owned)
        }

        fn type_name(&mut self) -> Option<String> {
            let names = ["a", ".a", "a.b", ".a.a", ".b", ".E", ".google.protobuf.EnumOptions", "."];
            let names = [None, Some(self.any(&names))];
            self.any(&names).map(str::to_owned)
        }

        fn number(&mut self) -> Option<i32> {
            let bounds = [1, 2, 3, 4, 0, 18_999, 19_000, 536_870_911, -1, i32::MIN, i32::MAX];
            self.any(&bounds.map(Some))
        }

        fn range(&mut self) -> (Option<i32>, Option<i32>) {
            (self.number(), self.number())
        }

        fn field(&mut self) -> FieldDescriptorProto {
            let defaults = [None, Some("\\x1é"), Some("\\777"), Some("a"), Some("\\"), Some("1")];
            FieldDescriptorProto {
                name: self.name(),
                number: self.number(),
                label: self.any(&[None, Some(1), Some(2), Some(3), Some(9)]),
                r#type: Some(self.any(&[9, 8, 11, 14, 12, 10, 1, 99])),
                type_name: self.type_name(),
                extendee: self.type_name(),
                default_value: self.any(&defaults).map(str::to_owned),
                oneof_index: self.any(&[None, None, Some(0), Some(1), Some(-1)]),
                json_name: self.any(&[None, None, Some("a")]).map(str::to_owned),
                options: self
                    .any(&[None, Some(true)])
                    .map(|packed| FieldOptions { packed: Some(packed), ..FieldOptions::default() }),
                proto3_optional: self.any(&[None, Some(true)]),
            }
        }

        fn an_enum(&mut self) -> EnumDescriptorProto {
            EnumDescriptorProto {
                name: self.name(),
                value: self.many(|make| EnumValueDescriptorProto {
                    name: make.name(),
                    number: make.number(),
                    options: None,
                }),
                options: self.any(&[None, Some(true), Some(false)]).map(|allowed| EnumOptions {
                    allow_alias: Some(allowed),
                    ..EnumOptions::default()
                }),
                reserved_range: self.many(|make| {
                    let (start, end) = make.range();
                    EnumReservedRange { start, end }
                }),
                reserved_name: self.many(|make| make.name().unwrap_or_default()),
            }
        }

        fn message(&mut self, depth: usize) -> DescriptorProto {
            DescriptorProto {
                name: self.name(),
                field: self.many(Self::field),
                extension: self.many(Self::field),
                nested_type: if depth < 3 {
                    self.many(|make| make.message(depth + 1))
                } else {
                    Vec::new()
                },
                enum_type: self.many(Self::an_enum),
                extension_range: self.many(|make| {
                    let (start, end) = make.range();
                    ExtensionRange { start, end, options: None }
                }),
                oneof_decl: self
                    .many(|make| OneofDescriptorProto { name: make.name(), options: None }),
                options: self.any(&[None, Some(true)]).map(|map_entry| MessageOptions {
                    map_entry: Some(map_entry),
                    ..MessageOptions::default()
                }),
                reserved_range: self.many(|make| {
                    let (start, end) = make.range();
                    ReservedRange { start, end }
                }),
                reserved_name: self.many(|make| make.name().unwrap_or_default()),
            }
        }

        fn file(&mut self) -> FileDescriptorProto {
            let packages = [None, Some("a"), Some("google.protobuf"), Some(""), Some("a..b")];
            let syntaxes = [None, Some("proto3"), Some("proto2"), Some("editions"), Some("")];
            FileDescriptorProto {
                name: self.name(),
                package: self.any(&packages).map(str::to_owned),
                dependency: self.many(|make| make.name().unwrap_or_default()),
                public_dependency: self.many(|make| make.any(&[0, 1, 2, -1, i32::MAX])),
                weak_dependency: self.many(|make| make.any(&[0, 1, -1])),
                message_type: self.many(|make| make.message(0)),
                enum_type: self.many(Self::an_enum),
                service: self.many(|make| ServiceDescriptorProto {
                    name: make.name(),
                    method: make.many(|make| MethodDescriptorProto {
                        name: make.name(),
                        input_type: make.type_name(),
                        output_type: make.type_name(),
                        ..MethodDescriptorProto::default()
                    }),
                    options: None,
                }),
                extension: self.many(Self::field),
                options: None,
                source_code_info: None,
                syntax: self.any(&syntaxes).map(str::to_owned),
            }
        }
    }

    /// The descriptors of the API, with all that it imports.
    const REAL: &[u8] = include_bytes!("../../descriptors.bin");

    fn answers(bytes: &[u8]) {
        if let Ok(pool) = link(bytes) {
            check_compatible(&pool, &pool).unwrap();
        }
    }

    proptest! {

        #[test]
        fn any_schema_is_linked_or_refused(
            choices in proptest::collection::vec(any::<u8>(), 0..400),
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut maker = Maker(choices.iter());
            let file = maker.many(Maker::file);
            let mut bytes = FileDescriptorSet { file }.encode_to_vec();
            answers(&bytes);
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            answers(&bytes);
        }

        #[test]
        fn any_change_of_a_good_schema_is_linked_or_refused(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = REAL.to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            answers(&bytes);
        }
    }
}

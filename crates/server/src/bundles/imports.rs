//! The imports of a bundle's files: checked, and spelled out for the linker.
//!
//! A file sees what it imports, and what that imports publicly, and so on. `prost-reflect` (0.16) follows public imports of what it
//! has followed already, and those alone: it misses the third of a chain, and on a file that imports itself it recurses until
//! the stack ends. So each file is given all that it sees as imports of its own, and none is public.

use std::collections::{BTreeSet, HashMap};

use prost_types::FileDescriptorProto;
use tepui_bigtable::error::{Error, Result};

use super::descriptors::bad;
use super::parse::Room;

/// Files that all files of a bundle see together, at most, each counted once for each import through which it is seen: a thousand files that
/// see a hundred each. A chain of public imports has half the square of its length.
const IMPORTS_SEEN_MAX: usize = 100_000;

/// Files of a circle that an error lists.
const LISTED_MAX: usize = 10;

/// A file as others import it.
#[derive(Default)]
struct Node {
    /// The numbers of the files that it imports, and whether it does so publicly.
    imports: Vec<(usize, bool)>,
    importers: Vec<usize>,
    /// How many of its imports come after it still.
    left: usize,
    /// Those that whoever imports it sees too.
    passed_on: BTreeSet<usize>,
}

/// Has each file import all that it sees; `INVALID_ARGUMENT` where one is not there, or they import each other in a circle.
pub(super) fn spell_out(files: &mut [FileDescriptorProto], room: &mut Room) -> Result<()> {
    let names: Vec<_> = files.iter().map(|file| file.name().to_owned()).collect();
    let mut nodes = nodes(files)?;
    let mut seen_count = 0;
    for number in order(&mut nodes, &names)? {
        let (mut sees, mut passed_on) = (BTreeSet::new(), BTreeSet::new());
        let imports = nodes.get(number).map_or(&[][..], |node| &node.imports);
        for (import, is_public) in imports {
            let through = nodes.get(*import).into_iter().flat_map(|node| &node.passed_on);
            for seen in std::iter::once(import).chain(through) {
                seen_count += 1;
                if seen_count > IMPORTS_SEEN_MAX {
                    return Err(bad(format_args!(
                        "its files see more than {IMPORTS_SEEN_MAX} others through what they import: have fewer public imports"
                    )));
                }
                sees.insert(*seen);
                if *is_public {
                    passed_on.insert(*seen);
                }
            }
        }
        for (import, _) in imports {
            sees.remove(import);
        }
        if let Some(file) = files.get_mut(number) {
            for name in sees.into_iter().filter_map(|seen| names.get(seen)) {
                room.take(name.len())?;
                file.dependency.push(name.clone());
            }
            file.public_dependency.clear();
        }
        if let Some(node) = nodes.get_mut(number) {
            node.passed_on = passed_on;
        }
    }
    Ok(())
}

fn nodes(files: &[FileDescriptorProto]) -> Result<Vec<Node>> {
    let mut numbers = HashMap::new();
    for (number, file) in files.iter().enumerate() {
        if numbers.insert(file.name(), number).is_some() {
            return Err(bad(format_args!("two files are named {:?}", file.name())));
        }
    }
    let mut nodes: Vec<Node> = Vec::new();
    nodes.resize_with(files.len(), Node::default);
    for (number, file) in files.iter().enumerate() {
        let places: BTreeSet<_> = file.public_dependency.iter().copied().collect();
        let is_place =
            |place: &i32| usize::try_from(*place).is_ok_and(|i| i < file.dependency.len());
        if let Some(place) = places.iter().find(|place| !is_place(place)) {
            let name = file.name();
            return Err(bad(format_args!(
                "file {name:?} has no import {place}, which it says is public"
            )));
        }
        for (place, import) in (0..).zip(&file.dependency) {
            let imported = *numbers.get(import.as_str()).ok_or_else(|| {
                bad(format_args!(
                    "file {:?} imports {import:?}, which is not there: have protoc add it with --include_imports",
                    file.name()
                ))
            })?;
            if let Some(node) = nodes.get_mut(imported) {
                node.importers.push(number);
            }
            if let Some(node) = nodes.get_mut(number) {
                node.imports.push((imported, places.contains(&place)));
                node.left += 1;
            }
        }
    }
    Ok(nodes)
}

/// The files' numbers, each after those of the files that it imports.
fn order(nodes: &mut [Node], names: &[String]) -> Result<Vec<usize>> {
    let free = nodes.iter().enumerate().filter(|(_, node)| node.left == 0);
    let mut ready: Vec<_> = free.map(|(number, _)| number).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(number) = ready.pop() {
        order.push(number);
        let importers = nodes.get_mut(number).map(|node| std::mem::take(&mut node.importers));
        for importer in importers.unwrap_or_default() {
            let Some(node) = nodes.get_mut(importer) else { continue };
            node.left -= 1;
            if node.left == 0 {
                ready.push(importer);
            }
        }
    }
    if order.len() < nodes.len() {
        return Err(circle(nodes, names));
    }
    Ok(order)
}

/// Those that are left each import one that is left, so that following these leads into a circle.
fn circle(nodes: &[Node], names: &[String]) -> Error {
    let is_left = |number: &usize| nodes.get(*number).is_some_and(|node| node.left > 0);
    let next = |number: usize| {
        let imports = nodes.get(number).into_iter().flat_map(|node| &node.imports);
        imports.map(|(import, _)| *import).find(is_left)
    };
    let mut at = (0..nodes.len()).find(is_left);
    let mut passed = BTreeSet::new();
    while let Some(number) = at.filter(|number| passed.insert(*number)) {
        at = next(number);
    }
    let first = at;
    let mut listed = Vec::new();
    while let Some(number) = at {
        listed.extend(names.get(number).map(|name| format!("{name:?}")));
        if listed.len() > 1 && at == first || listed.len() > LISTED_MAX {
            break;
        }
        at = next(number);
    }
    bad(format_args!(
        "files import each other in a circle, as {}: move what they share into a file that imports none of them",
        listed.join(" imports ")
    ))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use prost_types::field_descriptor_proto::Type;
    use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
    use tepui_bigtable::error::Code;

    use super::super::descriptors::link;
    use super::super::descriptors::tests::field;
    use super::*;

    /// A file of a message that is named as it is, with a field of each of these types.
    fn file(name: &str, imports: &[&str], public: &[i32], types: &[&str]) -> FileDescriptorProto {
        let of = |(number, of): (i32, &&str)| FieldDescriptorProto {
            type_name: Some(format!(".{of}")),
            ..field(&format!("f{number}"), number, Type::Message)
        };
        let message = DescriptorProto {
            name: Some(name.to_owned()),
            field: (1..).zip(types).map(of).collect(),
            ..DescriptorProto::default()
        };
        FileDescriptorProto {
            name: Some(name.to_owned()),
            dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
            public_dependency: public.to_vec(),
            message_type: vec![message],
            ..FileDescriptorProto::default()
        }
    }

    fn bytes(file: Vec<FileDescriptorProto>) -> Vec<u8> {
        FileDescriptorSet { file }.encode_to_vec()
    }

    fn refused(files: Vec<FileDescriptorProto>, says: &str) {
        let error = link(&bytes(files)).unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(says), "{error} has no {says:?}");
    }

    #[test]
    fn files_that_import_themselves_or_each_other_are_refused() {
        // Ten bytes: a file "a" that imports "a" publicly.
        let error = link(b"\x0a\x08\x0a\x01a\x1a\x01a\x50\x00").unwrap_err();
        assert_eq!(error.kind(), Code::InvalidArgument);
        assert!(error.message().contains(r#"as "a" imports "a""#), "{error}");
        for public in [&[][..], &[0]] {
            refused(vec![file("a", &["a"], public, &[])], "circle");
            let both = vec![file("a", &["b"], public, &[]), file("b", &["a"], public, &[])];
            refused(both, r#""a" imports "b" imports "a""#);
        }
        // The file that leads into the circle, and one that it has no part in, are not of it.
        let into = vec![
            file("z", &[], &[], &[]),
            file("y", &["z", "a"], &[], &[]),
            file("a", &["z", "b"], &[], &[]),
            file("b", &["a"], &[], &[]),
        ];
        refused(into, r#"as "a" imports "b" imports "a":"#);
    }

    #[test]
    fn what_is_imported_publicly_is_seen_through_all_who_import_it_and_nothing_else_is() {
        let chain = |of_b: &[i32]| {
            vec![
                file("d", &["c"], &[], &["c", "b", "a", "z"]),
                file("c", &["b"], &[0], &["a"]),
                file("b", &["a"], of_b, &["z"]),
                file("a", &["z"], &[0], &["z"]),
                file("z", &[], &[], &[]),
            ]
        };
        link(&bytes(chain(&[0]))).unwrap();
        refused(chain(&[]), "name 'a' is not defined");
    }

    #[test]
    fn imports_that_are_not_there_are_refused_with_what_to_do() {
        refused(vec![file("a", &["b"], &[], &[])], "--include_imports");
        for place in [-1, 1, i32::MAX] {
            let bad = file("a", &["b"], &[place], &[]);
            refused(vec![bad, file("b", &[], &[], &[])], "no import");
        }
        refused(vec![file("a", &[], &[], &[]), file("a", &[], &[], &[])], "two files");
    }

    /// Files that import each other publicly, each these many before it.
    fn public(count: usize, before: usize) -> Vec<FileDescriptorProto> {
        let name = |n: usize| format!("f{n}");
        let of = |n: usize| {
            let imports: Vec<_> = (n.saturating_sub(before)..n).map(name).collect();
            let imports: Vec<_> = imports.iter().map(String::as_str).collect();
            let all: Vec<_> = (0..).take(imports.len()).collect();
            file(&name(n), &imports, &all, &[])
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn long_chains_and_lattices_of_public_imports_take_neither_stack_nor_time() {
        link(&bytes(public(400, 1))).unwrap();
        link(&bytes(public(50, 20))).unwrap();
        refused(public(50_000, 1), "fewer public imports");
        refused(public(2_000, 10), "fewer public imports");
        // One that lists the whole chain.
        let mut chain = public(400, 1);
        let names: Vec<_> = chain.iter().map(|file| file.name().to_owned()).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        chain.truncate(100);
        chain.push(file("all", &names[..100], &[], &["f0", "f99"]));
        link(&bytes(chain)).unwrap();
    }
}

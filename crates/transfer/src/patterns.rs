//! Which files an import names: patterns and directories, of which nothing that may be meant is left out without a word.
#![expect(clippy::disallowed_methods, reason = "files of an operator, outside of any engine")]

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::{UNFINISHED_SUFFIX, check_name, failed, names_in, of_several, one_of_several};

/// Most files of one import: a glob of the wrong directory is noticed before it is read.
pub const FILES_MAX: usize = 100_000;

/// The files that these names mean: files themselves, patterns (`dir/part-*.avro`), and directories; of what these have,
/// every file but the hidden and the unfinished is meant, and an export that is not whole is an error, as is a directory of
/// which no file is meant, and a name that is not UTF-8. Sorted, each once. What an import writes itself, `own`, is not
/// among them, and cannot be named.
pub fn expand(names: &[String], own: &[&Path]) -> Result<Vec<PathBuf>> {
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    let is_own = |path: &Path| own.iter().any(|own| same(own, path));
    for name in names {
        let path = Path::new(name);
        let (before, directories_before) = (files.len(), directories.len());
        let mut add = |files: &mut Vec<PathBuf>, entry: PathBuf| {
            if is_file(&entry)? {
                files.push(entry);
            } else if entry.is_dir() && !is_hidden_at_its_end(&entry) {
                directories.push((name, entry));
            }
            check_count(files.len().max(directories.len()))
        };
        if path.is_dir() {
            for entry in std::fs::read_dir(path).map_err(|e| failed("read", path, &e))? {
                let entry = entry.map_err(|e| failed("read", path, &e))?.path();
                let hidden = entry.file_name().is_some_and(is_hidden);
                if !hidden && !is_unfinished(&entry) && !is_own(&entry) {
                    check_name(&entry)?;
                    add(&mut files, entry)?;
                }
            }
            check_whole(files.get(before..).unwrap_or_default())?;
        } else if path.exists() {
            if !is_file(path)? {
                // How long it is, and what its first bytes are, would have to be known before it is read, and again after an
                // interruption.
                return Err(Error::failed(format!(
                    "{name} is no regular file, but a pipe or a device: write what comes out of it to a file, and import that"
                )));
            }
            if is_own(path) {
                return Err(Error::failed(format!(
                    "{name} is where this import, or a dry run of it, keeps its progress or sets records aside: name \
                     another file for that with --state or --rejected, or rename this one"
                )));
            }
            if is_unfinished(path) {
                return Err(Error::failed(format!(
                    "{name} is what is there of an unfinished file"
                )));
            }
            files.push(path.to_owned());
        } else {
            let hidden = HiddenFrom::pattern(path);
            let found = glob::glob(name)
                .map_err(|error| Error::failed(format!("pattern {name:?}: {error}")))?;
            for entry in found {
                let entry = entry.map_err(|error| Error::failed(error.to_string()))?;
                if !hidden.has(&entry) && !is_unfinished(&entry) && !is_own(&entry) {
                    add(&mut files, entry)?;
                }
            }
            check_names(path, |entry| {
                !hidden.has(entry) && !is_unfinished(entry) && !is_own(entry)
            })?;
            check_whole(files.get(before..).unwrap_or_default())?;
        }
        // Of the files of a directory below, another name may be.
        if files.len() == before && directories.len() == directories_before {
            return Err(Error::failed(if path.is_dir() {
                format!(
                    "{name}: the directory has no file to import, hidden and unfinished ones apart"
                )
            } else {
                format!("{name}: no such file, and no file matches")
            }));
        }
    }
    check_directories(&directories, &files)?;
    if files.is_empty() {
        return Err(Error::failed(format!("{}: no file there", names.join(" "))));
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// [`check_name`] for what a pattern reaches, which is left out of its findings without a word: as far as it is `meant`, and the pattern fits
/// it with a sign in the place of what is not UTF-8.
fn check_names(pattern: &Path, meant: impl Fn(&Path) -> bool) -> Result<()> {
    for part in pattern.ancestors() {
        let (Some(name), Some(above)) = (part.file_name(), part.parent()) else { continue };
        if !has_wildcards(name) {
            continue;
        }
        let is_any_level = name == "**";
        let needs_directory = is_any_level || part != pattern;
        let name = name.to_string_lossy();
        let fits = glob::Pattern::new(&name)
            .map_err(|error| Error::failed(format!("pattern {name:?}: {error}")))?;
        for directory in reached(if is_any_level { part } else { above })? {
            for found in names_in(&directory)? {
                let is_reached = |path: &Path| !needs_directory || path.is_dir();
                let path = directory.join(&found);
                if found.to_str().is_none()
                    && fits.matches(&found.to_string_lossy())
                    && is_reached(&path)
                    && meant(&path)
                {
                    check_name(&path)?;
                }
            }
        }
    }
    Ok(())
}

/// The directories that a pattern finds, each in its own place.
fn reached(pattern: &Path) -> Result<Vec<PathBuf>> {
    if !components(pattern).any(has_wildcards) {
        let is_here = pattern.as_os_str().is_empty();
        let directory = if is_here { Path::new(".") } else { pattern };
        return Ok(if directory.is_dir() { vec![directory.to_owned()] } else { Vec::new() });
    }
    // At any level is in the directory itself, too.
    let mut directories = match pattern.parent() {
        Some(above) if pattern.ends_with("**") => reached(above)?,
        _ => Vec::new(),
    };
    let failed = |error: &dyn std::fmt::Display| Error::failed(error.to_string());
    let pattern = pattern.to_string_lossy();
    for found in glob::glob(&pattern).map_err(|error| failed(&error))? {
        let found = found.map_err(|error| failed(&error))?;
        if found.is_dir() {
            directories.push(found);
        }
    }
    Ok(directories)
}

/// Whether a name is one that a pattern's findings have other names for.
fn has_wildcards(name: &OsStr) -> bool {
    name.as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether a name that was found is a file's; an error where that cannot be told, as of a link to what is not there: left out
/// without a word, its rows would be missing.
fn is_file(path: &Path) -> Result<bool> {
    path.metadata().map(|found| found.is_file()).map_err(|error| failed("read", path, &error))
}

/// An error where a name finds a directory of which no file is meant: left out without a word, its rows would be missing. What is
/// empty, or the file system's own, has none.
fn check_directories(directories: &[(&String, PathBuf)], files: &[PathBuf]) -> Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    let plain = |path: &Path| components(path).collect::<PathBuf>();
    let files: Vec<PathBuf> = files.iter().map(|file| plain(file)).collect();
    let with_files: HashSet<&Path> = files.iter().flat_map(|file| file.ancestors()).collect();
    for (name, directory) in directories {
        if with_files.contains(plain(directory).as_path()) || has_nothing(directory)? {
            continue;
        }
        let without = directory.display();
        return Err(Error::failed(format!(
            "{name} has a directory, {without}, and what is in that is not imported with it: name the files too, or patterns such \
             as '{without}/*', or move the directory away"
        )));
    }
    Ok(())
}

fn has_nothing(directory: &Path) -> Result<bool> {
    if directory.file_name().is_some_and(|name| name == "lost+found") {
        return Ok(true);
    }
    let mut entries = std::fs::read_dir(directory).map_err(|e| failed("read", directory, &e))?;
    Ok(entries.next().is_none())
}

/// Whether a name is one that tools keep to themselves.
fn is_hidden(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") || name.starts_with(b"_")
}

/// The same for the last name of a path as it is written, which may be `.` or `..`.
fn is_hidden_at_its_end(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b".") || name.starts_with(b"_"))
}

fn is_unfinished(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(UNFINISHED_SUFFIX.as_bytes())
}

/// What a pattern does not mean: what is hidden, unless it names that itself.
struct HiddenFrom {
    /// So many components it names as they are; none where it names what is hidden.
    named: Option<usize>,
}

/// The components of a path; that they begin here, a pattern's findings do not say.
fn components(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter(|part| *part != Component::CurDir).map(Component::as_os_str)
}

impl HiddenFrom {
    fn pattern(pattern: &Path) -> Self {
        let named = components(pattern).take_while(|part| !has_wildcards(part)).count();
        let hides = !components(pattern).skip(named).any(is_hidden);
        Self { named: hides.then_some(named) }
    }

    fn has(&self, found: &Path) -> bool {
        self.named.is_some_and(|named| components(found).skip(named).any(is_hidden))
    }
}

/// An error where files are some of those of an export (`NAME-00001-of-00003.avro`), and others are not there: it was
/// interrupted, or not all of it was copied.
fn check_whole(files: &[PathBuf]) -> Result<()> {
    let mut looked = HashSet::new();
    for path in files {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let Some((before, count, behind)) = of_several(&name) else { continue };
        let directory = path.parent().map(Path::to_owned);
        if !looked.insert((directory, before.to_owned(), count, behind.to_owned())) {
            continue;
        }
        let mut others = (0..count)
            .map(|index| path.with_file_name(one_of_several(before, index, count, behind)));
        if let Some(missing) = others.find(|other| !other.exists()) {
            return Err(Error::failed(format!(
                "{} is not there, which is one of the {count} files with {}: finish the export or the copy, or name those \
                 files that are to be imported without it",
                missing.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

/// Whether two paths lead to one file that is there.
fn same(one: &Path, other: &Path) -> bool {
    // Most differ in their names already, which costs no look at the directory.
    one.file_name() == other.file_name()
        && std::fs::canonicalize(one)
            .is_ok_and(|one| std::fs::canonicalize(other).is_ok_and(|other| one == other))
}

fn check_count(files: usize) -> Result<()> {
    if files > FILES_MAX {
        return Err(Error::failed(format!("more than {FILES_MAX} files: name fewer at once")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_are_files_patterns_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.avro", "a.avro", ".hidden", "_SUCCESS", "c.avro.unfinished"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("_sub")).unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        let both = vec![at("a.avro"), at("b.avro")];
        let whole = [dir.path().to_str().unwrap().to_owned()];
        assert_eq!(expand(&whole, &[]).unwrap(), both);
        assert_eq!(expand(&[name("*.avro"), name("a.avro")], &[]).unwrap(), both);
        for (wrong, why) in [
            ("nothing-*.avro", "no file matches"),
            ("missing.csv", "no file matches"),
            ("_sub", "the directory has no file to import"),
        ] {
            let error = expand(&[name(wrong)], &[]).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = expand(&["/dev/null".to_owned()], &[]).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        assert_eq!(expand(&[name("*")], &[]).unwrap(), both);
        assert_eq!(expand(&[name(".*")], &[]).unwrap(), [at(".hidden")]);
        assert_eq!(expand(&[name("_*"), name(".hidden")], &[]).unwrap().len(), 2);
        for wrong in ["*.unfinished", "c.avro.unfinished"] {
            assert!(expand(&[name(wrong)], &[]).is_err(), "{wrong}");
        }
        #[cfg(unix)]
        {
            // A link to what was not fetched, say: without its rows the import would not be whole.
            std::os::unix::fs::symlink(at("elsewhere"), at("d.avro")).unwrap();
            for names in [whole.to_vec(), vec![name("*.avro")]] {
                let error = expand(&names, &[]).unwrap_err().to_string();
                assert!(error.contains("d.avro"), "{error}");
            }
            std::fs::rename(at("d.avro"), at(".d.avro")).unwrap();
            assert_eq!(expand(&whole, &[]).unwrap(), both);
        }
        // Those of a job that has not ended.
        std::fs::create_dir_all(at("_temporary/0")).unwrap();
        std::fs::write(at("_temporary/0/d.avro"), "x").unwrap();
        assert_eq!(expand(&[name("**/*.avro")], &[]).unwrap(), both);
        assert_eq!(expand(&[name("_temporary/*/*")], &[]).unwrap().len(), 1);
    }

    #[test]
    fn a_directory_whose_files_are_not_named_is_not_left_out_without_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(at("2024/01")).unwrap();
        std::fs::create_dir(at(".git")).unwrap();
        for name in ["a.avro", "2024/b.avro", "2024/01/c.avro", ".git/x"] {
            std::fs::write(at(name), "x").unwrap();
        }
        for (names, without) in [("", "2024"), ("*", "2024"), ("2024", "01"), ("2024/*", "01")] {
            let error = expand(&[name(names)], &[]).unwrap_err().to_string();
            assert!(error.contains(&format!("{without}/*'")), "{error}");
        }
        for names in ["**/*", "**/*.avro"] {
            assert_eq!(expand(&[name(names)], &[]).unwrap().len(), 3, "{names}");
        }
        assert_eq!(expand(&[name("*.avro"), name("*/*.avro")], &[]).unwrap().len(), 2);
        // As the errors advise.
        let with = ["", "2024/*", "2024/01"].map(name);
        assert_eq!(expand(&with, &[]).unwrap().len(), 3);
        for nothing in ["2024/01/empty", "2024/01/lost+found/x"] {
            std::fs::create_dir_all(at(nothing)).unwrap();
        }
        assert_eq!(expand(&[name("2024/01")], &[]).unwrap().len(), 1);
        let error = expand(&[name("2024/01/lost+found")], &[]).unwrap_err().to_string();
        assert!(error.contains("no file there"), "{error}");
        std::fs::remove_file(at("a.avro")).unwrap();
        let with = ["", "2024/*", "2024/01"].map(name);
        assert_eq!(expand(&with, &[]).unwrap().len(), 2);
        let error = expand(&[name(".*")], &[]).unwrap_err().to_string();
        assert!(error.contains("no file matches"), "{error}");
        assert_eq!(expand(&[name("2024/01")], &[]).unwrap(), [at("2024/01/c.avro")]);
    }

    #[test]
    fn a_name_that_is_not_utf_8_is_not_left_out_without_a_word() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &[u8]| dir.path().join(OsStr::from_bytes(name));
        let name = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::create_dir_all(at(b"in/sub")).unwrap();
        for name in [&b"in/a.csv"[..], b"in/sub/b.csv", b"in/caf\xe9.csv"] {
            std::fs::write(at(name), "x").unwrap();
        }
        let refused = |names: &[&str], what: &str| {
            let names: Vec<String> = names.iter().map(|names| name(names)).collect();
            let error = expand(&names, &[]).unwrap_err().to_string();
            assert!(error.contains(what) && error.contains("not UTF-8"), "{names:?}: {error}");
        };
        for names in ["in/*.csv", "*/c*.csv", "in/caf?.csv", "**/*", "in/**/*.csv"] {
            refused(&[names], "in/caf\\xe9.csv");
        }
        refused(&["in", "in/sub"], "in/caf\\xe9.csv");
        for names in ["in/a*.csv", "in/*/*.csv", "in/a.csv", "*/[!c]*.csv", "**/b.csv"] {
            assert_eq!(expand(&[name(names)], &[]).unwrap().len(), 1, "{names}");
        }
        for left_out in [&b"in/.caf\xe9.csv"[..], b"in/caf\xe9.csv.unfinished"] {
            std::fs::rename(at(b"in/caf\xe9.csv"), at(left_out)).unwrap();
            assert_eq!(expand(&["in", "in/sub"].map(&name), &[]).unwrap().len(), 2);
            std::fs::rename(at(left_out), at(b"in/caf\xe9.csv")).unwrap();
        }
        std::fs::remove_file(at(b"in/caf\xe9.csv")).unwrap();
        std::fs::rename(at(b"in/sub"), at(b"in/s\xfcb")).unwrap();
        for names in ["in", "in/*", "in/s*/b.csv", "**/b.csv", "in/**"] {
            refused(&[names], "in/s\\xfcb");
        }
        assert_eq!(expand(&[name("in/*.csv")], &[]).unwrap().len(), 1);
    }

    #[test]
    fn an_export_that_is_not_whole_is_imported_only_file_by_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        let whole =
            ["a-00000-of-00002.avro", "a-00001-of-00002.avro", "b-00007-of-x", "c-of-00002"];
        for name in whole.iter().chain(&["part-00000-of-00003", "part-00002-of-00003"]) {
            std::fs::write(at(name), "x").unwrap();
        }
        for names in [name(""), name("*"), name("part-*"), name("part-0000[2]*")] {
            let error = expand(&[names], &[]).unwrap_err().to_string();
            assert!(error.contains("part-00001-of-00003 is not there"), "{error}");
        }
        // What is picked of a whole one is what is wanted.
        assert_eq!(expand(&[name("a-00001*")], &[]).unwrap().len(), 1);
        assert_eq!(expand(&[name("part-00002-of-00003")], &[]).unwrap().len(), 1);
        std::fs::write(at("part-00001-of-00003"), "x").unwrap();
        assert_eq!(expand(&[name("")], &[]).unwrap().len(), 7);
    }

    #[test]
    fn what_an_import_writes_is_not_what_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["a.csv", "t.import.json", "t.rejected.jsonl"] {
            std::fs::write(at(name), "x").unwrap();
        }
        // The same file by another name.
        let state = at(".sub/../t.import.json");
        std::fs::create_dir(at(".sub")).unwrap();
        let rejected = at("t.rejected.jsonl");
        let own = [state.as_path(), rejected.as_path()];
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        for names in [text(dir.path().to_owned()), text(at("*.*"))] {
            assert_eq!(expand(&[names], &own).unwrap(), [at("a.csv")]);
        }
        let error = expand(&[text(rejected.clone())], &own).unwrap_err().to_string();
        assert!(error.contains("--rejected"), "{error}");
    }
}

//! What an export has on disk: its state, and files that are named as its own, whole ones and others.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::Target;
use crate::error::{Error, Result};
use crate::export::{Export, Selection, Summary};
use crate::files;
use crate::format::Format;
use crate::format::csv::{Column, Timestamps};
use crate::scan::Range;

/// What a file's hidden name ends with.
const HIDDEN_SUFFIX: &str = ".new";
/// Of the state's layout.
pub const VERSION: u32 = 2;

/// A file and its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub range: Range,
    /// Once it is whole: rows, cells, and bytes of the file.
    pub done: Option<(u64, u64, u64)>,
    /// Then: cells without a place in it.
    #[serde(default)]
    pub left_out: u64,
}

impl Shard {
    fn counts(&self) -> [u64; 4] {
        let (rows, cells, bytes) = self.done.unwrap_or_default();
        [rows, cells, bytes, self.left_out]
    }
}

/// The state of an export, beside its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    pub version: u32,
    /// The server's address.
    #[serde(default)]
    pub server: String,
    pub table: String,
    /// What tells the table from a later one of its name, where the server gives such a token.
    #[serde(default)]
    pub token: Option<String>,
    pub format: Format,
    pub selection: Selection,
    pub timestamps: Timestamps,
    pub columns: Vec<Column>,
    /// Whether somebody has named them, and misses no others. Exports that were begun before this was kept do not say.
    #[serde(default)]
    pub columns_named: Option<bool>,
    pub shards: Vec<Shard>,
    /// There is an earlier export: files are hidden until all of them are whole.
    #[serde(default)]
    pub replaces: bool,
    /// They are, and take their names: the earlier files are going.
    #[serde(default)]
    pub placing: bool,
    /// An export that was to begin in its place may not have: nobody goes on with this one.
    #[serde(default)]
    pub given_up: bool,
}

impl State {
    /// The name of a file.
    fn file(&self, output: &Path, index: usize) -> PathBuf {
        file_path(output, self.format, index, self.shards.len())
    }

    /// Where a file is written.
    pub fn written(&self, output: &Path, index: usize) -> PathBuf {
        let path = self.file(output, index);
        if self.replaces { hidden(&path) } else { path }
    }

    /// Whether a file is whole.
    pub fn is_whole(&self, output: &Path, index: usize) -> bool {
        let Some(Shard { done: Some(_), .. }) = self.shards.get(index) else { return false };
        files::exists(&self.written(output, index))
            || (self.placing && files::exists(&self.file(output, index)))
    }
}

/// What a file is called until all of its export are whole.
fn hidden(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    path.with_file_name(format!(".{name}{HIDDEN_SUFFIX}"))
}

pub fn state_path(output: &Path) -> PathBuf {
    let name = output.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    output.with_file_name(format!(".{name}.export.json"))
}

/// The path of a file of so many.
fn file_path(output: &Path, format: Format, index: usize, count: usize) -> PathBuf {
    let name = output.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    output.with_file_name(files::one_of_several(&name, index, count, format.suffix()))
}

pub fn save(path: &Path, state: &State) -> Result<()> {
    let text = serde_json::to_vec_pretty(state).map_err(|e| Error::failed(format!("JSON: {e}")))?;
    files::replace(path, &text)
}

/// Removes those that are files, or links to some.
pub fn remove_regular(paths: Vec<PathBuf>) -> Result<()> {
    paths.iter().filter(|path| files::is_regular(path)).try_for_each(|path| files::remove(path))
}

/// Gives an export's files their names, those of an earlier one being gone by then. What was done of that before a crash
/// stays done: a file that is not hidden any more has its name.
pub fn place(output: &Path, state: &State) -> Result<()> {
    let whole = (0..state.shards.len()).map(|index| state.file(output, index));
    let (waiting, placed): (Vec<_>, Vec<_>) = whole.partition(|path| files::exists(&hidden(path)));
    let placed: HashSet<PathBuf> = placed.into_iter().collect();
    let mut earlier = named(output, "", "")?;
    earlier.retain(|path| !placed.contains(path));
    remove_regular(earlier)?;
    files::sync_parent(output)?;
    waiting.iter().try_for_each(|path| files::rename(&hidden(path), path))?;
    files::sync_parent(output)
}

/// The state that an interrupted export left, where it is of the same export.
pub fn resumed(export: &Export, text: &str) -> Result<State> {
    let differs = |what: &str| {
        Err(Error::failed(format!("the export was begun with {what}; --overwrite begins anew")))
    };
    let state: State = serde_json::from_str(text)
        .map_err(|error| Error::failed(format!("{error}; --overwrite begins anew")))?;
    if state.version != VERSION {
        return differs("another version of this program");
    } else if state.given_up {
        return Err(Error::failed(
            "the export was given up for a new one, which ended before it was begun: --overwrite begins anew",
        ));
    } else if !crate::leaves_room(state.shards.iter().flat_map(Shard::counts)) {
        return differs("numbers that no export has");
    } else if state.server != export.target.address() {
        return Err(Error::failed(format!(
            "the export was begun from {0}: go on with --endpoint {0}, or begin anew with --overwrite",
            state.server
        )));
    } else if state.table != export.target.table_name() {
        return differs(&format!("table {}", state.table));
    } else if state.format != export.format {
        return differs("another format");
    } else if state.selection != export.selection || state.timestamps != export.timestamps {
        return differs("another selection");
    } else if !export.columns.is_empty() && state.columns != export.columns {
        return differs("other columns");
    } else if export.files.is_some_and(|files| files < state.shards.len()) {
        return differs("another number of files");
    }
    Ok(state)
}

/// Goes on with an export of which this is the state, for fuzzing: as far as that touches no file and asks no server.
pub fn fuzz(text: &str) {
    let Ok(begun) = serde_json::from_str::<State>(text) else { return };
    let written = serde_json::to_string_pretty(&begun).unwrap_or_default();
    let again = serde_json::from_str::<State>(&written).ok();
    assert_eq!(again.as_ref(), Some(&begun), "what is written is read");
    let export = as_begun(&begun);
    for index in 0..begun.shards.len() {
        // What takes its name where an export is at that.
        let _ = hidden(&begun.file(&export.output, index));
    }
    if let Ok(state) = resumed(&export, text) {
        let _ = Summary::of(&state.shards);
    }
}

/// The export of a state, of the table `projects/p/instances/i/tables/t`.
fn as_begun(state: &State) -> Export {
    let target = Target {
        endpoint: state.server.clone(),
        project: "p".to_owned(),
        instance: "i".to_owned(),
        table: "t".to_owned(),
        app_profile: String::new(),
    };
    Export {
        target,
        selection: state.selection.clone(),
        format: state.format,
        output: PathBuf::from("part"),
        files: None,
        workers: 1,
        columns: Vec::new(),
        timestamps: state.timestamps,
        resume: true,
        overwrite: false,
        retry_for: Duration::ZERO,
    }
}

/// Whether it would go on with that.
#[cfg(test)]
pub fn is_good(text: &str) -> bool {
    let begun = serde_json::from_str::<State>(text);
    begun.is_ok_and(|begun| resumed(&as_begun(&begun), text).is_ok())
}

/// The files that are named as those of an export, whatever their number and format, with something before and behind.
fn named(output: &Path, before: &str, behind: &str) -> Result<Vec<PathBuf>> {
    let name = output.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let first = format!("{before}{name}");
    let directory = output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut found = files::names_in(directory.unwrap_or(Path::new(".")))?;
    found.retain(|found| {
        let is_of = |format: Format| {
            let last = format!("{}{behind}", format.suffix());
            files::is_one_of_several(found, &first, &last)
        };
        Format::EXPORTED.into_iter().any(is_of)
    });
    found.sort();
    Ok(found.into_iter().map(|name| output.with_file_name(name)).collect())
}

/// The files of an earlier export, which are to be replaced: with another number of files, or in another format, they would
/// stand beside the new ones. An error where there are some and they are to stay, or where something else has such a name: it
/// would be in the way of a file, and is nobody's to remove.
pub fn earlier_files(export: &Export) -> Result<Vec<PathBuf>> {
    let earlier = named(&export.output, "", "")?;
    if let Some(path) = earlier.iter().find(|path| !files::is_regular(path)) {
        return Err(Error::failed(format!(
            "{} is no file and has the name of one of an export: choose another name, or move it away",
            path.display()
        )));
    }
    match earlier.first() {
        Some(path) if !export.overwrite => Err(Error::failed(format!(
            "{} exists: choose another name, or give --overwrite to replace the earlier files",
            path.display()
        ))),
        _ => Ok(earlier),
    }
}

/// What interrupted exports left that is of no use to a new one, in any format.
pub fn unfinished_files(export: &Export) -> Result<Vec<PathBuf>> {
    let output = &export.output;
    let mut unfinished = named(output, "", files::UNFINISHED_SUFFIX)?;
    for behind in [HIDDEN_SUFFIX.to_owned(), format!("{HIDDEN_SUFFIX}{}", files::UNFINISHED_SUFFIX)]
    {
        unfinished.extend(named(output, ".", &behind)?);
    }
    Ok(unfinished)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_are_those_of_the_templates() {
        let path = file_path(Path::new("out/part"), Format::Avro, 2, 15);
        assert_eq!(path, Path::new("out/part-00002-of-00015.avro"));
        let path = file_path(Path::new("part"), Format::SequenceFile, 0, 1);
        assert_eq!(path, Path::new("part-00000-of-00001"));
        assert_eq!(state_path(Path::new("out/part")), Path::new("out/.part.export.json"));
    }

    #[test]
    fn the_files_of_an_export_are_found_whatever_the_directory_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let within = dir.path().join(OsStr::from_bytes(b"caf\xe9 [1]"));
        let output = within.join("a*");
        let of_it = ["a*-00000-of-00001", "a*-00000-of-00002.avro", "a*-00001-of-00002.csv"];
        let others = ["a*-0000-of-00001", "ab-00000-of-00001", "a*-00000-of-00001.txt", "a*"];
        let hidden = [".a*-00000-of-00001.avro.new", "a*-00000-of-00001.avro.unfinished"];
        files::make_parent(&output).unwrap();
        for name in of_it.iter().chain(&others).chain(&hidden) {
            files::replace(&within.join(name), b"").unwrap();
        }
        assert_eq!(named(&output, "", "").unwrap(), of_it.map(|name| within.join(name)));
        assert_eq!(named(&output, ".", ".new").unwrap(), [within.join(hidden[0])]);
        assert_eq!(named(&output, "", ".unfinished").unwrap(), [within.join(hidden[1])]);
    }
}

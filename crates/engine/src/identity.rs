//! The directory's own format number, so that a future format is refused by name and not by accident.
//!
//! ```text
//! IDENTITY:  "tepui-data\n" "format 1\n" xxh3 of both lines as 16 hex digits "\n"
//! ```

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, ErrorKind, Result};
use crate::io::Env;
use crate::layout::Layout;
use crate::log::record::ADVICE;

/// The format of directories that this version writes and reads.
pub const DIRECTORY_FORMAT: u32 = 1;

/// Bytes of an identity file that are looked at: it has under 50.
const IDENTITY_BYTES_MAX: u64 = 256;

fn text(format: u32) -> String {
    let lines = format!("tepui-data\nformat {format}\n");
    let sum = xxh3_64(lines.as_bytes());
    format!("{lines}{sum:016x}\n")
}

/// Checks the directory's format, or writes it into a new directory. A directory that has files of
/// ours but no identity is refused: it is damaged or half copied.
pub(crate) fn check_or_create(env: &Env, layout: &Layout) -> Result<()> {
    let path = layout.identity();
    if !env.files.exists(&path)? {
        let files = env.files.as_ref();
        let has_data = files.exists(&layout.log())?
            || files.exists(&layout.meta())?
            || layout.first_data(files)?.is_some();
        if has_data {
            return Err(Error::corruption(
                path.display(),
                0,
                format_args!("the file is missing although the directory holds data; {ADVICE}"),
            ));
        }
        return write(env, layout);
    }
    check(env, layout)
}

/// Writes the identity, in place of what is there.
pub(crate) fn write(env: &Env, layout: &Layout) -> Result<()> {
    let path = layout.identity();
    // Written beside and renamed, so that a crash leaves a whole file or none.
    let draft = path.with_extension("new");
    if env.files.exists(&draft)? {
        env.files.remove(&draft)?;
    }
    let mut file = env.files.create(&draft)?;
    file.append(text(DIRECTORY_FORMAT).as_bytes())?;
    file.sync()?;
    env.files.rename(&draft, &path)?;
    env.files.sync_dir(layout.root())
}

/// Checks the format of an existing directory.
pub(crate) fn check(env: &Env, layout: &Layout) -> Result<()> {
    let path = layout.identity();
    let file = env.files.open(&path)?;
    let len = file.len()?;
    if len > IDENTITY_BYTES_MAX {
        let what = format_args!("the file is too long; {ADVICE}");
        return Err(Error::corruption(path.display(), 0, what));
    }
    check_content(&path, &file.read_at(0, len as usize)?)
}

/// Checks what the file has.
fn check_content(path: &Path, bytes: &[u8]) -> Result<()> {
    let content = String::from_utf8_lossy(bytes);
    let format = content
        .strip_prefix("tepui-data\nformat ")
        .and_then(|rest| rest.split('\n').next())
        .and_then(|number| number.parse::<u32>().ok());
    match format {
        Some(format) if content == text(format) => {
            if format == DIRECTORY_FORMAT {
                return Ok(());
            }
            Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{} says format {format}, and this version of tepui knows format \
                     {DIRECTORY_FORMAT}: use the version that wrote it",
                    path.display()
                ),
            ))
        }
        _ => {
            let what = format_args!("not a tepui data directory's identity; {ADVICE}");
            Err(Error::corruption(path.display(), 0, what))
        }
    }
}

/// Checks any bytes, and what they make behind the first line under a sum that holds, for fuzzing.
pub(crate) fn fuzz(data: &[u8]) {
    let path = Path::new("IDENTITY");
    let mut sealed = [&b"tepui-data\nformat "[..], data, b"\n"].concat();
    let sum = xxh3_64(&sealed);
    sealed.extend_from_slice(format!("{sum:016x}\n").as_bytes());
    for bytes in [data, &sealed[..]] {
        if check_content(path, bytes).is_ok() {
            assert_eq!(bytes, text(DIRECTORY_FORMAT).as_bytes(), "one format is written one way");
        }
    }
}

//! What a program says on its standard output and error. Nobody may be left to read it, as behind `| head`, which is no reason
//! to panic, nor to lose what is written to files.

use std::io::{Write, stderr, stdout};

use crate::error::{Error, Result};

/// Writes a text to the standard output, which is what the program is for; an error where it cannot be written.
pub fn show(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::failed(format!("standard output: {error}")))
}

/// Says a line on the standard output, of a program that goes on whether or not that is read.
pub fn say(line: &str) {
    drop(writeln!(stdout(), "{line}"));
}

/// Says a line on the standard error.
pub fn complain(line: &str) {
    drop(writeln!(stderr(), "{line}"));
}

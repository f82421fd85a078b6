//! What `tepui import` and `tepui export` share: the table at the other end, formats, the bar, and exit codes.
//!
//! | code | meaning                                                            |
//! | ---- | ------------------------------------------------------------------ |
//! | 0    | everything is done, also where nobody could be told                |
//! | 1    | it failed; what is done is kept, and `--resume` goes on            |
//! | 2    | the command line is wrong (from clap)                              |
//! | 3    | an import is done, but for rejected records                        |
//! | 130  | interrupted; what is done is kept, and `--resume` goes on          |

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tepui_bench::{interrupt, output};
use tepui_transfer::client::{Stop, Target};
use tepui_transfer::error::{Error, ErrorKind, Result};
use tepui_transfer::format;
use tepui_transfer::format::csv;

use crate::config;

/// The variable by which all clients find a server, and where one is without.
const ENDPOINT_VARIABLE: &str = "BIGTABLE_EMULATOR_HOST";
const ENDPOINT_DEFAULT: &str = "127.0.0.1:8086";

/// The exit code of an import that set records aside.
pub const EXIT_REJECTED: u8 = 3;

/// Where the table is.
#[derive(Debug, Clone, clap::Args)]
pub struct TableArgs {
    /// The server, HOST:PORT, without TLS [env: BIGTABLE_EMULATOR_HOST] [default: 127.0.0.1:8086]
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// The project's id
    #[arg(long, value_name = "ID")]
    project: String,
    /// The instance's id
    #[arg(long, value_name = "ID")]
    instance: String,
    /// The table's id
    #[arg(long, value_name = "ID")]
    table: String,
    /// The app profile to go by [default: the instance's]
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ID")]
    app_profile: String,
    /// Seconds that the server may be away or overloaded before this gives up
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    retry_seconds: u64,
}

impl TableArgs {
    fn endpoint(&self) -> String {
        // What is not UTF-8 names no host, and is refused as it is.
        let named = || Some(config::variable(ENDPOINT_VARIABLE)?.to_string_lossy().into_owned());
        self.endpoint.clone().or_else(named).unwrap_or_else(|| ENDPOINT_DEFAULT.to_owned())
    }

    pub fn target(&self) -> Target {
        Target {
            endpoint: self.endpoint(),
            project: self.project.clone(),
            instance: self.instance.clone(),
            table: self.table.clone(),
            app_profile: self.app_profile.clone(),
        }
    }

    pub fn retry_for(&self) -> Duration {
        Duration::from_secs(self.retry_seconds)
    }

    /// The table's id as a part of a file's name.
    pub fn table(&self) -> &str {
        &self.table
    }
}

/// A format on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Csv,
    Avro,
    Parquet,
    #[value(name = "sequencefile")]
    SequenceFile,
    /// What an import set aside, for another import
    Rejected,
}

impl From<Format> for format::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Csv => Self::Csv,
            Format::Avro => Self::Avro,
            Format::Parquet => Self::Parquet,
            Format::SequenceFile => Self::SequenceFile,
            Format::Rejected => Self::Rejected,
        }
    }
}

/// Where CSV has its timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    /// Nowhere: cells get the time of the import
    Now,
    /// In the values: VALUE@MICROSECONDS
    ValueEncoded,
}

impl From<Timestamps> for csv::Timestamps {
    fn from(timestamps: Timestamps) -> Self {
        match timestamps {
            Timestamps::Now => Self::Now,
            Timestamps::ValueEncoded => Self::ValueEncoded,
        }
    }
}

/// A bar on standard error, where that is a terminal.
pub fn bar(what: &'static str, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What the first signal stops.
pub fn stop_on_signal() -> Result<Stop> {
    let stop = Stop::default();
    let stopping = stop.clone();
    interrupt::on_signal(move || stopping.stop())
        .map_err(|error| Error::failed(error.to_string()))?;
    Ok(stop)
}

/// Says what came of it; the exit code.
pub fn end(outcome: Result<(String, ExitCode)>, resume: &str) -> ExitCode {
    match outcome {
        Ok((text, code)) => {
            // It is done all the same: another exit code would have it done again.
            if let Err(error) = output::show(&text) {
                output::complain(&format!("tepui: {error}: {}", text.trim_end()));
            }
            code
        }
        Err(error) => {
            output::complain(&format!("tepui: {error}"));
            if error.kind() == ErrorKind::Interrupted {
                output::complain(&format!("tepui: {resume}"));
                return ExitCode::from(interrupt::EXIT_INTERRUPTED as u8);
            }
            ExitCode::FAILURE
        }
    }
}

/// Bytes as a person reads them.
pub fn human(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Bytes written as text with the escapes `\xNN`, `\\`, `\n`, `\r`, `\t`: keys and qualifiers on a command line.
pub fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let escaped = match rest.next() {
            Some(b'\\') => b'\\',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                let pair = (digit(rest.next()), digit(rest.next()));
                let (Some(high), Some(low)) = pair else {
                    return Err(format!("{text:?}: \\x takes two hexadecimal digits"));
                };
                (high * 16 + low) as u8
            }
            _ => return Err(format!("{text:?}: write a backslash as \\\\")),
        };
        bytes.push(escaped);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_can_be_written_on_a_command_line() {
        assert_eq!(unescape(r"a\x00\xfF\\\n#ü").unwrap(), b"a\x00\xff\\\n#\xc3\xbc");
        for wrong in [r"\", r"\x", r"\x1", r"\xg0", r"\q"] {
            assert!(unescape(wrong).is_err(), "{wrong}");
        }
    }
}

//! Structured logs on stderr.

use std::io::IsTerminal as _;

use tepui_bigtable::error::{Error, Result};
use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Sends logs to stderr from now on. `level` is a level (`info`) or a filter by module
/// (`info,tepui_engine=debug`). Fails where the level is none, or logging was set up before.
pub fn init(format: LogFormat, level: &str) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let done = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    done.map_err(|error| Error::internal(format!("cannot set up logging: {error}")))
}

/// Parses a level, for [`init`] and for checking a configuration.
pub fn filter(level: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(level)
        .map_err(|error| Error::invalid_argument(format!("{level:?}: {error}")))
}

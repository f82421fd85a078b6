//! Structured logs on stderr.

use std::io::IsTerminal as _;

use tepui_bigtable::error::{Error, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Sends logs to stderr from now on. `level` is a level (`info`) or a filter by module
/// (`info,tepui_engine=debug`). Fails where the level is none, or logging was set up before. A line that stderr does not take is
/// lost: its pipe may be closed, and what was to be told of is done all the same.
pub fn init(format: LogFormat, level: &str) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(std::io::stderr)
        // Errors would be told by `eprintln!`, which panics where stderr takes nothing.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal());
    let done = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    done.map_err(|error| Error::internal(format!("cannot set up logging: {error}")))
}

/// Parses a level, for [`init`] and for checking a configuration. A word alone is a level: the parser takes any other for a module
/// that is logged, and all others for silent.
pub fn filter(level: &str) -> Result<EnvFilter> {
    let is_known = |part: &str| part.contains(['=', '[']) || part.parse::<LevelFilter>().is_ok();
    if let Some(part) = level.split(',').find(|part| !is_known(part)) {
        return Err(Error::invalid_argument(format!(
            "{level:?}: {part:?} is no level (off, error, warn, info, debug or trace) and no MODULE=LEVEL"
        )));
    }
    EnvFilter::try_new(level)
        .map_err(|error| Error::invalid_argument(format!("{level:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused_by_its_name() {
        for (level, wrong) in [
            ("warning", "warning"),
            ("inof", "inof"),
            ("info,debgu", "debgu"),
            // It would be that of a module whose name begins with a blank.
            ("info, warn", " warn"),
        ] {
            let error = filter(level).unwrap_err();
            assert!(error.message().contains(&format!("{wrong:?} is no level")), "{error}");
        }
        assert!(filter("tepui_engine=inof").is_err());
        for level in ["info", "WARN", "off", "info,tepui_engine=debug", "info,[scan]=trace"] {
            assert!(filter(level).is_ok(), "{level}");
        }
    }
}

//! The configuration as the command line sees it: which file is read, and `tepui config check`.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use tepui_bench::output;
use tepui_bigtable::error::{Error, Result};
use tepui_server::config::{self, Effective, Inputs};
use tepui_server::metrics::process;

/// `tepui config ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Prints every key's value and where it comes from; fails where something is wrong
    Check {
        /// A TOML file [env: TEPUI_CONFIG]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Say below each key what it is
        #[arg(long)]
        explain: bool,
    },
}

/// Runs the command.
pub fn run(command: &Command) -> Result<()> {
    let Command::Check { config, explain } = command;
    let effective = load(config.as_ref(), Vec::new())?;
    let mut out = std::io::stdout().lock();
    let table = table(&effective, *explain);
    let written = out.write_all(table.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Error::internal(format!("stdout: {error}")))?;
    for warning in &effective.warnings {
        output::complain(&format!("tepui: warning: {warning}"));
    }
    Ok(())
}

/// A variable of the environment that stands for a flag. An empty one is none: files that set variables for containers often have such.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The configuration from a file, the environment and flags (key, flag, value).
pub fn load(
    file: Option<&PathBuf>,
    flags: Vec<(&'static str, &'static str, String)>,
) -> Result<Effective> {
    let file = file.cloned().or_else(|| variable(config::ENV_FILE).map(PathBuf::from));
    let file = file.map(config::read_file).transpose()?;
    let env = environment(std::env::vars_os())?;
    let machine_bytes = process::memory_limit_bytes();
    let processors = process::processors();
    config::resolve(&Inputs { file, env, flags, machine_bytes, processors })
}

/// The variables that may be of the configuration, but for empty ones, which are none (see [`variable`]). One of these that is not UTF-8 is an
/// error: made into text, it would name another directory than was meant.
fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>> {
    let named = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let ours = named.filter(|(name, value)| {
        name.starts_with(config::ENV_PREFIX) && name != config::ENV_FILE && !value.is_empty()
    });
    ours.map(|(name, value)| match value.into_string() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(Error::invalid_argument(format!("${name} is not UTF-8"))),
    })
    .collect()
}

/// One line for each key: name, value, source; below it what the key is, where that is wanted.
fn table(effective: &Effective, explain: bool) -> String {
    let width = |column: fn(&config::Setting) -> usize| {
        effective.settings.iter().map(column).max().unwrap_or(0)
    };
    let (names, values) = (width(|s| s.key.name.len()), width(|s| s.value.len()));
    let line = |s: &config::Setting| {
        let about = if explain { format!("    {}\n", s.key.about) } else { String::new() };
        format!("{:names$}  {:values$}  ({})\n{about}", s.key.name, s.value, s.source)
    };
    effective.settings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_leaves_its_key_as_it_would_be_without() {
        let variables = [("TEPUI_LOGGING_LEVEL", ""), ("TEPUI_DATA", "d"), ("HOME", "/")];
        let env =
            environment(variables.map(|(name, value)| (name.into(), value.into())).into_iter());
        assert_eq!(env.unwrap(), [("TEPUI_DATA".to_owned(), "d".to_owned())]);
    }

    #[test]
    fn the_table_has_a_line_for_each_key_with_its_source() {
        let inputs = Inputs {
            flags: vec![("listen", "--listen", "127.0.0.1:1".to_owned())],
            ..Inputs::default()
        };
        let effective = config::resolve(&inputs).unwrap();
        let explained = super::table(&effective, true);
        assert_eq!(explained.lines().count(), 2 * config::KEYS.len());
        assert!(explained.contains("\n    HOST:PORT to listen on; port 0 takes a free one\n"));
        let table = table(&effective, false);
        assert_eq!(table.lines().count(), config::KEYS.len());
        let listen = table.lines().find(|line| line.starts_with("listen ")).unwrap();
        assert!(listen.contains("127.0.0.1:1") && listen.ends_with("(--listen)"), "{listen}");
        assert!(table.lines().any(|line| line.starts_with("data ") && line.ends_with("(default)")));
    }
}

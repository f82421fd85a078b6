//! `tepui inspect`: what is in a file.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::error::{Error as EngineError, ErrorKind};
use tepui_engine::io::LocalFiles;
use tepui_engine::offline::inspect::{self, Line};

/// `tepui inspect ...`
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// An SST: properties, levels of the index, filters
    Sst {
        #[command(flatten)]
        file: File,
        /// Every record too
        #[arg(long)]
        records: bool,
    },
    /// A value file: how much is in it. Its values are found from SSTs
    Value {
        #[command(flatten)]
        file: File,
    },
    /// A segment of the commit log: every record, and how it ends
    Log {
        #[command(flatten)]
        file: File,
    },
    /// A tablet's manifest: every edit, and the version that they make. Or a file of the meta store, or a
    /// backup
    Manifest {
        #[command(flatten)]
        file: File,
    },
}

/// Which file, and how to show it.
#[derive(Debug, clap::Args)]
pub struct File {
    /// The file; it may be in use
    #[arg(value_name = "FILE")]
    path: PathBuf,
    /// For programs: one JSON object on each line
    #[arg(long)]
    json: bool,
}

/// Runs the command. Damage is an error, after everything was printed.
pub fn run(command: &Command) -> Result<()> {
    let (Command::Sst { file, .. }
    | Command::Value { file }
    | Command::Log { file }
    | Command::Manifest { file }) = command;
    let mut out = BufWriter::new(std::io::stdout().lock());
    // Who pipes into `head` has seen enough: that is an end, not an error.
    let mut closed = false;
    let mut print = |line: Line| {
        let written = if file.json {
            serde_json::to_writer(&mut out, &line)
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
        } else {
            writeln!(out, "{line}")
        };
        written.map_err(|error| {
            closed = error.kind() == std::io::ErrorKind::BrokenPipe;
            EngineError::io("stdout", &error)
        })
    };
    let shown = match command {
        Command::Sst { file, records } => {
            inspect::sst(&LocalFiles::default(), &file.path, *records, &mut print)
        }
        Command::Value { file } => {
            inspect::value_file(&LocalFiles::default(), &file.path, &mut print)
        }
        Command::Log { file } => inspect::log(&LocalFiles::default(), &file.path, &mut print),
        Command::Manifest { file } => {
            inspect::manifest(&LocalFiles::default(), &file.path, &mut print)
        }
    };
    if closed {
        return Ok(());
    }
    // Nobody may want to read the end; what was found counts all the same.
    if let Err(error) = out.flush()
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(Error::internal(format!("stdout: {error}")));
    }
    if shown? {
        return Ok(());
    }
    let text = format!("{}: damaged, as shown", file.path.display());
    Err(EngineError::new(ErrorKind::Corruption, text).into())
}

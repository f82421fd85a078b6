//! `bench-servers-peers`: YCSB on Tepui's server beside Cassandra and HBase, each a process of its own that syncs every
//! write before it answers, one at a time in turns: a line for each workload and peer.
//!
//! * [`tepui`], [`cassandra`], [`hbase`]: the servers with their clients; [`shape`] is what all are asked for alike.

mod cassandra;
mod hbase;
mod shape;
mod tepui;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use tepui_bench::bars::{Bar, Line, Verdicts, exit_code};
use tepui_bench::child::Child;
use tepui_bench::contest::{self, Contest, Entrant, Report};
use tepui_bench::counters::Machine;
use tepui_bench::files::Files;
use tepui_bench::{Dataset, Error, Limit, OpKind, Progress, Result, Store, Workload, interrupt};

use crate::shape::{CONNECTIONS, IN_FLIGHT, THREADS};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUP: &str = "peers";
/// Seconds that a server may take to come up: a JVM on a busy machine.
const START_SECONDS: u32 = 180;
/// The heaps: ten times the rows of a short run, so that collections are rare, and two of them fit a small machine.
const HEAP: &str = "4g";

/// A server to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    Cassandra,
    Hbase,
}

/// YCSB on Tepui's server beside Cassandra and HBase: prints a line for each workload and peer, and exits with 1 when one
/// of them is short.
#[derive(Debug, Parser)]
#[command(name = "bench-servers-peers", version)]
struct Args {
    /// Directory of all data, on the device under test; it must not exist, and is removed at the end
    #[arg(long, default_value = "bench-servers-peers-data")]
    dir: PathBuf,
    /// The `tepui` binary
    #[arg(long, env = "TEPUI")]
    tepui: PathBuf,
    /// A file with the class path of Cassandra
    #[arg(long, env = "CASSANDRA_CLASSPATH")]
    cassandra: PathBuf,
    /// A file with the class path of HBase
    #[arg(long, env = "HBASE_CLASSPATH")]
    hbase: PathBuf,
    /// Rows, each of ten columns of 100 bytes
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Rounds of each workload; a figure is the median of its rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of a run in a round
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Seconds of each workload on each server before anything is measured: a JVM compiles what is called often
    #[arg(long, default_value_t = 6.0)]
    warm_up: f64,
    /// Only these peers, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<Peer>,
    /// Write everything as JSON to this file
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the bars, and every contest, as tables of Markdown to this file
    #[arg(long)]
    markdown: Option<PathBuf>,
}

/// The jars of a server.
struct Jvm {
    jars: Vec<String>,
    /// How the name of the jar begins that has the server's version.
    main: &'static str,
}

impl Jvm {
    fn read(file: &Path, main: &'static str) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|e| failed(file, &e))?;
        Ok(Self { jars: text.trim().split(':').map(str::to_owned).collect(), main })
    }

    fn classpath(&self) -> String {
        self.jars.join(":")
    }

    /// The path of the jar whose name begins so.
    fn jar(&self, start: &str) -> Result<&str> {
        let named = |jar: &&String| file_name(jar).starts_with(start);
        self.jars
            .iter()
            .find(named)
            .map(String::as_str)
            .ok_or_else(|| Error::failed(format!("no jar of the class path is called {start}*")))
    }

    /// The server's version, by the name of its jar.
    fn version(&self) -> &str {
        let name = self.jar(self.main).map_or("", file_name);
        name.strip_prefix(self.main).and_then(|rest| rest.strip_suffix(".jar")).unwrap_or("")
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Fills in the names in braces.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

/// Writes a file, with the directories above it.
fn write(file: &Path, text: &str) -> Result<()> {
    let dir = file.parent().unwrap_or(file);
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(file, text))
        .map_err(|e| failed(file, &e))
}

fn failed(what: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("{}: {error}", what.display()))
}

fn main() -> ExitCode {
    let args = Args::parse();
    let progress = Progress::visible();
    let stopped = progress.clone();
    exit_code(interrupt::on_signal(move || stopped.stop()).and_then(|()| run(&args, &progress)))
}

impl Args {
    fn takes_part(&self, peer: Peer) -> bool {
        self.only.is_empty() || self.only.contains(&peer)
    }
}

/// Runs the contest; how many bars are short.
fn run(args: &Args, progress: &Progress) -> Result<usize> {
    let positive = |seconds: f64| seconds.is_finite() && seconds > 0.0;
    if args.rounds == 0 || !positive(args.seconds) || !positive(args.warm_up) {
        return Err(Error::failed("no rounds, or no seconds: nothing would be measured"));
    }
    let files = Files::new(args.json.as_deref(), args.markdown.as_deref())?;
    std::fs::create_dir(&args.dir).map_err(|e| failed(&args.dir, &e))?;
    let mut report = Report {
        verdicts: Verdicts {
            machine: Machine::here(&args.dir),
            settings: Vec::new(),
            lines: Vec::new(),
        },
        runs: Vec::new(),
    };
    let measured = args
        .dir
        .canonicalize()
        .map_err(|e| failed(&args.dir, &e))
        .and_then(|dir| measure(args, &dir, progress, &mut report));
    let removed = std::fs::remove_dir_all(&args.dir).map_err(|e| failed(&args.dir, &e));
    let short = report.end(measured, files)?;
    removed.map(|()| short)
}

/// A server that has come up.
struct Server {
    child: Child,
    store: Box<dyn Store>,
}

fn start(args: &Args, dir: &Path, dataset: &Dataset, progress: &Progress) -> Result<Vec<Server>> {
    let place = |name: &str| {
        let place = dir.join(name);
        std::fs::create_dir(&place).map_err(|e| failed(&place, &e)).map(|()| place)
    };
    let mut servers = Vec::new();
    let mut add = |child: Child, store: Box<dyn Store>| {
        let mut server = Server { child, store };
        server.store.load(dataset, progress)?;
        server.store.settle(progress)?;
        server.child.hold()?;
        servers.push(server);
        Ok::<_, Error>(())
    };
    let (child, store) = tepui::start(&args.tepui, &place("tepui")?, progress)?;
    add(child, Box::new(store))?;
    if args.takes_part(Peer::Cassandra) {
        let jvm = Jvm::read(&args.cassandra, "cassandra-all-")?;
        let (child, store) = cassandra::start(&jvm, &place("cassandra")?, dataset, progress)?;
        add(child, Box::new(store))?;
    }
    if args.takes_part(Peer::Hbase) {
        let jvm = Jvm::read(&args.hbase, "hbase-server-")?;
        let (child, store) = hbase::start(&jvm, &place("hbase")?, progress)?;
        add(child, Box::new(store))?;
    }
    Ok(servers)
}

/// Runs the contest; what it found is in the report, however it ended.
fn measure(args: &Args, dir: &Path, progress: &Progress, report: &mut Report) -> Result<()> {
    let dataset = contest::rows_of_ten(args.rows);
    let mut servers = start(args, dir, &dataset, progress)?;
    let names: Vec<&str> = servers.iter().map(|server| server.store.name()).collect();
    let settings = [
        ("servers", format!("{}, each syncs a write before it answers", names.join(", "))),
        ("rows", format!("{} of ten columns of 100 bytes, all in memory", args.rows)),
        (
            "clients",
            format!(
                "{IN_FLIGHT} operations in flight, {THREADS} threads, {CONNECTIONS} connections"
            ),
        ),
        ("runs", format!("{} rounds of {} s each, in turns", args.rounds, args.seconds)),
    ];
    let verdicts = &mut report.verdicts;
    verdicts.settings = settings.map(|(name, value)| (name.to_owned(), value)).into();
    print!("{}", verdicts.heading());
    let contest = Contest {
        dataset: &dataset,
        shape: Workload {
            threads: THREADS,
            in_flight: IN_FLIGHT,
            limit: Limit::Seconds(args.seconds),
            ..Workload::of("shape", OpKind::GetFamily)
        },
        rounds: args.rounds,
        progress,
    };
    let mut entrants: Vec<Entrant<'_>> = servers
        .iter_mut()
        .map(|server| Entrant::new(&*server.store, Some(&mut server.child)))
        .collect();
    contest.warm_up_all(&mut entrants, args.warm_up)?;
    report.runs = contest.run(GROUP, &mut entrants, &mut |line| {
        println!("{}", line.text());
        verdicts.lines.push(line);
    })?;
    for (peer, name) in [(Peer::Cassandra, "Cassandra"), (Peer::Hbase, "HBase")] {
        if !args.takes_part(peer) {
            let why = "--only names others".to_owned();
            let line = Line::missing(GROUP, format!("the bars over {name}"), Bar::Published, why);
            verdicts.lines.push(line);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_braces_of_the_configurations_is_filled_in() {
        let values = ["data", "port", "storage_port", "master_port", "zookeeper_port", "heap"];
        let values = values.map(|name| (name, "7"));
        for template in [
            include_str!("../cassandra/cassandra.yaml"),
            include_str!("../cassandra/jvm.options"),
            include_str!("../hbase/hbase-site.xml"),
            include_str!("../hbase/jvm.options"),
        ] {
            let filled = fill(template, &values);
            assert!(!filled.contains(['{', '}']), "{filled}");
            assert_ne!(filled, template);
        }
    }

    #[test]
    fn a_class_path_tells_the_version_of_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("classpath");
        write(&file, "/m2/a/b-1.jar:/m2/cassandra-all-5.0.9.jar:/m2/jamm-0.4.0.jar\n").unwrap();
        let jvm = Jvm::read(&file, "cassandra-all-").unwrap();
        assert_eq!((jvm.version(), jvm.jar("jamm-").unwrap()), ("5.0.9", "/m2/jamm-0.4.0.jar"));
        assert!(jvm.jar("hbase-").is_err());
        assert!(jvm.classpath().ends_with("/m2/jamm-0.4.0.jar"));
    }
}

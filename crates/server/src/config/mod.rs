//! Configuration: a TOML file, environment variables and flags, the last winning.
//!
//! Every key has one name, one default and one line of explanation, in the table of [`keys`]. Key
//! `section.key` is `key` under `[section]` in the file and `TEPUI_SECTION_KEY` in the environment.
//! [`resolve`] is a function of its inputs alone, so that precedence is tested without a process.
//!
//! ```text
//! default  <  file  <  environment  <  flag
//! ```

pub mod budget;
mod keys;
mod values;

use std::fmt;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::db::EngineOptions;
use tepui_engine::io::IoMode;

use crate::catalog::styles::CompactionStyles;
use crate::logging::{self, LogFormat};
use crate::metrics::process;

pub use budget::{Budget, Memory, Shares};
pub use keys::{KEYS, Key};

use budget::MEMORY_DEFAULT;

/// Bytes of a configuration file, at most: enough for any, and no accident of a path reads a disk.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The value of a key that follows from `memory`.
pub const AUTO: &str = "auto";

/// Before every environment variable of the server.
pub const ENV_PREFIX: &str = "TEPUI_";

/// The one variable with the prefix that is no key: the path of the file itself.
pub const ENV_FILE: &str = "TEPUI_CONFIG";

/// A server's configuration, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The data directory.
    pub data: PathBuf,
    /// HOST:PORT to listen on.
    pub listen: String,
    /// How much memory the process is to stay within.
    pub memory: Memory,
    /// The parts of it that were configured.
    pub shares: Shares,
    /// The parts of it that the server itself takes.
    pub budget: Budget,
    /// How the engine works, with its parts of the memory.
    pub engine: EngineOptions,
    /// How tables are compacted.
    pub styles: CompactionStyles,
    /// How SSTs are written and read.
    pub io: IoMode,
    /// Where metrics are served, if they are.
    pub metrics_listen: Option<SocketAddr>,
    /// Whether other machines may connect without credentials and encryption.
    pub allow_remote_plaintext: bool,
    /// Whether tables can only be made, and served, in instances that were created.
    pub strict_instances: bool,
    /// Whether what time deletes stays for an hour after the start.
    pub keep_expired: bool,
    /// Cores that serve requests; 0 means all that there is memory for.
    pub cores: usize,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines there are.
    pub log_level: String,
}

impl Default for Config {
    /// What [`resolve`] gives when nothing is set, on a machine that does not say what memory it has.
    fn default() -> Self {
        let mut config = Self::undivided();
        config.divide(None, None).expect("the default machine has room for the default parts");
        config
    }
}

impl Config {
    /// The defaults, with a budget that has not been divided.
    fn undivided() -> Self {
        Self {
            data: PathBuf::from("./tepui-data"),
            listen: "127.0.0.1:8086".to_owned(),
            memory: MEMORY_DEFAULT,
            shares: Shares::default(),
            budget: Budget {
                total_bytes: 0,
                requests_bytes: 0,
                decoded_bytes: 0,
                answers_bytes: 0,
            },
            engine: EngineOptions::default(),
            styles: CompactionStyles::default(),
            io: IoMode::Direct,
            metrics_listen: None,
            allow_remote_plaintext: false,
            strict_instances: false,
            keep_expired: false,
            cores: 0,
            log_format: LogFormat::Text,
            log_level: logging::LEVEL_DEFAULT.to_owned(),
        }
    }
}

impl Config {
    /// Divides the memory of a machine that has this much, and so many processors; one that does not say has few.
    fn divide(
        &mut self,
        machine_bytes: Option<u64>,
        processors: Option<usize>,
    ) -> Result<(), String> {
        let total = budget::total(self.memory, machine_bytes);
        let cores = self.cores_within(total, processors);
        (self.engine, self.budget) = budget::divide(total, cores, &self.shares, &self.engine)?;
        Ok(())
    }

    /// What to warn of where the machine has less memory than the server is to take, or does not say what it has and the server is to take
    /// a part of that.
    fn check_machine(&self, machine_bytes: Option<u64>) -> Option<String> {
        let total = self.budget.total_bytes;
        match (machine_bytes, self.memory) {
            (None, Memory::Bytes(_)) => None,
            (None, Memory::Percent(percent)) => Some(format!(
                "memory: {percent}% is {}MiB, of {}MiB that are a guess: neither /proc/meminfo nor a control group says what there is; \
                 set a size",
                total >> 20,
                budget::MACHINE_BYTES_DEFAULT >> 20
            )),
            (Some(machine), _) if total > machine => Some(format!(
                "memory: {}MiB is more than the {}MiB that the machine, or the control group, has: the system may end the server \
                 once it takes them, or keep it waiting",
                total.div_ceil(1 << 20),
                machine >> 20
            )),
            (Some(_), _) => None,
        }
    }

    /// Refuses an address that other machines can reach, unless the operator says that they may: there are neither credentials nor
    /// encryption. The error says which key is wrong.
    pub fn check_reach(&self, address: IpAddr) -> Result<(), String> {
        if address.is_loopback() || self.allow_remote_plaintext {
            return Ok(());
        }
        Err(format!(
            "listen = {:?} is reachable from other machines, without credentials and in plaintext; \
             set server.allow_remote_plaintext = true where the network is trusted",
            self.listen
        ))
    }

    /// What does not fit together though each value is one that its key may have.
    fn check(&self) -> Result<(), String> {
        self.engine.validate().map_err(|error| format!("engine: {}", error.message()))?;
        // What a name stands for is looked up when the server starts.
        let Ok(address) = self.listen.parse::<SocketAddr>() else { return Ok(()) };
        self.check_reach(address.ip())?;
        self.check_metrics(address)
    }

    /// Refuses to serve metrics where clients are served, at this address. The error says which keys are wrong.
    pub fn check_metrics(&self, address: SocketAddr) -> Result<(), String> {
        let Some(metrics) = self.metrics_listen else { return Ok(()) };
        if !are_taken_by_one(address, metrics) {
            return Ok(());
        }
        Err(format!(
            "listen = {:?} and metrics.listen = \"{metrics}\" are one address: only one of them can have the port",
            self.listen
        ))
    }

    /// The number of cores that serve requests.
    pub fn core_count(&self) -> usize {
        self.cores_within(self.budget.total_bytes, process::processors())
    }

    fn cores_within(&self, total_bytes: u64, processors: Option<usize>) -> usize {
        match self.cores {
            0 => budget::cores(processors.unwrap_or(1), total_bytes),
            cores => cores,
        }
    }
}

/// Whether who listens on one of the addresses has the other one too.
fn are_taken_by_one(one: SocketAddr, other: SocketAddr) -> bool {
    // IPv4 has a place within IPv6, and a socket for all of IPv6 takes it too unless the system is set otherwise.
    let (one_ip, other_ip) = (one.ip().to_canonical(), other.ip().to_canonical());
    let has_all = |all: IpAddr, ip: IpAddr| all.is_unspecified() && (all.is_ipv6() || ip.is_ipv4());
    let is_one = one_ip == other_ip || has_all(one_ip, other_ip) || has_all(other_ip, one_ip);
    // Port 0 is a free one for each.
    one.port() == other.port() && one.port() != 0 && is_one
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built in.
    Default,
    /// The file of this path.
    File(PathBuf),
    /// The environment variable of this name.
    Env(String),
    /// The flag of this name, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Env(name) => write!(f, "${name}"),
            Self::Flag(name) => write!(f, "{name}"),
        }
    }
}

/// What the configuration is made of.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    /// The file's path and text.
    pub file: Option<(PathBuf, String)>,
    /// The environment; variables without [`ENV_PREFIX`] are passed over.
    pub env: Vec<(String, String)>,
    /// Flags that were given: the key, the flag's name, the value.
    pub flags: Vec<(&'static str, &'static str, String)>,
    /// Bytes of memory that the process may have, where the system says.
    pub machine_bytes: Option<u64>,
    /// Processors that it may use, where the system says.
    pub processors: Option<usize>,
}

/// One key's value and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static Key,
    /// The value as it was written.
    pub value: String,
    /// Where.
    pub source: Source,
}

/// A configuration and where each part of it came from.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// Every key, in the order of [`KEYS`].
    pub settings: Vec<Setting>,
    /// What looks wrong and stops nothing.
    pub warnings: Vec<String>,
}

/// Puts the inputs together. The error lists everything that is wrong, a line each, with its key and source.
pub fn resolve(inputs: &Inputs) -> Result<Effective> {
    let mut problems = Vec::new();
    let mut warnings = Vec::new();
    let mut given: Vec<(&'static Key, String, Source)> = Vec::new();

    if let Some((path, text)) = &inputs.file {
        for (name, value) in values::flatten_toml(path, text)? {
            match (keys::find(&name), value) {
                (None, _) => problems.push(format!("{}: unknown key {name:?}", path.display())),
                (Some(_), Err(what)) => {
                    problems.push(format!("{}: {name}: {what}", path.display()));
                }
                (Some(key), Ok(value)) => given.push((key, value, Source::File(path.clone()))),
            }
        }
    }
    for (name, value) in &inputs.env {
        if !name.starts_with(ENV_PREFIX) || name == ENV_FILE {
            continue;
        }
        match KEYS.iter().find(|key| key.env_name() == *name) {
            Some(key) => given.push((key, value.clone(), Source::Env(name.clone()))),
            // Not an error: container platforms put variables of their own under a service's name.
            None => warnings.push(format!("${name} is not a key of the configuration")),
        }
    }
    for (name, flag, value) in &inputs.flags {
        match keys::find(name) {
            Some(key) => given.push((key, value.clone(), Source::Flag((*flag).to_owned()))),
            None => problems.push(format!("{flag}: unknown key {name:?}")),
        }
    }

    let mut config = Config::undivided();
    let mut settings = Vec::new();
    for key in KEYS {
        let last = given.iter().rev().find(|(of, ..)| of.name == key.name);
        let (value, source) = match last {
            Some((_, value, source)) => (value.clone(), source.clone()),
            None => (key.default.to_owned(), Source::Default),
        };
        if let Err(what) = (key.set)(&mut config, &value) {
            problems.push(format!("{}: {what} (from {source})", key.name));
        }
        settings.push(Setting { key, value, source });
    }
    if problems.is_empty()
        && let Err(what) = config.divide(inputs.machine_bytes, inputs.processors)
    {
        problems.push(format!("memory: {what}"));
    }
    if problems.is_empty() {
        warnings.extend(config.check_machine(inputs.machine_bytes));
    }
    if problems.is_empty()
        && let Err(what) = config.check()
    {
        problems.push(what);
    }
    if problems.is_empty() {
        let cores = config.cores_within(config.budget.total_bytes, inputs.processors);
        for setting in &mut settings {
            let value = setting.value.trim();
            if let Some(comes_to) = keys::comes_to(setting.key.name, value, &config, cores) {
                setting.value = format!("{value}: {comes_to}");
            }
        }
        return Ok(Effective { config, settings, warnings });
    }
    Err(Error::invalid_argument(problems.join("\n")))
}

/// Reads a configuration file, which may be a pipe.
pub fn read_file(path: PathBuf) -> Result<(PathBuf, String)> {
    #[expect(clippy::disallowed_types, reason = "files of the seam have a length, and pipes none")]
    let file = std::fs::File::open(&path);
    let mut bytes = Vec::new();
    let read = file.and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    let wrong =
        |what: &dyn fmt::Display| Error::invalid_argument(format!("{}: {what}", path.display()));
    read.map_err(|error| wrong(&error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(&format_args!("more than {FILE_BYTES_MAX} bytes: no configuration")));
    }
    let text = String::from_utf8(bytes).map_err(|error| wrong(&error))?;
    Ok((path, text))
}

#[cfg(test)]
mod tests {
    use tepui_engine::db::{CompressionPolicy, SyncMode};
    use tepui_engine::sst::SstOptions;

    use super::*;

    fn file(text: &str) -> Inputs {
        Inputs { file: Some((PathBuf::from("t.toml"), text.to_owned())), ..Inputs::default() }
    }

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn problems(inputs: &Inputs) -> String {
        resolve(inputs).unwrap_err().message().to_owned()
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        let effective = resolve(&Inputs::default()).unwrap();
        assert_eq!(effective.config, Config::default());
        assert_eq!(effective.settings.len(), KEYS.len());
        assert!(effective.settings.iter().all(|s| s.source == Source::Default));
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let mut inputs = file("listen = \"127.0.0.1:1\"\ndata = \"f\"\n[log]\nsync = \"never\"\n");
        inputs.env = env(&[("TEPUI_LISTEN", "127.0.0.1:2"), ("TEPUI_DATA", "e")]);
        inputs.flags = vec![("listen", "--listen", "127.0.0.1:3".to_owned())];
        let effective = resolve(&inputs).unwrap();
        assert_eq!(effective.config.listen, "127.0.0.1:3");
        assert_eq!(effective.config.data, PathBuf::from("e"));
        assert_eq!(effective.config.engine.sync, SyncMode::Never);
        let sources: Vec<_> =
            effective.settings.iter().map(|s| format!("{}={}", s.key.name, s.source)).collect();
        assert!(sources.contains(&"listen=--listen".to_owned()));
        assert!(sources.contains(&"data=$TEPUI_DATA".to_owned()));
        assert!(sources.contains(&"log.sync=t.toml".to_owned()));
        assert!(sources.contains(&"server.cores=default".to_owned()));
    }

    #[test]
    fn every_key_can_be_set_in_the_environment_and_in_the_file() {
        let text = "data = \"d\"\nlisten = \"[::1]:9\"\nmemory = \"8GiB\"\n\
            [log]\nsync = \"5ms\"\nsegment_bytes = \"16MiB\"\nbytes_max = \"1GiB\"\n\
             changes_bytes_max = \"2GiB\"\n\
            [engine]\nmemtable_bytes = 8388608\nmemtables_total_bytes = \"32MiB\"\n\
            block_cache_bytes = \"2GiB\"\npartition_share_percent = 50\ncoarse_share_percent = 95\npinned_levels = 1\n\
            index_partition_bytes = 8192\nfilter_partition_bytes = \"16KiB\"\n\
            filter_bits_per_key = 8\ncompression = \"lz4\"\ncompaction_threads = 1\n\
            background_bytes_per_second = \"100MiB\"\ndelete_bytes_per_second = 0\nrewrite_days = 7\n\
            separate_values_bytes = 0\nio = \"buffered\"\ntiered_tables = \"*/tables/a\"\n\
            [metrics]\nlisten = \"[::1]:10\"\n\
            [server]\nallow_remote_plaintext = true\nstrict_instances = true\nkeep_expired = true\ncores = 3\n\
            [logging]\nformat = \"json\"\nlevel = \"debug\"\n";
        let by_file = resolve(&file(text)).unwrap();
        let by_env = resolve(&Inputs {
            env: env(&[
                ("TEPUI_DATA", "d"),
                ("TEPUI_LISTEN", "[::1]:9"),
                ("TEPUI_LOG_SYNC", "5ms"),
                ("TEPUI_LOG_SEGMENT_BYTES", "16MiB"),
                ("TEPUI_LOG_BYTES_MAX", "1GiB"),
                ("TEPUI_LOG_CHANGES_BYTES_MAX", "2GiB"),
                ("TEPUI_ENGINE_MEMTABLE_BYTES", "8MiB"),
                ("TEPUI_ENGINE_MEMTABLES_TOTAL_BYTES", "32MiB"),
                ("TEPUI_ENGINE_COMPRESSION", "lz4"),
                ("TEPUI_ENGINE_COMPACTION_THREADS", "1"),
                ("TEPUI_ENGINE_BACKGROUND_BYTES_PER_SECOND", "100MiB"),
                ("TEPUI_ENGINE_DELETE_BYTES_PER_SECOND", "0"),
                ("TEPUI_ENGINE_REWRITE_DAYS", "7"),
                ("TEPUI_ENGINE_SEPARATE_VALUES_BYTES", "0"),
                ("TEPUI_ENGINE_TIERED_TABLES", "*/tables/a"),
                ("TEPUI_ENGINE_BLOCK_CACHE_BYTES", "2GiB"),
                ("TEPUI_ENGINE_IO", "buffered"),
                ("TEPUI_ENGINE_PARTITION_SHARE_PERCENT", "50"),
                ("TEPUI_ENGINE_COARSE_SHARE_PERCENT", "95"),
                ("TEPUI_ENGINE_INDEX_PARTITION_BYTES", "8KiB"),
                ("TEPUI_ENGINE_FILTER_PARTITION_BYTES", "16KiB"),
                ("TEPUI_ENGINE_PINNED_LEVELS", "1"),
                ("TEPUI_ENGINE_FILTER_BITS_PER_KEY", "8"),
                ("TEPUI_MEMORY", "8GiB"),
                ("TEPUI_METRICS_LISTEN", "[::1]:10"),
                ("TEPUI_SERVER_ALLOW_REMOTE_PLAINTEXT", "true"),
                ("TEPUI_SERVER_STRICT_INSTANCES", "true"),
                ("TEPUI_SERVER_KEEP_EXPIRED", "true"),
                ("TEPUI_SERVER_CORES", "3"),
                ("TEPUI_LOGGING_FORMAT", "json"),
                ("TEPUI_LOGGING_LEVEL", "debug"),
            ]),
            ..Inputs::default()
        })
        .unwrap();
        let shares = Shares {
            memtable_bytes: Some(8 << 20),
            memtables_total_bytes: Some(32 << 20),
            block_cache_bytes: Some(2 << 30),
            log_segment_bytes: Some(16 << 20),
            log_bytes_max: Some(1 << 30),
            compaction_threads: Some(1),
        };
        let undivided = EngineOptions {
            sync: SyncMode::IntervalMs(5),
            change_log_bytes_max: Some(2 << 30),
            partition_share_percent: 50,
            coarse_share_percent: 95,
            pinned_levels: 1,
            sst: SstOptions {
                index_partition_bytes: 8 << 10,
                filter_partition_bytes: 16 << 10,
                filter_bits_per_key: 8,
                ..SstOptions::default()
            },
            compression: CompressionPolicy::Lz4,
            background_bytes_per_second: 100 << 20,
            delete_bytes_per_second: 0,
            rewrite_age_ms: 7 * 24 * 3_600_000,
            separate_values_bytes: 0,
            ..EngineOptions::default()
        };
        let (engine, budget) = budget::divide(8 << 30, 3, &shares, &undivided).unwrap();
        let expected = Config {
            data: PathBuf::from("d"),
            listen: "[::1]:9".to_owned(),
            memory: Memory::Bytes(8 << 30),
            shares,
            budget,
            engine,
            styles: CompactionStyles::tiered("*/tables/a").unwrap(),
            io: IoMode::Buffered,
            metrics_listen: Some("[::1]:10".parse().unwrap()),
            allow_remote_plaintext: true,
            strict_instances: true,
            keep_expired: true,
            cores: 3,
            log_format: LogFormat::Json,
            log_level: "debug".to_owned(),
        };
        assert_eq!(by_file.config, expected);
        assert_eq!(by_env.config, expected);
        for effective in [by_file, by_env] {
            assert!(effective.settings.iter().all(|s| s.source != Source::Default));
        }
    }

    #[test]
    fn sizes_that_follow_from_memory_are_shown_and_parts_that_do_not_fit_are_refused() {
        let mut inputs = file("memory = \"50%\"\n[engine]\nblock_cache_bytes = \"600MiB\"\n");
        inputs.machine_bytes = Some(4 << 30);
        let effective = resolve(&inputs).unwrap();
        let shown = |name: &str| {
            effective.settings.iter().find(|s| s.key.name == name).unwrap().value.clone()
        };
        assert_eq!(shown("engine.block_cache_bytes"), "600MiB");
        assert!(shown("engine.memtable_bytes").starts_with("auto: 64MiB"));
        assert_eq!(shown("log.changes_bytes_max"), "auto: 64GiB, 1/4 of the disk at most");
        assert!(effective.settings.iter().all(|s| !s.value.ends_with("auto: ")));
        assert_eq!(shown("memory"), "50%: 2047MiB");
        inputs.machine_bytes = Some(1 << 30);
        let told = problems(&inputs);
        assert!(told.starts_with("memory: ") && told.contains("at least"), "{told}");
        // Whatever the size that is set, what is said to be enough is.
        let told = problems(&file("memory = \"10MiB\"\n"));
        let least =
            told.split_once("at least ").and_then(|(_, rest)| rest.split_once(' ')).unwrap().0;
        resolve(&file(&format!("memory = \"{least}\"\n"))).unwrap();
    }

    #[test]
    fn many_cores_leave_the_cache_less_and_more_than_fit_are_refused() {
        let cache = |cores: usize, processors: Option<usize>| {
            let text = format!("memory = \"512MiB\"\n[server]\ncores = {cores}\n");
            let inputs = Inputs { processors, ..file(&text) };
            resolve(&inputs).unwrap().config.engine.block_cache_bytes
        };
        let few = cache(8, None);
        assert_eq!(cache(0, Some(2)), few);
        let all = cache(0, Some(64));
        assert!(
            all < few && all >= few - (16 << 20),
            "{all} of {few}: there is memory for 16 of them"
        );
        assert!(cache(32, None) < all, "they are as they were set");
        let problems = problems(&file("memory = \"512MiB\"\n[server]\ncores = 512\n"));
        assert!(problems.starts_with("memory: ") && problems.contains("at least"), "{problems}");
    }

    #[test]
    fn memory_and_cores_are_shown_as_what_they_come_to_unless_they_are_set() {
        let shown = |text: &str| {
            let inputs =
                Inputs { machine_bytes: Some(1 << 30), processors: Some(64), ..file(text) };
            let settings = resolve(&inputs).unwrap().settings;
            ["memory", "server.cores"]
                .map(|name| settings.iter().find(|s| s.key.name == name).unwrap().value.clone())
        };
        assert_eq!(shown(""), ["60%: 614MiB", "0: 19"], "a core for each 32 MiB");
        let set = "memory = \"900MiB\"\n[server]\ncores = 2\n";
        assert_eq!(shown(set), ["900MiB", "2"]);
    }

    #[test]
    fn a_level_for_one_module_is_shown_with_that_of_all_others() {
        let shown = |level: &str| {
            let settings =
                resolve(&file(&format!("[logging]\nlevel = {level:?}\n"))).unwrap().settings;
            settings.iter().find(|s| s.key.name == "logging.level").unwrap().value.clone()
        };
        assert_eq!(shown("tepui_engine=debug"), "tepui_engine=debug: info,tepui_engine=debug");
        assert_eq!(shown("warn,tepui_engine=debug"), "warn,tepui_engine=debug");
    }

    #[test]
    fn more_memory_than_the_machine_has_is_warned_of() {
        let mut inputs = file("memory = \"8GiB\"\n");
        assert_eq!(resolve(&inputs).unwrap().warnings.len(), 0, "nobody knows what it has");
        inputs.machine_bytes = Some(8 << 30);
        assert_eq!(resolve(&inputs).unwrap().warnings.len(), 0);
        inputs.machine_bytes = Some((8 << 30) - 1);
        let warnings = resolve(&inputs).unwrap().warnings;
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains("8192MiB") && warning.contains("8191MiB"), "{warning}");
    }

    #[test]
    fn a_part_of_memory_that_nobody_knows_is_warned_of_as_a_guess() {
        let mut inputs = file("memory = \"50%\"\n");
        let warnings = resolve(&inputs).unwrap().warnings;
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(warning.contains("50% is 2047MiB, of 4096MiB"), "{warning}");
        inputs.machine_bytes = Some(4 << 30);
        assert_eq!(resolve(&inputs).unwrap().warnings.len(), 0);
    }

    #[test]
    fn what_no_server_would_start_with_is_refused_though_each_value_is_a_good_one() {
        let larger = "[engine]\nmemtable_bytes = \"256MiB\"\nmemtables_total_bytes = \"64MiB\"\n";
        let larger = problems(&file(larger));
        assert!(larger.starts_with("engine: memtables_total_bytes is 67108864"), "{larger}");
        assert!(larger.contains("memtable_bytes"), "{larger}");
        let segment = "[log]\nsegment_bytes = \"4GiB\"\nbytes_max = \"64MiB\"\n";
        let segment = problems(&file(segment));
        assert!(segment.starts_with("engine: log_bytes_max is 67108864"), "{segment}");
        assert!(segment.contains("log_segment_bytes"), "{segment}");
        for open in ["0.0.0.0:8086", "192.0.2.1:8086", "[::]:8086"] {
            let mut inputs = file(&format!("listen = {open:?}\n"));
            let reachable = problems(&inputs);
            assert!(reachable.contains(&format!("listen = {open:?}")), "{reachable}");
            assert!(reachable.contains("server.allow_remote_plaintext"), "{reachable}");
            inputs.env = env(&[("TEPUI_SERVER_ALLOW_REMOTE_PLAINTEXT", "true")]);
            resolve(&inputs).unwrap();
        }
        // Whether a name is that of another machine, the server finds out when it starts.
        resolve(&file("listen = \"db.example:8086\"\n")).unwrap();
    }

    #[test]
    fn metrics_do_not_take_the_address_that_clients_are_served_on() {
        let both = |listen: &str, metrics: &str| {
            let text = format!("listen = {listen:?}\n[metrics]\nlisten = {metrics:?}\n");
            let inputs = Inputs {
                env: env(&[("TEPUI_SERVER_ALLOW_REMOTE_PLAINTEXT", "true")]),
                ..file(&text)
            };
            resolve(&inputs)
        };
        for (listen, metrics) in [
            ("127.0.0.1:8086", "127.0.0.1:8086"),
            ("0.0.0.0:8086", "127.0.0.1:8086"),
            ("[::1]:8086", "[::]:8086"),
            ("[::]:8086", "127.0.0.1:8086"),
            ("0.0.0.0:8086", "[::]:8086"),
            ("127.0.0.1:8086", "[::ffff:127.0.0.1]:8086"),
        ] {
            let error = both(listen, metrics).unwrap_err();
            assert!(error.message().contains("listen = "), "{error}");
            assert!(error.message().contains("metrics.listen = "), "{error}");
        }
        for (listen, metrics) in [
            ("127.0.0.1:8086", "127.0.0.1:9100"),
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1:8086", "127.0.0.2:8086"),
            ("127.0.0.1:8086", "[::1]:8086"),
            ("0.0.0.0:8086", "[::1]:8086"),
        ] {
            both(listen, metrics).unwrap();
        }
    }

    #[test]
    fn unknown_keys_are_named_all_at_once() {
        let text = "dta = \"x\"\n[engine]\nmemtable = 1\n[nonsense]\na = 1\n";
        let problems = problems(&file(text));
        for name in ["\"dta\"", "\"engine.memtable\"", "\"nonsense.a\""] {
            assert!(problems.contains(&format!("t.toml: unknown key {name}")), "{problems}");
        }
    }

    #[test]
    fn bad_values_are_named_with_their_source() {
        let mut inputs = file("[log]\nsync = \"sometimes\"\n[server]\ncores = -1\n");
        inputs.env = env(&[("TEPUI_ENGINE_MEMTABLE_BYTES", "64 parsecs")]);
        let problems = problems(&inputs);
        for part in [
            "log.sync: ",
            "(from t.toml)",
            "server.cores: ",
            "engine.memtable_bytes: ",
            "(from $TEPUI_ENGINE_MEMTABLE_BYTES)",
        ] {
            assert!(problems.contains(part), "{problems}");
        }
        assert_eq!(problems.lines().count(), 3);
    }

    #[test]
    fn values_of_another_shape_and_broken_files_are_refused() {
        assert!(problems(&file("data = [1]\n")).contains("data: an array is not a value"));
        assert!(problems(&file("data = 1.5\n")).contains("data: a float is not a value"));
        assert!(problems(&file("data = \"x\n")).contains("t.toml"));
    }

    #[test]
    fn unknown_variables_warn_and_others_are_none_of_our_business() {
        let inputs = Inputs {
            env: env(&[("TEPUI_PORT", "tcp://x"), ("TEPUI_CONFIG", "f"), ("HOME", "/")]),
            machine_bytes: Some(4 << 30),
            ..Inputs::default()
        };
        let effective = resolve(&inputs).unwrap();
        assert_eq!(effective.warnings, ["$TEPUI_PORT is not a key of the configuration"]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "as users write configurations")]
    fn a_file_is_read_whole_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.toml");
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read_file(path.clone())
        };
        assert_eq!(read(b"data = \"d\"").unwrap(), (path.clone(), "data = \"d\"".to_owned()));
        assert!(read(&[0xFF]).unwrap_err().to_string().contains("t.toml: invalid utf-8"));
        let error = read(&vec![b'#'; 2 << 20]).unwrap_err().to_string();
        assert!(error.contains("more than 1048576 bytes"), "{error}");
        assert!(read_file(dir.path().join("none")).is_err());
    }
}

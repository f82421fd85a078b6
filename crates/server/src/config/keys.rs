//! The table of keys: name, default, explanation, and how a value is checked and put in its place.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use tepui_engine::db::{CompressionPolicy, SyncMode};
use tepui_engine::io::IoMode;
use tepui_engine::options::{CHANGE_LOG_BYTES_MAX, CHANGE_LOG_DISK_PART, LOG_SEGMENTS_MIN};

use super::{AUTO, Config, ENV_PREFIX, Memory, values};
use crate::catalog::styles::CompactionStyles;
use crate::limits::CORES_MAX;
use crate::logging::{self, LogFormat};

/// One key of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// `section.key`, or `key` at the top of the file.
    pub name: &'static str,
    /// The value where none is given.
    pub default: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Checks a value and puts it into the configuration; the error says what is wrong with it.
    pub set: fn(&mut Config, &str) -> Result<(), String>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Key {
    /// The environment variable.
    pub fn env_name(&self) -> String {
        format!("{ENV_PREFIX}{}", self.name.replace('.', "_").to_ascii_uppercase())
    }
}

/// The key of a name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Bytes of a memtable, at least: below it, flushes make more files than compaction can merge.
const MEMTABLE_BYTES_MIN: u64 = 1 << 20;

/// Bytes of a memtable, at most: its replay after a crash takes seconds by then.
const MEMTABLE_BYTES_MAX: u64 = 4 << 30;

/// Bytes of a log segment, at least and at most: a file per few batches, or a replay that never ends.
const SEGMENT_BYTES_MIN: u64 = 1 << 20;
const SEGMENT_BYTES_MAX: u64 = 4 << 30;

/// Bytes of the log, at least: with segments of the smallest size.
const LOG_BYTES_MIN: u64 = LOG_SEGMENTS_MIN * SEGMENT_BYTES_MIN;

/// Bytes of the block cache, at least: the index blocks of a scan or two.
const BLOCK_CACHE_BYTES_MIN: u64 = 1 << 20;

/// Bytes per second, at least: below it, a flush of the smallest memtable would take seconds.
const RATE_BYTES_MIN: u64 = 1 << 20;

/// Days until files are written anew, at most: a century is never.
const REWRITE_DAYS_MAX: usize = 36_500;
const DAY_MS: u64 = 24 * 3_600_000;

/// Bytes per second; 0 for no limit.
fn rate(value: &str) -> Result<u64, String> {
    if value.trim() == "0" { Ok(0) } else { values::size(value, RATE_BYTES_MIN, u64::MAX) }
}
/// Percents of the machine's memory for a server: with more, the kernel and its page cache have too little.
const MEMORY_PERCENTS: RangeInclusive<u32> = 1..=90;

/// Percent of the block cache for indexes and filters, and for coarse filters, at most: rows that are read again need some of it too.
const SHARE_PERCENT_MAX: usize = 95;

/// Bits of a filter per entry, at least and at most, where there are filters: fewer rule out too little, more
/// rule out no more.
const FILTER_BITS_MIN: usize = 4;
const FILTER_BITS_MAX: usize = 20;

/// Bytes of a partition of an index or a filter, at least and at most: below it what stays in memory of each outgrows it, and
/// beyond it a read that does not find it there moves more of it than of data.
const PARTITION_BYTES_MIN: u64 = 1 << 10;
const PARTITION_BYTES_MAX: u64 = 1 << 20;

/// Levels that are pinned, at most: all but the last.
const PINNED_LEVELS_MAX: usize = 6;

/// Milliseconds between syncs, at most: what a crash may lose should stay a short time.
const SYNC_INTERVAL_MS_MAX: u64 = 60_000;

/// All keys.
pub const KEYS: &[Key] = &[
    Key {
        name: "data",
        default: "./tepui-data",
        about: "the data directory; created if needed",
        set: |config, value| {
            if value.is_empty() {
                return Err("it must be a path".to_owned());
            }
            config.data = PathBuf::from(value);
            Ok(())
        },
    },
    Key {
        name: "listen",
        default: "127.0.0.1:8086",
        about: "HOST:PORT to listen on; port 0 takes a free one",
        set: |config, value| {
            let port = value.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
            match port {
                Some((host, Ok(_))) if !host.is_empty() => {
                    value.clone_into(&mut config.listen);
                    Ok(())
                }
                _ => Err(format!("{value:?} is not HOST:PORT")),
            }
        },
    },
    Key {
        name: "memory",
        default: "60%",
        about: "memory that the server is to stay within: a part of the machine's or the container's, or a size; \
                the sizes that are \"auto\" follow from it",
        set: |config, value| {
            config.memory = memory(value)?;
            Ok(())
        },
    },
    Key {
        name: "log.sync",
        default: "always",
        about: "when a write is on disk: \"always\" before it is acknowledged, \"<n>ms\" by a sync that begins at most so \
                long after, \"never\" when the system likes",
        set: |config, value| {
            config.engine.sync = sync_mode(value)?;
            Ok(())
        },
    },
    Key {
        name: "log.segment_bytes",
        default: "auto",
        about: "size of a segment of the commit log",
        set: |config, value| {
            config.shares.log_segment_bytes =
                auto(value, |value| values::size(value, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX))?;
            Ok(())
        },
    },
    Key {
        name: "log.bytes_max",
        default: "auto",
        about: "size of the commit log at which the tables that pin its oldest segment are flushed",
        set: |config, value| {
            config.shares.log_bytes_max =
                auto(value, |value| values::size(value, LOG_BYTES_MIN, u64::MAX))?;
            Ok(())
        },
    },
    Key {
        name: "log.changes_bytes_max",
        default: "auto",
        about: "size of what is kept for change streams, above which the oldest goes before its time; auto: 64 GiB, a quarter of the disk at most",
        set: |config, value| {
            config.engine.change_log_bytes_max =
                auto(value, |value| values::size(value, SEGMENT_BYTES_MIN, u64::MAX))?;
            Ok(())
        },
    },
    Key {
        name: "engine.memtable_bytes",
        default: "auto",
        about: "size of a memtable before it is flushed to disk",
        set: |config, value| {
            config.shares.memtable_bytes =
                auto(value, |value| values::size(value, MEMTABLE_BYTES_MIN, MEMTABLE_BYTES_MAX))?;
            Ok(())
        },
    },
    Key {
        name: "engine.memtables_total_bytes",
        default: "auto",
        about: "size of all memtables together; from half of it on, more and more writes are refused",
        set: |config, value| {
            config.shares.memtables_total_bytes =
                auto(value, |value| values::size(value, MEMTABLE_BYTES_MIN, u64::MAX))?;
            Ok(())
        },
    },
    Key {
        name: "engine.compression",
        default: "tiered",
        about: "\"tiered\" (LZ4, and zstd with a dictionary on the last level), \"lz4\" or \"none\"",
        set: |config, value| {
            config.engine.compression = match value {
                "tiered" => CompressionPolicy::Tiered,
                "lz4" => CompressionPolicy::Lz4,
                "none" => CompressionPolicy::None,
                other => {
                    return Err(format!("{other:?} is none of \"tiered\", \"lz4\" and \"none\""));
                }
            };
            Ok(())
        },
    },
    Key {
        name: "engine.separate_values_bytes",
        default: "8KiB",
        about: "bytes from which a value is stored outside of SSTs, and not rewritten by every level's compaction; 0 for none",
        set: |config, value| {
            config.engine.separate_values_bytes = values::size(value, 0, u64::MAX)?;
            Ok(())
        },
    },
    Key {
        name: "engine.compaction_threads",
        default: "auto",
        about: "threads that compact; flushes have one of their own",
        set: |config, value| {
            config.shares.compaction_threads =
                auto(value, |value| values::whole_number(value, 1, CORES_MAX))?;
            Ok(())
        },
    },
    Key {
        name: "engine.background_bytes_per_second",
        default: "0",
        about: "what flushes and compactions may write in a second; 0 sets no limit",
        set: |config, value| {
            config.engine.background_bytes_per_second = rate(value)?;
            Ok(())
        },
    },
    Key {
        name: "engine.delete_bytes_per_second",
        default: "1GiB",
        about: "bytes of obsolete data files that are removed in a second; 0 sets no limit",
        set: |config, value| {
            config.engine.delete_bytes_per_second = rate(value)?;
            Ok(())
        },
    },
    Key {
        name: "engine.rewrite_days",
        default: "30",
        about: "days after which a data file is written anew; 0 for never",
        set: |config, value| {
            let days = values::whole_number(value, 0, REWRITE_DAYS_MAX)?;
            config.engine.rewrite_age_ms = days as u64 * DAY_MS;
            Ok(())
        },
    },
    Key {
        name: "engine.block_cache_bytes",
        default: "auto",
        about: "memory for blocks read from disk, and for indexes and filters",
        set: |config, value| {
            config.shares.block_cache_bytes =
                auto(value, |value| values::size(value, BLOCK_CACHE_BYTES_MIN, u64::MAX))?;
            Ok(())
        },
    },
    Key {
        name: "engine.partition_share_percent",
        default: "80",
        about: "percent of the block cache that indexes and filters may take",
        set: |config, value| {
            let percent = values::whole_number(value, 0, SHARE_PERCENT_MAX)?;
            config.engine.partition_share_percent = percent as u32;
            Ok(())
        },
    },
    Key {
        name: "engine.coarse_share_percent",
        default: "25",
        about: "percent of the block cache that may go to a filter of a bit and a half a row, always in memory, which halves reads of absent rows",
        set: |config, value| {
            config.engine.coarse_share_percent =
                values::whole_number(value, 0, SHARE_PERCENT_MAX)? as u32;
            Ok(())
        },
    },
    Key {
        name: "engine.index_partition_bytes",
        default: "4KiB",
        about: "size of the pieces that the indexes of new files are read in",
        set: |config, value| {
            let bytes = values::size(value, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)?;
            config.engine.sst.index_partition_bytes = bytes as usize;
            Ok(())
        },
    },
    Key {
        name: "engine.filter_partition_bytes",
        default: "4KiB",
        about: "size of the pieces that the filters of new files are read in",
        set: |config, value| {
            let bytes = values::size(value, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)?;
            config.engine.sst.filter_partition_bytes = bytes as usize;
            Ok(())
        },
    },
    Key {
        name: "engine.pinned_levels",
        default: "2",
        about: "upper levels of files whose whole index and filter stay in memory",
        set: |config, value| {
            config.engine.pinned_levels = values::whole_number(value, 0, PINNED_LEVELS_MAX)? as u32;
            Ok(())
        },
    },
    Key {
        name: "engine.filter_bits_per_key",
        default: "12",
        about: "bits of filters per row on average, 4 to 20, spent where they spare most reads; 0 writes no filters",
        set: |config, value| {
            let bits = values::whole_number(value, 0, FILTER_BITS_MAX)?;
            if (1..FILTER_BITS_MIN).contains(&bits) {
                return Err(format!("{value:?} is too small: 0, or at least {FILTER_BITS_MIN}"));
            }
            config.engine.sst.filter_bits_per_key = bits as u32;
            Ok(())
        },
    },
    Key {
        name: "engine.tiered_tables",
        default: "",
        about: "tables that are compacted in tiers, so that less is rewritten where compactions keep up, and read from more files: names separated \
                by commas, \"*\" for any characters (\"*/tables/events\")",
        set: |config, value| {
            config.styles = CompactionStyles::tiered(value)?;
            Ok(())
        },
    },
    Key {
        name: "engine.io",
        default: "direct",
        about: "how data files are written and read: \"direct\" past the page cache of the system, so that memory holds \
                a block once; \"buffered\" through it",
        set: |config, value| {
            config.io = match value {
                "direct" => IoMode::Direct,
                "buffered" => IoMode::Buffered,
                other => return Err(format!("{other:?} is neither \"direct\" nor \"buffered\"")),
            };
            Ok(())
        },
    },
    Key {
        name: "metrics.listen",
        default: "",
        about: "IP:PORT to serve metrics and health on, by HTTP; nothing serves none",
        set: |config, value| {
            config.metrics_listen = match value {
                "" => None,
                value => Some(value.parse().map_err(|_| format!("{value:?} is not IP:PORT"))?),
            };
            Ok(())
        },
    },
    Key {
        name: "server.allow_remote_plaintext",
        default: "false",
        about: "whether to listen beyond this machine without credentials and encryption",
        set: |config, value| {
            config.allow_remote_plaintext = values::boolean(value)?;
            Ok(())
        },
    },
    Key {
        name: "server.strict_instances",
        default: "false",
        about: "whether tables can only be made, and served, in instances that were created",
        set: |config, value| {
            config.strict_instances = values::boolean(value)?;
            Ok(())
        },
    },
    Key {
        name: "server.keep_expired",
        default: "false",
        about: "whether backups, deleted tables, changes and cells whose time is over stay for an hour after the start",
        set: |config, value| {
            config.keep_expired = values::boolean(value)?;
            Ok(())
        },
    },
    Key {
        name: "server.cores",
        default: "0",
        about: "cores that serve requests; 0 means all, but no more than eight, or than one for each 32MiB of memory where that is more; where there are as many as processors, each keeps to one",
        set: |config, value| {
            config.cores = values::whole_number(value, 0, CORES_MAX)?;
            Ok(())
        },
    },
    Key {
        name: "logging.format",
        default: "text",
        about: "\"text\" for people, \"json\" for machines",
        set: |config, value| {
            config.log_format = match value {
                "text" => LogFormat::Text,
                "json" => LogFormat::Json,
                other => return Err(format!("{other:?} is neither \"text\" nor \"json\"")),
            };
            Ok(())
        },
    },
    Key {
        name: "logging.level",
        default: logging::LEVEL_DEFAULT,
        about: "off, error, warn, info, debug or trace, also by module: \"warn,tepui_engine=debug\"; info for modules that it does not name, where it has no level by itself",
        set: |config, value| {
            logging::filter(value).map_err(|error| error.message().to_owned())?;
            value.clone_into(&mut config.log_level);
            Ok(())
        },
    },
];

/// What a value that follows from others, or from the machine, has come to; `None` of one that is what it says.
pub(super) fn comes_to(name: &str, value: &str, config: &Config, cores: usize) -> Option<String> {
    match (name, value) {
        ("memory", value) if value.ends_with('%') => {
            Some(format!("{}MiB", config.budget.total_bytes >> 20))
        }
        ("server.cores", "0") => Some(cores.to_string()),
        ("logging.level", level) => {
            let for_all = logging::for_all(level);
            (for_all != level).then(|| for_all.into_owned())
        }
        (_, AUTO) => Some(auto_value(name, config)),
        _ => None,
    }
}

/// What a key that is "auto" has come to.
fn auto_value(name: &str, config: &Config) -> String {
    let engine = &config.engine;
    match name {
        "log.segment_bytes" => values::size_text(engine.log_segment_bytes),
        "log.bytes_max" => values::size_text(engine.log_bytes_max),
        "engine.memtable_bytes" => values::size_text(engine.memtable_bytes),
        "engine.memtables_total_bytes" => values::size_text(engine.memtables_total_bytes),
        "engine.block_cache_bytes" => values::size_text(engine.block_cache_bytes),
        "engine.compaction_threads" => engine.compaction_threads.to_string(),
        // The disk is looked at when the server starts.
        "log.changes_bytes_max" => {
            let most = values::size_text(CHANGE_LOG_BYTES_MAX);
            format!("{most}, 1/{CHANGE_LOG_DISK_PART} of the disk at most")
        }
        _ => String::new(),
    }
}

fn auto<T>(value: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    if value == AUTO { Ok(None) } else { read(value).map(Some) }
}

fn memory(value: &str) -> Result<Memory, String> {
    let Some(percent) = value.trim().strip_suffix('%') else {
        // What is the least depends on the parts, which are divided when all is known.
        return values::size(value, 0, u64::MAX).map(Memory::Bytes);
    };
    let percent = percent.trim_end().parse().ok().filter(|p| MEMORY_PERCENTS.contains(p));
    percent.map(Memory::Percent).ok_or_else(|| {
        let (least, most) = (MEMORY_PERCENTS.start(), MEMORY_PERCENTS.end());
        format!("{value:?} is not a whole percent from {least}% to {most}%")
    })
}

fn sync_mode(value: &str) -> Result<SyncMode, String> {
    let interval = || {
        let ms: u64 = value.strip_suffix("ms")?.parse().ok()?;
        (1..=SYNC_INTERVAL_MS_MAX).contains(&ms).then_some(SyncMode::IntervalMs(ms))
    };
    match value {
        "always" => Ok(SyncMode::Always),
        "never" => Ok(SyncMode::Never),
        _ => interval().ok_or_else(|| {
            format!(
                "{value:?} is none of \"always\", \"never\" and \"<n>ms\" with n from 1 to \
                 {SYNC_INTERVAL_MS_MAX}"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use tepui_engine::db::EngineOptions;
    use tepui_engine::sst::SstOptions;

    use super::*;

    #[test]
    fn sync_modes_are_read_as_documented() {
        assert_eq!(sync_mode("always"), Ok(SyncMode::Always));
        assert_eq!(sync_mode("never"), Ok(SyncMode::Never));
        assert_eq!(sync_mode("10ms"), Ok(SyncMode::IntervalMs(10)));
        for bad in ["", "0ms", "10", "ms", "60001ms", "-1ms", "Always"] {
            assert!(sync_mode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn variables_are_named_after_their_keys() {
        assert_eq!(find("log.sync").unwrap().env_name(), "TEPUI_LOG_SYNC");
        assert_eq!(find("data").unwrap().env_name(), "TEPUI_DATA");
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_type() {
        let shares = super::super::Shares { memtable_bytes: Some(1), ..Default::default() };
        let mut config = Config {
            listen: String::new(),
            io: IoMode::Buffered,
            memory: Memory::Bytes(1),
            shares,
            engine: EngineOptions {
                partition_share_percent: 0,
                coarse_share_percent: 0,
                pinned_levels: 0,
                sst: SstOptions {
                    filter_bits_per_key: 0,
                    index_partition_bytes: 0,
                    filter_partition_bytes: 0,
                    ..SstOptions::default()
                },
                log_segment_bytes: 0,
                log_bytes_max: 0,
                compaction_threads: 0,
                background_bytes_per_second: 1,
                delete_bytes_per_second: 1,
                rewrite_age_ms: 1,
                separate_values_bytes: 1,
                ..EngineOptions::default()
            },
            ..Config::default()
        };
        for key in KEYS {
            (key.set)(&mut config, key.default).unwrap();
        }
        config.divide(None, None).unwrap();
        assert_eq!(config, Config::default());
    }

    #[test]
    fn the_documentation_has_every_key_with_its_default_and_no_other() {
        let text = include_str!("../../../../docs/operations.md");
        let rows = text.lines().skip_while(|line| *line != "| key | default | |").skip(2);
        let documented: Vec<(&str, &str)> = rows
            .take_while(|line| line.starts_with('|'))
            .flat_map(|row| {
                let cells: Vec<&str> = row.split('|').map(str::trim).collect();
                let (names, default) = (cells[1], cells[2]);
                // What it comes to may follow.
                let default = default.split('`').nth(1).unwrap_or(default);
                names.split(", ").map(move |name| (name.trim_matches('`'), default))
            })
            .collect();
        let keys: Vec<_> = KEYS.iter().map(|key| (key.name, key.default)).collect();
        for key in &keys {
            assert!(documented.contains(key), "docs/operations.md does not have {key:?}");
        }
        for key in &documented {
            assert!(keys.contains(key), "docs/operations.md has {key:?}, which is no key");
        }
        assert_eq!(documented.len(), keys.len(), "a key stands there twice");
    }

    #[test]
    fn memory_is_a_part_of_the_machine_or_a_size() {
        assert_eq!(memory("60%"), Ok(Memory::Percent(60)));
        assert_eq!(memory(" 5 %"), Ok(Memory::Percent(5)));
        assert_eq!(memory("2GiB"), Ok(Memory::Bytes(2 << 30)));
        for bad in ["", "%", "0%", "91%", "60.5%", "-1%", "1GB", "half"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metrics_need_an_address_or_are_off() {
        let set = find("metrics.listen").unwrap().set;
        let mut config = Config::default();
        set(&mut config, "127.0.0.1:9100").unwrap();
        assert_eq!(config.metrics_listen, Some(([127, 0, 0, 1], 9100).into()));
        set(&mut config, "").unwrap();
        assert_eq!(config.metrics_listen, None);
        for bad in ["9100", "localhost", "127.0.0.1:x"] {
            assert!(set(&mut config, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn filters_have_bits_that_are_of_use_or_none() {
        let set = find("engine.filter_bits_per_key").unwrap().set;
        let mut config = Config::default();
        for (good, bits) in [("0", 0), ("4", 4), ("20", 20)] {
            set(&mut config, good).unwrap();
            assert_eq!(config.engine.sst.filter_bits_per_key, bits);
        }
        for bad in ["", "1", "3", "21", "-1", "12.5"] {
            assert!(set(&mut config, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_need_a_host_and_a_port() {
        let set = find("listen").unwrap().set;
        for good in ["localhost:0", "[::]:8086", "0.0.0.0:1"] {
            set(&mut Config::default(), good).unwrap();
        }
        for bad in ["", ":8086", "localhost", "localhost:x", "localhost:65536"] {
            assert!(set(&mut Config::default(), bad).is_err(), "{bad}");
        }
    }
}

//! What the kernel says that a run cost: processor time and memory of the process, reads of the device.
//!
//! The device's counters (`/sys/dev/block/<major>:<minor>/stat`) are the whole machine's: another program that
//! reads from the same device is in them. The process's own (`/proc/self/io`) count bytes that it caused to be
//! fetched from storage, but not requests.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::clock::cpu_nanos;
use crate::error::{Error, Result};

/// Bytes of a sector in the kernel's block statistics, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;
/// Ticks a second of the processor times in `/proc`: fixed by the kernel's interface to user space.
const TICKS_PER_SECOND: f64 = 100.0;

/// The block device under a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    name: String,
    stat: PathBuf,
}

impl Device {
    /// The device that holds `dir`; none where the kernel has no counters for it (a file system in memory, a
    /// network, some containers).
    pub fn of(dir: &Path) -> Option<Self> {
        let dev = std::fs::metadata(dir).ok()?.dev();
        let id = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let link = std::fs::canonicalize(Path::new("/sys/dev/block").join(id)).ok()?;
        let stat = link.join("stat");
        let name = link.file_name()?.to_string_lossy().into_owned();
        stat.exists().then_some(Self { name, stat })
    }

    /// Its name in `/dev`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its counters since the machine started.
    pub fn counters(&self) -> Option<DeviceCounters> {
        DeviceCounters::parse(&std::fs::read_to_string(&self.stat).ok()?)
    }
}

/// What a block device did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceCounters {
    /// Reads completed; neighbours that the kernel merged count once.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl DeviceCounters {
    /// Reads the kernel's line: reads, reads merged, sectors read, time; the same for writes; and more.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().map(str::parse::<u64>);
        let mut field = |skip: usize| fields.nth(skip)?.ok();
        let (reads, read_sectors) = (field(0)?, field(1)?);
        let (writes, write_sectors) = (field(1)?, field(1)?);
        Some(Self {
            reads,
            read_bytes: read_sectors.saturating_mul(SECTOR_BYTES),
            writes,
            write_bytes: write_sectors.saturating_mul(SECTOR_BYTES),
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
        }
    }
}

/// What the machine's processors did, in ticks since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineTime {
    /// The time in which something here ran, or wanted to: a processor that has nothing to do loses nothing.
    pub wanted: u64,
    /// Of that what the host of a virtual machine took.
    pub stolen: u64,
}

impl MachineTime {
    /// The kernel's figures now; zero where it does not tell.
    pub fn now() -> Self {
        Self::parse(&read("/proc/stat")).unwrap_or_default()
    }

    /// Reads the kernel's line of all processors: user, nice, system, idle, waiting, interrupts of two kinds, stolen. What follows is
    /// in the first two.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map(|t| t.parse().ok()).collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self { wanted: ticks.iter().sum::<u64>() - idle, stolen: *ticks.get(7)? })
    }

    /// What has passed since an earlier reading.
    fn since(self, before: Self) -> Self {
        Self {
            wanted: self.wanted.saturating_sub(before.wanted),
            stolen: self.stolen.saturating_sub(before.stolen),
        }
    }

    /// The share that was taken since an earlier reading.
    pub fn stolen_share_since(self, before: Self) -> f64 {
        self.since(before).stolen_share()
    }

    /// The share that was taken.
    pub fn stolen_share(self) -> f64 {
        if self.wanted > 0 { self.stolen as f64 / self.wanted as f64 } else { 0.0 }
    }
}

/// A reading of all counters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Processor time of the process in nanoseconds, user and system.
    pub cpu_nanos: u64,
    /// Of that the user's part, in seconds, to a hundredth.
    pub user_seconds: f64,
    /// The system's part.
    pub system_seconds: f64,
    /// Bytes that the process caused to be fetched from storage.
    pub process_read_bytes: u64,
    /// The device's counters.
    pub device: Option<DeviceCounters>,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// The most there has been.
    pub rss_peak_bytes: u64,
    /// Bytes of the machine's page cache.
    pub page_cache_bytes: u64,
    /// What the machine's processors did.
    pub machine: MachineTime,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The number after `name:` at the start of a line.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

impl Usage {
    /// The counters now; zero where the kernel does not tell.
    pub fn now(device: Option<&Device>) -> Self {
        let (status, io) = (read("/proc/self/status"), read("/proc/self/io"));
        let [user_seconds, system_seconds] = cpu_times(&read("/proc/self/stat"));
        Self {
            cpu_nanos: cpu_nanos(),
            user_seconds,
            system_seconds,
            process_read_bytes: field(&io, "read_bytes"),
            device: device.and_then(Device::counters),
            rss_bytes: field(&status, "VmRSS").saturating_mul(1024),
            rss_peak_bytes: field(&status, "VmHWM").saturating_mul(1024),
            page_cache_bytes: field(&read("/proc/meminfo"), "Cached").saturating_mul(1024),
            machine: MachineTime::now(),
        }
    }

    /// What was used since an earlier reading; memory is as it is now.
    pub fn since(self, before: Self) -> Self {
        let device = match (self.device, before.device) {
            (Some(now), Some(before)) => Some(now.since(before)),
            _ => None,
        };
        Self {
            cpu_nanos: self.cpu_nanos.saturating_sub(before.cpu_nanos),
            user_seconds: (self.user_seconds - before.user_seconds).max(0.0),
            system_seconds: (self.system_seconds - before.system_seconds).max(0.0),
            process_read_bytes: self.process_read_bytes.saturating_sub(before.process_read_bytes),
            device,
            machine: self.machine.since(before.machine),
            ..self
        }
    }
}

/// Another process of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(pub u32);

/// What the kernel says of another process; zero where it does not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct ProcessFigures {
    /// Resident memory.
    pub rss_bytes: u64,
    /// The most there has been.
    pub rss_peak_bytes: u64,
    /// Bytes that the process caused to be written to storage.
    pub write_bytes: u64,
    /// Bytes that the process caused to be read from storage.
    pub read_bytes: u64,
    /// Processor time, user and system, to a hundredth of a second.
    pub cpu_seconds: f64,
}

impl Process {
    /// An error where the kernel does not tell what it did: there is no such process, or it is another user's.
    pub fn check(self) -> Result<()> {
        for name in ["stat", "io"] {
            let path = format!("/proc/{}/{name}", self.0);
            if let Err(error) = std::fs::read_to_string(&path) {
                return Err(Error::failed(format!("{path}: {error}")));
            }
        }
        Ok(())
    }

    /// The kernel's figures now.
    pub fn figures(self) -> ProcessFigures {
        let of = |name: &str| read(&format!("/proc/{}/{name}", self.0));
        let (status, io) = (of("status"), of("io"));
        ProcessFigures {
            rss_bytes: field(&status, "VmRSS").saturating_mul(1024),
            rss_peak_bytes: field(&status, "VmHWM").saturating_mul(1024),
            write_bytes: field(&io, "write_bytes"),
            read_bytes: field(&io, "read_bytes"),
            cpu_seconds: cpu_times(&of("stat")).into_iter().sum(),
        }
    }
}

/// Seconds of user and system time in the kernel's line about a process.
fn cpu_times(stat: &str) -> [f64; 2] {
    // utime and stime are the 14th and 15th fields; the 2nd may hold spaces, in parentheses.
    let mut ticks = stat
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .skip(11)
        .map(|t| t.parse::<f64>().unwrap_or(0.0) / TICKS_PER_SECOND);
    [ticks.next().unwrap_or(0.0), ticks.next().unwrap_or(0.0)]
}

/// The machine that a run was made on.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that the process may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The device under the data directory.
    pub device: Option<String>,
}

impl Machine {
    /// This machine, with the device under `dir`.
    pub fn here(dir: &Path) -> Self {
        let cpus = read("/proc/cpuinfo");
        let cpu = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        Self {
            cpu: cpu.to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&read("/proc/meminfo"), "MemTotal").saturating_mul(1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            device: Device::of(dir).map(|device| device.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_gives_requests_and_bytes() {
        let line = "  100 7 1600 40 20 3 800 9 0 50 49 0 0 0 0 5 6\n";
        let counters = DeviceCounters::parse(line).unwrap();
        let expected = DeviceCounters {
            reads: 100,
            read_bytes: 1600 * 512,
            writes: 20,
            write_bytes: 800 * 512,
        };
        assert_eq!(counters, expected);
        assert_eq!(DeviceCounters::parse("1 2 3"), None);
        assert_eq!(DeviceCounters::parse("a b c d e f g"), None);
    }

    #[test]
    fn what_the_host_took_is_the_eighth_of_the_kernels_ticks() {
        let at = |stat| MachineTime::parse(stat).unwrap();
        let before = at("cpu  10 0 5 80 1 0 1 3 9 9\ncpu0 1 2 3\n");
        assert_eq!(before, MachineTime { wanted: 19, stolen: 3 });
        let after = at("cpu  40 10 15 100 1 0 1 33 9 9\n");
        assert!((after.stolen_share_since(before) - 0.375).abs() < 1e-9);
        assert!(before.stolen_share_since(before).abs() < 1e-9);
        for bad in ["", "cpu 1 2 3", "cpu a b c d e f g h", "cpu0 1 2 3 4 5 6 7 8"] {
            assert_eq!(MachineTime::parse(bad), None);
        }
    }

    #[test]
    fn work_shows_as_processor_time_and_memory_is_told() {
        let before = Usage::now(None);
        let mut sum = 0u64;
        for i in 0..3_000_000u64 {
            sum = sum.wrapping_add(crate::dataset::scatter(std::hint::black_box(i)));
        }
        std::hint::black_box(sum);
        let used = Usage::now(None).since(before);
        assert!(used.cpu_nanos > 100_000, "{used:?}");
        assert!(used.rss_bytes > 0 && used.rss_peak_bytes >= used.rss_bytes, "{used:?}");
        assert_eq!(used.device, None);
    }

    #[test]
    fn another_process_is_seen_as_this_one_is() {
        let (own, seen) = (Usage::now(None), Process(std::process::id()).figures());
        assert!(seen.rss_bytes > 0 && seen.rss_peak_bytes >= own.rss_bytes / 2, "{seen:?}");
        let hundredths = |stat| cpu_times(stat).map(|seconds| (seconds * 100.0).round() as u64);
        assert_eq!(hundredths("1 (a) b) R 1 2 3 4 5 6 7 8 9 10 150 25 7"), [150, 25]);
        assert_eq!(hundredths("nonsense"), [0, 0]);
        Process(std::process::id()).check().unwrap();
        let nobody = Process(u32::MAX).check().unwrap_err().to_string();
        assert!(nobody.contains("4294967295/stat"), "{nobody}");
    }

    #[test]
    fn a_directory_without_a_block_device_has_no_counters() {
        assert_eq!(Device::of(Path::new("/proc")), None);
        assert_eq!(Device::of(Path::new("/no/such/directory")), None);
    }
}

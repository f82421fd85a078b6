//! What the figures were measured on: read from `/proc` and `/sys`, so that a report can be judged by who did not
//! make it. A thing that cannot be found is `unknown`; it never stops a run.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// The machine and the device under the data directory.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Model name of the first processor.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory, in GiB.
    pub memory_gib: f64,
    /// Release of the kernel.
    pub kernel: String,
    /// Block device that holds the data directory.
    pub device: String,
    /// Its logical sector in bytes: the alignment that direct I/O needs.
    pub sector_bytes: u64,
    /// Type of the file system.
    pub file_system: String,
}

const UNKNOWN: &str = "unknown";

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map(|s| s.trim().to_owned()).unwrap_or_default()
}

fn or_unknown(s: &str) -> String {
    if s.is_empty() { UNKNOWN.to_owned() } else { s.to_owned() }
}

/// The value after `name` and a colon, in files such as `/proc/cpuinfo`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The file system of the longest mount point that `dir` is under, from the text of `/proc/self/mounts`.
fn file_system<'a>(mounts: &'a str, dir: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut parts = line.split(' ');
            let (mount, kind) = (parts.nth(1)?, parts.next()?);
            dir.starts_with(mount).then_some((mount.len(), kind))
        })
        .max_by_key(|(len, _)| *len)
        .map(|(_, kind)| kind)
}

impl Machine {
    /// Looks at the machine, and at the device that holds `dir`, which must exist.
    pub fn of(dir: &Path) -> Self {
        let processor = text("/proc/cpuinfo");
        let memory_kib = field(&text("/proc/meminfo"), "MemTotal")
            .and_then(|v| v.split(' ').next()?.parse::<f64>().ok())
            .unwrap_or(0.0);
        let (device, sector_bytes) = device(dir);
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Self {
            processor: or_unknown(field(&processor, "model name").unwrap_or("")),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib / f64::from(1 << 20),
            kernel: or_unknown(&text("/proc/sys/kernel/osrelease")),
            device: or_unknown(&device),
            sector_bytes,
            file_system: or_unknown(file_system(&text("/proc/self/mounts"), &dir).unwrap_or("")),
        }
    }

    /// One line.
    pub fn line(&self) -> String {
        format!(
            "{} x{}, {:.0} GiB, Linux {}, {} on {} with {}-byte sectors",
            self.processor,
            self.processors,
            self.memory_gib,
            self.kernel,
            self.file_system,
            self.device,
            self.sector_bytes,
        )
    }
}

/// Name and logical sector of the block device that holds `dir`. A partition has its queue in the folder above.
fn device(dir: &Path) -> (String, u64) {
    let Ok(stat) = rustix::fs::stat(dir) else { return (String::new(), 0) };
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let Ok(sys) = Path::new(&format!("/sys/dev/block/{major}:{minor}")).canonicalize() else {
        return (String::new(), 0);
    };
    let name = sys.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let sector = [sys.join("queue"), sys.join("../queue")]
        .iter()
        .find_map(|queue| text(queue.join("logical_block_size")).parse().ok());
    (name, sector.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_tells_the_file_system() {
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /data xfs rw 0 0\nnone /data/tmp tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts, Path::new("/data/x")), Some("xfs"));
        assert_eq!(file_system(mounts, Path::new("/home")), Some("ext4"));
        assert_eq!(file_system("", Path::new("/home")), None);
    }

    #[test]
    fn a_field_is_found_by_its_name() {
        assert_eq!(field("a\t: b\nmodel name : X 1\n", "model name"), Some("X 1"));
        assert_eq!(field("a: b", "c"), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::of(Path::new("."));
        assert_ne!(machine.kernel, UNKNOWN);
        assert!(machine.memory_gib > 0.0 && machine.processors > 0);
    }
}

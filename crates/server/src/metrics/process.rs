//! What the operating system says of this process and this machine.

use std::path::{Path, PathBuf};

/// A file of `/proc` or `/sys`, as text. These have no length to read by and belong to no disk, so they do not go
/// through the seam of files.
fn text(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Resident memory of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Bytes that belong to nothing but the process: what the allocator has, used or kept, and stacks.
    pub anonymous_bytes: u64,
    /// Bytes of files that are mapped, mostly the program's own code, and bytes that are shared.
    pub mapped_bytes: u64,
}

impl ProcessMemory {
    /// All of it: `VmRSS`.
    pub fn resident_bytes(&self) -> u64 {
        self.anonymous_bytes + self.mapped_bytes
    }
}

/// The memory of this process; `None` where the system does not say.
pub fn memory() -> Option<ProcessMemory> {
    let status = text("/proc/self/status")?;
    let anonymous_bytes = kib_of(&status, "RssAnon:")?;
    let mapped_bytes = kib_of(&status, "RssFile:")? + kib_of(&status, "RssShmem:")?;
    Some(ProcessMemory { anonymous_bytes, mapped_bytes })
}

/// Files and connections that this process has open; `None` where the system does not say.
pub fn open_files() -> Option<u64> {
    let dir = Path::new("/proc/self/fd");
    // Linux gives their number as the length since 6.2. Before that they are counted, one name for each.
    match std::fs::metadata(dir).ok()?.len() {
        0 => Some(names_in(dir)?.saturating_sub(1)),
        open => Some(open),
    }
}

/// Whether the process ignores a signal; `None` where the system does not say.
pub fn ignores_signal(number: i32) -> Option<bool> {
    let status = text("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let bit = u32::try_from(number.checked_sub(1)?).ok()?;
    Some(mask.checked_shr(bit)? & 1 == 1)
}

/// Names in a directory of `/proc`; of `fd`, one is that of this very look.
#[expect(clippy::disallowed_methods, reason = "/proc belongs to no disk: not the seam of files")]
fn names_in(dir: &Path) -> Option<u64> {
    Some(std::fs::read_dir(dir).ok()?.count() as u64)
}

/// Bytes of memory that this process may use: those of the machine, or of the control groups that it is in; `None` where the system does
/// not say.
pub fn memory_limit_bytes() -> Option<u64> {
    memory_limit_by(|path| text(path))
}

/// The same where `text` reads files.
fn memory_limit_by(text: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let machine = text(Path::new("/proc/meminfo")).and_then(|info| kib_of(&info, "MemTotal:"));
    // A container's own group is often the root of those that it sees.
    let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_else(|| ROOT_GROUPS.to_owned());
    let limits = group_files(&groups).into_iter().filter_map(|file| {
        let limit = limit_of(&text(&file)?)?;
        let is_hard = !file.ends_with("memory.high");
        (is_hard || limit >= HIGH_BYTES_MIN).then_some(limit)
    });
    machine.into_iter().chain(limits).min()
}

/// Processors that this process may use, as far as the system says.
pub fn processors() -> Option<usize> {
    std::thread::available_parallelism().ok().map(usize::from)
}

/// The number of a line such as `MemTotal:  1024 kB`, in bytes.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The limit in a file of a control group; `max`, or the huge number that version 1 has for none, is no limit.
fn limit_of(text: &str) -> Option<u64> {
    /// More than this is no memory of any machine.
    const NO_LIMIT: u64 = 1 << 60;
    text.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

/// Bytes of a `memory.high` that counts, at least: it changes while programs run, down to nothing where somebody wants memory back at once, and one
/// that would keep a server from starting had better slow it.
const HIGH_BYTES_MIN: u64 = 512 << 20;

/// What `/proc/self/cgroup` says in the root of the control groups, of either version.
const ROOT_GROUPS: &str = "1:memory:/\n0::/\n";

/// The files that may hold a limit, by the text of `/proc/self/cgroup`: of each group and of those above it. Above `memory.high` the
/// system takes memory back at once, and slows who asks for more: it is as little there for use as what is above `memory.max`.
fn group_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, names): (_, &[_]) = match controllers {
            "" => ("/sys/fs/cgroup", &["memory.max", "memory.high"]),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let below = group.strip_prefix("/").unwrap_or(group);
            files.extend(names.iter().map(|name| Path::new(root).join(below).join(name)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_every_group_above_are_looked_at() {
        let files = group_files("0::/a/b\n");
        let names: Vec<_> = files.iter().map(|f| f.to_str().unwrap()).collect();
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/b/memory.high",
            "/sys/fs/cgroup/a/memory.max",
            "/sys/fs/cgroup/a/memory.high",
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/memory.high",
        ];
        assert_eq!(names, expected);
        let files = group_files("5:cpu:/x\n4:pids,memory:/y\n");
        assert_eq!(files[0], Path::new("/sys/fs/cgroup/memory/y/memory.limit_in_bytes"));
        assert!(group_files("nonsense\n\n:").is_empty());
    }

    #[test]
    fn numbers_are_read_and_no_limit_is_none() {
        assert_eq!(limit_of("1048576\n"), Some(1 << 20));
        for none in ["max\n", "", "9223372036854771712"] {
            assert_eq!(limit_of(none), None);
        }
        assert_eq!(kib_of("A: 1 kB\nMemTotal:   12 kB\n", "MemTotal:"), Some(12 << 10));
        assert_eq!(kib_of("MemTotal: x kB", "MemTotal:"), None);
    }

    #[test]
    fn memory_is_the_least_that_any_file_names_and_the_root_counts_where_no_group_is_known() {
        let limit = |there: &[(&str, &str)]| {
            let text = |path: &Path| {
                let (_, text) = there.iter().find(|(name, _)| Path::new(name) == path)?;
                Some((*text).to_owned())
            };
            memory_limit_by(text)
        };
        let machine = ("/proc/meminfo", "MemTotal: 4194304 kB\n");
        let group = ("/proc/self/cgroup", "0::/a\n");
        let max = ("/sys/fs/cgroup/a/memory.max", "2147483648\n");
        let high = ("/sys/fs/cgroup/a/memory.high", "1073741824\n");
        let no_high = ("/sys/fs/cgroup/a/memory.high", "max\n");
        let of_root = ("/sys/fs/cgroup/memory.max", "536870912\n");
        let of_version_1 = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        assert_eq!(limit(&[machine]), Some(4 << 30));
        assert_eq!(limit(&[machine, group, max, no_high]), Some(2 << 30));
        assert_eq!(limit(&[machine, group, max, high]), Some(1 << 30));
        for passing in ["0\n", "268435456\n"] {
            let high = ("/sys/fs/cgroup/a/memory.high", passing);
            assert_eq!(limit(&[machine, group, max, high]), Some(2 << 30));
        }
        assert_eq!(limit(&[machine, max, of_root]), Some(512 << 20));
        assert_eq!(limit(&[of_version_1]), Some(256 << 20));
        assert_eq!(limit(&[group, no_high]), None);
    }

    #[test]
    fn open_files_are_counted() {
        let before = open_files().unwrap();
        let held: Vec<_> =
            (0..100).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        // Tests beside this one open and close some.
        let with = open_files().unwrap();
        assert!(with >= before + 50 && with >= 100, "{before}, then {with}");
        let counted = names_in(Path::new("/proc/self/fd")).unwrap();
        assert!(counted.abs_diff(with) < 50, "{counted} names of {with}");
        drop(held);
    }

    #[test]
    fn this_machine_says_what_it_has() {
        let limit = memory_limit_bytes().unwrap();
        let resident = memory().unwrap().resident_bytes();
        assert!(resident > 1 << 20 && resident < limit, "{resident} of {limit}");
    }
}

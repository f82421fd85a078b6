//! Every limit of the engine, with its unit and its reason.

use std::time::Duration;

/// Bytes of one row that a read returns at most: Bigtable's documented limit of 256 MiB.
pub const ROW_READ_BYTES_MAX: u64 = 256 << 20;

/// Records that a merged read steps over before it seeks past the rest of what it may skip. A seek costs
/// about as much as stepping over this many records (a binary search in each child against one
/// comparison each). Lower: seeks where two steps would do, in tables of a few versions per column.
/// Higher: long hidden runs are walked for longer before they are jumped.
pub const SKIP_BEFORE_SEEK: u32 = 16;

/// The same right after records of a row were sought past: its next columns tend to have as many versions, and a seek
/// within a row finds its way in the processor's cache. With each column it doubles, so that one column of many versions
/// does not make all others be sought through.
pub const SKIP_BEFORE_SEEK_AGAIN: u32 = 2;

/// Records that a scan looks at without finding anything to return before it gives its caller a mark of
/// progress: about a millisecond of work. Lower: more marks on the wire for sparse scans. Higher: a
/// caller that waits for a mark holds its thread for longer, and a client that resumes repeats more.
pub const SCAN_PROGRESS_RECORDS: u64 = 16_384;

/// Records, of one row or of many that show nothing, that a read looks at before others of its thread have their turn: some 100
/// microseconds of work, as long as turns are elsewhere. A seek counts as [`SKIP_BEFORE_SEEK`] of them. Lower: rows of as many cells take
/// longer. Higher: so does whatever waits for the thread.
pub const RECORDS_PER_TURN: u64 = 2_048;

/// The same of a read that sees all there is, as those do that hold the row's lock: for each turn of others all who wait for the lock
/// wait as well.
pub const RECORDS_PER_LOCKED_TURN: u64 = 16 * RECORDS_PER_TURN;

/// Files of a kind whose version a start reads though no table needs them, the newest: change files, and SSTs and value files that backups
/// alone keep. Numbers ascend, and no start goes beyond what a newer version wrote, so its files are the last. Fewer: a version that has
/// written some files in the old form since is not noticed. More: a slow disk keeps each start by as many reads.
pub const VERSIONS_READ_MAX: usize = 32;

/// How far the wall clock may get ahead of the monotonic one between two looks, as a clock does that is set. A day costs nobody a
/// backup or a deleted table that was to stay for the usual week or month. A smaller value doubts a machine that slept for a night.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_hours(24);

/// How long nothing expires by a wall clock that is in doubt, be it since it jumped or since a start: time to set it right. The disk
/// keeps for so much longer what a clock that was right would have deleted.
pub const CLOCK_DOUBT: Duration = Duration::from_hours(1);

//! Memory of rows that writes read first: conditional ones, increments and appends.
//!
//! Such a row is read under its lock, by as many requests at once as there are, and may have 256 MiB. What has few bytes is read at
//! once; of what has more, no more is in memory than there is room for, and a row of more than all of that is read alone. Nobody
//! knows before how large a row is: a read that meets more than it has room for ends, and begins anew with room for
//! [some times as much](ROOM_RATIO). Rows that are large but not that large have room of their own, so that they do not wait behind
//! one that wants all that there is.
//!
//! Who waits for room holds the lock of its row and no room; who has room waits for no lock, so that nobody waits in a circle.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes up to which a row counts for nothing: a thousand requests at once have a quarter of a gigabyte. Lower: rows that are not large
/// are looked for twice, and wait for each other. Higher: more that nobody counts.
pub(super) const LOCKED_ROW_BYTES_MIN: u64 = 256 << 10;

/// The larger ones have this part of the memory of memtables together. Lower: fewer of them are read at once. Higher: more beside all
/// else, most of the time for nothing.
const MEMTABLES_PART: u64 = 4;

/// How much more than before a read has room for that begins anew. Lower: more beginnings. Higher: more room that is taken for a row
/// that does not need it, while it is read.
pub(super) const ROOM_RATIO: u64 = 16;

/// What a read has room for that begins anew the first time.
const MIDDLING_ROW_BYTES_MAX: u64 = LOCKED_ROW_BYTES_MIN * ROOM_RATIO;

/// Such reads have this part of all room to themselves. Lower: fewer of them at once. Higher: less for larger rows.
const MIDDLING_PART: u64 = 4;

/// What room is counted in, so that it fits a semaphore.
const UNIT_BYTES: u64 = 1 << 10;

/// Room for the large rows of an engine.
#[derive(Debug)]
pub(crate) struct LockedRows {
    middling: Room,
    large: Room,
}

#[derive(Debug)]
struct Room {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// Room for a row that was read, given back when it is dropped.
#[derive(Debug, Default)]
pub struct RowRoom(Option<OwnedSemaphorePermit>);

impl LockedRows {
    pub(crate) fn new(memtables_total_bytes: u64) -> Self {
        let bytes = memtables_total_bytes / MEMTABLES_PART;
        let middling = bytes / MIDDLING_PART;
        Self { middling: Room::new(middling), large: Room::new(bytes - middling) }
    }

    /// Waits for room for a row of so many bytes, or for all that there is for such rows.
    pub(super) async fn room(&self, bytes: u64) -> RowRoom {
        let room = if bytes <= MIDDLING_ROW_BYTES_MAX { &self.middling } else { &self.large };
        let units = units(bytes).min(room.units_max);
        RowRoom(Arc::clone(&room.units).acquire_many_owned(units).await.ok())
    }
}

impl Room {
    fn new(bytes: u64) -> Self {
        let units_max = units(bytes).clamp(1, u32::MAX >> 4);
        Self { units: Arc::new(Semaphore::new(units_max as usize)), units_max }
    }
}

impl RowRoom {
    /// The row has so many bytes.
    pub(super) fn shrink(&mut self, bytes: u64) {
        if let Some(permit) = &mut self.0 {
            let beyond = permit.num_permits().saturating_sub(units(bytes) as usize);
            drop(permit.split(beyond));
        }
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

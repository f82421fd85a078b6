//! A counter in a row, incremented as `ReadModifyWriteRow` does it: the row's lock, the newest value whether
//! durable yet or not, one put, and the wait for its durability after the lock is gone.

use bytes::Bytes;
use tepui_engine::cell::{Mutation, RowBatch};
use tepui_engine::read::{FamilyProjection, Projection};
use tepui_engine::tablet::{ReadView, Tablet};

use super::FAMILY;
use crate::dataset::TIMESTAMP_MICROS;
use crate::error::{Error, Result};

/// The counter's column.
const COUNTER: &[u8] = b"counter";

/// What a read of the counter asks for.
pub(super) fn ask() -> Projection {
    let name = Bytes::from_static(COUNTER);
    let only = (std::ops::Bound::Included(name.clone()), std::ops::Bound::Included(name));
    let family = FamilyProjection { family: FAMILY, qualifiers: [only].into_iter().collect() };
    Projection { families: Some(vec![family]), versions_max: 1, ..Projection::all() }
}

/// The counter of a row; 0 where there is none.
pub(super) async fn read(
    tablet: &Tablet,
    key: &[u8],
    ask: &Projection,
    view: ReadView<'_>,
) -> Result<i64> {
    let row = tablet.read_row(key, ask, view).await?;
    let Some(cell) = row.as_ref().and_then(|row| row.cells.first()) else { return Ok(0) };
    let value: &[u8] = &cell.value;
    let bytes = value
        .try_into()
        .map_err(|_| Error::mismatch(format!("a counter came back with {} bytes", value.len())))?;
    Ok(i64::from_be_bytes(bytes))
}

/// Adds one to the counter of a row; resolves when that is durable.
pub(super) async fn increment(tablet: &Tablet, key: &[u8], ask: &Projection) -> Result<()> {
    let lock = tablet.lock_row(key).await;
    let next = read(tablet, key, ask, ReadView::Pending).await? + 1;
    let put = Mutation::Put {
        family: FAMILY,
        qualifier: Bytes::from_static(COUNTER),
        timestamp: TIMESTAMP_MICROS,
        value: Bytes::copy_from_slice(&next.to_be_bytes()),
    };
    let batch = RowBatch { row: Bytes::copy_from_slice(key), mutations: vec![put] };
    tablet.apply_locked(lock, batch).await?;
    Ok(())
}

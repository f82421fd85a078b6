//! Rows for tests in the form in which most are read.

use bytes::Bytes;
use tepui_engine::cell::{Cell, Memories, PinnedCell, PinnedRow, Place, Row};

/// The same row, whose cells say where they lie, in two pieces of memory by turns.
pub(crate) fn pinned(row: &Row) -> PinnedRow {
    let mut memories = [b"something".to_vec(), b"else".to_vec()];
    let mut cells = Vec::new();
    for (n, cell) in row.cells.iter().enumerate() {
        let mut pin = |number: usize, bytes: &[u8]| {
            let memory = memories.get_mut(number).unwrap();
            let place = Place::new(number, memory.len(), bytes.len()).unwrap();
            memory.extend_from_slice(bytes);
            place
        };
        let (qualifier, value) = (pin(n % 2, &cell.qualifier), pin(n / 2 % 2, &cell.value));
        let Cell { family, timestamp, .. } = *cell;
        cells.push(PinnedCell { family, qualifier, timestamp, value });
    }
    let memories: Memories = memories.map(Bytes::from).into_iter().collect();
    let pinned = PinnedRow { key: row.key.clone(), memories, cells };
    assert_eq!(Row::from(pinned.clone()), *row);
    pinned
}

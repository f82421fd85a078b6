//! Turns: work that is long gives its thread to others now and then, also where it waits for nothing. A core serves all its
//! requests on one thread, and what a small one waits for is the turns of the long ones beside it.

/// Bytes of rows that are worked through in a turn; some 100 microseconds of work. More, and others wait longer; fewer, and the
/// runtime's own work, a microsecond a turn, is felt.
const TURN_BYTES: usize = 64 << 10;

/// What the work of a row beyond its bytes counts as.
const ROW_BYTES: usize = 256;

/// The turn of one request.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    bytes: usize,
}

impl Turn {
    /// A row of so many bytes was worked through, or is about to be.
    pub(crate) fn row(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(ROW_BYTES);
    }

    /// Whether it is over, and with it the next one begins.
    pub(crate) fn is_over(&mut self) -> bool {
        let over = self.bytes >= TURN_BYTES;
        if over {
            self.bytes = 0;
        }
        over
    }
}

//! Values that lie outside of SSTs: a large value is written once, by the flush that takes its cell out of
//! memory, into a *value file*; the SST holds a pointer to it. Compactions merge pointers and leave values where
//! they are, so the rewriting of levels does not rewrite values.
//!
//! ```text
//! SST      ... row, family, qualifier, timestamp, sequence, "value elsewhere" ─► file, offset, lengths ...
//!                                                                                   │
//! value file   frame | frame | frame ... | footer  ◄────────────────────────────────┘
//! ```
//!
//! # What lives
//!
//! Nothing keeps a list of value files. Each SST says in its properties which value files its pointers lead to and how many
//! bytes they name there; a value file lives while an SST that a version names, or a reader holds, names it.
//! Its garbage is what no SST names any more. A start removes the value files that no SST names.
//!
//! # Garbage
//!
//! A compaction that meets a pointer into a file of which little is live moves the value into a value file of
//! its own ([`crate::compaction`]); where none comes by, `tablet/reclaim.rs` picks one. Both are bounded by bytes for each
//! job, worst files first, so that files which become garbage at the same time are not all rewritten at the same
//! time.
//!
//! | Noun | File |
//! |---|---|
//! | The pointer of a record | `pointer.rs` |
//! | The format: writing, opening, reading one value | `file.rs` |
//! | The open value files of an engine, and who names them | `store.rs` |
//! | Reading many values at once | `fetch.rs` |

mod fetch;
mod file;
mod pointer;
mod store;

pub(crate) use fetch::{Elsewhere, FETCH_BYTES_MAX, FoundRow, ValueSource, batch_len};
pub use file::{ValueFileSummary, ValueFileWriter, ValueReader};
pub(crate) use file::{
    ValueWindows, blank_footer, fuzz_footer, value_windows_bytes, with_any_footer,
};
pub use pointer::ValuePointer;
pub(crate) use store::{MoveBudget, NamedValues, UnknownNames, ValueFile, ValueFiles, ValueStore};

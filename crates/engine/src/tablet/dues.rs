//! What flushes and compactions found out of their outputs: from when on garbage collection has something to take away there.
//!
//! The properties of an SST tell less. Of a rule that is an intersection, one column may have the versions and another the age,
//! and no cell both: by its properties the file may hold garbage for ever, and rewriting it would change nothing.
//!
//! Kept in memory alone: after a restart such a file is rewritten once more, and then known again.

use std::collections::HashMap;
use std::sync::Arc;

use crate::compaction::gc::Dues;
use crate::schema::TabletSchema;
use crate::sst::FileId;

/// The dues of a tablet's SSTs, as far as they are known, by the rules of one schema.
#[derive(Debug, Default)]
pub(super) struct KnownDues {
    schema: Option<Arc<TabletSchema>>,
    files: HashMap<FileId, Dues>,
}

impl KnownDues {
    /// Those by the rules of `schema`. What was found by other rules says nothing of these, and is forgotten.
    pub(super) fn by(&mut self, schema: &Arc<TabletSchema>) -> &mut HashMap<FileId, Dues> {
        if self.schema.as_ref() != Some(schema) {
            self.schema = Some(Arc::clone(schema));
            self.files.clear();
        }
        &mut self.files
    }
}

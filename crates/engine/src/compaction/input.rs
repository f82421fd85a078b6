//! What a compaction reads: a sublevel or a level, as one cursor over the files that it has there.

use std::sync::Arc;

use bytes::Bytes;

use crate::cell::RowRange;
use crate::cursor::{Cursor, Entry, Step};
use crate::error::{Error, Result};
use crate::io::IoEngine;
use crate::manifest::SstRef;
use crate::sst::{Block, BlockRequest, FileId, SstWalk};
use crate::store::SstFile;

/// Files of disjoint rows, in row order, one walk after the other. Goes forward only; loads by itself. Its errors say which file
/// they are of.
pub(crate) struct RunCursor {
    /// Those that are to come, the next one last.
    files: Vec<(Arc<SstFile>, RowRange)>,
    io: Arc<dyn IoEngine>,
    /// Bytes that a walk reads at once.
    window_bytes: u64,
    current: Option<SstWalk>,
    /// The file that it walks through.
    file: FileId,
}

impl RunCursor {
    /// Over the rows of these files, in row order, that lie in `bounds`; read in windows of so many bytes.
    pub(crate) fn new(
        files: impl DoubleEndedIterator<Item = (Arc<SstFile>, Arc<SstRef>)>,
        io: &Arc<dyn IoEngine>,
        bounds: &RowRange,
        window_bytes: u64,
    ) -> Self {
        let files = files.rev().map(|(file, sst)| (file, sst.span().intersect(bounds))).collect();
        Self { files, io: Arc::clone(io), window_bytes, current: None, file: 0 }
    }

    /// Goes on to the file behind while this one has nothing to show.
    fn settle(&mut self, target: &[u8]) -> Result<Step> {
        while self.entry().is_none() {
            self.current = None;
            let Some((file, span)) = self.files.pop() else { break };
            self.file = file.id();
            let of_file = |error: Error| error.of_sst(file.id());
            let reader = Arc::clone(file.reader().map_err(of_file)?);
            let walk = SstWalk::new(reader, Arc::clone(&self.io), &span, self.window_bytes);
            let step = self.current.insert(walk.map_err(of_file)?).seek(target).map_err(of_file)?;
            debug_assert!(step == Step::Ready, "a walk is never blocked");
        }
        Ok(Step::Ready)
    }
}

impl Cursor for RunCursor {
    fn seek(&mut self, target: &[u8]) -> Result<Step> {
        if let Some(current) = &mut self.current {
            let step = current.seek(target).map_err(|error| error.of_sst(self.file))?;
            debug_assert!(step == Step::Ready, "a walk is never blocked");
        }
        self.settle(target)
    }

    fn next(&mut self) -> Result<Step> {
        if let Some(current) = &mut self.current {
            let step = current.next().map_err(|error| error.of_sst(self.file))?;
            debug_assert!(step == Step::Ready, "a walk is never blocked");
        }
        self.settle(&[])
    }

    fn seek_row_before(&mut self, bound: &[u8]) -> Result<Step> {
        self.current.as_mut().map_or(Ok(Step::Ready), |current| current.seek_row_before(bound))
    }

    fn entry(&self) -> Option<Entry<'_>> {
        self.current.as_ref()?.entry()
    }

    fn value_bytes(&self) -> Bytes {
        self.current.as_ref().map_or_else(Bytes::new, Cursor::value_bytes)
    }

    fn qualifier_bytes(&self) -> Bytes {
        self.current.as_ref().map_or_else(Bytes::new, Cursor::qualifier_bytes)
    }

    // It is never blocked.
    fn wanted(&self, _out: &mut Vec<BlockRequest>) {}

    fn supply(&mut self, _request: &BlockRequest, _block: &Arc<Block>) {}

    fn resume(&mut self) -> Result<Step> {
        Ok(Step::Ready)
    }
}

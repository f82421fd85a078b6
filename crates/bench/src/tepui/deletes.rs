//! Deleting rows, and looking for the first that is left.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tepui_engine::cell::{Mutation, RowBatch, RowRange};
use tepui_engine::read::Projection;
use tepui_engine::tablet::ScanOptions;

use super::Tepui;
use crate::error::Result;
use crate::progress::Progress;

/// Deletes under way at once.
const IN_FLIGHT: usize = 512;
/// Deletes between two looks at whether to stop.
const CHUNK_ROWS: usize = 4096;

impl Tepui {
    /// Deletes rows, each with a mutation of its own.
    pub fn delete_rows(&self, rows: &[Vec<u8>], progress: &Progress) -> Result<()> {
        let bar = progress.bar("delete", "rows", Some(rows.len() as u64));
        pollster::block_on(async {
            let mut under_way = FuturesUnordered::new();
            for chunk in rows.chunks(CHUNK_ROWS) {
                progress.check()?;
                for row in chunk {
                    if under_way.len() >= IN_FLIGHT
                        && let Some(done) = under_way.next().await
                    {
                        let _: u64 = done?;
                    }
                    let mutations = vec![Mutation::DeleteRow];
                    under_way.push(
                        self.tablet
                            .apply_when_room(RowBatch { row: row.clone().into(), mutations }),
                    );
                }
                bar.add(chunk.len() as u64);
            }
            while let Some(done) = under_way.next().await {
                let _: u64 = done?;
            }
            Ok(())
        })
    }

    /// The first row of a scan of everything, if there is one.
    pub fn first_row(&self) -> Result<Option<Vec<u8>>> {
        let options = ScanOptions {
            range: RowRange::all(),
            projection: Projection::all(),
            reverse: false,
            rows_hint: Some(1),
            snapshot: None,
        };
        let mut stream = self.tablet.scan(options)?;
        pollster::block_on(async {
            // A row without cells only marks how far the scan has come.
            while let Some(row) = stream.next().await? {
                if !row.cells.is_empty() {
                    return Ok(Some(row.key.to_vec()));
                }
            }
            Ok(None)
        })
    }

    /// Writes what is in memory to files.
    pub fn flush(&self) -> Result<()> {
        Ok(pollster::block_on(self.tablet.flush())?)
    }
}

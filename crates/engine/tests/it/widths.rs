//! Rows of every width, among each other: those that lie whole in one block, those that fill groups of it, and
//! those that span blocks take different ways through a read and must come out alike.

use futures::executor::block_on;
use tepui_engine::cell::RowRange;
use tepui_engine::db::EngineOptions;
use tepui_engine::read::Projection;
use tepui_engine::tablet::ReadView;

use crate::harness::{Rig, plain_schema, put, tiny_options};

/// Cells of the rows, in turn: around a group's 32 records, and beyond a block.
const WIDTHS: [usize; 12] = [1, 33, 2, 64, 1, 1, 31, 32, 400, 1, 65, 120];

#[test]
fn rows_of_every_width_come_out_alike_of_point_reads_and_scans_both_ways() {
    for block_bytes in [512, 4096, 16 << 10] {
        let mut options = EngineOptions { target_file_bytes: 1 << 20, ..tiny_options() };
        options.sst.block_bytes = block_bytes;
        let rig = Rig::new(options, plain_schema(), 3);
        let rows: Vec<(String, usize)> =
            (0..240).map(|n| (format!("row-{n:03}"), WIDTHS[n % WIDTHS.len()])).collect();
        for (row, width) in &rows {
            let cells = (0..*width).map(|c| put(1, &format!("c{c:04}"), 1000, "value")).collect();
            rig.apply(row.as_bytes(), cells);
        }
        block_on(rig.tablet.flush()).unwrap();
        for settled in [false, true] {
            if settled {
                rig.engine.compact_fully().unwrap();
            }
            for (row, width) in &rows {
                let projection = Projection::all();
                let read = rig.tablet.read_row(row.as_bytes(), &projection, ReadView::Durable);
                let read = block_on(read).unwrap().unwrap();
                assert_eq!((read.cells.len(), read.key.as_ref()), (*width, row.as_bytes()));
            }
            for reverse in [false, true] {
                let mut scanned: Vec<(String, usize)> = rig
                    .scan(RowRange::all(), reverse, None)
                    .into_iter()
                    .map(|row| (String::from_utf8(row.key.to_vec()).unwrap(), row.cells.len()))
                    .collect();
                if reverse {
                    scanned.reverse();
                }
                assert_eq!(scanned, rows, "{block_bytes} reverse: {reverse}");
            }
        }
    }
}

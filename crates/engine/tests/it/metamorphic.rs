//! One history under many options gives one result: block sizes, compression, filters, levels, memtables and
//! which values are separated may change what is on disk and when, never what is read.

use std::sync::Arc;

use proptest::prelude::*;

use tepui_engine::cell::{Row, RowRange};
use tepui_engine::db::{CompactionStyle, CompressionPolicy, EngineOptions, FilterPolicy, SyncMode};
use tepui_engine::io::{CrashMode, SeededRng};

use crate::harness::{Rig, schema_with_sums, tiny_options};
use crate::model::{mutation, row};

fn options() -> impl Strategy<Value = EngineOptions> {
    let sst =
        (64..2000usize, 32..1000usize, 64..512usize, prop::sample::select(vec![0u32, 4, 10, 20]));
    let sst = (sst, 64..5000usize, prop::bool::ANY);
    let shape = (1..5usize, 1u64..20_000, 2u64..10, 500u64..50_000, 1u64..200_000);
    let compression = prop::sample::select(vec![
        CompressionPolicy::Tiered,
        CompressionPolicy::Lz4,
        CompressionPolicy::None,
    ]);
    let sync =
        prop::sample::select(vec![SyncMode::Always, SyncMode::IntervalMs(1), SyncMode::Never]);
    let separated = prop::sample::select(vec![0u64, 1, 15, 300]);
    let style = prop::sample::select(vec![CompactionStyle::Leveled, CompactionStyle::Tiered]);
    (sst, shape, (compression, separated, style), sync, 2000u64..100_000, 1u64..100_000).prop_map(
        |(
            (sst, read_bytes, flat),
            shape,
            (compression, separated, style),
            sync,
            segment,
            cache,
        )| {
            let mut options = tiny_options();
            options.sst.block_bytes = sst.0;
            options.sst.read_bytes = read_bytes;
            if flat {
                options.filters = FilterPolicy::Flat;
            }
            options.sst.index_partition_bytes = sst.1;
            options.sst.filter_partition_bytes = sst.2;
            options.sst.filter_bits_per_key = sst.3;
            options.l0_compaction_files = shape.0;
            options.base_level_bytes = shape.1;
            options.level_ratio = shape.2;
            options.target_file_bytes = shape.3;
            options.memtable_bytes = shape.4;
            options.compression = compression;
            options.compaction = style;
            options.separate_values_bytes = separated;
            options.sync = sync;
            options.log_segment_bytes = segment;
            options.block_cache_bytes = cache;
            options
        },
    )
}

fn play(
    options: EngineOptions,
    history: &[(Vec<u8>, Vec<tepui_engine::cell::Mutation>, u8)],
) -> Vec<Row> {
    let durable = options.sync == SyncMode::Always;
    let mut rig = Rig::new(options, schema_with_sums(), 7);
    for (row, mutations, then) in history {
        rig.apply(row, mutations.clone());
        match then {
            0 => futures::executor::block_on(rig.tablet.flush()).unwrap(),
            1 => rig.engine.run_background().unwrap(),
            2 => {
                rig.engine.close().unwrap();
                let files = Arc::clone(&rig.files);
                rig = rig.reopen_on(files);
            }
            3 if durable => {
                let files = rig.files.crashed_copy(CrashMode::Torn, &SeededRng::new(3));
                rig = rig.reopen_on(Arc::new(files));
            }
            4 => rig.tablet.set_compaction(CompactionStyle::Tiered),
            5 => rig.tablet.set_compaction(CompactionStyle::Leveled),
            _ => {}
        }
    }
    rig.engine.compact_fully().unwrap();
    let rows = rig.scan(RowRange::all(), false, None);
    rig.engine.close().unwrap();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn options_do_not_change_what_is_read(
        options in prop::collection::vec(options(), 2..4),
        history in prop::collection::vec((row(), prop::collection::vec(mutation(), 1..5), 0..20u8), 1..60),
    ) {
        let expected = play(tiny_options(), &history);
        for options in options {
            prop_assert_eq!(&play(options.clone(), &history), &expected, "under {:?}", options);
        }
    }
}

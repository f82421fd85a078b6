//! Damage under concurrent reads: an error that says where for the reads that need what is damaged, all other
//! rows as ever, nothing of it in memory.

use super::*;
use crate::io::{Fault, FaultFiles, FaultOp, MemoryFiles};
use crate::sst::Piece;

/// The file with a bit of the byte at `offset` flipped.
fn flipped(files: TestFiles, offset: u64) -> TestFiles {
    let mut bytes = files.contents(&path());
    bytes[offset as usize] ^= 4;
    files.put(&path(), bytes);
    files
}

/// What every row's read gave, in four threads; all threads must agree.
fn read_all(reader: &Arc<SstReader>) -> Vec<std::result::Result<Option<Vec<u8>>, String>> {
    let pool = Arc::new(PreadPool::new(&ThreadSpawner, 2).unwrap());
    let (send, receive) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (reader, pool, send) = (Arc::clone(reader), Arc::clone(&pool), send.clone());
            let work = move || {
                let read = |i: usize| {
                    let row = row(i);
                    let read = get(&reader, pool.as_ref(), &row);
                    pollster::block_on(read).map_err(|error| {
                        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                        error.message().to_owned()
                    })
                };
                send.send((0..ROWS).map(read).collect::<Vec<_>>()).unwrap();
            };
            ThreadSpawner.spawn("reader", Box::new(work)).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join();
    }
    drop(send);
    let mut all: Vec<Vec<_>> = receive.iter().collect();
    all.dedup();
    assert_eq!(all.len(), 1, "the same damage for everyone");
    all.remove(0)
}

/// Rows that failed; the others are right.
fn failed(results: &[std::result::Result<Option<Vec<u8>>, String>], message: &str) -> Vec<usize> {
    let mut failed = Vec::new();
    for (i, result) in results.iter().enumerate() {
        match result {
            Ok(value) => assert_eq!(value.as_deref(), Some(&[i as u8; 50][..]), "{i}"),
            Err(error) => {
                assert!(error.contains(message), "{error}");
                failed.push(i);
            }
        }
    }
    failed
}

#[test]
fn a_damaged_index_partition_fails_the_rows_under_it_alone() {
    let files = file_of(ROWS);
    let offset = open(&files, &cache(1 << 20)).top_entry(2).unwrap().handle.offset;
    let reader = open(&flipped(files, offset + 9), &cache(8 << 20));
    for _ in 0..2 {
        let failed = failed(&read_all(&reader), &format!("42.sst: offset {offset}: checksum"));
        assert!(failed.len() > 10 && failed.len() < ROWS / 2, "{}", failed.len());
        let range: Vec<usize> = (failed[0]..=failed[failed.len() - 1]).collect();
        assert_eq!(failed, range, "one after the other");
        assert!(reader.directory.peek(PartitionId::Index(2)).is_none());
        assert!(reader.directory.peek(PartitionId::Index(1)).is_some());
    }
}

#[test]
fn a_damaged_data_block_fails_the_rows_in_it_alone() {
    let files = file_of(ROWS);
    let (handle, rows) = {
        let reader = open(&files, &cache(1 << 20));
        let top = reader.top_entry(1).unwrap();
        let partition = reader.request_partition(PartitionId::Index(1), top.handle, Fill::Nothing);
        let partition = partition.load_blocking().unwrap();
        // Not the first of those that are read together: a row before it is read earlier.
        let handle = reader.data_entry(partition.index().unwrap(), 2).unwrap().handle;
        let is_in = |i: &usize| {
            let key = crate::cell::row_prefix(row(*i).as_bytes());
            reader.block_around(&key).unwrap().start == handle.offset
        };
        (handle, (0..ROWS).filter(is_in).collect::<Vec<_>>())
    };
    assert!(!rows.is_empty());
    let cache = cache(8 << 20);
    let reader = open(&flipped(files, handle.offset + 3), &cache);
    for _ in 0..2 {
        let where_ = format!("42.sst: offset {}: checksum", handle.offset);
        let failed = failed(&read_all(&reader), &where_);
        assert_eq!(failed, rows);
        assert!(cache.peek(ID, handle.offset).is_none());
    }
}

#[test]
fn a_damaged_filter_partition_fails_no_read() {
    let files = file_of(ROWS);
    let handle = {
        let reader = open(&files, &cache(1 << 20));
        reader.filters().unwrap().entry(1, reader.blocks_end()).unwrap().handle
    };
    let cache = cache(8 << 20);
    let reader = open(&flipped(files, handle.offset + 20), &cache);
    assert_eq!(failed(&read_all(&reader), "none"), Vec::<usize>::new());
    assert!(reader.metrics().filter_damaged.get() > 0);
    assert!(
        reader.directory.peek(PartitionId::Filter(1)).is_none(),
        "what stands for it is not kept"
    );
    assert!(reader.directory.peek(PartitionId::Filter(0)).is_some());
    for i in 0..ROWS {
        let absent = now(get(&reader, &InlineIo, &format!("{}x", row(i))));
        assert_eq!(absent.unwrap(), None);
    }
}

#[test]
fn a_damaged_filter_index_fails_nothing_but_a_check_and_a_salvage_loses_no_record_for_it() {
    let files = file_of(ROWS);
    let cache = cache(8 << 20);
    let handle = open(&files, &cache).footer().filter_index.unwrap();
    let reader = open(&flipped(files, handle.offset + 10), &cache);
    assert_eq!(failed(&read_all(&reader), "none"), Vec::<usize>::new());
    assert_eq!(reader.metrics().filter_damaged.get(), 1);
    let error = reader.verify(&mut |_| ()).unwrap_err();
    let place = format!("42.sst: offset {}: checksum", handle.offset);
    assert!(error.message().contains(&place), "{error}");
    let (mut records, mut lost) = (0, Vec::new());
    let walked = reader.walk(true, &mut |piece| {
        match piece {
            Piece::Record(..) => records += 1,
            Piece::Lost(part) => lost.push((part.offset, part.records)),
            _ => {}
        }
        Ok(())
    });
    walked.unwrap();
    assert_eq!((records, lost), (ROWS, vec![(handle.offset, 0)]));
}

#[test]
fn a_device_that_fails_on_a_filter_partition_fails_the_read() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let io = GateIo::new();
    io.open();
    io.fail.store(true, Ordering::Relaxed);
    // It may be well again for the next read, so it is not mistaken for damage.
    assert_eq!(now(get(&reader, &io, &row(1))).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(reader.metrics().filter_damaged.get(), 0);
}

/// A scan's requests for three neighbours, of which it needs the first, on a device that cannot read the second.
fn neighbours_with_a_bad_sector(cache: &Arc<QuickBlockCache>) -> Vec<BlockRequest> {
    let files = FaultFiles::new(Arc::new(file_of(ROWS)));
    let reader = open(&files, cache);
    let top = reader.top_entry(1).unwrap();
    let partition = reader.request_partition(PartitionId::Index(1), top.handle, Fill::Nothing);
    let partition = partition.load_blocking().unwrap();
    let request = |i: usize| BlockRequest {
        reader: Arc::clone(&reader),
        handle: reader.data_entry(partition.index().unwrap(), i).unwrap().handle,
        partition: None,
        fill: Fill::Probation,
        ahead: i > 0,
    };
    let requests: Vec<_> = (0..3).map(request).collect();
    files.inject(Fault::new(FaultOp::Read).at(requests[1].handle.offset + 3).sticky());
    requests
}

#[test]
fn a_sector_that_cannot_be_read_fails_its_block_and_none_that_was_read_with_it() {
    for blocking in [false, true] {
        let cache = cache(8 << 20);
        let wanted = neighbours_with_a_bad_sector(&cache);
        let io = GateIo::new();
        io.open();
        let loaded = if blocking {
            load_blocks_blocking(wanted.clone())
        } else {
            now(load_blocks(&io, wanted.clone()))
        };
        assert!(loaded[0].is_ok() && loaded[2].is_ok(), "{:?}", [&loaded[0], &loaded[2]]);
        let error = loaded[1].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let offset = format!("offset {}", wanted[1].handle.offset);
        assert!(error.message().contains(&offset) && error.message().contains("42.sst"), "{error}");
        assert!(wanted[0].cached().is_some() && wanted[1].cached().is_none());
        if !blocking {
            assert_eq!(io.reads().len(), 4, "once together, then each: {:?}", io.reads());
        }
        assert_eq!(cache.flights().len(), 0);
    }
}

#[test]
fn who_joins_a_read_that_meets_a_bad_sector_elsewhere_gets_its_block() {
    let cache = cache(8 << 20);
    let wanted = neighbours_with_a_bad_sector(&cache);
    let io = GateIo::new();
    let mut led = Box::pin(load_blocks(&io, wanted.clone()));
    let mut joined = Box::pin(load_blocks(&io, vec![wanted[0].clone()]));
    let mut joined_too = Box::pin(load_blocks(&io, vec![wanted[2].clone(), wanted[1].clone()]));
    assert!((&mut led).now_or_never().is_none());
    assert!((&mut joined).now_or_never().is_none());
    assert!((&mut joined_too).now_or_never().is_none());
    assert_eq!(io.reads().len(), 1, "all three wait for one read");
    io.open();
    assert!(now(joined)[0].is_ok());
    let loaded = now(joined_too);
    assert!(loaded[0].is_ok() && loaded[1].is_err());
    assert!(now(led)[0].is_ok());
    assert_eq!(cache.flights().len(), 0);
}

#[test]
fn after_a_joint_read_that_failed_each_block_is_read_once_for_all_who_wait_for_it() {
    let cache = cache(8 << 20);
    let wanted = neighbours_with_a_bad_sector(&cache);
    let io = GateIo::new();
    let mut led = Box::pin(load_blocks(&io, wanted.clone()));
    let wants = |at: usize| if at.is_multiple_of(2) { &wanted[..1] } else { &wanted[1..] };
    let joined = |at| Box::pin(load_blocks(&io, wants(at).to_vec()));
    let mut joined: Vec<_> = (0..60).map(joined).collect();
    assert!((&mut led).now_or_never().is_none());
    assert!(joined.iter_mut().all(|load| load.now_or_never().is_none()));
    assert_eq!(io.reads().len(), 1, "all wait for one read");
    io.gate.add_permits(1);
    assert!((&mut led).now_or_never().is_none(), "it came to nothing");
    assert!(joined.iter_mut().all(|load| load.now_or_never().is_none()));
    assert_eq!(io.reads().len(), 4, "{:?}", io.reads());
    io.open();
    for (at, load) in joined.into_iter().enumerate() {
        let is_ok: Vec<_> = now(load).iter().map(Result::is_ok).collect();
        assert_eq!(is_ok, if at.is_multiple_of(2) { &[true][..] } else { &[false, true] });
    }
    let led = now(led);
    assert!(led[0].is_ok() && led[1].is_err() && led[2].is_ok());
    assert_eq!((io.reads().len(), cache.flights().len()), (4, 0));
}

#[test]
fn everyone_who_waits_for_a_damaged_block_is_told() {
    let files = file_of(ROWS);
    let offset = open(&files, &cache(1 << 20)).top_entry(0).unwrap().handle.offset;
    let cache = cache(8 << 20);
    let reader = open(&flipped(files, offset), &cache);
    let io = GateIo::new();
    let row = row(1);
    let mut reads = Box::pin(join_all((0..20).map(|_| get(&reader, &io, &row))));
    assert!((&mut reads).now_or_never().is_none());
    io.gate.add_permits(1);
    assert!(
        (&mut reads).now_or_never().is_none(),
        "the filter is there; now all wait for the index"
    );
    io.open();
    for error in now(reads) {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert!(error.message().contains(&format!("offset {offset}")), "{error}");
    }
    assert_eq!(io.reads().len(), 2, "the filter and the index, each once");
    assert_eq!(cache.flights().len(), 0);
}

#[test]
fn a_file_that_is_cut_short_while_it_is_open_serves_what_is_left() {
    let whole = file_of(ROWS).contents(&path());
    let files = MemoryFiles::new();
    files.create(&path()).unwrap().append(&whole).unwrap();
    let cache = cache(8 << 20);
    let open = || SstReader::open(&files, &path(), ID, Arc::clone(&cache) as Arc<dyn BlockCache>);
    let reader = open().unwrap();
    assert!(reader.pin().unwrap(), "so that the index is at hand");
    let cut = reader.index_memory().data_bytes / 2;
    files.truncate(&path(), cut).unwrap();
    let failed = failed(&read_all(&reader), "42.sst");
    assert!(failed.len() > ROWS / 3 && failed.len() < ROWS * 2 / 3, "{}", failed.len());
    assert_eq!(*failed.last().unwrap(), ROWS - 1);
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
}

#[test]
fn a_file_that_has_lost_index_and_filter_partitions_serves_the_rows_under_those_that_are_left() {
    let whole = file_of(ROWS).contents(&path());
    let files = MemoryFiles::new();
    files.create(&path()).unwrap().append(&whole).unwrap();
    let reader = open(&files, &cache(8 << 20));
    let middle = reader.top().len() / 2;
    let lost = reader.top_entry(middle).unwrap().handle;
    assert!(middle > 1 && reader.filters().unwrap().len() > 1);
    // Within an index partition, and filters come behind all of these.
    files.truncate(&path(), lost.offset + u64::from(lost.len) / 2).unwrap();
    for _ in 0..2 {
        let results = read_all(&reader);
        let failed = failed(&results, "42.sst: offset ");
        assert_eq!(failed, (failed[0]..ROWS).collect::<Vec<_>>(), "what is left is served");
        assert!(failed[0] > ROWS / 4 && failed[0] < ROWS * 3 / 4, "{}", failed[0]);
        let first = results[failed[0]].as_ref().unwrap_err();
        assert!(first.contains(&format!("42.sst: offset {}: ", lost.offset)), "{first}");
        assert!(reader.directory.peek(PartitionId::Index(middle)).is_none());
        assert!(reader.directory.peek(PartitionId::Index(middle - 1)).is_some());
    }
}

#[test]
fn a_damaged_footer_says_so_when_the_file_is_opened() {
    let files = file_of(ROWS);
    let at = files.contents(&path()).len() as u64 - 20;
    let files = flipped(files, at);
    let cache = cache(1 << 20);
    let error = SstReader::open(&files, &path(), ID, cache).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.message().contains("42.sst: offset"), "{error}");
}

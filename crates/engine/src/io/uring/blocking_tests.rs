//! Threads that block: answers at once, one system call for a batch, and nothing left behind.

use std::path::Path;

use futures::FutureExt as _;
use rustix::io::Errno;

use super::ring::{RING_BYTES_MAX, RING_READS_MAX};
use super::tests::{Rig, runtime};
use super::*;
use crate::io::{Fault, FaultOp, Files, IoMode, MemoryFiles, ThreadSpawner};
use crate::testing::skip;

/// Whether this kernel has rings; where it has none, batches go to the pool.
fn has_rings() -> bool {
    let has = ring::set_up().is_ok();
    if !has {
        skip("no io_uring here: batches are tested with the pool alone; those of a ring");
    }
    has
}

/// Reads that are there when the call returns.
fn read_now(rig: &Rig, requests: &[ReadRequest]) -> Vec<Result<Bytes>> {
    rig.io.read_batch(requests.to_vec()).now_or_never().expect("the thread blocks")
}

fn refused(result: Result<Attached>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_single_read_is_made_on_the_spot_and_a_batch_with_one_system_call() {
    for mode in [IoMode::Direct, IoMode::Buffered] {
        let rig = Rig::new(mode);
        let attached = rig.io.attach_blocking().unwrap();
        assert!(attached.is_attached());
        assert!(read_now(&rig, &[]).is_empty());
        for request in rig.requests(30) {
            let results = read_now(&rig, std::slice::from_ref(&request));
            rig.check(std::slice::from_ref(&request), &results);
        }
        let figures = rig.figures();
        assert_eq!((figures.reads, figures.ring_reads, figures.ring_enters), (30, 0, 0));

        for (batches, n) in [(1, 2), (2, 31), (3, RING_READS_MAX)] {
            let requests = rig.requests(n);
            let before = rig.figures();
            rig.check(&requests, &read_now(&rig, &requests));
            let figures = rig.figures();
            assert_eq!(figures.reads - before.reads, n as u64);
            if has_rings() {
                assert_eq!(figures.ring_reads - before.ring_reads, n as u64);
                assert_eq!(figures.ring_enters, batches, "{n} reads");
            }
        }
        assert!(!has_rings() || rig.io.pool.get().is_none(), "no pool was needed");
    }
}

#[test]
fn batches_beyond_what_a_ring_takes_are_carried_out_in_parts() {
    let rig = Rig::new(IoMode::Direct);
    let _attached = rig.io.attach_blocking().unwrap();
    let requests = rig.requests(RING_READS_MAX * 3 + 17);
    rig.check(&requests, &read_now(&rig, &requests));
    let len = 2 << 20;
    let requests: Vec<_> =
        (0..=RING_BYTES_MAX / len * 2).map(|i| rig.request(i * 4096, len)).collect();
    rig.check(&requests, &read_now(&rig, &requests));
}

#[test]
fn errors_stay_in_their_place_in_a_batch() {
    let rig = Rig::new(IoMode::Direct);
    let _attached = rig.io.attach_blocking().unwrap();
    let mut requests = rig.requests(12);
    requests[3].offset = rig.data.len() as u64 - 3;
    requests[3].len = 4;
    requests[4].len = 0;
    requests[5].offset = u64::MAX;
    requests[6].len = 1 << 40;
    let batch = read_now(&rig, &requests);
    for (i, request) in requests.iter().enumerate() {
        let alone = &read_now(&rig, std::slice::from_ref(request))[0];
        for result in [&batch[i], alone] {
            if [3, 5, 6].contains(&i) {
                let error = result.as_ref().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Corruption);
                assert!(error.message().contains(&format!("offset {}", request.offset)), "{error}");
            } else {
                rig.check(std::slice::from_ref(request), std::slice::from_ref(result));
            }
        }
    }
}

#[test]
fn a_read_that_the_device_refuses_is_tried_once_more_alone_and_in_a_batch() {
    let rig = Rig::new(IoMode::Direct);
    let _attached = rig.io.attach_blocking().unwrap();
    let (faults, requests) = rig.through_faults(9);
    for fault in [Fault::new(FaultOp::Read), Fault::new(FaultOp::Read).short()] {
        for requests in [&requests[..], &requests[..1]] {
            faults.inject(fault.clone().nth(1));
            rig.check(requests, &read_now(&rig, requests));
            faults.heal();
            faults.inject(fault.clone().sticky());
            for (request, result) in requests.iter().zip(read_now(&rig, requests)) {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io);
                let place = format!("offset {}", request.offset);
                assert!(error.message().contains(&place), "{error}");
            }
            faults.heal();
            rig.check(requests, &read_now(&rig, requests));
        }
    }
}

#[test]
fn a_thread_blocks_until_its_guard_is_dropped() {
    let rig = Rig::new(IoMode::Direct);
    let reads = |n| rig.io.read_batch(rig.requests(n));
    let attached = rig.io.attach_blocking().unwrap();
    rig.check(&rig.requests(20), &reads(20).now_or_never().unwrap());
    drop(attached);
    assert!(!blocking::is_marked(rig.io.id));
    // The pool's future: it need not be ready.
    assert!(rig.io.pool.get().is_none() || !has_rings());
    rig.check(&rig.requests(20), &pollster::block_on(reads(20)));
    assert!(rig.io.pool.get().is_some());
    // And again.
    let _attached = rig.io.attach_blocking().unwrap();
    rig.check(&rig.requests(20), &reads(20).now_or_never().unwrap());
}

#[test]
fn a_thread_is_attached_in_one_way_at_a_time() {
    let rig = Rig::new(IoMode::Direct);
    let blocking = rig.io.attach_blocking().unwrap();
    refused(rig.io.attach_blocking());
    // Another engine has marks of its own.
    let other = Rig::new(IoMode::Direct);
    drop(other.io.attach_blocking().unwrap());
    runtime().block_on(async {
        refused(rig.io.attach());
    });
    drop(blocking);
    runtime().block_on(async {
        let attached = rig.io.attach().unwrap();
        if attached.is_attached() {
            refused(rig.io.attach_blocking());
        }
        drop(attached);
        drop(rig.io.attach_blocking().unwrap());
    });
}

#[test]
fn where_io_uring_is_forbidden_batches_wait_for_the_pool() {
    let mut rig = Rig::new(IoMode::Direct);
    let metrics = rig.files.metrics().unwrap();
    rig.io =
        Arc::new(UringIo::with_set_up(
            Arc::new(ThreadSpawner),
            metrics,
            || Err(Errno::PERM.into()),
        ));
    let _attached = rig.io.attach_blocking().unwrap();
    rig.check(&rig.requests(1), &read_now(&rig, &rig.requests(1)));
    assert!(rig.io.pool.get().is_none() && !rig.io.refusal_told.load(Ordering::Relaxed));
    for _ in 0..3 {
        rig.check(&rig.requests(40), &read_now(&rig, &rig.requests(40)));
    }
    assert!(rig.io.pool.get().is_some() && rig.io.refusal_told.load(Ordering::Relaxed));
}

#[test]
fn files_without_a_descriptor_are_read_by_threads_that_block() {
    let rig = Rig::new(IoMode::Direct);
    let _attached = rig.io.attach_blocking().unwrap();
    let memory = MemoryFiles::new();
    memory.put_contents(Path::new("m"), b"memory".to_vec());
    let file = memory.open(Path::new("m")).unwrap();
    let mut requests = rig.requests(2);
    requests.push(ReadRequest { file, offset: 2, len: 3 });
    let results = read_now(&rig, &requests);
    rig.check(&requests[..2], &results[..2]);
    assert_eq!(results[2].as_ref().unwrap(), "mor");
    assert_eq!(read_now(&rig, &requests[2..])[0].as_ref().unwrap(), "mor");
}

#[test]
fn threads_that_block_have_a_ring_each_and_may_end_attached() {
    let rig = Arc::new(Rig::new(IoMode::Direct));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let rig = Arc::clone(&rig);
            let work = move || {
                std::mem::forget(rig.io.attach_blocking().unwrap());
                for n in 1..30 {
                    rig.check(&rig.requests(n), &read_now(&rig, &rig.requests(n)));
                }
            };
            ThreadSpawner.spawn("blocks", Box::new(work)).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join();
    }
    assert_eq!(rig.figures().reads, 4 * 435);
}

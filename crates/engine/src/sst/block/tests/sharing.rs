//! Loads that several wait for: whoever of them goes or stops, the others are woken and answered.

use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, mpsc};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::*;
use crate::cache::{Ahead, CacheStats, Flights, PartitionPool};
use crate::sst::SstMetrics;

type Read<'a> = Pin<Box<dyn Future<Output = Vec<Result<Arc<Block>>>> + Send + 'a>>;

/// Counts how often it woke.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A read that is polled by hand, as a task of its own would be.
struct Task<'a> {
    read: Read<'a>,
    bell: Arc<Bell>,
}

impl<'a> Task<'a> {
    fn of(io: &'a dyn IoEngine, request: &BlockRequest) -> Self {
        let read = Box::pin(load_blocks(io, vec![request.clone()]));
        Self { read, bell: Arc::default() }
    }

    /// One that has been polled and waits.
    fn waiting(io: &'a dyn IoEngine, request: &BlockRequest) -> Self {
        let mut task = Self::of(io, request);
        assert!(task.poll().is_none());
        task
    }

    fn poll(&mut self) -> Option<Result<Arc<Block>>> {
        let waker = Waker::from(Arc::clone(&self.bell));
        match self.read.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(mut results) => results.pop(),
            Poll::Pending => None,
        }
    }

    /// Polls it as a runtime would: if it was woken.
    fn end(mut self) -> Arc<Block> {
        assert!(self.bell.0.load(Ordering::SeqCst) > 0, "it was woken");
        self.poll().expect("the block is there").unwrap()
    }
}

fn request() -> (Arc<QuickBlockCache>, BlockRequest) {
    let cache = cache(8 << 20);
    let reader = open(&file_of(ROWS), &cache);
    let handle = reader.top_entry(0).unwrap().handle;
    let request = reader.request_partition(PartitionId::Index(0), handle, Fill::Keep);
    (cache, request)
}

#[test]
fn all_who_wait_for_a_block_are_woken_and_have_the_same() {
    let (cache, request) = request();
    let io = GateIo::new();
    let tasks: Vec<_> = (0..4).map(|_| Task::waiting(&io, &request)).collect();
    assert_eq!((io.reads().len(), cache.flights().len()), (1, 1));
    io.open();
    // One wakes all, or each the next; in no order is anyone left asleep.
    let blocks: Vec<_> = tasks.into_iter().rev().map(Task::end).collect();
    assert!(blocks.iter().all(|block| Arc::ptr_eq(block, &blocks[0])));
    assert_eq!(cache.flights().len(), 0);
}

#[test]
fn whoever_is_left_is_woken_when_the_others_went() {
    for left in 0..3 {
        let (cache, request) = request();
        let io = GateIo::new();
        let mut tasks: Vec<_> = (0..3).map(|_| Task::waiting(&io, &request)).collect();
        let kept = tasks.remove(left);
        drop(tasks);
        io.open();
        kept.end();
        assert_eq!((io.reads().len(), cache.flights().len()), (1, 0));
    }
}

#[test]
fn who_gives_up_leaves_nothing_of_it_with_a_load_that_goes_on() {
    let (_cache, request) = request();
    let io = GateIo::new();
    let stays = [Task::waiting(&io, &request), Task::waiting(&io, &request)];
    for _ in 0..1_000 {
        let gone = Task::waiting(&io, &request);
        let bell = Arc::clone(&gone.bell);
        drop(gone);
        assert_eq!(Arc::strong_count(&bell), 1, "nobody would wake it");
    }
    io.open();
    let [one, other] = stays.map(Task::end);
    assert!(Arc::ptr_eq(&one, &other));
}

#[test]
fn a_read_that_is_not_polled_any_more_holds_nobody_up() {
    let (_cache, request) = request();
    let io = GateIo::new();
    let mut leader = Task::waiting(&io, &request);
    let joined = Task::waiting(&io, &request);
    io.open();
    let block = joined.end();
    // Later, it finds its result.
    assert!(Arc::ptr_eq(&block, &leader.poll().unwrap().unwrap()));
}

#[test]
fn a_read_that_is_polled_elsewhere_is_woken_there() {
    let (_cache, request) = request();
    let io = GateIo::new();
    let mut alone = Task::waiting(&io, &request);
    let moved = std::mem::take(&mut alone.bell);
    assert!(alone.poll().is_none());
    io.open();
    assert_eq!(moved.0.load(Ordering::SeqCst), 0);
    alone.end();
}

/// Reads at once, when someone has joined.
struct Crowded<'a> {
    request: &'a BlockRequest,
    joined: &'a Mutex<Vec<Task<'static>>>,
}

impl fmt::Debug for Crowded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Crowded")
    }
}

impl IoEngine for Crowded<'_> {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        self.joined.lock().unwrap().push(Task::waiting(&InlineIo, self.request));
        InlineIo.read_batch(requests)
    }
}

#[test]
fn who_joins_while_the_read_is_being_made_is_woken_after_it() {
    let (cache, request) = request();
    let joined = Mutex::default();
    let crowded = Crowded { request: &request, joined: &joined };
    // A thread that blocks reads within the call; it is not polled, and it may be given up.
    for gone in [false, true] {
        let mut leader = Task::of(&crowded, &request);
        let task = joined.lock().unwrap().pop().unwrap();
        if gone {
            drop(leader);
            task.end();
        } else {
            let block = task.end();
            assert!(Arc::ptr_eq(&block, &leader.poll().unwrap().unwrap()));
        }
        assert_eq!(cache.flights().len(), 0);
        cache.partitions().forget(&request.reader.directory);
    }
}

/// An engine whose runtime ends before a read is made.
#[derive(Debug, Default)]
struct Ends {
    reads: AtomicUsize,
}

impl IoEngine for Ends {
    fn read_batch(&self, requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        self.reads.fetch_add(requests.len(), Ordering::SeqCst);
        let ended = |_| Err(Error::new(ErrorKind::Closed, "the runtime has ended"));
        Box::pin(std::future::ready(requests.iter().map(ended).collect()))
    }
}

fn is_closed(result: &Result<Arc<Block>>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::Closed)
}

#[test]
fn the_end_of_a_runtime_fails_its_own_reads_and_none_of_those_who_joined() {
    let (cache, request) = request();
    let ends = Ends::default();
    let mut leader = Task::of(&ends, &request);
    let mut joined = Task::of(&InlineIo, &request);
    joined.poll().unwrap().unwrap();
    assert!(is_closed(&leader.poll().unwrap()));
    assert_eq!((ends.reads.load(Ordering::SeqCst), cache.flights().len()), (1, 0));
}

#[test]
fn of_several_blocks_those_are_read_again_that_another_runtime_has_not_read_before_its_end() {
    let cache = cache(8 << 20);
    let reader = open(&file_of(10 * ROWS), &cache);
    // Not neighbours, so that each has a read to itself.
    let [first, second, third] = [0, 2, 4].map(|i| {
        let handle = reader.top_entry(i).unwrap().handle;
        reader.request_partition(PartitionId::Index(i), handle, Fill::Keep)
    });
    let ends = Ends::default();
    let leader = Task::of(&ends, &first);
    let lead_and_join = load_blocks(&InlineIo, vec![first.clone(), second.clone()]);
    assert!(now(lead_and_join).iter().all(Result::is_ok));
    drop(leader);
    let leader = Task::of(&InlineIo, &third);
    cache.partitions().forget(&reader.directory);
    let lead_and_join = load_blocks(&ends, vec![first, third]);
    let [led, joined] = now(lead_and_join).try_into().unwrap();
    assert!(is_closed(&led) && joined.is_ok(), "an end of its own is one");
    assert_eq!(ends.reads.load(Ordering::SeqCst), 2);
    drop(leader);
    assert_eq!(cache.flights().len(), 0);
}

/// What is done while a block is being put into a cache.
type Act = Box<dyn FnOnce() + Send>;

/// A cache that acts once, within the load of a block.
struct Acting {
    cache: QuickBlockCache,
    act: Mutex<Option<Act>>,
}

impl fmt::Debug for Acting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cache.fmt(f)
    }
}

impl BlockCache for Acting {
    fn get(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.cache.get(file, offset)
    }
    fn found(&self, file: FileId, offset: u64, block: &Arc<Block>) {
        self.cache.found(file, offset, block);
    }
    fn get_partition(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.cache.get_partition(file, offset)
    }
    fn peek(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.cache.peek(file, offset)
    }
    fn insert(&self, file: FileId, offset: u64, block: Arc<Block>) {
        let act = self.act.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        self.cache.insert(file, offset, block);
    }
    fn take(&self, file: FileId, offset: u64) -> Option<Arc<Block>> {
        self.cache.take(file, offset)
    }
    fn opened(&self, data_bytes: u64) {
        self.cache.opened(data_bytes);
    }
    fn closed(&self, data_bytes: u64) {
        self.cache.closed(data_bytes);
    }
    fn has_room_for_all(&self) -> bool {
        self.cache.has_room_for_all()
    }
    fn partitions(&self) -> &PartitionPool {
        self.cache.partitions()
    }
    fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
    fn misses(&self) -> u64 {
        self.cache.misses()
    }
    fn sst_metrics(&self) -> &SstMetrics {
        self.cache.sst_metrics()
    }
    fn flights(&self) -> &Arc<Flights> {
        self.cache.flights()
    }
    fn ahead(&self) -> &Arc<Ahead> {
        self.cache.ahead()
    }
}

/// The request of a scan, which fills such a cache.
fn acting_request() -> (Arc<Acting>, BlockRequest) {
    let cache = Arc::new(Acting { cache: QuickBlockCache::new(8 << 20), act: Mutex::default() });
    let files = file_of(ROWS);
    let reader = SstReader::open(&files, &path(), ID, Arc::clone(&cache) as _).unwrap();
    let handle = reader.top_entry(0).unwrap().handle;
    let request = reader.request_partition(PartitionId::Index(0), handle, Fill::Probation);
    (cache, request)
}

/// Polls a task on another thread, while this one decodes what it waits for: it must be pending, and at once.
fn poll_elsewhere(mut task: Task<'static>) -> Task<'static> {
    let (polled, was_polled) = mpsc::channel();
    let poll = move || {
        let is_pending = task.poll().is_none();
        // Nobody takes it where it came too late.
        let _ = polled.send((task, is_pending));
    };
    let thread = ThreadSpawner.spawn("elsewhere", Box::new(poll)).unwrap();
    // Where it waits for this thread, each would wait for the other for ever.
    let polled = was_polled.recv_timeout(Duration::from_secs(20));
    let (task, is_pending) = polled.expect("a poll that does not wait for this thread");
    thread.join();
    assert!(is_pending);
    task
}

#[test]
fn who_joined_does_not_wait_with_its_thread_while_another_decodes_and_is_woken_after_it() {
    // It has waited before or comes only then, and there are others or none.
    for (waited, others) in [(true, 0), (true, 1), (false, 0), (false, 2)] {
        let (cache, request) = acting_request();
        let io = GateIo::new();
        let mut leader = Task::of(&io, &request);
        let others: Vec<_> = (0..others).map(|_| Task::waiting(&InlineIo, &request)).collect();
        let mut joined = Task::of(&InlineIo, &request);
        assert!(!waited || joined.poll().is_none());
        assert!(leader.poll().is_none());
        io.open();
        let (back, came_back) = mpsc::channel();
        let act = move || {
            let joined = poll_elsewhere(joined);
            let rung = joined.bell.0.load(Ordering::SeqCst);
            back.send((joined, rung)).unwrap();
        };
        *cache.act.lock().unwrap() = Some(Box::new(act));
        let block = leader.poll().unwrap().unwrap();
        let (joined, rung) = came_back.recv().unwrap();
        assert_eq!(joined.bell.0.load(Ordering::SeqCst), rung + 1);
        for task in others.into_iter().chain([joined]) {
            assert!(Arc::ptr_eq(&task.end(), &block));
        }
        assert_eq!((io.reads().len(), cache.flights().len()), (1, 0));
    }
}

#[test]
fn where_the_one_panics_who_decodes_the_others_are_woken_and_read_for_themselves() {
    let (cache, request) = acting_request();
    let mut leader = Task::of(&InlineIo, &request);
    let joined = Task::of(&InlineIo, &request);
    let (back, came_back) = mpsc::channel();
    let act = move || {
        back.send(poll_elsewhere(joined)).unwrap();
        panic!("on purpose");
    };
    *cache.act.lock().unwrap() = Some(Box::new(act));
    let decode = || leader.poll().map(|_| ());
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode)).is_err());
    assert_eq!(cache.flights().len(), 0, "who comes now begins anew");
    came_back.recv().unwrap().end();
}

#[derive(Debug)]
struct Panics;

impl IoEngine for Panics {
    fn read_batch(&self, _requests: Vec<ReadRequest>) -> BoxFuture<'static, Vec<Result<Bytes>>> {
        panic!("on purpose")
    }
}

#[test]
fn a_load_whose_reads_were_never_made_can_be_begun_anew() {
    let (_cache, request) = request();
    let begin = || Task::of(&Panics, &request);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(begin)).is_err());
    let mut task = Task::of(&InlineIo, &request);
    task.poll().unwrap().unwrap();
}

#[test]
fn threads_that_give_reads_up_leave_no_other_thread_asleep() {
    // Nothing stays in memory, so that every read is a load.
    let reader = open(&file_of(ROWS), &cache(0));
    let pool = Arc::new(PreadPool::new(&ThreadSpawner, 2).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|thread: usize| {
            let (reader, pool) = (Arc::clone(&reader), Arc::clone(&pool));
            let work = move || {
                for round in 0..1_000 {
                    let row = row(round / 50);
                    let mut given_up = Box::pin(get(&reader, pool.as_ref(), &row));
                    let early = (&mut given_up).now_or_never();
                    if (round + thread).is_multiple_of(3) {
                        drop(given_up);
                    } else if early.is_none() {
                        pollster::block_on(given_up).unwrap().unwrap();
                    }
                    pollster::block_on(get(&reader, pool.as_ref(), &row)).unwrap().unwrap();
                }
            };
            ThreadSpawner.spawn("reader", Box::new(work)).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join();
    }
    assert_eq!(reader.cache().flights().len(), 0);
}

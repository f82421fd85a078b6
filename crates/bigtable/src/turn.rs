//! Turns: work that is long gives its thread to others now and then, also where it waits for nothing. A core serves all its
//! requests on one thread, and what a small one waits for is the turns of the long ones beside it: of all of them, were each
//! as ready as the other. So those of a thread stand in a line, of which one at a time is let go on, and before the next is,
//! the runtime looks for what has arrived and everything small that is ready runs.
//!
//! ```text
//! long: A ─ turn ─┐        B ─ turn ─┐        C ...
//!                 └ arrived? small ones ┘ └ arrived? small ones ┘
//! ```

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Bytes of rows that are worked through in a turn; some 100 microseconds of work. More, and others wait longer; fewer, and the
/// runtime's own work, a microsecond a turn, is felt.
const TURN_BYTES: usize = 64 << 10;

/// What the work of a row beyond its bytes counts as.
const ROW_BYTES: usize = 256;

/// What the start of a range counts as: six microseconds. Its first row is sought in each memtable, sublevel and level of the tablet, a microsecond
/// each. Most tablets have a few of these, and one that is behind with its compactions has dozens: a turn of such ranges is shorter than
/// a millisecond still. More, and the ranges of tablets that are in order have turns that are too short.
const RANGE_BYTES: usize = 4 << 10;

/// What a small piece of work counts as: to pass over a record, or a step of a filter over a cell; some 25 nanoseconds.
const STEP_BYTES: usize = 16;

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

    /// A range was read, whose start copied so many bytes.
    pub(crate) fn range(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(RANGE_BYTES);
    }

    /// Whether a row of so many bytes is a turn by itself.
    pub(crate) fn is_of(bytes: usize) -> bool {
        bytes >= TURN_BYTES
    }

    /// So many small pieces of work were done.
    pub(crate) fn steps(&mut self, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.bytes = self.bytes.saturating_add(count.saturating_mul(STEP_BYTES));
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

/// The long work of one thread that is ready to go on, in the order in which it came. As long as the requests under way.
#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<oneshot::Sender<()>>,
    /// Whether there is a task that calls them.
    is_called: bool,
}

thread_local! {
    static LINE: Arc<Mutex<Line>> = Arc::default();
}

/// Waits until everything small that is ready on this thread has run, and the long work that stood in line before has had a
/// turn. Away from a runtime it waits for nothing but its next poll.
pub async fn others_first() {
    let Ok(runtime) = Handle::try_current() else { return tokio::task::yield_now().await };
    let called = {
        let line = LINE.with(Arc::clone);
        let mut now = lock(&line);
        let (call, called) = oneshot::channel();
        now.waiting.push_back(call);
        if !std::mem::replace(&mut now.is_called, true) {
            runtime.spawn(Caller(Arc::clone(&line)).run());
        }
        called
    };
    // Nobody left to call: a runtime that ends.
    let _ = called.await;
}

/// Calls those in a line.
struct Caller(Arc<Mutex<Line>>);

impl Caller {
    async fn run(self) {
        while let Some(call) = self.next() {
            // Who has gone away meanwhile takes no turn. Whoever is called and does not come, because its client has no
            // room for more, keeps nobody waiting.
            if call.send(()).is_ok() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The next in line; without one this caller is done.
    fn next(&self) -> Option<oneshot::Sender<()>> {
        let mut line = lock(&self.0);
        let next = line.waiting.pop_front();
        line.is_called = next.is_some();
        next
    }
}

impl Drop for Caller {
    /// Where the runtime ends before the line, whoever comes next has another one.
    fn drop(&mut self) {
        let mut line = lock(&self.0);
        if std::mem::take(&mut line.is_called) {
            line.waiting.clear();
        }
    }
}

/// The lock is held for no more than a push or a pop.
fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use tokio::task::LocalSet;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn small_work_waits_for_one_turn_of_long_work_however_much_of_that_there_is() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        LocalSet::new().block_on(&runtime(), async {
            let mut tasks = Vec::new();
            for long in 0..10 {
                let seen = Rc::clone(&seen);
                tasks.push(tokio::task::spawn_local(async move {
                    for _ in 0..5 {
                        others_first().await;
                        seen.borrow_mut().push(Some(long));
                        // What becomes ready during a turn.
                        let seen = Rc::clone(&seen);
                        tokio::task::spawn_local(async move { seen.borrow_mut().push(None) });
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
        });
        let seen = seen.take();
        let (turns, small): (Vec<_>, Vec<_>) =
            seen.chunks(2).filter(|pair| pair.len() == 2).map(|pair| (pair[0], pair[1])).unzip();
        assert!(small.iter().all(Option::is_none), "{seen:?}");
        // In turns.
        let first: Vec<_> = turns.iter().take(10).flatten().copied().collect();
        assert_eq!(first, (0..10).collect::<Vec<_>>());
        assert_eq!(&turns[..10], &turns[10..20]);
    }

    #[test]
    fn who_goes_away_or_does_not_come_when_called_keeps_nobody_waiting() {
        runtime().block_on(async {
            let mut gone = Box::pin(others_first());
            let mut idle = Box::pin(others_first());
            assert!(futures::poll!(&mut gone).is_pending());
            assert!(futures::poll!(&mut idle).is_pending());
            drop(gone);
            others_first().await;
            others_first().await;
            idle.await;
        });
    }

    #[test]
    fn a_runtime_that_ends_leaves_a_line_that_the_next_one_can_use() {
        let first = runtime();
        first.block_on(async {
            for _ in 0..3 {
                Handle::current().spawn(others_first());
            }
            tokio::task::yield_now().await;
        });
        drop(first);
        runtime().block_on(others_first());
        let mut away = std::pin::pin!(others_first());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(away.as_mut().poll(&mut context).is_pending());
        assert!(away.as_mut().poll(&mut context).is_ready());
    }
}

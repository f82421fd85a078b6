//! Which tablet a thread works for, where another thread can look it up: who looks at random moments learns how the
//! processor's time is divided among tablets, and requests pay one store for it.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tepui_engine::tablet::TabletId;

/// What one thread works for. Only that thread writes it.
#[derive(Debug, Default)]
pub struct Working(AtomicU64);

impl Working {
    /// The value of a thread that works for no tablet.
    const IDLE: u64 = 0;

    /// The tablet that the thread turned to last, unless it has run out of work since.
    pub fn on(&self) -> Option<TabletId> {
        self.0.load(Ordering::Relaxed).checked_sub(1).map(TabletId)
    }
}

thread_local! {
    static WORKING: OnceCell<Arc<Working>> = const { OnceCell::new() };
}

/// Lets others see what this thread works for, from now on and for as long as it lives.
pub fn publish(working: Arc<Working>) {
    WORKING.with(|own| {
        // A thread has one core's work for all of its life: whoever publishes it twice sees the first.
        let _ = own.set(working);
    });
}

/// This thread works for a tablet from now on.
pub fn turn_to(tablet: TabletId) {
    set(tablet.0.wrapping_add(1));
}

/// This thread has nothing to do.
pub fn rest() {
    set(Working::IDLE);
}

fn set(value: u64) {
    WORKING.with(|own| {
        if let Some(working) = own.get() {
            working.0.store(value, Ordering::Relaxed);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_see_what_a_thread_works_for_and_when_it_rests() {
        turn_to(TabletId(1));
        let working = Arc::new(Working::default());
        publish(Arc::clone(&working));
        assert_eq!(working.on(), None);
        turn_to(TabletId(0));
        assert_eq!(working.on(), Some(TabletId(0)));
        turn_to(TabletId(7));
        assert_eq!(working.on(), Some(TabletId(7)));
        rest();
        assert_eq!(working.on(), None);
    }
}

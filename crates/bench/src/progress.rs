//! What a person sees of a benchmark under way, and how they end it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::{Error, Result};

/// How often a bar is drawn where nothing moves it.
const TICK: Duration = Duration::from_millis(200);

/// Draws bars on standard error, where it is a terminal, and carries the wish to stop.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    visible: bool,
    stop: Arc<AtomicBool>,
    repeats: Arc<AtomicU32>,
}

impl Progress {
    /// Progress for a person.
    pub fn visible() -> Self {
        Self { visible: true, ..Self::default() }
    }

    /// Draws nothing.
    pub fn hidden() -> Self {
        Self::default()
    }

    /// Asks everything that this progress was given to to end soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Whether it should end.
    #[inline]
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// `Interrupted` where it should end.
    pub fn check(&self) -> Result<()> {
        if self.stopped() { Err(Error::interrupted()) } else { Ok(()) }
    }

    /// Whether something may be done once more, of so many times in all; it counts as done.
    pub fn may_repeat(&self, repeats_max: u32) -> bool {
        let one_more = |done: u32| (done < repeats_max).then(|| done + 1);
        self.repeats.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// A bar; without a total it only counts. `unit` is what it counts.
    pub fn bar(&self, what: &str, unit: &str, total: Option<u64>) -> Bar {
        if !self.visible {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = if total.is_some() {
            format!(
                "{{msg:24}} {{wide_bar}} {{human_pos}} of {{human_len}} {unit}  {{per_sec}}  {{eta}} left"
            )
        } else {
            format!("{{msg:24}} {{spinner}} {{human_pos}} {unit}  {{per_sec}}  {{elapsed}}")
        };
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(TICK);
        Bar(bar)
    }
}

/// A bar; it disappears when it is dropped.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Moves it.
    pub fn add(&self, count: u64) {
        self.0.inc(count);
    }

    /// Says what is going on.
    pub fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

//! The machine that offline commands run on, and their progress bar.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tepui_engine::io::{Env, IoMode};

/// The seams of the operating system; reads are made where they are asked for.
pub fn env() -> Env {
    // Read from end to end, in large pieces: the page cache reads ahead.
    Env::inline(IoMode::Buffered)
}

/// A bar of bytes on standard error, where that is a terminal; hidden where it is not. It is there once it is known how many there are.
pub fn progress(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{msg}") {
        bar.set_style(style);
    }
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Shows how many bytes are done.
pub fn tell(bar: &ProgressBar, done: u64, total: u64) {
    if bar.length().is_none() {
        let template = "{msg} [{wide_bar}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
    }
    bar.set_length(total);
    bar.set_position(done);
}

//! Structured logs on stderr.
//!
//! Whoever logs hands a line over and goes on, and one thread writes: stderr may take nothing for as long as it likes, as a pipe that
//! nobody reads or a terminal after Ctrl-S.
//!
//! ```text
//! a thread that logs ─► lines, LOG_LINES_BYTES_MAX of them ─► tepui-stderr ─► stderr
//!                       those beyond are counted, and told of when lines are taken again
//! ```

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::panic::{set_hook, take_hook};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tepui_bigtable::error::{Error, Result};
use tepui_engine::io::{Spawner as _, ThreadSpawner};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::limits::{LOG_FLUSH, LOG_LINES_BYTES_MAX};

/// The level of what no other is set for.
pub const LEVEL_DEFAULT: &str = "info";

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The process's lines: there is one stderr, as there is one subscriber of logs.
static LINES: Lines = Lines::new();

/// Sends logs to stderr from now on. `level` is a level (`info`), a filter by module (`tepui_engine=debug`) or both
/// (`warn,tepui_engine=debug`). Fails where the level is none, or logging was set up before. A line that stderr does not take is
/// lost: its pipe may be closed, and what was to be told of is done all the same. Who ends the process calls [`flush`] before.
pub fn init(format: LogFormat, level: &str) -> Result<()> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(level)?)
        .with_writer(|| &LINES)
        // Errors would be told by `eprintln!`, which panics where stderr takes nothing.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    let done = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    done.map_err(|error| Error::internal(format!("cannot set up logging: {error}")))?;
    let work = || {
        loop {
            LINES.write_some(&mut io::stderr(), |left_out| {
                tracing::error!(
                    left_out,
                    "lines of the log were left out: nobody took them in time"
                );
            });
        }
    };
    // Not joined: it may be at a line that nobody takes.
    drop(ThreadSpawner.spawn("tepui-stderr", Box::new(work))?);
    let mut lines = LINES.lock();
    (lines.has_writer, lines.is_json) = (true, format == LogFormat::Json);
    drop(lines);
    log_panics();
    Ok(())
}

/// Has panics logged from now on: that of a task ends nothing else, and may be seen nowhere else. Each is printed as well, behind that: a line of the log is
/// lost where the process aborts.
fn log_panics() {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        let location = panic.location().map(ToString::to_string).unwrap_or_default();
        let current = std::thread::current();
        let thread = current.name().unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("without a message");
        tracing::error!(thread, location, "panicked: {message}");
        print(panic);
    }));
}

/// Says what ended the program: as the log says it where that is JSON, which is read line by line, and as [`say`] does otherwise.
pub fn say_failed(message: &str) {
    if LINES.lock().is_json && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!("{message}");
        return;
    }
    for line in message.lines() {
        say(&format!("tepui: {line}"));
    }
}

/// Says a line on stderr, behind what was logged.
pub fn say(line: &str) {
    let line = format!("{line}\n");
    if LINES.lock().has_writer {
        LINES.add(line.as_bytes());
    } else {
        // Nobody may be left to read it.
        drop(io::stderr().write_all(line.as_bytes()));
    }
}

/// Waits until stderr has what was logged, but no longer than [`LOG_FLUSH`].
pub fn flush() {
    LINES.flush(LOG_FLUSH);
}

/// Lines on their way to where they are written.
#[derive(Debug)]
struct Lines {
    state: Mutex<State>,
    /// Rung for who writes.
    bell: Condvar,
    /// Rung when all were written.
    written: Condvar,
}

#[derive(Debug)]
struct State {
    waiting: Vec<u8>,
    /// Lines for which there was no room since some were taken.
    left_out: u64,
    /// Some were taken, and not all of them are written.
    is_writing: bool,
    has_writer: bool,
    is_json: bool,
}

impl State {
    fn has_some(&self) -> bool {
        !self.waiting.is_empty() || self.left_out > 0
    }
}

impl Lines {
    const fn new() -> Self {
        let state = State {
            waiting: Vec::new(),
            left_out: 0,
            is_writing: false,
            has_writer: false,
            is_json: false,
        };
        Self { state: Mutex::new(state), bell: Condvar::new(), written: Condvar::new() }
    }

    /// The state is valid at every step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line, or counts it. Never blocks on who writes.
    fn add(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len().saturating_add(line.len()) > LOG_LINES_BYTES_MAX {
            state.left_out += 1;
        } else {
            state.waiting.extend_from_slice(line);
        }
        drop(state);
        self.bell.notify_one();
    }

    /// Waits for lines and writes those there are; blocks for as long as `out` does.
    fn write_some(&self, out: &mut impl Write, tell_left_out: impl FnOnce(u64)) {
        let state = self.bell.wait_while(self.lock(), |state| !state.has_some());
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let (lines, left_out) = (std::mem::take(&mut state.waiting), state.left_out);
        (state.left_out, state.is_writing) = (0, true);
        drop(state);
        // It is a line as well: the next one behind these.
        if left_out > 0 {
            tell_left_out(left_out);
        }
        // Each by itself: one that meets a full disk takes no other with it.
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            drop(out.write_all(line));
        }
        let mut state = self.lock();
        state.is_writing = false;
        if !state.has_some() {
            self.written.notify_all();
        }
    }

    /// Waits until all is written, or nobody writes, but no longer than this.
    fn flush(&self, wait: Duration) {
        let is_due = |state: &mut State| state.has_writer && (state.is_writing || state.has_some());
        drop(self.written.wait_timeout_while(self.lock(), wait, is_due));
    }
}

impl Write for &Lines {
    /// A line as a whole, as logs are written.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses a level, for [`init`] and for checking a configuration. A word alone is a level: the parser takes any other for a module
/// that is logged, and all others for silent.
pub fn filter(level: &str) -> Result<EnvFilter> {
    let is_known = |part: &str| part.contains(['=', '[']) || is_level(part);
    if let Some(part) = level.split(',').find(|part| !is_known(part)) {
        return Err(Error::invalid_argument(format!(
            "{level:?}: {part:?} is no level (off, error, warn, info, debug or trace) and no MODULE=LEVEL"
        )));
    }
    EnvFilter::try_new(for_all(level))
        .map_err(|error| Error::invalid_argument(format!("{level:?}: {error}")))
}

/// The same filter with a level for what it does not name: where it has none, the parser takes all of that for silent, errors
/// included.
pub fn for_all(level: &str) -> Cow<'_, str> {
    if level.split(',').any(is_level) {
        return Cow::Borrowed(level);
    }
    Cow::Owned(format!("{LEVEL_DEFAULT},{level}"))
}

/// An empty word would be taken for `off`.
fn is_level(part: &str) -> bool {
    !part.is_empty() && part.parse::<LevelFilter>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Takes nothing until it is told to, and shows what it takes.
    struct Stuck {
        go: mpsc::Receiver<()>,
        taken: mpsc::Sender<String>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            self.taken.send(String::from_utf8(bytes.to_vec()).unwrap()).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_takes_keep_nobody_waiting_and_are_told_of_once_somebody_does() {
        static LINES: Lines = Lines::new();
        let (go, may_go) = mpsc::channel();
        let (taken, takes) = mpsc::channel();
        let mut out = Stuck { go: may_go, taken };
        let work = move || {
            loop {
                let tell = |left_out| LINES.add(format!("left out: {left_out}\n").as_bytes());
                LINES.write_some(&mut out, tell);
            }
        };
        drop(ThreadSpawner.spawn("stuck", Box::new(work)).unwrap());
        LINES.lock().has_writer = true;
        LINES.add(b"first\n");
        while !LINES.lock().is_writing {
            std::thread::yield_now();
        }
        // Two fit behind the first, and three do not.
        let long = |name: u8| [vec![name; LOG_LINES_BYTES_MAX / 2 - 1], vec![b'\n']].concat();
        for name in b"abcde" {
            LINES.add(&long(*name));
        }
        LINES.flush(Duration::ZERO);
        assert!(takes.try_recv().is_err());
        drop(go);
        LINES.flush(Duration::from_mins(10));
        LINES.add(b"last\n");
        LINES.flush(Duration::from_mins(10));
        let taken: Vec<String> = takes.try_iter().collect();
        let starts: Vec<&str> = taken.iter().map(|line| &line[..4]).collect();
        assert_eq!(starts, ["firs", "aaaa", "bbbb", "left", "last"]);
        assert_eq!(taken[3], "left out: 3\n");
    }

    #[test]
    fn a_panic_is_a_line_of_the_log_with_its_thread_and_place() {
        static LINES: Lines = Lines::new();
        log_panics();
        let fail = || assert!(std::panic::catch_unwind(|| panic!("row {}", 7)).is_err());
        // To nobody: while another test's thread is the first to log a panic, what is logged here may be lost.
        fail();
        let logs = tracing_subscriber::fmt().json().flatten_event(true).with_writer(|| &LINES);
        tracing::subscriber::with_default(logs.finish(), fail);
        let line = String::from_utf8(std::mem::take(&mut LINES.lock().waiting)).unwrap();
        assert_eq!(line.lines().count(), 1, "{line}");
        let name = std::thread::current().name().unwrap().to_owned();
        let file = file!();
        for said in [
            r#""level":"ERROR""#.to_owned(),
            r#""message":"panicked: row 7""#.to_owned(),
            format!(r#""thread":"{name}""#),
            format!(r#""location":"{file}:"#),
        ] {
            assert!(line.contains(&said), "{said}: {line}");
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_by_its_name() {
        for (level, wrong) in [
            ("warning", "warning"),
            ("inof", "inof"),
            ("info,debgu", "debgu"),
            // It would be that of a module whose name begins with a blank.
            ("info, warn", " warn"),
            // They would switch off all logs, errors included.
            ("", ""),
            (",", ""),
            ("info,", ""),
        ] {
            let error = filter(level).unwrap_err();
            assert!(error.message().contains(&format!("{wrong:?} is no level")), "{error}");
        }
        assert!(filter("tepui_engine=inof").is_err());
        for level in ["info", "WARN", "off", "info,tepui_engine=debug", "info,[scan]=trace"] {
            assert!(filter(level).is_ok(), "{level}");
        }
    }

    #[test]
    fn a_level_for_one_module_leaves_the_others_as_they_are_by_default() {
        for (level, is_taken_for) in [
            ("tepui_engine=debug", "info,tepui_engine=debug"),
            ("tepui_engine=off,h2=warn", "info,tepui_engine=off,h2=warn"),
            ("[scan]=trace", "info,[scan]=trace"),
            ("warn,tepui_engine=debug", "warn,tepui_engine=debug"),
            ("tepui_engine=debug,ERROR", "tepui_engine=debug,ERROR"),
            // Who wants silence says so.
            ("off,tepui_engine=debug", "off,tepui_engine=debug"),
        ] {
            let expected = EnvFilter::try_new(is_taken_for).unwrap().to_string();
            assert_eq!(filter(level).unwrap().to_string(), expected, "{level}");
        }
        let parsed = filter("tepui_engine=error").unwrap();
        assert_eq!(parsed.max_level_hint(), Some(LevelFilter::INFO), "{parsed}");
    }
}

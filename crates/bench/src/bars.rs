//! Bars: a figure, what it must be, and whether it is. What benchmarks with a verdict print, a line each.

use std::fmt::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::counters::Machine;
use crate::error::{Error, ErrorKind, Result};
use crate::output;

/// Exit code when a bar is short.
const SHORT: u8 = 1;
/// Exit code when the run did not come to its end.
const FAILED: u8 = 2;

/// How a program ends whose run found so many bars short, or failed; says why, but for an interruption.
pub fn exit_code(short: Result<usize>) -> ExitCode {
    match short {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(SHORT),
        Err(error) => {
            if error.kind() != ErrorKind::Interrupted {
                output::complain(&format!("error: {error}"));
            }
            ExitCode::from(FAILED)
        }
    }
}

/// What a figure must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bar {
    /// Not more than this.
    AtMost(f64),
    /// Not less than this.
    AtLeast(f64),
    /// Printed without a judgement.
    Published,
}

/// Whether it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The bar is met.
    Ok,
    /// It is not, or the figure could not be had.
    Short,
    /// There is no bar.
    Published,
}

/// One figure with its bar.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The group that measured it.
    pub group: &'static str,
    /// What it is.
    pub name: String,
    /// Over the rounds; none where it could not be had.
    pub figure: Option<Spread>,
    /// What it is counted in; empty for a ratio.
    pub unit: &'static str,
    /// What it must be.
    pub bar: Bar,
    /// Whether it is.
    pub verdict: Verdict,
    /// What else to know.
    pub note: String,
}

impl Line {
    /// A figure, judged by its median.
    pub fn new(group: &'static str, name: impl Into<String>, figure: Spread, bar: Bar) -> Self {
        let good = match bar {
            Bar::AtMost(most) => figure.median <= most,
            Bar::AtLeast(least) => figure.median >= least && figure.median.is_finite(),
            Bar::Published => true,
        };
        let verdict = match (bar, good) {
            (Bar::Published, _) => Verdict::Published,
            (_, true) => Verdict::Ok,
            (_, false) => Verdict::Short,
        };
        let name = name.into();
        Self { group, name, figure: Some(figure), unit: "", bar, verdict, note: String::new() }
    }

    /// A figure that could not be had counts as short, for nobody knows that it is good.
    pub fn missing(group: &'static str, name: impl Into<String>, bar: Bar, why: String) -> Self {
        let verdict = if bar == Bar::Published { Verdict::Published } else { Verdict::Short };
        Self { group, name: name.into(), figure: None, unit: "", bar, verdict, note: why }
    }

    /// Short whatever its figure, where that does not mean what it says.
    #[must_use]
    pub fn unless(mut self, doubt: Option<String>) -> Self {
        if let Some(doubt) = doubt {
            if self.verdict == Verdict::Ok {
                self.verdict = Verdict::Short;
            }
            let separator = if self.note.is_empty() { "" } else { "; " };
            self.note = format!("{doubt}{separator}{}", self.note);
        }
        self
    }

    /// What it is counted in.
    #[must_use]
    pub fn unit(mut self, unit: &'static str) -> Self {
        self.unit = unit;
        self
    }

    /// What else to know.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// The figure with its range, as text.
    pub fn figure_text(&self) -> String {
        let Some(figure) = self.figure else { return "none".to_owned() };
        let space = if self.unit.is_empty() { "" } else { " " };
        let mut text = format!("{}{space}{}", number(figure.median), self.unit);
        if figure.least < figure.most {
            let _ = write!(text, " ({} to {})", number(figure.least), number(figure.most));
        }
        text
    }

    /// The bar, as text.
    pub fn bar_text(&self) -> String {
        match self.bar {
            Bar::AtMost(most) => format!("at most {}", number(most)),
            Bar::AtLeast(least) => format!("at least {}", number(least)),
            Bar::Published => String::new(),
        }
    }

    /// The verdict, as text; empty where there is no bar.
    pub fn verdict_text(&self) -> &'static str {
        match self.verdict {
            Verdict::Ok => "ok",
            Verdict::Short => "short",
            Verdict::Published => "",
        }
    }

    /// The line for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{:<66} {:>34}  {:<15} {}",
            self.name,
            self.figure_text(),
            self.bar_text(),
            self.verdict_text()
        );
        if !self.note.is_empty() {
            let _ = write!(text, "\n    {}", self.note);
        }
        text.trim_end().to_owned()
    }
}

/// The bars of a program, with what they were measured on and how.
#[derive(Debug, Clone, Serialize)]
pub struct Verdicts {
    /// What it ran on.
    pub machine: Machine,
    /// What was compared, and its settings.
    pub settings: Vec<(String, String)>,
    /// The bars.
    pub lines: Vec<Line>,
}

impl Verdicts {
    /// Figures that have a bar.
    pub fn judged(&self) -> usize {
        self.lines.iter().filter(|line| line.verdict != Verdict::Published).count()
    }

    /// Bars that are not met.
    pub fn short(&self) -> usize {
        self.lines.iter().filter(|line| line.verdict == Verdict::Short).count()
    }

    fn machine_line(&self) -> String {
        let m = &self.machine;
        format!(
            "{} x{}, {:.0} GiB, Linux {}, disk {}",
            m.cpu,
            m.cores,
            m.memory_bytes as f64 / f64::from(1 << 30),
            m.kernel,
            m.device.as_deref().unwrap_or("unknown"),
        )
    }

    /// Machine and settings, for a terminal.
    pub fn heading(&self) -> String {
        let mut text = format!("machine: {}\n", self.machine_line());
        for (what, how) in &self.settings {
            let _ = writeln!(text, "{what}: {how}");
        }
        text
    }

    /// Says in what is written of the run that it is not all, and why.
    pub fn ended_early(&mut self, error: &Error) {
        self.settings.push(("ended early".to_owned(), error.to_string()));
    }

    /// The last line for a terminal.
    pub fn summary(&self) -> String {
        let judged = self.judged();
        let mut text = match self.short() {
            _ if judged == 0 => "no bar was judged".to_owned(),
            0 => format!("all {judged} bars are met"),
            short => format!("{short} of {judged} bars are short"),
        };
        let none = |line: &&Line| line.figure.is_none() && line.verdict == Verdict::Published;
        for (at, line) in self.lines.iter().filter(none).enumerate() {
            let _ = write!(text, "{} {}", if at == 0 { "; not measured:" } else { "," }, line.name);
        }
        text
    }

    /// Machine, settings and the table of bars, for `docs/benchmarks.md`.
    pub fn markdown(&self) -> String {
        let mut text = format!("Machine: {}.\n\n", self.machine_line());
        for (what, how) in &self.settings {
            let _ = writeln!(text, "- {what}: {how}");
        }
        text.push_str(
            "\n| what | figure (range over the rounds) | bar | |\n| --- | --- | --- | --- |\n",
        );
        for line in &self.lines {
            let cells = [&line.name, &line.figure_text(), &line.bar_text()].map(|c| escape(c));
            let _ = writeln!(text, "| {} | {} |", cells.join(" | "), line.verdict_text());
        }
        text
    }
}

/// Text for a cell of a table, which a `|` would end.
pub fn escape(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Three digits that matter, without an exponent.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if !a.is_finite() => "none".to_owned(),
        a if a >= 1000.0 => grouped(x),
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        a if a >= 0.01 || a == 0.0 => format!("{x:.2}"),
        _ => format!("{x:.4}"),
    }
}

/// A whole number in groups of three digits.
fn grouped(x: f64) -> String {
    let digits = format!("{:.0}", x.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if x < 0.0 { format!("-{text}") } else { text }
}

/// The middle one of some figures, with the smallest and the largest.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Spread {
    /// Of some figures. The median of none is not a number, nor is that of some of which one is not: how good that would have been
    /// nobody knows.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = figures.into_iter().collect();
        all.sort_by(f64::total_cmp);
        let at = |i: usize| all.get(i).copied().unwrap_or(f64::NAN);
        let middle = all.len() / 2;
        let median = if all.iter().any(|figure| figure.is_nan()) {
            f64::NAN
        } else if all.len() % 2 == 1 {
            at(middle)
        } else {
            f64::midpoint(at(middle.saturating_sub(1)), at(middle))
        };
        Self { median, least: at(0), most: at(all.len().saturating_sub(1)) }
    }

    /// Of a figure that is exact.
    pub fn exact(figure: f64) -> Self {
        Self { median: figure, least: figure, most: figure }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(figure: f64, bar: Bar) -> Line {
        Line::new("group", "name", Spread::exact(figure), bar)
    }

    #[test]
    fn a_bar_is_met_up_to_its_very_figure() {
        assert_eq!(line(1.02, Bar::AtMost(1.02)).verdict, Verdict::Ok);
        assert_eq!(line(1.03, Bar::AtMost(1.02)).verdict, Verdict::Short);
        assert_eq!(line(1.3, Bar::AtLeast(1.3)).verdict, Verdict::Ok);
        assert_eq!(line(1.29, Bar::AtLeast(1.3)).verdict, Verdict::Short);
        assert_eq!(line(5.0, Bar::Published).verdict, Verdict::Published);
    }

    #[test]
    fn what_could_not_be_measured_is_short() {
        assert_eq!(line(f64::NAN, Bar::AtMost(1.0)).verdict, Verdict::Short);
        assert_eq!(line(f64::NAN, Bar::AtLeast(1.0)).verdict, Verdict::Short);
        let missing = Line::missing("group", "name", Bar::AtMost(1.0), "no figure".to_owned());
        assert_eq!(missing.verdict, Verdict::Short);
        assert_eq!(line(f64::INFINITY, Bar::AtLeast(1.0)).verdict, Verdict::Short);
        let doubted = line(0.5, Bar::AtMost(1.0)).unless(Some("not the device".to_owned()));
        assert_eq!(doubted.verdict, Verdict::Short);
        assert_eq!(line(0.5, Bar::AtMost(1.0)).unless(None).verdict, Verdict::Ok);
        for bar in [Bar::AtMost(1.0), Bar::AtLeast(0.1)] {
            let rounds = Spread::of([0.5, f64::NAN, 0.5]);
            assert_eq!(Line::new("group", "name", rounds, bar).verdict, Verdict::Short);
        }
        assert!(missing.text().contains("no figure"));
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        let texts: Vec<_> = [81_234.5, 123.4, 12.34, 1.234, 0.001_23, -1234.0, 0.0]
            .into_iter()
            .map(number)
            .collect();
        assert_eq!(texts, ["81,234", "123", "12.3", "1.23", "0.0012", "-1,234", "0.00"]);
    }
}

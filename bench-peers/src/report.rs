//! The bars: a line each, and the same as JSON and as a table for `docs/benchmarks.md`.

use std::fmt::Write as _;

use serde::Serialize;

use tepui_bench::counters::Machine;

use crate::sample::{Pick, Series, Spread};

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

    fn figure_text(&self) -> String {
        let Some(figure) = self.figure else { return "none".to_owned() };
        let space = if self.unit.is_empty() { "" } else { " " };
        let mut text = format!("{}{space}{}", number(figure.median), self.unit);
        if figure.least < figure.most {
            let _ = write!(text, " ({} to {})", number(figure.least), number(figure.most));
        }
        text
    }

    fn bar_text(&self) -> String {
        match self.bar {
            Bar::AtMost(most) => format!("at most {}", number(most)),
            Bar::AtLeast(least) => format!("at least {}", number(least)),
            Bar::Published => String::new(),
        }
    }

    fn verdict_text(&self) -> &'static str {
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

/// Three digits that matter, without an exponent.
fn number(x: f64) -> String {
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

/// Everything that a run of the program found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What it ran on.
    pub machine: Machine,
    /// What was compared, and its settings.
    pub settings: Vec<(String, String)>,
    /// The bars.
    pub lines: Vec<Line>,
    /// Every contest, with every round.
    pub series: Vec<Series>,
}

impl Report {
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

    /// The last line for a terminal.
    pub fn summary(&self) -> String {
        let judged = self.lines.iter().filter(|line| line.verdict != Verdict::Published).count();
        match self.short() {
            0 => format!("all {judged} bars are met"),
            short => format!("{short} of {judged} bars are short"),
        }
    }

    /// Every contest, for a terminal: the medians over the rounds.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<52} {:<34} {:>10} {:>9} {:>9} {:>7} {:>9} {:>8}\n",
            "workload", "store", "per second", "p50 us", "p99 us", "reads", "bytes", "CPU us"
        );
        for series in &self.series {
            let [rate, p50, p99, reads, bytes, cpu] = medians(series);
            let _ = writeln!(
                text,
                "{:<52} {:<34} {rate:>10} {p50:>9} {p99:>9} {reads:>7} {bytes:>9} {cpu:>8}",
                series.workload, series.store,
            );
        }
        text
    }

    /// The tables of `docs/benchmarks.md`.
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
        text.push_str(
            "\n| workload | store | per second | p50 | p99 | disk reads | disk bytes | CPU |\n\
             | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        );
        for series in &self.series {
            let [rate, p50, p99, reads, bytes, cpu] = medians(series);
            let _ = writeln!(
                text,
                "| {} | {} | {rate} | {p50} us | {p99} us | {reads} | {bytes} | {cpu} us |",
                escape(&series.workload),
                escape(&series.store),
            );
        }
        text
    }
}

/// Rate, p50, p99, reads, bytes and processor time of a contest, each the median over the rounds.
fn medians(series: &Series) -> [String; 6] {
    let picks: [Pick; 6] = [
        |s| s.per_second,
        |s| s.p50_us,
        |s| s.p99_us,
        |s| s.disk_reads,
        |s| s.disk_bytes,
        |s| s.cpu_us,
    ];
    picks.map(|pick| number(series.spread(pick).median))
}

/// A `|` would end a table's cell.
fn escape(text: &str) -> String {
    text.replace('|', "\\|")
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

    #[test]
    fn the_summary_counts_only_what_has_a_bar() {
        let machine = Machine::here(std::path::Path::new("."));
        let lines = vec![line(2.0, Bar::AtMost(1.0)), line(2.0, Bar::Published)];
        let report = Report { machine, settings: Vec::new(), lines, series: Vec::new() };
        assert_eq!(report.summary(), "1 of 1 bars are short");
        assert!(report.markdown().contains("| name | 2.00 | at most 1.00 | short |"));
    }
}

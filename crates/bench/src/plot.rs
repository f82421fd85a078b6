//! Plots as SVG: throughput and latencies over time, and latency curves: which share of the operations is at least as fast, against microseconds, both on
//! logarithmic axes, so that the slow tail has as much room as the bulk.
//!
//! ```text
//! us │                        ╭── one line a series
//!    │               ╭────────╯
//!    │ ──────────────╯
//!    └────┬───────┬───────┬───────┬──
//!        50 %    90 %    99 %   99.9 %
//! ```

use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::error::{Error, Result};
use crate::report::{CurvePoint, LatencyFigures, TimelinePoint};

/// One line of a plot.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend says.
    pub label: String,
    /// Its points, by rising quantile.
    pub points: Vec<CurvePoint>,
}

const SIZE: (u32, u32) = (1120, 600);
/// Of the width, what the legend has: beside the curves, since they leave no corner free.
const LEGEND_WIDTH: u32 = 270;
/// From one line of the legend to the next.
const LEGEND_STEP: i32 = 24;
/// Where the legend begins, in its part.
const LEGEND_TOP: i32 = 56;
/// Lines beyond this many would be told apart by nobody.
pub const SERIES_MAX: usize = 16;

/// Refuses a plot of more lines than can be told apart.
pub fn check_lines(lines: usize) -> Result<()> {
    if lines > SERIES_MAX {
        return Err(failed(format_args!(
            "{lines} lines are too many to read: at most {SERIES_MAX}"
        )));
    }
    Ok(())
}

/// Told apart also by those who see fewer colours (Okabe and Ito 2008), black last.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(128, 128, 128),
    RGBColor(0, 0, 0),
];

/// An axis of shares, laid out by nines: 0 %, 90 %, 99 % ... have equal distances.
struct Nines(Range<f64>);

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).max(1e-12).log10()
}

impl Ranged for Nines {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let share = (value - self.0.start) / (self.0.end - self.0.start);
        limit.0 + (share * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        let mut points = vec![0.0, nines(0.5)];
        points.extend((1..=12).map(f64::from).take_while(|n| *n <= self.0.end));
        points
    }

    fn range(&self) -> Range<f64> {
        self.0.clone()
    }
}

impl ValueFormatter<f64> for Nines {
    fn format(value: &f64) -> String {
        // 99.9 and not 99.90: as many decimals as the nines need.
        let decimals = (value.floor() as usize).saturating_sub(2 - usize::from(*value < 2.0));
        let decimals = if *value < 2.0 { 0 } else { decimals };
        format!("{:.decimals$} %", 100.0 * (1.0 - 10f64.powf(-value)))
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::failed(format!("plot: {error}"))
}

/// Microseconds as a person says them.
fn time(micros: f64) -> String {
    let (value, unit) = match micros {
        m if m >= 1e6 => (m / 1e6, "s"),
        m if m >= 1e3 => (m / 1e3, "ms"),
        m => (m, "us"),
    };
    let text = format!("{value:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The line of series number `at`.
fn style_of(at: usize) -> ShapeStyle {
    let colour = COLOURS.get(at % COLOURS.len()).copied().unwrap_or(BLACK);
    // A second round of the colours is drawn thin.
    colour.stroke_width(if at < COLOURS.len() { 3 } else { 1 })
}

fn draw_legend(
    legend: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    at: usize,
    label: &str,
) -> Result<()> {
    let y = LEGEND_TOP + at as i32 * LEGEND_STEP;
    legend.draw(&PathElement::new([(0, y), (28, y)], style_of(at))).map_err(failed)?;
    let text = Text::new(label.to_owned(), (36, y - 7), ("sans-serif", 16));
    legend.draw(&text).map_err(failed)
}

/// Draws the series. Those without points are left out; an error where none is left or there are too many.
pub fn latency_curves(title: &str, series: &[Series]) -> Result<String> {
    let series: Vec<&Series> = series.iter().filter(|s| !s.points.is_empty()).collect();
    if series.is_empty() {
        return Err(failed("there are no latencies to draw"));
    }
    check_lines(series.len())?;
    let all = || series.iter().flat_map(|s| &s.points);
    let lowest = all().map(|p| p.micros).fold(f64::INFINITY, f64::min).max(0.01);
    let highest = all().map(|p| p.micros).fold(0.0, f64::max).max(lowest * 2.0);
    let right = all().map(|p| nines(p.quantile)).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let (left, legend) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let mut chart = ChartBuilder::on(&left)
            .caption(title, ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(Nines(0.0..right), (lowest / 1.3..highest * 1.3).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("share of operations that are at least as fast")
            .y_desc("latency")
            .y_label_formatter(&|micros| time(*micros))
            .axis_desc_style(("sans-serif", 17))
            .label_style(("sans-serif", 15))
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(215, 215, 215))
            .draw()
            .map_err(failed)?;
        for (at, one) in series.iter().enumerate() {
            let points = one.points.iter().map(|p| (nines(p.quantile), p.micros));
            chart.draw_series(LineSeries::new(points, style_of(at))).map_err(failed)?;
            draw_legend(&legend, at, &one.label)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The course of one run.
#[derive(Debug, Clone)]
pub struct Course {
    /// What the legend says.
    pub label: String,
    /// Its intervals.
    pub points: Vec<TimelinePoint>,
}

/// The size of a plot over time: three charts, one above the other.
const COURSE_SIZE: (u32, u32) = (1120, 960);

/// What one chart of a plot over time shows.
struct Chart {
    caption: &'static str,
    unit: &'static str,
    /// The figure of an interval, where it has one.
    of: fn(&TimelinePoint) -> Option<f64>,
    as_time: bool,
}

const CHARTS: [Chart; 3] = [
    Chart {
        caption: "operations",
        unit: "a second",
        of: |point| Some(point.ops_per_second),
        as_time: false,
    },
    Chart {
        caption: "p50 of reads, of writes where there are none",
        unit: "latency",
        of: |point| point.reads.or(point.writes).map(|l| l.p50),
        as_time: true,
    },
    Chart {
        caption: "p99 of reads and writes, the slower",
        unit: "latency",
        of: |point| {
            let p99 = |l: Option<LatencyFigures>| l.map_or(0.0, |l| l.p99);
            let slower = p99(point.reads).max(p99(point.writes));
            (slower > 0.0).then_some(slower)
        },
        as_time: true,
    },
];

/// Draws throughput, median and tail over the seconds of each run, all from the same start. An error where there
/// is nothing to draw, or more than can be told apart.
pub fn over_time(title: &str, courses: &[Course]) -> Result<String> {
    let courses: Vec<&Course> = courses.iter().filter(|c| !c.points.is_empty()).collect();
    if courses.is_empty() {
        return Err(failed("there is no time to draw"));
    }
    check_lines(courses.len())?;
    let right = courses
        .iter()
        .flat_map(|c| &c.points)
        .map(|p| p.from_seconds)
        .fold(0.0, f64::max)
        .max(1e-3);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, COURSE_SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let root = root.titled(title, ("sans-serif", 24)).map_err(failed)?;
        let (left, legend) = root.split_horizontally(COURSE_SIZE.0 - LEGEND_WIDTH);
        for (area, chart) in left.split_evenly((CHARTS.len(), 1)).iter().zip(&CHARTS) {
            let figures = || courses.iter().flat_map(|c| c.points.iter().filter_map(chart.of));
            let highest = figures().fold(0.0, f64::max).max(1.0) * 1.08;
            let mut axes = ChartBuilder::on(area)
                .caption(chart.caption, ("sans-serif", 17))
                .margin(12)
                .x_label_area_size(32)
                .y_label_area_size(84)
                .build_cartesian_2d(0.0..right, 0.0..highest)
                .map_err(failed)?;
            let label = |value: &f64| {
                if chart.as_time { time(*value) } else { format!("{value:.0}") }
            };
            axes.configure_mesh()
                .x_desc("seconds")
                .y_desc(chart.unit)
                .y_label_formatter(&label)
                .axis_desc_style(("sans-serif", 15))
                .label_style(("sans-serif", 14))
                .light_line_style(RGBColor(240, 240, 240))
                .bold_line_style(RGBColor(215, 215, 215))
                .draw()
                .map_err(failed)?;
            for (at, course) in courses.iter().enumerate() {
                let points = course.points.iter().filter_map(|p| {
                    let figure = (chart.of)(p)?;
                    Some((p.from_seconds, figure))
                });
                axes.draw_series(LineSeries::new(points, style_of(at))).map_err(failed)?;
            }
        }
        for (at, course) in courses.iter().enumerate() {
            draw_legend(&legend, at, &course.label)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(label: &str, base: f64) -> Series {
        let points = (0..=32)
            .map(|i| CurvePoint {
                quantile: 1.0 - 10f64.powf(-f64::from(i) / 8.0),
                micros: base * (1.0 + f64::from(i)),
            })
            .collect();
        Series { label: label.to_owned(), points }
    }

    /// Every tag is closed in order, and what stands between them is escaped.
    fn parses(svg: &str) -> bool {
        let mut open = Vec::new();
        let mut rest = svg;
        while let Some(at) = rest.find('<') {
            if rest[..at].contains('>') {
                return false;
            }
            let Some(end) = rest[at..].find('>') else { return false };
            let tag = &rest[at + 1..at + end];
            rest = &rest[at + end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                if open.pop() != Some(name.trim()) {
                    return false;
                }
            } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
                open.push(tag.split_whitespace().next().unwrap_or_default());
            }
        }
        open.is_empty()
    }

    #[test]
    fn every_series_has_its_line_and_its_place_in_the_legend() {
        let svg =
            latency_curves("reads", &[series("get <1>", 2.0), series("scan", 400.0)]).unwrap();
        assert!(svg.starts_with("<svg") && parses(&svg), "{svg}");
        for text in
            ["reads", "get &lt;1&gt;", "scan", "50 %", "90 %", "99 %", "99.9 %", "10 us", "1 ms"]
        {
            assert!(svg.contains(text), "{text} is missing from {svg}");
        }
        assert!(!svg.contains("99.90 %"));
        let lines = |colour: &str| svg.matches(&format!("stroke=\"{colour}\"")).count();
        assert!(
            lines("#0072B2") >= 2 && lines("#D55E00") >= 2,
            "a curve and its sample in the legend: {svg}"
        );
    }

    #[test]
    fn a_course_has_its_line_in_every_chart_and_pauses_show() {
        let latency =
            |micros| LatencyFigures { p50: micros, p99: 3.0 * micros, ..LatencyFigures::NONE };
        let point = |at: u32| TimelinePoint {
            from_seconds: f64::from(at),
            ops_per_second: if at == 3 { 0.0 } else { 1000.0 },
            reads: (at != 3).then(|| latency(200.0)),
            writes: (at != 3).then(|| latency(400.0)),
        };
        let course =
            |label: &str| Course { label: label.to_owned(), points: (0..10).map(point).collect() };
        let svg = over_time("t <1>", &[course("a"), course("b")]).unwrap();
        assert!(svg.starts_with("<svg") && parses(&svg), "{svg}");
        for text in ["t &lt;1&gt;", "operations", "p99", "seconds", "us"] {
            assert!(svg.contains(text), "{text} is missing from {svg}");
        }
        let lines = |colour: &str| svg.matches(&format!("stroke=\"{colour}\"")).count();
        assert!(lines("#0072B2") >= 4 && lines("#D55E00") >= 4, "three charts and the legend");
        assert!(over_time("t", &[]).is_err());
        assert!(over_time("t", &[Course { label: "x".into(), points: Vec::new() }]).is_err());
    }

    #[test]
    fn a_plot_of_nothing_or_of_too_much_is_refused() {
        assert!(latency_curves("t", &[]).is_err());
        assert!(latency_curves("t", &[Series { label: "x".into(), points: Vec::new() }]).is_err());
        let many: Vec<_> = (0..=SERIES_MAX).map(|i| series(&i.to_string(), 1.0)).collect();
        assert!(latency_curves("t", &many).is_err());
    }

    #[test]
    fn one_fast_operation_is_a_plot() {
        let point = CurvePoint { quantile: 0.0, micros: 0.0 };
        assert!(parses(
            &latency_curves("t", &[Series { label: "x".into(), points: vec![point] }]).unwrap()
        ));
    }
}

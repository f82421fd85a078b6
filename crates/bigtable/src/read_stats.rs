//! The figures of a read that a client may ask for: what it looked at and what it was sent.

use googleapis_tonic_google_bigtable_v2::google::bigtable::v2;

/// Counts of one read. Where they are asked for, rows are read with all their cells; only rows that the
/// filter refuses by their keys are not looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Rows that were looked at.
    pub rows_seen: u64,
    /// Rows that were sent.
    pub rows_returned: u64,
    /// Cells that were looked at.
    pub cells_seen: u64,
    /// Cells that were sent. A filter may send a cell more than once.
    pub cells_returned: u64,
}

impl ReadStats {
    /// Counts a row: how many cells it had, and how many were sent.
    pub fn count_row(&mut self, cells_seen: usize, cells_returned: usize) {
        self.rows_seen += 1;
        self.cells_seen += cells_seen.max(cells_returned) as u64;
        self.rows_returned += u64::from(cells_returned > 0);
        self.cells_returned += cells_returned as u64;
    }

    /// The last message of a read that took `latency_micros`.
    pub fn message(self, latency_micros: u64) -> v2::ReadRowsResponse {
        let count = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let view = v2::FullReadStatsView {
            read_iteration_stats: Some(v2::ReadIterationStats {
                rows_seen_count: count(self.rows_seen),
                rows_returned_count: count(self.rows_returned),
                cells_seen_count: count(self.cells_seen),
                cells_returned_count: count(self.cells_returned),
            }),
            request_latency_stats: Some(v2::RequestLatencyStats {
                frontend_server_latency: Some(prost_types::Duration {
                    seconds: count(latency_micros / 1_000_000),
                    nanos: (latency_micros % 1_000_000 * 1_000) as i32, // Below 10^9.
                }),
            }),
        };
        v2::ReadRowsResponse {
            request_stats: Some(v2::RequestStats {
                stats_view: Some(v2::request_stats::StatsView::FullReadStatsView(view)),
            }),
            ..v2::ReadRowsResponse::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_that_a_filter_makes_were_looked_at_too() {
        let mut stats = ReadStats::default();
        stats.count_row(3, 6);
        stats.count_row(4, 1);
        stats.count_row(5, 0);
        assert_eq!(
            stats,
            ReadStats { rows_seen: 3, rows_returned: 2, cells_seen: 15, cells_returned: 7 }
        );
    }

    #[test]
    fn latency_is_split_into_seconds_and_nanoseconds() {
        let message = ReadStats::default().message(2_345_678);
        let Some(v2::request_stats::StatsView::FullReadStatsView(view)) =
            message.request_stats.and_then(|s| s.stats_view)
        else {
            panic!("no stats");
        };
        let latency = view.request_latency_stats.and_then(|l| l.frontend_server_latency);
        assert_eq!(latency, Some(prost_types::Duration { seconds: 2, nanos: 345_678_000 }));
    }
}

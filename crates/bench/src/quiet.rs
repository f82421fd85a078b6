//! A virtual machine has its processors as far as its host gives them. What the host takes is in every figure of time, so each run
//! says how much it was, and a contest makes a run again that lost much.

use std::time::Duration;

use crate::clock::pause;
use crate::error::Result;
use crate::progress::Progress;

/// The share of the processors' time that a host may take from a run of a contest: what quiet hosts take is a hundredth, and a
/// rate has other noise of this size.
pub const STOLEN_SHARE_MAX: f64 = 0.05;
/// How often a run is made again: a host that is busy for longer disturbs all that take part.
pub const REPEATS_MAX: usize = 4;
/// How often runs of a program are made again, all together: on a host that is always busy they would take five times as long,
/// and none would be quieter. At two seconds a run, five with the pause, these take some four minutes.
pub const REPEATS_ALL_MAX: u32 = 48;
/// What is waited before that: hosts take in bursts of seconds.
const REPEAT_PAUSE: Duration = Duration::from_secs(3);
/// What the seed of a run that is made again is ahead of the one before: more than there are rounds.
const AGAIN_SEED: u64 = 1_000;

/// Makes a run, and again where the host took much of it; gives the one it took the least from. A run is told what its seed is to be
/// ahead: what is made again asks for other rows, since those of the run before are in memory now.
pub fn quietest<T>(
    progress: &Progress,
    stolen_share: impl Fn(&T) -> f64,
    mut run: impl FnMut(u64) -> Result<T>,
) -> Result<T> {
    let mut best = run(0)?;
    for repeat in 1..=REPEATS_MAX {
        if stolen_share(&best) <= STOLEN_SHARE_MAX || !progress.may_repeat(REPEATS_ALL_MAX) {
            break;
        }
        pause(REPEAT_PAUSE);
        progress.check()?;
        let again = run(repeat as u64 * AGAIN_SEED)?;
        if stolen_share(&again) < stolen_share(&best) {
            best = again;
        }
    }
    Ok(best)
}

/// Tells what the host took of the runs that count.
pub fn summary(stolen_shares: impl IntoIterator<Item = f64>) -> String {
    let shares: Vec<f64> = stolen_shares.into_iter().collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    let disturbed = shares.iter().filter(|share| **share > STOLEN_SHARE_MAX).count();
    format!(
        "the host took at most {:.1} % of the processors' time from a run, over {:.0} % from {disturbed} of {}",
        most * 100.0,
        STOLEN_SHARE_MAX * 100.0,
        shares.len(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_run_is_made_once_and_of_disturbed_ones_the_quietest_counts() {
        let take = |shares: &[f64]| {
            let (mut made, mut seeds) = (0, std::collections::BTreeSet::new());
            let best = quietest(
                &Progress::hidden(),
                |share| *share,
                |seed| {
                    assert!(seeds.insert(seed), "{seed}: the rows of an earlier run");
                    made += 1;
                    Ok(shares.get(made - 1).copied().unwrap_or(1.0))
                },
            );
            (best.unwrap(), made)
        };
        assert_eq!(take(&[0.04]), (0.04, 1));
        assert_eq!(take(&[0.5, 0.01]), (0.01, 2));
        assert_eq!(take(&[0.5, 0.2, 0.3, 0.4, 0.6, 0.0]), (0.2, 1 + REPEATS_MAX));
    }

    #[test]
    fn on_a_host_that_is_always_busy_runs_are_no_longer_made_again_after_a_while() {
        let progress = Progress::hidden();
        let repeats =
            (0..=REPEATS_ALL_MAX).filter(|_| progress.may_repeat(REPEATS_ALL_MAX)).count();
        assert_eq!(repeats, REPEATS_ALL_MAX as usize);
        let mut made = 0;
        let run = |_| {
            made += 1;
            Ok(1.0)
        };
        quietest(&progress, |share| *share, run).unwrap();
        assert_eq!(made, 1);
    }

    #[test]
    fn the_summary_counts_the_runs_that_lost_much() {
        let text = summary([0.01, 0.5, 0.02]);
        assert_eq!(
            text,
            "the host took at most 50.0 % of the processors' time from a run, over 5 % from 1 of 3"
        );
        assert!(summary([]).contains("0.0 %"));
    }
}

//! Zipfian ranks in constant time, after Gray, Sundaresan, Englert, Baclawski and Weinberger, "Quickly
//! generating billion-record synthetic databases" (SIGMOD 1994), as YCSB draws them.

/// Terms of the zeta sum that are added one by one; the rest is an integral whose error is then below 1e-9
/// of the sum.
const EXACT_TERMS: u64 = 10_000;

/// Ranks from 0, rank r with a probability proportional to 1 / (r + 1)^theta.
#[derive(Debug)]
pub struct Zipf {
    n: u64,
    theta: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

/// The sum of 1 / k^theta for k from 1 to n, by Euler and Maclaurin beyond the first terms.
fn zeta(n: u64, theta: f64) -> f64 {
    let exact = n.min(EXACT_TERMS);
    let head: f64 = (1..=exact).map(|k| (k as f64).powf(-theta)).sum();
    if n == exact {
        return head;
    }
    let (a, b) = (exact as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    head + integral + (b.powf(-theta) - a.powf(-theta)) / 2.0
}

impl Zipf {
    /// Ranks below `n`, which is at least 1; `theta` lies between 0 and 1.
    pub fn new(n: u64, theta: f64) -> Self {
        let n = n.max(1);
        let sum = zeta(n, theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta(2, theta) / sum);
        Self { n, theta, zeta: sum, alpha: 1.0 / (1.0 - theta), eta }
    }

    /// The rank that a uniform random number stands for.
    pub fn rank(&self, random: u64) -> u64 {
        // 53 bits: what a double holds.
        let u = (random >> 11) as f64 / (1u64 << 53) as f64;
        let uz = u * self.zeta;
        let rank = if uz < 1.0 {
            0
        } else if uz < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
        };
        rank.min(self.n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::scatter;

    #[test]
    fn the_sum_by_integral_is_the_sum_by_terms() {
        for theta in [0.5, 0.9, 0.99] {
            let n = 300_000;
            let exact: f64 = (1..=n).map(|k| (k as f64).powf(-theta)).sum();
            assert!((zeta(n, theta) / exact - 1.0).abs() < 1e-9, "{theta}");
        }
    }

    #[test]
    fn ranks_come_as_often_as_the_law_says() {
        let (n, draws) = (1000, 200_000u64);
        let zipf = Zipf::new(n, 0.99);
        let mut counts = vec![0u64; n as usize];
        for i in 0..draws {
            counts[zipf.rank(scatter(i + 1)) as usize] += 1;
        }
        // Rank 0 and 1 are drawn exactly, the others by an approximation that is good to some percent.
        for (rank, tolerance) in [(0usize, 0.03), (1, 0.04), (9, 0.25), (99, 0.25)] {
            let expected = draws as f64 / ((rank + 1) as f64).powf(0.99) / zeta(n, 0.99);
            let ratio = counts[rank] as f64 / expected;
            assert!((ratio - 1.0).abs() < tolerance, "rank {rank}: {ratio}");
        }
        assert!(counts.iter().filter(|c| **c > 0).count() > 950);
    }

    #[test]
    fn the_smallest_tables_work() {
        for n in [1, 2, 3] {
            let zipf = Zipf::new(n, 0.99);
            assert!([0, 1, u64::MAX / 2, u64::MAX].iter().all(|r| zipf.rank(*r) < n));
        }
    }
}

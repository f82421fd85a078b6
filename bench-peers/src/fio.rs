//! The device's own speed: `fio` with io_uring and direct I/O, random reads of what the workload reads at its depth, on a file as large as the data in the same directory. What a store can at best be.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tepui_bench::counters::MachineTime;
use tepui_bench::{Error, Result};

use crate::sample::Sample;

/// Bytes of a point read: the block of all stores here.
pub const BLOCK_BYTES: u64 = 4096;
/// Size of the file is a multiple of this, since fio rounds down to its block.
const FILE_BYTES_UNIT: u64 = 1 << 20;

/// A file laid out for fio, removed with this.
#[derive(Debug)]
pub struct Fio {
    file: PathBuf,
    bytes: u64,
}

impl Fio {
    /// Writes a file of about `bytes` into `dir`; its holes would be read without the device.
    pub fn prepare(dir: &Path, bytes: u64) -> Result<Self> {
        let bytes = bytes.div_ceil(FILE_BYTES_UNIT) * FILE_BYTES_UNIT;
        let fio = Self { file: dir.join("fio.data"), bytes };
        fio.command(&["--name=lay", "--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers=1"])?;
        Ok(fio)
    }

    /// Random reads of `block_bytes` for `seconds` by `jobs` processes that hold `in_flight` together.
    pub fn run(
        &self,
        block_bytes: u64,
        (jobs, in_flight): (usize, usize),
        seconds: u64,
        seed: u64,
    ) -> Result<Sample> {
        let before = MachineTime::now();
        let json = self.command(&[
            "--name=read",
            "--rw=randread",
            "--norandommap",
            &format!("--randseed={}", seed + 1),
            &format!("--bs={block_bytes}"),
            &format!("--numjobs={jobs}"),
            &format!("--iodepth={}", (in_flight / jobs.max(1)).max(1)),
            &format!("--runtime={seconds}"),
            "--time_based",
            "--group_reporting",
        ])?;
        let sample = parse(&json, block_bytes)
            .ok_or_else(|| Error::failed("fio printed no figures of its reads"))?;
        Ok(Sample { stolen_share: MachineTime::now().stolen_share_since(before), ..sample })
    }

    fn command(&self, args: &[&str]) -> Result<Value> {
        let out = Command::new("fio")
            .args(args)
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--size={}", self.bytes))
            .args(["--ioengine=io_uring", "--direct=1", "--output-format=json"])
            .output()
            .map_err(|e| Error::failed(format!("cannot run fio (is it installed?): {e}")))?;
        if !out.status.success() {
            let message = String::from_utf8_lossy(&out.stderr);
            return Err(Error::failed(format!("fio failed: {}", message.trim())));
        }
        // Warnings of fio come before the object.
        let text = String::from_utf8_lossy(&out.stdout);
        let start = text.find('{').unwrap_or(0);
        serde_json::from_str(text.get(start..).unwrap_or(""))
            .map_err(|e| Error::failed(format!("fio printed something else than JSON: {e}")))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        // A file that stays costs space, not correctness; the next run writes over it.
        let _ = std::fs::remove_file(&self.file);
    }
}

fn parse(json: &Value, block_bytes: u64) -> Option<Sample> {
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let per_second = read.get("iops")?.as_f64()?;
    let percentiles = read.get("clat_ns")?.get("percentile")?;
    let at = |name| Some(percentiles.get(name)?.as_f64()? / 1e3);
    // Percentages of one processor, averaged over the jobs of the group.
    let cpu = job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?;
    let jobs = job.get("job options")?.get("numjobs")?.as_str()?.parse::<f64>().ok()?;
    let cpu_us = if per_second > 0.0 { cpu / 100.0 * jobs * 1e6 / per_second } else { 0.0 };
    Some(Sample {
        per_second,
        p50_us: at("50.000000")?,
        p99_us: at("99.000000")?,
        disk_reads: 1.0,
        disk_bytes: block_bytes as f64,
        cpu_us,
        stolen_share: 0.0,
        figures: std::collections::BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_report() {
        let json = serde_json::json!({"jobs": [{
            "job options": {"numjobs": "2"}, "usr_cpu": 10.0, "sys_cpu": 30.0,
            "read": {"iops": 80_000.0, "clat_ns": {"percentile": {
                "50.000000": 400_000, "99.000000": 900_000
            }}}
        }]});
        let sample = parse(&json, BLOCK_BYTES).unwrap();
        let figures = [sample.per_second, sample.p50_us, sample.p99_us, sample.cpu_us];
        assert_eq!(figures.map(|f| f.round() as u64), [80_000, 400, 900, 10]);
        assert_eq!(parse(&serde_json::json!({"jobs": []}), BLOCK_BYTES), None);
    }
}

//! The device's own speed: `fio` with io_uring and direct I/O, random reads of the block size at the depth of the
//! workload, on a file as large as the data in the same directory. What a store can at best be.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tepui_bench::{Error, Result};

/// Bytes of a read: the block of all stores here.
pub const BLOCK_BYTES: u64 = 4096;
/// Size of the file is a multiple of this, since fio rounds down to its block.
const FILE_BYTES_UNIT: u64 = 1 << 20;

/// A file laid out for fio, removed with this.
#[derive(Debug)]
pub struct Fio {
    file: PathBuf,
    bytes: u64,
}

/// What one run measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reads {
    /// Reads per second.
    pub per_second: f64,
    /// 99th percentile of a read from its submission, in microseconds.
    pub p99_us: f64,
    /// Processor time of a read, user and kernel, in microseconds.
    pub cpu_us: f64,
}

impl Fio {
    /// Writes a file of about `bytes` into `dir`; its holes would be read without the device.
    pub fn prepare(dir: &Path, bytes: u64) -> Result<Self> {
        let bytes = bytes.div_ceil(FILE_BYTES_UNIT) * FILE_BYTES_UNIT;
        let fio = Self { file: dir.join("fio.data"), bytes };
        fio.command(&["--name=lay", "--rw=write", "--bs=1m", "--iodepth=8", "--refill_buffers=1"])?;
        Ok(fio)
    }

    /// Random reads for `seconds` by `jobs` processes that hold `in_flight` together.
    pub fn run(&self, jobs: usize, in_flight: usize, seconds: u64, seed: u64) -> Result<Reads> {
        let json = self.command(&[
            "--name=read",
            "--rw=randread",
            "--norandommap",
            &format!("--randseed={}", seed + 1),
            &format!("--bs={BLOCK_BYTES}"),
            &format!("--numjobs={jobs}"),
            &format!("--iodepth={}", (in_flight / jobs.max(1)).max(1)),
            &format!("--runtime={seconds}"),
            "--time_based",
            "--group_reporting",
        ])?;
        parse(&json).ok_or_else(|| Error::failed("fio printed no figures of its reads"))
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

fn parse(json: &Value) -> Option<Reads> {
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let per_second = read.get("iops")?.as_f64()?;
    let p99_ns = read.get("clat_ns")?.get("percentile")?.get("99.000000")?.as_f64()?;
    // Percentages of one processor, averaged over the jobs of the group.
    let cpu = job.get("usr_cpu")?.as_f64()? + job.get("sys_cpu")?.as_f64()?;
    let jobs = json
        .get("jobs")?
        .get(0)?
        .get("job options")
        .and_then(|o| o.get("numjobs"))
        .and_then(|n| n.as_str()?.parse::<f64>().ok())
        .unwrap_or(1.0);
    let cpu_us = if per_second > 0.0 { cpu / 100.0 * jobs * 1e6 / per_second } else { 0.0 };
    Some(Reads { per_second, p99_us: p99_ns / 1e3, cpu_us })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_report() {
        let json = serde_json::json!({"jobs": [{
            "job options": {"numjobs": "2"}, "usr_cpu": 10.0, "sys_cpu": 30.0,
            "read": {"iops": 80_000.0, "clat_ns": {"percentile": {"99.000000": 900_000}}}
        }]});
        let reads = parse(&json).unwrap();
        assert_eq!(reads, Reads { per_second: 80_000.0, p99_us: 900.0, cpu_us: 10.0 });
        assert_eq!(parse(&serde_json::json!({"jobs": []})), None);
    }
}

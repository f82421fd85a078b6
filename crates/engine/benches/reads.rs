//! Random reads of one file by every way that the engine has, and by bare rings as a measure of them.
//!
//! `cargo bench -p tepui-engine --bench reads -- [--file PATH] [--gib N] [--seconds N] [--rounds N]
//! [--threads N] [--in-flight N] [--block BYTES] [--only NAME,...]`
//!
//! All ways run one after the other in each round, so that a noisy machine is noisy for all. The file (default:
//! in the current directory, removed at the end) is read past the page cache; where it says "buffered", through
//! the page cache, which is empty at the beginning: then the file must be large for the time. Printed per way: reads per
//! second, processor time of the process per read, system calls of rings per read; medians of the rounds.

#![expect(
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement, not the engine: it owns its clock, files and threads, and may panic"
)]

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::os::fd::{AsRawFd, RawFd};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use io_uring::{IoUring, opcode, types};
    use tepui_engine::io::{
        Env, Files, IoEngine, IoMode, LocalFiles, PREAD_THREADS, PreadPool, RandomFile,
        ReadRequest, ThreadSpawner,
    };

    #[global_allocator]
    static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

    struct Plan {
        path: PathBuf,
        bytes: u64,
        block: usize,
        threads: usize,
        in_flight: usize,
        seconds: f64,
        rounds: usize,
        only: Vec<String>,
    }

    /// What a run came to.
    #[derive(Clone, Copy)]
    struct Figures {
        per_second: f64,
        cpu_us: f64,
        enters: f64,
    }

    type Way = fn(&Plan) -> Figures;

    /// Tells the threads of a run when it is over, and counts what they did.
    struct Run {
        over: AtomicBool,
        reads: AtomicU64,
    }

    pub fn main() {
        let plan = parse();
        let made = make_file(&plan);
        let ways: Vec<(&str, Way)> = vec![
            ("pread, blocking", blocking),
            ("bare ring", |plan| bare(plan, false, false)),
            ("bare ring, fixed file", |plan| bare(plan, true, false)),
            ("bare ring, fixed buffers", |plan| bare(plan, false, true)),
            ("bare ring, fixed both", |plan| bare(plan, true, true)),
            ("pread pool", pool),
            ("UringIo", |plan| engine(plan, IoMode::Direct)),
            ("UringIo, buffered", |plan| engine(plan, IoMode::Buffered)),
        ];
        let ways: Vec<_> = ways
            .into_iter()
            .filter(|(name, _)| {
                plan.only.is_empty() || plan.only.iter().any(|part| name.contains(part.as_str()))
            })
            .collect();
        let mut results: Vec<Vec<Figures>> = vec![Vec::new(); ways.len()];
        for _ in 0..plan.rounds {
            for (at, (_, run)) in ways.iter().enumerate() {
                results[at].push(run(&plan));
            }
        }
        println!(
            "{} threads, {} in flight, {} bytes, {} s, {} rounds",
            plan.threads, plan.in_flight, plan.block, plan.seconds, plan.rounds
        );
        println!("{:<28} {:>10} {:>12} {:>12}", "", "reads/s", "CPU us/read", "enters/read");
        for ((name, _), figures) in ways.iter().zip(&results) {
            let median = |of: fn(&Figures) -> f64| {
                let mut all: Vec<f64> = figures.iter().map(of).collect();
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            };
            println!(
                "{name:<28} {:>10.0} {:>12.2} {:>12.2}",
                median(|f| f.per_second),
                median(|f| f.cpu_us),
                median(|f| f.enters)
            );
        }
        if made {
            std::fs::remove_file(&plan.path).unwrap();
        }
    }

    fn parse() -> Plan {
        let mut plan = Plan {
            path: PathBuf::from("tepui-reads.tmp"),
            bytes: 1 << 30,
            block: 4096,
            threads: 2,
            in_flight: 32,
            seconds: 2.0,
            rounds: 3,
            only: Vec::new(),
        };
        let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
        while let Some(flag) = args.next() {
            let value = args.next().unwrap_or_else(|| panic!("{flag} needs a value"));
            match flag.as_str() {
                "--file" => plan.path = PathBuf::from(value),
                "--gib" => {
                    plan.bytes = value.parse::<u64>().unwrap() << 30;
                }
                "--seconds" => plan.seconds = value.parse().unwrap(),
                "--rounds" => plan.rounds = value.parse().unwrap(),
                "--threads" => plan.threads = value.parse().unwrap(),
                "--in-flight" => plan.in_flight = value.parse().unwrap(),
                "--block" => plan.block = value.parse().unwrap(),
                "--only" => plan.only = value.split(',').map(str::to_owned).collect(),
                _ => panic!("unknown flag {flag}"),
            }
        }
        plan
    }

    fn make_file(plan: &Plan) -> bool {
        if Path::new(&plan.path).exists() {
            return false;
        }
        let mut file = LocalFiles::default().create(&plan.path).unwrap();
        let mut rng = 1u64;
        let mut chunk = vec![0u8; 1 << 20];
        while file.len() < plan.bytes {
            for word in chunk.chunks_exact_mut(8) {
                word.copy_from_slice(&next(&mut rng).to_le_bytes());
            }
            file.append(&chunk).unwrap();
        }
        file.sync().unwrap();
        true
    }

    fn open(plan: &Plan) -> Arc<dyn RandomFile> {
        LocalFiles::new(IoMode::Direct).open_immutable(&plan.path).unwrap()
    }

    /// xorshift64*.
    fn next(state: &mut u64) -> u64 {
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn offset(plan: &Plan, rng: &mut u64) -> u64 {
        let blocks = plan.bytes / plan.block as u64;
        (next(rng) >> 8) % blocks * plan.block as u64
    }

    fn cpu_us() -> f64 {
        // SAFETY: an all-zero `rusage` is a valid one, and the call only writes to it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
            usage
        };
        let us = |t: libc::timeval| t.tv_sec as f64 * 1e6 + t.tv_usec as f64;
        us(usage.ru_utime) + us(usage.ru_stime)
    }

    /// Runs `thread` on every thread, with a seed, for the time of the plan.
    fn timed(plan: &Plan, enters: impl Fn() -> u64, thread: impl Fn(u64, &Run) + Sync) -> Figures {
        let run = Run { over: AtomicBool::new(false), reads: AtomicU64::new(0) };
        let (cpu, start, entered) = (cpu_us(), Instant::now(), enters());
        std::thread::scope(|scope| {
            for i in 0..plan.threads {
                let (run, thread) = (&run, &thread);
                scope.spawn(move || thread(0x9E37_79B9 + i as u64 * 77_777, run));
            }
            std::thread::sleep(Duration::from_secs_f64(plan.seconds));
            run.over.store(true, Ordering::Relaxed);
        });
        let reads = run.reads.load(Ordering::Relaxed) as f64;
        Figures {
            per_second: reads / start.elapsed().as_secs_f64(),
            cpu_us: (cpu_us() - cpu) / reads,
            enters: (enters() - entered) as f64 / reads,
        }
    }

    /// One read at a time and thread.
    fn blocking(plan: &Plan) -> Figures {
        let file = open(plan);
        timed(
            plan,
            || 0,
            |seed, run| {
                let (mut rng, mut reads) = (seed, 0);
                while !run.over.load(Ordering::Relaxed) {
                    file.read_at(offset(plan, &mut rng), plan.block).unwrap();
                    reads += 1;
                }
                run.reads.fetch_add(reads, Ordering::Relaxed);
            },
        )
    }

    /// What the kernel can do: a ring per thread, one buffer per read in flight, no runtime.
    fn bare(plan: &Plan, fixed_file: bool, fixed_buffers: bool) -> Figures {
        let file = open(plan);
        let fd: RawFd = file.device().unwrap().fd.as_raw_fd();
        let enters = AtomicU64::new(0);
        timed(
            plan,
            || enters.load(Ordering::Relaxed),
            |seed, run| {
                let depth = (plan.in_flight / plan.threads).max(1);
                let mut ring = IoUring::builder()
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .build(256)
                    .unwrap();
                let layout = std::alloc::Layout::from_size_align(plan.block * depth, 4096).unwrap();
                // SAFETY: the layout is not empty.
                let memory = unsafe { std::alloc::alloc_zeroed(layout) };
                if fixed_buffers {
                    let iovecs: Vec<libc::iovec> = (0..depth)
                        .map(|i| libc::iovec {
                            iov_base: memory.wrapping_add(i * plan.block).cast(),
                            iov_len: plan.block,
                        })
                        .collect();
                    // SAFETY: the memory lives until the ring is dropped.
                    unsafe { ring.submitter().register_buffers(&iovecs).unwrap() };
                }
                if fixed_file {
                    ring.submitter().register_files(&[fd]).unwrap();
                }
                let mut rng = seed;
                let entry = |slot: usize, rng: &mut u64| {
                    let (target, len, at) = (
                        memory.wrapping_add(slot * plan.block),
                        plan.block as u32,
                        offset(plan, rng),
                    );
                    let entry = match (fixed_file, fixed_buffers) {
                        (false, false) => {
                            opcode::Read::new(types::Fd(fd), target, len).offset(at).build()
                        }
                        (true, false) => {
                            opcode::Read::new(types::Fixed(0), target, len).offset(at).build()
                        }
                        (false, true) => {
                            opcode::ReadFixed::new(types::Fd(fd), target, len, slot as u16)
                                .offset(at)
                                .build()
                        }
                        (true, true) => {
                            opcode::ReadFixed::new(types::Fixed(0), target, len, slot as u16)
                                .offset(at)
                                .build()
                        }
                    };
                    entry.user_data(slot as u64)
                };
                for slot in 0..depth {
                    // SAFETY: each slot has its part of the memory, which lives longer than the ring.
                    unsafe { ring.submission().push(&entry(slot, &mut rng)).unwrap() };
                }
                let (mut reads, mut entered, mut in_flight) = (0u64, 0u64, depth);
                while in_flight > 0 {
                    ring.submit_and_wait(1).unwrap();
                    entered += 1;
                    let done: Vec<_> = ring
                        .completion()
                        .map(|e: io_uring::cqueue::Entry| (e.user_data() as usize, e.result()))
                        .collect();
                    for (slot, result) in done {
                        assert_eq!(result as usize, plan.block);
                        reads += 1;
                        if run.over.load(Ordering::Relaxed) {
                            in_flight -= 1;
                        } else {
                            // SAFETY: as above, and the slot's read is done.
                            unsafe { ring.submission().push(&entry(slot, &mut rng)).unwrap() };
                        }
                    }
                }
                drop(ring);
                // SAFETY: allocated above with this layout; no read is in flight.
                unsafe { std::alloc::dealloc(memory, layout) };
                run.reads.fetch_add(reads, Ordering::Relaxed);
                enters.fetch_add(entered, Ordering::Relaxed);
            },
        )
    }

    fn pool(plan: &Plan) -> Figures {
        let pool = Arc::new(PreadPool::new(&ThreadSpawner, PREAD_THREADS).unwrap());
        tasks(plan, &open(plan), pool, || 0)
    }

    fn engine(plan: &Plan, mode: IoMode) -> Figures {
        // To open it directly drops what the page cache has of it: buffered reads begin without.
        drop(open(plan));
        let env = Env::local(mode).unwrap();
        let metrics = env.files.metrics().unwrap();
        let file = env.files.open_immutable(&plan.path).unwrap();
        tasks(plan, &file, env.io, || metrics.figures().ring_enters)
    }

    /// A runtime per thread, a task per read in flight.
    fn tasks(
        plan: &Plan,
        file: &Arc<dyn RandomFile>,
        io: Arc<dyn IoEngine>,
        enters: impl Fn() -> u64,
    ) -> Figures {
        let blocks = plan.bytes / plan.block as u64;
        timed(plan, enters, |seed, run| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let depth = (plan.in_flight / plan.threads).max(1);
            let block = plan.block;
            let over = Arc::new(AtomicBool::new(false));
            runtime.block_on(async {
                let attached = io.attach().unwrap();
                let tasks: Vec<_> = (0..depth)
                    .map(|task| {
                        let (io, file, over) =
                            (Arc::clone(&io), Arc::clone(file), Arc::clone(&over));
                        tokio::spawn(async move {
                            let (mut rng, mut reads) = (seed + task as u64 * 31, 0u64);
                            while !over.load(Ordering::Relaxed) {
                                let request = ReadRequest {
                                    file: Arc::clone(&file),
                                    offset: (next(&mut rng) >> 8) % blocks * block as u64,
                                    len: block,
                                };
                                let results = io.read_batch(vec![request]).await;
                                assert_eq!(results[0].as_ref().unwrap().len(), block);
                                reads += 1;
                            }
                            reads
                        })
                    })
                    .collect();
                while !run.over.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                over.store(true, Ordering::Relaxed);
                for task in tasks {
                    run.reads.fetch_add(task.await.unwrap(), Ordering::Relaxed);
                }
                drop(attached);
            });
        })
    }
}

//! Which of this program's threads go first where they share cores, as if each kind of client had a machine of its own.

/// The thread has the processor time that nobody else wants, and gives it back at once. Where the system refuses, it runs as others do.
pub fn run_when_idle() {
    schedule(libc::SCHED_IDLE, 0);
}

/// This thread goes before all ordinary ones of its cores, and those that it starts do, until this is dropped.
#[derive(Debug)]
pub struct First {
    /// Whether the system granted it, which takes root or `RLIMIT_RTPRIO`.
    pub granted: bool,
}

impl First {
    /// Of this thread, which must have the ordinary priority. Where it is not granted, it runs as others do.
    pub fn of_this_thread() -> Self {
        Self { granted: schedule(libc::SCHED_RR, 1) }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        schedule(libc::SCHED_OTHER, 0);
    }
}

/// Whether the system did.
fn schedule(policy: libc::c_int, priority: libc::c_int) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads the parameters, which live through the call, and changes nothing but how it schedules this thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

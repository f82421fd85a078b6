//! Which of this program's threads go first where they share cores, as if each kind of client had a machine of its own.

/// The nice value of the least priority.
const LEAST_PRIORITY: libc::c_int = 19;

/// The thread has the processor time that nobody else wants, and gives it back at once. Where the system refuses, it runs as others do.
pub fn run_when_idle() {
    schedule(libc::SCHED_IDLE, 0);
}

/// The thread has the least share of its core that an ordinary one can have. Beside one that [runs when idle](run_when_idle) the kernel's own thread
/// that passes a flush on to the disk is let in by the next tick of its clock only, so that each sync would take milliseconds.
pub fn run_last() {
    // SAFETY: takes numbers alone, and changes nothing but how the kernel schedules this thread, which 0 names.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LEAST_PRIORITY) };
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

//! Runs jobs in parallel, as many as the machine has room for. Most tests wait: for leases or sessions to end, or for
//! time limits to pass.

use std::num::NonZero;
use std::sync::mpsc;
use std::thread;

/// The load that a job puts on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// How many of its cases run at a time.
    pub(crate) threads: u32,
    /// The processor time that the job and its servers then need, in percent of one processor, or [`IDLE`].
    pub(crate) percent: u32,
}

/// The percentage of a job that measures no time. It runs at the lowest priority beside any others, and so uses the
/// time in which they wait. One such job runs at a time.
pub(crate) const IDLE: u32 = 0;

/// The highest load of a processor in percent, so that a case that measures time is woken in time.
const PERCENT_OF_A_PROCESSOR: u32 = 70;

/// Runs every job on its own thread, and passes each result to `done` as soon as the job has ended. A job starts as
/// soon as the machine has room for its weight, and the first such job in the list starts first. A job whose weight
/// exceeds the capacity of the machine runs alone.
pub(crate) fn run<J: Send, R: Send>(
    jobs: Vec<(Weight, J)>,
    work: impl Fn((Weight, J)) -> R + Sync,
    mut done: impl FnMut(R),
) {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let mut plan = Plan { bearable: processors * PERCENT_OF_A_PROCESSOR, used: 0, is_idle_used: false };
    let mut waiting: Vec<_> = jobs.into_iter().collect();
    let (send, ended) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while let Some(next) = waiting.iter().position(|(weight, _)| plan.has_room(*weight)) {
                let (weight, job) = waiting.remove(next);
                plan.begin(weight);
                let (send, work) = (send.clone(), &work);
                scope.spawn(move || {
                    // The receiver exists until all jobs have ended.
                    let _ = send.send((weight, work((weight, job))));
                });
            }
            if plan.is_empty() {
                return;
            }
            let Ok((weight, result)) = ended.recv() else { return };
            plan.end(weight);
            done(result);
        }
    });
}

/// The load of the running jobs.
struct Plan {
    bearable: u32,
    /// In percent of one processor.
    used: u32,
    /// Whether a job of weight [`IDLE`] runs.
    is_idle_used: bool,
}

impl Plan {
    fn has_room(&self, weight: Weight) -> bool {
        match weight.percent {
            IDLE => !self.is_idle_used,
            percent => self.used == 0 || self.used + percent <= self.bearable,
        }
    }

    fn begin(&mut self, weight: Weight) {
        self.is_idle_used |= weight.percent == IDLE;
        self.used += weight.percent;
    }

    fn end(&mut self, weight: Weight) {
        self.is_idle_used &= weight.percent != IDLE;
        self.used -= weight.percent;
    }

    fn is_empty(&self) -> bool {
        self.used == 0 && !self.is_idle_used
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_heavy_job_leaves_the_machine_as_it_was() {
        let of = |percent| Weight { threads: 1, percent };
        let mut plan = Plan { bearable: 140, used: 0, is_idle_used: false };
        plan.begin(of(1000));
        assert!(!plan.has_room(of(1)) && plan.has_room(of(IDLE)));
        plan.begin(of(IDLE));
        assert!(!plan.has_room(of(IDLE)));
        plan.end(of(1000));
        assert!(!plan.is_empty());
        plan.begin(of(100));
        assert!(plan.has_room(of(40)) && !plan.has_room(of(41)));
    }

    #[test]
    fn no_more_runs_than_the_machine_bears() {
        let (now, most, too_heavy) = (AtomicU32::new(0), AtomicU32::new(0), 1_000_000);
        let jobs =
            [30, too_heavy, IDLE, 30, 30, 30, IDLE].map(|percent| (Weight { threads: 1, percent }, percent)).to_vec();
        let work = |(_, percent)| {
            most.fetch_max(now.fetch_add(percent, Ordering::SeqCst) + percent, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            let beside = now.fetch_sub(percent, Ordering::SeqCst) - percent;
            assert!(percent != too_heavy || beside == 0, "{beside} run beside the heavy one");
            percent
        };
        let mut done = Vec::new();
        run(jobs, work, |percent| done.push(percent));
        done.sort_unstable();
        assert_eq!(done, [IDLE, IDLE, 30, 30, 30, 30, too_heavy]);
        assert_eq!(most.into_inner(), too_heavy);
    }
}

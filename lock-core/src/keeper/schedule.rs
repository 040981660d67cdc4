//! What the keeper has to do, in the order in which it is due.

use std::collections::BTreeSet;

use slotmap::{SlotMap, new_key_type};

use crate::clock::Stamp;

new_key_type! {
    /// The id of a task. It is not used again after the task was removed.
    pub(crate) struct TaskId;
}

/// Tasks by id and by due time. Each has at most one due time, so nothing stale is left behind, however many tasks came
/// and went. Every operation is logarithmic in the number of tasks.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    tasks: SlotMap<TaskId, (T, Option<Stamp>)>,
    due: BTreeSet<(Stamp, TaskId)>,
    #[cfg(test)]
    pub(super) inserted: usize,
}

impl<T> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self {
            tasks: SlotMap::with_key(),
            due: BTreeSet::new(),
            #[cfg(test)]
            inserted: 0,
        }
    }

    /// Adds a task that is not due.
    pub(crate) fn insert(&mut self, task: T) -> TaskId {
        #[cfg(test)]
        {
            self.inserted += 1;
        }
        self.tasks.insert((task, None))
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut T> {
        self.tasks.get_mut(id).map(|(task, _)| task)
    }

    /// Sets when a task is due, in place of its former due time.
    pub(crate) fn set_due(&mut self, id: TaskId, at: Stamp) {
        if let Some((_, due)) = self.tasks.get_mut(id) {
            if let Some(old) = due.replace(at) {
                self.due.remove(&(old, id));
            }
            self.due.insert((at, id));
        }
    }

    /// Sets when a task is due, unless it is due earlier.
    pub(crate) fn set_due_by(&mut self, id: TaskId, at: Stamp) {
        if self.tasks.get(id).is_some_and(|(_, due)| due.is_none_or(|due| at < due)) {
            self.set_due(id, at);
        }
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<T> {
        let (task, due) = self.tasks.remove(id)?;
        if let Some(at) = due {
            self.due.remove(&(at, id));
        }
        Some(task)
    }

    /// The most urgent task, and when it is due.
    pub(crate) fn first(&self) -> Option<(Stamp, TaskId)> {
        self.due.first().copied()
    }

    /// When the most urgent task is due.
    pub(crate) fn next(&self) -> Option<Stamp> {
        self.first().map(|(at, _)| at)
    }

    /// Every task, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.tasks.iter().map(|(_, (task, _))| task)
    }

    /// The id of the most urgent task, if it is due by `by`. The task stays, without a due time.
    pub(crate) fn pop(&mut self, by: Stamp) -> Option<(Stamp, TaskId)> {
        let &(at, id) = self.due.first().filter(|&&(at, _)| at <= by)?;
        self.due.pop_first();
        if let Some((_, due)) = self.tasks.get_mut(id) {
            *due = None;
        }
        Some((at, id))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_task_has_one_due_time_and_leaves_nothing_behind() {
        let at = |ms| Stamp::from_start(Duration::from_millis(ms));
        let mut schedule = Schedule::new();
        for _ in 0..1000 {
            let id = schedule.insert("task");
            schedule.set_due(id, at(50));
            schedule.set_due(id, at(10));
            schedule.remove(id);
        }
        assert_eq!((schedule.next(), schedule.due.len(), schedule.tasks.len()), (None, 0, 0));

        let (late, soon) = (schedule.insert("late"), schedule.insert("soon"));
        schedule.set_due(late, at(20));
        schedule.set_due(soon, at(10));
        assert_eq!(schedule.pop(at(9)), None);
        assert_eq!(schedule.pop(at(30)), Some((at(10), soon)));
        assert_eq!(schedule.pop(at(30)), Some((at(20), late)));
        assert_eq!(schedule.pop(at(30)), None);
    }
}

//! The terminal: whose process group is in its foreground.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal as _;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of a run. The command has a process group of its own, so somebody has to move the terminal's
/// foreground to it, and back at the end: this does what a shell does.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
    /// The command gets the foreground whenever this process has it.
    gives_foreground: bool,
    given_to: Option<Pid>,
}

impl Terminal {
    /// The controlling terminal; none for a job of cron or of a service manager. SIGTTOU has to be blocked.
    pub(crate) fn open() -> Option<Self> {
        let no_ctty = i32::try_from(rustix::fs::OFlags::NOCTTY.bits()).ok()?;
        let tty = OpenOptions::new().read(true).write(true).custom_flags(no_ctty).open("/dev/tty").ok()?;
        let modes = tcgetattr(&tty).ok();
        // In a pipeline the others need the foreground as well (`leasehold run x -- cmd | less`): there the command gets it when
        // it asks for it, which stops it with TTIN or TTOU.
        let gives_foreground = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Some(Self { tty, modes, gives_foreground, given_to: None })
    }

    /// Whether the process group of this process is in the foreground.
    fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Gives the foreground to the command, if it is ours to give and the command wants it.
    pub(crate) fn give_foreground(&mut self, group: Pid) {
        if self.gives_foreground && self.is_foreground() && tcsetpgrp(&self.tty, group).is_ok() {
            self.given_to = Some(group);
        }
    }

    /// The command was stopped because it needs the foreground. Whether it has it now.
    pub(crate) fn request_foreground(&mut self, group: Pid) -> bool {
        self.gives_foreground |= self.is_foreground();
        self.give_foreground(group);
        self.given_to == Some(group)
    }

    /// Takes the foreground back, if the command has it. Whether it had.
    pub(crate) fn take_foreground(&mut self) -> bool {
        let Some(group) = self.given_to.take() else { return false };
        let had = tcgetpgrp(&self.tty).is_ok_and(|now| now == group);
        if had {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
        had
    }

    /// Sets the modes that the terminal had in the beginning, after a command that was ended in the middle of what it did.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.gives_foreground
            && self.is_foreground()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

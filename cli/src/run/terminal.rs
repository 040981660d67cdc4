//! The foreground process group of the terminal.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal as _;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of a run. The command has its own process group, so this process moves the terminal's
/// foreground to it and back at the end, as a shell does.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    modes: Option<Termios>,
    /// Whether the command gets the foreground whenever this process has it.
    gives_foreground: bool,
    given_to: Option<Pid>,
}

impl Terminal {
    /// Opens the controlling terminal. A job of cron or of a service manager has none. SIGTTOU has to be blocked.
    pub(crate) fn open() -> Option<Self> {
        let no_ctty = i32::try_from(rustix::fs::OFlags::NOCTTY.bits()).ok()?;
        let tty = OpenOptions::new().read(true).write(true).custom_flags(no_ctty).open("/dev/tty").ok()?;
        let modes = tcgetattr(&tty).ok();
        // In a pipeline (`leasehold run x -- cmd | less`) the other processes need the foreground too. Then the command
        // gets it only after it has used the terminal, which stops it with TTIN or TTOU.
        let gives_foreground = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Some(Self { tty, modes, gives_foreground, given_to: None })
    }

    /// Whether the process group of this process is in the foreground.
    fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == getpgrp())
    }

    /// Gives the foreground to the command, if this process has it and the command needs it.
    pub(crate) fn give_foreground(&mut self, group: Pid) {
        if self.gives_foreground && self.is_foreground() && tcsetpgrp(&self.tty, group).is_ok() {
            self.given_to = Some(group);
        }
    }

    /// Gives the foreground to a command that was stopped because it needs it. Returns whether it has it now.
    pub(crate) fn request_foreground(&mut self, group: Pid) -> bool {
        self.gives_foreground |= self.is_foreground();
        self.give_foreground(group);
        self.given_to == Some(group)
    }

    /// Takes the foreground back from the command. Returns whether the command had it.
    pub(crate) fn take_foreground(&mut self) -> bool {
        let Some(group) = self.given_to.take() else { return false };
        let had = tcgetpgrp(&self.tty).is_ok_and(|now| now == group);
        if had {
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
        had
    }

    /// Restores the terminal modes from before the command, which may have been killed before it could.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.gives_foreground
            && self.is_foreground()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

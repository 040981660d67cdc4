//! The launcher: waits for the start message in the command's process, then executes the command.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::exit::{Exit, Failure};
use crate::run::lookup;
use crate::run::signals::unblock_ttou;

/// Waits for the start message, which carries the standard input, and executes the command. Returns only if that fails.
pub(crate) fn launch(command: &[OsString]) -> Failure {
    let stdin = match receive_stdin() {
        Ok(Some(stdin)) => stdin,
        // The run ended before it started the command. No process reads an error.
        Ok(None) => return Failure::new(Exit::Fault, "`leasehold run` ended before its command started"),
        Err(error) => return Failure::fault("cannot receive the standard input from `leasehold run`", error),
    };
    if let Err(error) = rustix::stdio::dup2_stdin(&stdin).map_err(io::Error::from).and_then(|()| unblock_ttou()) {
        return Failure::fault("cannot prepare the command", error);
    }
    drop(stdin);
    let Some((program, arguments)) = command.split_first() else { return Failure::input("there is no command") };
    let error = Command::new(program).args(arguments).exec();
    match error.kind() {
        // If the file exists, the kernel did not find its interpreter or loader.
        io::ErrorKind::NotFound => {
            lookup::check(program).err().unwrap_or_else(|| lookup::no_interpreter(program, None))
        }
        _ => lookup::failure(program, &error),
    }
}

fn receive_stdin() -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    #[cfg(not(target_vendor = "apple"))]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(target_vendor = "apple")]
    let flags = RecvFlags::empty();
    let message = recvmsg(io::stdin(), &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.flatten().next())
}

//! The faults that a fixture offers, as types.

use std::time::Duration;

/// A fault of every connection on [`Route::Faulty`](crate::Route::Faulty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// Connections are closed and new ones refused. Nothing arrives, and the client knows that.
    Disconnect,
    /// Connections are accepted, but nothing arrives in either direction.
    DropTraffic,
    /// Every request, and every reply or push, is delayed by this time.
    Delay(Duration),
    /// Requests arrive and take effect; replies and pushes are lost.
    LoseReplies,
    /// Requests and replies arrive; pushes are lost.
    LosePushes,
    /// Requests are kept until [`Fixture::deliver`](crate::Fixture::deliver), and arrive then even if their clients
    /// have given up.
    Hold,
    /// Every request arrives twice. The caller gets the first reply.
    Double,
}

/// A fault of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// It is stopped in an orderly way, with the data that its persistence keeps.
    Stop,
    /// It is killed, as by a power cut.
    Kill,
    /// It is started again after [`ServerFault::Stop`] or [`ServerFault::Kill`].
    Start(Data),
    /// It is paused with its connections open. What is sent to it waits.
    Pause,
    /// It continues.
    Resume,
    /// It refuses the user of new connections, and of open ones if it can.
    RefuseUser,
    /// It refuses writes, as a replica does.
    ReadOnly,
    /// It is full.
    Fill(Room),
    /// Ends [`ServerFault::RefuseUser`], [`ServerFault::ReadOnly`] and [`ServerFault::Fill`].
    Restore,
    /// It flushes the scripts or prepared statements that clients have loaded.
    FlushScripts,
    /// Its wall clock is set forward.
    ClockForward(Duration),
    /// Its wall clock is set back.
    ClockBack(Duration),
}

/// The data of a server that is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All acknowledged data.
    Kept,
    /// Nothing.
    Lost,
}

/// A resource that a server can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory or disk for data.
    Data,
    /// Connections.
    Connections,
}

/// A change of the server's record of one lock, without its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// An operator removes it, with its lease and its queue. A separate fencing counter stays.
    Remove,
    /// It becomes a record that the backend cannot read.
    Corrupt,
    /// It becomes the record of a future version of the stored format.
    OtherVersion,
}

/// A fault or function that this fixture does not support. The case then proves the documented behaviour instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The reason, for the report.
    pub reason: &'static str,
    why: Why,
}

impl Unsupported {
    /// A fault that the backend cannot have, for this reason.
    pub const fn because(reason: &'static str) -> Self {
        Self { reason, why: Why::Backend }
    }

    /// A fault that no server of this kind can have, for this reason.
    pub const fn by_nature(reason: &'static str) -> Self {
        Self { reason, why: Why::Nature }
    }

    /// A fault that the backend can have, and that this fixture may not cause, for this reason: others use its server
    /// too. A case that needs the fault proves nothing then, and the report lists it.
    pub const fn withheld(reason: &'static str) -> Self {
        Self { reason, why: Why::Withheld }
    }

    /// Whether no server of this kind can have it.
    pub const fn is_by_nature(&self) -> bool {
        matches!(self.why, Why::Nature)
    }

    /// Whether the backend can have it, and this fixture may not cause it.
    pub const fn is_withheld(&self) -> bool {
        matches!(self.why, Why::Withheld)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Backend,
    Nature,
    Withheld,
}

//! The faults that a fixture offers, as types.

use std::time::Duration;

/// What happens to everything on [`Route::Faulty`](crate::Route::Faulty).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// Connections are cut and new ones refused: certainly nothing arrives.
    Cut,
    /// Connections are accepted and nothing is ever answered; nothing arrives.
    Silence,
    /// Every request, and every answer or push, takes this long more.
    Delay(Duration),
    /// Requests arrive and take effect; answers and pushes are lost.
    LoseReplies,
    /// Requests and answers arrive; pushes are lost.
    LosePushes,
    /// Requests are kept until [`Fixture::deliver`](crate::Fixture::deliver), and arrive then even if their clients have
    /// given up.
    Hold,
    /// Every request arrives, and once more a little later; the first answer is the answer.
    Double,
}

/// What happens to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFault {
    /// It ends in good order, with what its persistence keeps.
    Stop,
    /// It is killed, as by a power cut.
    Kill,
    /// It is started again after [`ServerFault::Stop`] or [`ServerFault::Kill`].
    Start(Data),
    /// It stands still with its connections open; what is sent to it waits.
    Pause,
    /// It goes on.
    Resume,
    /// It refuses the user of new connections, and of open ones where it can.
    RefuseUser,
    /// It refuses writes, as a replica does.
    ReadOnly,
    /// It has no room left.
    Fill(Room),
    /// Ends [`ServerFault::RefuseUser`], [`ServerFault::ReadOnly`] and [`ServerFault::Fill`].
    Mend,
    /// It forgets the scripts or prepared statements that clients have loaded.
    ForgetScripts,
    /// Its wall clock is set forward.
    ClockForward(Duration),
    /// Its wall clock is set back.
    ClockBack(Duration),
}

/// What a server has when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// All that it had acknowledged.
    Kept,
    /// Nothing.
    Lost,
}

/// What a server can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory or disk for data.
    Data,
    /// Connections.
    Connections,
}

/// What happens to the server's record of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// An operator removes it, with its lease and its queue. A fencing counter that is kept apart stays.
    Remove,
    /// It becomes something that the backend cannot read.
    Spoil,
    /// It becomes the record of a future version of the stored format.
    OtherVersion,
}

/// A fault that this backend cannot have. The case then proves what is documented instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// Why, for people.
    pub reason: &'static str,
}

impl Unsupported {
    /// Declares that a fault cannot be.
    pub const fn because(reason: &'static str) -> Self {
        Self { reason }
    }
}

//! What an operator does with a server.

use std::io;

use serde::Deserialize;
use serde_json::{Value, json};

use super::side::{EtcdSide, number};

/// The size of the values that fill a server. A request has at most 1.5 MB.
const FILL: usize = 1 << 20;

/// The largest number of values that fill a server.
const MOST_FILLS: usize = 20;

/// The state of a member, as the member itself sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EtcdStatus {
    /// Its version.
    pub version: String,
    /// The number of the member that leads; 0 if there is none.
    #[serde(deserialize_with = "number")]
    pub leader: u64,
    /// The term of that leader.
    #[serde(rename = "raftTerm", deserialize_with = "number")]
    pub term: u64,
    /// The size of the file of its data, in bytes.
    #[serde(rename = "dbSize", deserialize_with = "number")]
    pub size: u64,
    /// The used bytes of that file.
    #[serde(rename = "dbSizeInUse", deserialize_with = "number")]
    pub used: u64,
    header: StatusHeader,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct StatusHeader {
    #[serde(deserialize_with = "number")]
    member_id: u64,
    #[serde(deserialize_with = "number")]
    revision: i64,
}

impl EtcdStatus {
    /// The number of the member.
    pub fn member(&self) -> u64 {
        self.header.member_id
    }

    /// The revision of its data.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    /// Whether the member believes that it is the leader.
    pub fn leads(&self) -> bool {
        self.leader == self.header.member_id && self.leader != 0
    }
}

/// An alarm. While one is active, the server refuses writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EtcdAlarm {
    /// The number of the member that raised it.
    #[serde(rename = "memberID", deserialize_with = "number")]
    pub member: u64,
    /// Its kind: `NOSPACE` or `CORRUPT`.
    #[serde(rename = "alarm")]
    pub kind: String,
}

#[derive(Deserialize)]
struct Alarms {
    #[serde(default)]
    alarms: Vec<EtcdAlarm>,
}

/// Maintenance.
impl EtcdSide {
    /// The state of the member.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn status(&self) -> io::Result<EtcdStatus> {
        self.call("maintenance/status", "Status", &json!({}))
    }

    /// Forgets all revisions of keys before this one. A watch that starts at an older one is cancelled.
    ///
    /// # Errors
    /// The same, also if the revision is in the future or was compacted before.
    pub fn compact(&self, revision: i64) -> io::Result<()> {
        let body = json!({ "revision": revision.to_string(), "physical": true });
        self.call::<Value>("kv/compaction", "Compact", &body).map(drop)
    }

    /// Returns the unused part of the file of this member's data to the system. It serves no request meanwhile.
    ///
    /// # Errors
    /// The same.
    pub fn defragment(&self) -> io::Result<()> {
        self.call::<Value>("maintenance/defragment", "Defragment", &json!({})).map(drop)
    }

    /// Makes the member with this number the leader. Only the leader does it.
    ///
    /// # Errors
    /// The same.
    pub fn move_leader(&self, member: u64) -> io::Result<()> {
        let body = json!({ "targetID": member.to_string() });
        self.call::<Value>("maintenance/transfer-leadership", "MoveLeader", &body).map(drop)
    }

    /// The active alarms.
    ///
    /// # Errors
    /// The same.
    pub fn alarms(&self) -> io::Result<Vec<EtcdAlarm>> {
        Ok(self.alarm(&json!({ "action": "GET" }))?.alarms)
    }

    /// Raises the alarm of a full server without filling it. It then refuses writes of keys, leases and transactions,
    /// and accepts deletes.
    ///
    /// # Errors
    /// The same.
    pub fn raise_no_space(&self) -> io::Result<()> {
        let member = self.status()?.member();
        let body = json!({ "action": "ACTIVATE", "memberID": member.to_string(), "alarm": "NOSPACE" });
        self.alarm(&body).map(drop)
    }

    /// Ends all alarms.
    ///
    /// # Errors
    /// The same.
    pub fn disarm(&self) -> io::Result<()> {
        for EtcdAlarm { member, kind } in self.alarms()? {
            self.alarm(&json!({ "action": "DEACTIVATE", "memberID": member.to_string(), "alarm": kind }))?;
        }
        Ok(())
    }

    /// Writes keys with this prefix until the server is full. Start it with the option `quota-backend-bytes`.
    ///
    /// # Errors
    /// The same, and if twenty megabytes do not fill it.
    pub fn fill(&self, prefix: &str) -> io::Result<()> {
        let value = vec![b'x'; FILL];
        for number in 0..MOST_FILLS {
            match self.put(format!("{prefix}{number}"), &value, 0) {
                Ok(_) => {}
                Err(error) if error.to_string().contains("database space exceeded") => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("twenty megabytes do not fill the server: start it with `quota-backend-bytes`"))
    }

    /// Ends [`fill`](Self::fill).
    ///
    /// # Errors
    /// The same.
    pub fn make_room(&self, prefix: &str) -> io::Result<()> {
        self.delete_all(prefix)?;
        self.compact(self.revision()?)?;
        self.defragment()?;
        self.disarm()
    }

    fn alarm(&self, body: &Value) -> io::Result<Alarms> {
        self.call("maintenance/alarm", "Alarm", body)
    }
}

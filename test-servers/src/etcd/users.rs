//! Users, and what their roles permit.

use std::hash::{BuildHasher, RandomState};
use std::io;

use serde_json::{Value, json};

use super::keys::EtcdKeys;
use super::side::EtcdSide;

/// What a role permits with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdAccess {
    /// To read and watch them.
    Read,
    /// To write and delete them.
    Write,
    /// Both.
    ReadWrite,
}

impl EtcdAccess {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::ReadWrite => "READWRITE",
        }
    }
}

/// Users.
impl EtcdSide {
    /// From now on, clients must log in. Calls of the test log in as root, with a random password.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn enable_users(&self) -> io::Result<()> {
        let random = RandomState::new();
        let password = format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1));
        self.set_user("root", &password, &[])?;
        self.auth("enable", "AuthEnable", &json!({}))?;
        self.log_in_as_root(password);
        Ok(())
    }

    /// Creates a user with a role of the same name, which permits this and nothing else. It replaces an older one.
    ///
    /// # Errors
    /// The same.
    pub fn set_user(&self, name: &str, password: &str, permissions: &[(EtcdAccess, EtcdKeys)]) -> io::Result<()> {
        self.delete_user(name)?;
        self.auth("user/add", "UserAdd", &json!({ "name": name, "password": password }))?;
        self.auth("role/add", "RoleAdd", &json!({ "name": name }))?;
        for (access, keys) in permissions {
            let mut permission = keys.named();
            permission["permType"] = access.name().into();
            self.auth("role/grant", "RoleGrantPermission", &json!({ "name": name, "perm": permission }))?;
        }
        self.auth("user/grant", "UserGrantRole", &json!({ "user": name, "role": name }))
    }

    /// Deletes a user and its role, if they exist. The server then refuses requests of its open connections too.
    ///
    /// # Errors
    /// The same.
    pub fn delete_user(&self, name: &str) -> io::Result<()> {
        let deleted = [
            self.auth("user/delete", "UserDelete", &json!({ "name": name })),
            self.auth("role/delete", "RoleDelete", &json!({ "role": name })),
        ];
        for result in deleted {
            match result {
                Err(error) if !error.to_string().ends_with("name not found") => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn auth(&self, path: &str, method: &'static str, body: &Value) -> io::Result<()> {
        self.call::<Value>(&format!("auth/{path}"), method, body).map(drop)
    }
}

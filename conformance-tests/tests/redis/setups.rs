//! How the servers and clients of these tests are set up.

use std::net::SocketAddr;

use super::fixture::{Access, Setup};

/// The default user without a password, and the default prefix, for the tests that are specific to Redis.
pub(super) struct Plain;

impl Setup for Plain {
    const USER: &'static str = "default";
    const PASSWORD: &'static str = "";
    const PREFIX: &'static str = "leasehold:";
    type Access = ByAddress;
}

/// By its address.
pub(super) struct ByAddress;

impl Access for ByAddress {
    const SCHEME: &'static str = "redis";

    fn new(_server: SocketAddr, _proxy: SocketAddr) -> Self {
        Self
    }

    fn location(&self, addr: SocketAddr) -> String {
        format!("{addr}/")
    }
}

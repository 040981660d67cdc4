//! Shared parts of the tests that are specific to etcd.

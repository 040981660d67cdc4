//! The tests of the command, on every store.
#![cfg(unix)]

/// Makes each of these functions a test on each store.
macro_rules! on_every_store {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "etcd")]
        mod etcd {
            $(#[test] fn $name() { super::$name(&crate::store::Store::etcd()) })*
        }
        mod mysql {
            $(#[test] fn $name() { super::$name(&crate::store::Store::mysql()) })*
        }
        mod mysql_for_update {
            $(#[test] fn $name() { super::$name(&crate::store::Store::mysql_for_update()) })*
        }
        mod redis {
            $(#[test] fn $name() { super::$name(&crate::store::Store::redis()) })*
        }
        mod sqlite {
            $(#[test] fn $name() { super::$name(&crate::store::Store::sqlite()) })*
        }
        #[cfg(feature = "zk")]
        mod zk {
            $(#[test] fn $name() { super::$name(&crate::store::Store::zk()) })*
        }
    };
}

mod basics;
mod choice;
mod descendants;
mod handoff;
mod interrupted;
mod job_control;
mod killed;
mod loss;
mod paused;
mod pipes;
mod print;
mod process;
mod read_only;
mod release;
mod scripts;
mod show;
mod signals;
mod store;
mod terminal;
mod unreachable;
mod zombies;

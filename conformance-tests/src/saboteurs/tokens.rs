//! Saboteurs with wrong fencing tokens.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold_core::backend::{AcquireOutcome, AcquireRequest, CoreHandle, Event, RenewReply, RenewRequest};
use leasehold_core::{FencingToken, Result};

use super::{plain, stateful};
use crate::faulty::lock;
use crate::hooks::{Hooks, Inner};

plain! {
    /// Tokens fall.
    TokensFall;
    /// Each token is used for two grants.
    TokensTwice;
}

/// Each client counts its own tokens.
#[derive(Default)]
pub struct TokensPerClient {
    counted: Mutex<Vec<(usize, FencingToken, u64)>>,
}

stateful! {
    TokensPerClient;
}

/// Maps the tokens of all replies and events.
trait Maps: Send + Sync + 'static {
    fn map(&self, client: usize, token: FencingToken) -> FencingToken;
}

impl Maps for TokensFall {
    fn map(&self, _: usize, token: FencingToken) -> FencingToken {
        FencingToken::new((1 << 40) - token.get())
    }
}

impl Maps for TokensTwice {
    fn map(&self, _: usize, token: FencingToken) -> FencingToken {
        FencingToken::new(token.get().div_ceil(2))
    }
}

impl Maps for TokensPerClient {
    fn map(&self, client: usize, token: FencingToken) -> FencingToken {
        let mut counted = lock(&self.counted);
        let own = counted.iter().filter(|(whose, ..)| *whose == client);
        let number = match own.clone().find(|(_, real, _)| *real == token) {
            Some((.., number)) => *number,
            None => {
                let number = own.count() as u64 + 1;
                counted.push((client, token, number));
                number
            }
        };
        FencingToken::new(number)
    }
}

macro_rules! mapping {
    ($($name:ident)*) => {
        $(#[async_trait]
        impl Hooks for $name {
            async fn acquire(&self, inner: &Inner, request: &AcquireRequest) -> Result<AcquireOutcome> {
                let mut reply = inner.backend.acquire(request).await;
                if let Ok(AcquireOutcome::Granted(grant)) = &mut reply {
                    grant.token = self.map(inner.nth, grant.token);
                }
                reply
            }

            async fn renew(&self, inner: &Inner, leases: &[RenewRequest]) -> Vec<(usize, RenewReply)> {
                let mut replies = inner.renew(leases).await;
                for (_, reply) in &mut replies {
                    if let RenewReply::Granted(grant) = reply {
                        grant.token = self.map(inner.nth, grant.token);
                    }
                }
                replies
            }

            fn event(&self, inner: &Arc<Inner>, core: &CoreHandle, event: Event) {
                core.event(match event {
                    Event::Granted { owner, place, token, confirmation } => {
                        Event::Granted { owner, place, token: self.map(inner.nth, token), confirmation }
                    }
                    other => other,
                });
            }
        })*
    };
}

mapping! { TokensFall TokensTwice TokensPerClient }

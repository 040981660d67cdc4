//! Continues from any state in a fair world. Everything in flight is lost and no push ever arrives, but holders
//! release, requests get a reply at once, and timers fire when they are due. Every waiting acquire must get the lock
//! soon after the last lease or place that exists now has expired.

use super::client::{Client, Scene, Sent};
use super::server::serve;
use super::{Broken, Request, State, World, client_of};

/// This many ticks after the last lease or place has expired, every waiting acquire has had the lock. A pause after a
/// failure can take a tick, as can a lost call, and the waiters get the lock one after another.
const PATIENCE: u8 = 8;

pub(super) fn check(world: &World, state: &State) -> Result<(), Broken> {
    if !state.clients.iter().any(Client::is_waiting) {
        return Ok(());
    }
    let mut state = State { requests: Vec::new(), replies: Vec::new(), pushes: Vec::new(), ..state.clone() };
    let world = World { sends: u8::MAX, ..world.clone() };
    let stands = state.record.places.iter().map(|place| place.until);
    let stands = stands.chain(state.record.holders.iter().map(|lease| lease.until));
    let last = stands.map(|until| until.since_start().as_secs()).max().unwrap_or(0);
    // Without a queue at the server, each waiter may need two polls after the waiter before it has released.
    let polls = if world.has_queue { 0 } else { 2 * world.acquires * state.clients.len() as u8 };
    let last = u8::try_from(last.min(u64::from(world.end) * 2)).unwrap_or(u8::MAX).max(state.now) + PATIENCE + polls;
    state.clients.iter_mut().for_each(Client::allow_more_sends);
    while state.now <= last {
        settle(&world, &mut state)?;
        if !state.clients.iter().any(Client::is_waiting) {
            return Ok(());
        }
        state.now += 1;
    }
    Err(Broken::Wake)
}

/// Runs everything that happens within a tick.
fn settle(world: &World, state: &mut State) -> Result<(), Broken> {
    // Timers may trigger each other, but not for ever within one tick.
    for _ in 0..64 {
        let before = act(world, state, |client, scene| {
            let claims: Vec<_> = client.given().collect();
            let acts = !claims.is_empty();
            claims.into_iter().for_each(|claim| client.release_lease(scene, claim));
            let timer = client.timers(scene.now).first().copied();
            timer.into_iter().for_each(|timer| client.fire(scene, timer));
            acts || timer.is_some()
        })?;
        if !before {
            return Ok(());
        }
    }
    Ok(())
}

/// Lets every client do one thing, and executes its requests until it sends no more. Returns whether any client did
/// something.
fn act(
    world: &World,
    state: &mut State,
    mut work: impl FnMut(&mut Client, &mut Scene<'_>) -> bool,
) -> Result<bool, Broken> {
    let (now, mut did) = (state.now, false);
    for index in 0..state.clients.len() {
        let mut scene = Scene { world, now, sent: Sent::default() };
        did |= work(&mut state.clients[index], &mut scene);
        let mut open: Vec<Request> = scene.sent.requests;
        while let Some(request) = open.pop() {
            let (reply, _) = serve(world, &mut state.record, request, now)?;
            let mut scene = Scene { world, now, sent: Sent::default() };
            if let Some(reply) = reply {
                state.clients[client_of(request.claim)].receive(&mut scene, request, reply);
            }
            open.extend(scene.sent.requests);
        }
    }
    Ok(did)
}

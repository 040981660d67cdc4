use super::super::slots::Slot;
use super::*;

const BOUND: Duration = Duration::from_secs(1);

fn slot() -> Slot {
    Slot::of(b"leasehold:{job}")
}

fn node(port: u16) -> Address {
    Address { host: "127.0.0.1".to_owned(), port }
}

fn moved(port: u16) -> Refusal {
    Refusal::Redirected(Redirection::Moved(slot(), node(port)))
}

fn ask(port: u16) -> Refusal {
    Refusal::Redirected(Redirection::Ask(slot(), node(port)))
}

fn try_again() -> Refusal {
    Refusal::Redirected(Redirection::TryAgain)
}

fn unreachable() -> Refusal {
    Refusal::NotSent(Error::new(ErrorKind::Unavailable, "cannot connect"))
}

fn down() -> Refusal {
    Refusal::Redirected(Redirection::Down)
}

/// What is sent next: to where, with which keys, and after how many milliseconds.
fn sent(next: Next) -> Option<(Target, MoreKeys, u128)> {
    match next {
        Next::Send { pause, to, keys } => Some((to, keys, pause.as_millis())),
        Next::GiveUp(_) => None,
    }
}

fn given_up(next: &Next) -> Option<ErrorKind> {
    match next {
        Next::Send { .. } => None,
        Next::GiveUp(error) => Some(error.kind()),
    }
}

#[test]
fn a_reply_decides_where_a_request_goes() {
    let begin = Instant::now();
    for (outcome, to, keys, refresh) in [
        (moved(2), Target::Node(node(2)), MoreKeys::ALL, Refresh::Beside),
        (ask(2), Target::Taker(node(2)), MoreKeys::ALL, Refresh::No),
        (try_again(), Target::Owner, MoreKeys::RECORD, Refresh::No),
        (unreachable(), Target::Owner, MoreKeys::ALL, Refresh::First),
        (down(), Target::Owner, MoreKeys::ALL, Refresh::First),
    ] {
        let shown = format!("{outcome:?}");
        let (next, refreshes) = Route::new(MoreKeys::ALL, begin + BOUND).next(outcome, begin);
        assert_eq!((sent(next), refreshes), (Some((to, keys, 0)), refresh), "{shown}");
    }
}

#[test]
fn a_node_that_cannot_be_reached_is_looked_up_once() {
    let begin = Instant::now();
    let mut route = Route::new(MoreKeys::ALL, begin + BOUND);
    assert_eq!(sent(route.next(unreachable(), begin).0), Some((Target::Owner, MoreKeys::ALL, 0)));
    let (next, refresh) = route.next(down(), begin);
    assert_eq!((given_up(&next), refresh), (Some(ErrorKind::Unavailable), Refresh::Beside));
    // The connection used up the bound.
    let (next, _) = Route::new(MoreKeys::ALL, begin + BOUND).next(unreachable(), begin + BOUND);
    assert_eq!(given_up(&next), Some(ErrorKind::Unavailable));
}

#[test]
fn nodes_that_disagree_are_asked_with_pauses_until_the_bound() {
    let begin = Instant::now();
    let (mut route, mut now, mut pauses) = (Route::new(MoreKeys::ALL, begin + BOUND), begin, Vec::new());
    loop {
        match route.next(moved(2), now).0 {
            Next::Send { pause, .. } => {
                pauses.push(pause.as_millis());
                now += pause;
            }
            Next::GiveUp(error) => break assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
        assert!(now < begin + BOUND);
    }
    assert_eq!(pauses[..8], [0, 0, 0, 5, 0, 0, 0, 10]);
    assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE.as_millis()));
    assert!(now > begin + BOUND - LONGEST_PAUSE, "it gives up early");
}

#[test]
fn a_script_that_cannot_do_with_fewer_keys_waits_for_all_of_them() {
    let begin = Instant::now();
    let mut route = Route::new(MoreKeys::RECORD, begin + BOUND);
    assert_eq!(sent(route.next(try_again(), begin).0), Some((Target::Owner, MoreKeys::RECORD, 5)));
    let lacks_all = || Refusal::NeedsKeys(MoreKeys::ALL);
    assert_eq!(sent(route.next(lacks_all(), begin).0), Some((Target::Owner, MoreKeys::ALL, 10)));
    // It has them now.
    let (next, _) = route.next(lacks_all(), begin);
    assert_eq!(given_up(&next), Some(ErrorKind::Indeterminate));
}

/// One of two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Taker,
}

/// How a slot is moved, as two nodes of Redis 7.0 do it.
#[derive(Clone, Copy, Debug)]
struct Slots {
    phase: Phase,
    /// Where record, queue and tombstone are; `None` for one that does not exist.
    keys: [Option<Side>; 3],
    /// Before 7.0: one missing key makes the source redirect the request.
    is_old: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Migrating,
    Moved,
}

impl Slots {
    fn places(&self, keys: MoreKeys) -> Vec<Option<Side>> {
        let [record, queue, tombstone] = self.keys;
        let extra = [(keys.queue, queue), (keys.tombstone, tombstone)];
        [record].into_iter().chain(extra.into_iter().filter(|(is_named, _)| *is_named).map(|(_, at)| at)).collect()
    }

    /// The reply to a request whose script needs some keys. `None`: it was done.
    fn reply(&self, asked: Side, asking: bool, declared: MoreKeys, needed: MoreKeys) -> Option<Refusal> {
        let at = self.places(declared);
        let lacks_some = at.iter().any(|at| *at != Some(asked));
        match (self.phase, asked) {
            (Phase::Moved, Side::Source) => return Some(moved(2)),
            (Phase::Moved, Side::Taker) => {}
            (Phase::Migrating, Side::Taker) if !asking => return Some(moved(1)),
            (Phase::Migrating, Side::Taker) if at.len() > 1 && lacks_some => return Some(try_again()),
            (Phase::Migrating, Side::Taker) => {}
            (Phase::Migrating, Side::Source) if !lacks_some => {}
            (Phase::Migrating, Side::Source) if !self.is_old && at.contains(&Some(Side::Source)) => {
                return Some(try_again());
            }
            (Phase::Migrating, Side::Source) => return Some(ask(2)),
        }
        (!declared.contains(needed)).then_some(Refusal::NeedsKeys(needed))
    }
}

/// The course of one request: whether it was done, how often it was sent and how long it took. `slots` may change
/// between two replies.
fn course(needed: MoreKeys, mut slots: impl FnMut(Duration) -> Slots) -> (Result<(), ErrorKind>, u32, Duration) {
    let begin = Instant::now();
    let (mut now, mut route) = (begin, Route::new(MoreKeys::ALL, begin + BOUND));
    let (mut to, mut keys, mut owner, mut count) = (Target::Owner, MoreKeys::ALL, Side::Source, 0);
    let side = |address: &Address| if *address == node(1) { Side::Source } else { Side::Taker };
    loop {
        count += 1;
        let (asked, asking) = match &to {
            Target::Owner => (owner, false),
            Target::Node(address) => (side(address), false),
            Target::Taker(address) => (side(address), true),
        };
        let Some(outcome) = slots(now - begin).reply(asked, asking, keys, needed) else {
            return (Ok(()), count, now - begin);
        };
        if let Refusal::Redirected(Redirection::Moved(_, to)) = &outcome {
            owner = side(to);
        }
        match route.next(outcome, now).0 {
            Next::Send { pause, to: next, keys: with } => {
                now += pause;
                (to, keys) = (next, with);
            }
            Next::GiveUp(error) => return (Err(error.kind()), count, now - begin),
        }
        assert!(now < begin + BOUND && count < 100, "{now:?} {count}");
    }
}

fn each_state() -> impl Iterator<Item = Slots> {
    let places = || [None, Some(Side::Source), Some(Side::Taker)].into_iter();
    let keys = places().flat_map(move |record| {
        places().flat_map(move |queue| places().map(move |tombstone| [record, queue, tombstone]))
    });
    keys.flat_map(|keys| [false, true].map(|is_old| Slots { phase: Phase::Migrating, keys, is_old }))
}

fn each_need() -> [MoreKeys; 4] {
    [(false, false), (true, false), (false, true), (true, true)].map(|(queue, tombstone)| MoreKeys { queue, tombstone })
}

#[test]
fn a_request_that_needs_the_record_alone_is_done_in_every_state_of_a_slot() {
    for state in each_state() {
        let (done, count, took) = course(MoreKeys::RECORD, |_| state);
        assert_eq!((done, took), (Ok(()), Duration::ZERO), "{state:?}");
        assert!(count <= 4, "{count} {state:?}");
    }
}

#[test]
fn a_request_that_needs_more_is_done_as_soon_as_all_of_it_is_at_one_node() {
    for state in each_state() {
        for needed in each_need() {
            let at = state.places(needed);
            let is_together = at.len() == 1 || at[0].is_some() && at.iter().all(|other| *other == at[0]);
            let (done, ..) = course(needed, |_| state);
            let expected = if is_together { Ok(()) } else { Err(ErrorKind::Unavailable) };
            assert_eq!(done, expected, "{needed:?} {state:?}");
        }
    }
}

#[test]
fn a_request_is_done_soon_after_the_slot_has_moved() {
    const MOVED: Duration = Duration::from_millis(300);
    for state in each_state() {
        for needed in each_need() {
            let slots = |at| if at < MOVED { state } else { Slots { phase: Phase::Moved, ..state } };
            let (done, _, took) = course(needed, slots);
            assert_eq!(done, Ok(()), "{needed:?} {state:?}");
            assert!(took <= MOVED + LONGEST_PAUSE, "{took:?} {needed:?} {state:?}");
        }
    }
}

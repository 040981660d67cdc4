//! Compares the scripts of Redis and the statements of MySQL with the record of the memory store, which the model
//! checks exhaustively. A test runs random sequences of acquires, renewals, releases, withdraws and clock steps on
//! both, and compares every reply, every push and the state after every step. With `SELECT … FOR UPDATE` connections
//! end and leases are broken instead of clock steps.
//!
//! A sequence is one seed, which this command repeats:
//! `LEASEHOLD_SEED=n cargo test -p leasehold-conformance --features mysql,redis --test same_rules keeps`

mod same_rules {
    mod connections;
    mod difference;
    mod pair;
    mod sequence;

    use std::collections::BTreeMap;
    use std::time::Duration;

    use difference::Difference;
    use leasehold_conformance::run;
    use pair::{Kind, Pair};
    use sequence::Sequence;

    const SEEDS: u64 = 50;
    const STEPS: usize = 150;

    /// Some thousand calls, each with a check of the state.
    const BOUND: Duration = Duration::from_secs(180);

    /// Every kind of reply, and the pushes.
    const KINDS: [&str; 13] = [
        "granted",
        "queued",
        "held",
        "withdrawn",
        "renewed",
        "found granted",
        "waiting",
        "lost",
        "released",
        "not held",
        "notified",
        "disconnected",
        "broken",
    ];

    /// The first seed whose sequence shows a difference, with the difference, and how often each kind of reply was
    /// compared.
    async fn compare(
        pair: &Pair,
        seeds: impl IntoIterator<Item = u64>,
    ) -> (Option<(u64, String)>, BTreeMap<&'static str, u64>) {
        let mut seen = BTreeMap::new();
        for seed in seeds {
            let (compared, seen_now) = match pair.has_connections() {
                true => {
                    let mut sequence = connections::Sequence::new(pair, seed);
                    (sequence.run(STEPS).await, sequence.seen)
                }
                false => {
                    let mut sequence = Sequence::new(pair, seed);
                    (sequence.run(STEPS).await, sequence.seen)
                }
            };
            for (kind, count) in seen_now {
                *seen.entry(kind).or_default() += count;
            }
            if let Err(difference) = compared {
                return (Some((seed, difference)), seen);
            }
        }
        (None, seen)
    }

    /// The first kind of reply that was compared too rarely, among those that the server has.
    fn is_rare(kind: Kind, seen: &BTreeMap<&'static str, u64>) -> Option<&'static str> {
        let absent: &[&str] = match kind {
            Kind::ForUpdate => &[],
            Kind::MySql => &["queued", "found granted", "waiting", "notified", "disconnected", "broken"],
            Kind::Redis => &["disconnected", "broken"],
        };
        let is_rare = |kind: &&str| seen.get(*kind).is_none_or(|count| *count < 100);
        KINDS.iter().filter(|kind| !absent.contains(kind)).find(|kind| is_rare(kind)).copied()
    }

    fn keeps_the_rules(kind: Kind) {
        run(BOUND, move || async move {
            let seed =
                std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().expect("LEASEHOLD_SEED is a number"));
            let seeds = seed.map_or(0..SEEDS, |seed| seed..seed + 1);
            let (found, seen) = compare(&Pair::new(kind, None).await, seeds).await;
            if let Some((seed, difference)) = found {
                panic!("seed {seed}: {difference}; LEASEHOLD_SEED={seed} replays it");
            }
            println!("{seen:?}");
            let rare = is_rare(kind, &seen);
            assert!(seed.is_some() || rare.is_none(), "{rare:?} is too rare for the comparison: {seen:?}");
        });
    }

    /// A comparison that finds no injected difference proves nothing.
    fn finds_every_injected_difference(kind: Kind) {
        run(BOUND, move || async move {
            for difference in Difference::of(kind) {
                let (found, _) = compare(&Pair::new(kind, Some(*difference)).await, 0..SEEDS).await;
                assert!(found.is_some(), "{difference:?} is not found");
            }
        });
    }

    #[test]
    fn for_update_keeps_the_rules() {
        keeps_the_rules(Kind::ForUpdate);
    }

    #[test]
    fn mysql_keeps_the_rules() {
        keeps_the_rules(Kind::MySql);
    }

    #[test]
    fn redis_keeps_the_rules() {
        keeps_the_rules(Kind::Redis);
    }

    #[test]
    fn every_injected_difference_from_for_update_is_found() {
        finds_every_injected_difference(Kind::ForUpdate);
    }

    #[test]
    fn every_injected_difference_from_mysql_is_found() {
        finds_every_injected_difference(Kind::MySql);
    }

    #[test]
    fn every_injected_difference_from_redis_is_found() {
        finds_every_injected_difference(Kind::Redis);
    }
}

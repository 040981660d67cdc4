//! `SELECT … FOR UPDATE` (`strategy=for-update`) on real MariaDB servers: the suite, for a user with the least permissions, and then the
//! tests that are specific to this strategy.

#[path = "mysql"]
mod mysql_for_update {
    mod fixture;
    mod for_update;
    mod resource_counts;
    mod set_up;
    mod stored;

    leasehold_conformance::suite!(for_update::ForUpdateFixture);
}

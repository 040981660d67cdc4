//! The permissions of a user, as `GRANT` statements.

/// The table that holds the locks.
const TABLE: &str = "leasehold_locks";

/// The statement that gives a user what clients need, in the database `database`. `user` is an account in the syntax of SQL:
/// `'leasehold'@'%'`. The table must exist.
pub fn grants(database: &str, user: &str) -> String {
    format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {}.{TABLE} TO {user}", quoted(database))
}

/// The statement for a user who may only see who holds a lock (`leasehold status`, `leasehold ls` and `leasehold watch`).
pub fn read_only_grants(database: &str, user: &str) -> String {
    format!("GRANT SELECT ON {}.{TABLE} TO {user}", quoted(database))
}

/// An identifier.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_database_is_quoted() {
        assert_eq!(
            grants("a`b", "'job'@'%'"),
            "GRANT SELECT, INSERT, UPDATE, DELETE ON `a``b`.leasehold_locks TO 'job'@'%'"
        );
        assert!(read_only_grants("locks", "job").starts_with("GRANT SELECT ON `locks`."));
    }
}

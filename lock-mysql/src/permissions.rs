//! The permissions of a user, as `GRANT` statements.

/// The tables of [`SCHEMA`](crate::SCHEMA).
const TABLES: [&str; 3] = ["leasehold_locks", "leasehold_for_update", "leasehold_fences"];

/// The statements that give a user what clients need, in the database `database`. `user` is an account in the syntax of
/// SQL: `'leasehold'@'%'`. The tables must exist.
pub fn grants(database: &str, user: &str) -> String {
    on_each_table("SELECT, INSERT, UPDATE, DELETE", database, user)
}

/// The statements for a user who may only see who holds a lock (`leasehold status`, `leasehold ls` and
/// `leasehold watch`).
pub fn read_only_grants(database: &str, user: &str) -> String {
    on_each_table("SELECT", database, user)
}

fn on_each_table(permissions: &str, database: &str, user: &str) -> String {
    TABLES.map(|table| format!("GRANT {permissions} ON {}.{table} TO {user}", quoted(database))).join(";\n")
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
        let (first, rest) = ("GRANT SELECT, INSERT, UPDATE, DELETE ON `a``b`.leasehold_locks TO 'job'@'%'", 2);
        let all = grants("a`b", "'job'@'%'");
        assert_eq!((all.lines().next(), all.matches(";\n").count()), (Some(&*format!("{first};")), rest));
        assert!(read_only_grants("locks", "job").starts_with("GRANT SELECT ON `locks`."));
    }
}

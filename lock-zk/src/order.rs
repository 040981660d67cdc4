//! The order of the queue of a lock, by the names of its nodes. It knows neither network nor clock.
//!
//! The server numbers the nodes of a lock. ZooKeeper 3.8 gives every node the number 2147483647 when it has used up all
//! others. Other versions go on with -2147483648, or with longer numbers. So numbers are compared as those on a circle,
//! and nodes with the same number by the transactions that created them, which have to be read.

use std::cmp::Ordering;

/// A node in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    /// Its name, without the path of its parent.
    pub(crate) name: String,
    /// The part of its name that a claim has chosen.
    pub(crate) claim: String,
    pub(crate) number: i64,
}

/// The place of a node in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No other node is before it.
    First,
    /// This node is just before it.
    Behind(String),
    /// It has the number of these nodes. Those that were created earlier are before it. `before` is just before all of
    /// them.
    Tied { others: Vec<String>, before: Option<String> },
    /// It is not in the queue.
    Gone,
}

/// Whether one number is that of an earlier node than another one.
pub(crate) fn compare(one: i64, other: i64) -> Ordering {
    match (i32::try_from(one), i32::try_from(other)) {
        // The nodes that exist at the same time have less than 2^31 numbers between them.
        (Ok(one), Ok(other)) => one.wrapping_sub(other).cmp(&0),
        _ => one.cmp(&other),
    }
}

/// The place of the node with this name.
pub(crate) fn standing(children: &[Child], own: &str) -> Standing {
    let Some(number) = children.iter().find(|child| child.name == own).map(|child| child.number) else {
        return Standing::Gone;
    };
    let mut before: Option<&Child> = None;
    let mut others = Vec::new();
    for child in children.iter().filter(|child| child.name != own) {
        match compare(child.number, number) {
            Ordering::Less if before.is_none_or(|nearest| compare(nearest.number, child.number).is_lt()) => {
                before = Some(child);
            }
            Ordering::Less | Ordering::Greater => {}
            Ordering::Equal => others.push(child.name.clone()),
        }
    }
    let before = before.map(|child| child.name.clone());
    match (others.is_empty(), before) {
        (true, None) => Standing::First,
        (true, Some(before)) => Standing::Behind(before),
        (false, before) => Standing::Tied { others, before },
    }
}

/// The nodes that may be the first: those with the earliest number.
pub(crate) fn earliest(children: &[Child]) -> Vec<&Child> {
    let first =
        children.iter().reduce(|one, other| if compare(other.number, one.number).is_lt() { other } else { one });
    first.map_or_else(Vec::new, |first| children.iter().filter(|child| child.number == first.number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(numbers: &[i64]) -> Vec<Child> {
        let child = |(index, number): (usize, &i64)| Child {
            name: format!("{index}"),
            claim: format!("claim {index}"),
            number: *number,
        };
        numbers.iter().enumerate().map(child).collect()
    }

    fn behind(index: usize) -> Standing {
        Standing::Behind(index.to_string())
    }

    #[test]
    fn the_lowest_number_is_the_first_and_each_other_one_is_behind_the_one_before_it() {
        let children = queue(&[7, 3, 12, 9]);
        let standings: Vec<_> = (0..4).map(|index| standing(&children, &index.to_string())).collect();
        assert_eq!(standings, [behind(1), Standing::First, behind(3), behind(0)]);
        assert_eq!(standing(&children, "4"), Standing::Gone);
        assert_eq!(earliest(&children), [&children[1]]);
        assert!(earliest(&[]).is_empty());
    }

    #[test]
    fn numbers_go_on_after_the_last_one() {
        let (last, first) = (i64::from(i32::MAX), i64::from(i32::MIN));
        // As a server with numbers of 32 bits goes on.
        let children = queue(&[first, last - 1, first + 1, last]);
        let standings: Vec<_> = (0..4).map(|index| standing(&children, &index.to_string())).collect();
        assert_eq!(standings, [behind(3), Standing::First, behind(0), behind(1)]);
        assert_eq!(earliest(&children), [&children[1]]);
        // As a server with numbers of 64 bits does.
        let children = queue(&[last + 1, last, last + 2]);
        let standings: Vec<_> = (0..3).map(|index| standing(&children, &index.to_string())).collect();
        assert_eq!(standings, [behind(1), Standing::First, behind(0)]);
    }

    #[test]
    fn nodes_with_the_same_number_have_to_be_read() {
        let last = i64::from(i32::MAX);
        let children = queue(&[last, last - 3, last, last]);
        let tied = Standing::Tied { others: vec!["0".to_owned(), "3".to_owned()], before: Some("1".to_owned()) };
        assert_eq!(standing(&children, "2"), tied);
        assert_eq!(standing(&children, "1"), Standing::First);
        let children = queue(&[last, last]);
        assert_eq!(standing(&children, "1"), Standing::Tied { others: vec!["0".to_owned()], before: None });
        assert_eq!(earliest(&children).len(), 2);
    }
}

//! Who stands before whom: pure, from the children of a key's node.

use super::{
    layout::{NodeLayout, Reading},
    trouble::Trouble,
};
use crate::backend::Mode;

/// So many numbers before the last one, new ones are refused: more than come before the first of
/// these is.
const RESERVE: i32 = 1_000_000;

/// Who holds a key or waits for it, in the order of their arrival.
#[derive(Debug)]
pub(super) struct Queue<'a> {
    standing: Vec<Standing<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing<'a> {
    pub(super) name: &'a str,
    pub(super) mode: Mode,
    sequence: i32,
}

impl<'a> Queue<'a> {
    pub(super) fn read(layout: NodeLayout, children: &'a [String]) -> Result<Self, Trouble> {
        let mut standing = Vec::with_capacity(children.len());
        for name in children {
            match layout.read(name) {
                Reading::Stands { mode, sequence } => standing.push(Standing {
                    name,
                    mode,
                    sequence,
                }),
                Reading::OtherLayout => return Err(Trouble::other_layout()),
                Reading::Stranger => {}
            }
        }
        // All are within half of the counter's range of each other.
        if let Some(origin) = standing.first().map(|first| first.sequence) {
            standing.sort_unstable_by_key(|one| one.sequence.wrapping_sub(origin));
        }
        Ok(Self { standing })
    }

    /// The first, and with a shared one those that follow it up to an exclusive one.
    pub(super) fn holders(&self) -> &[Standing<'a>] {
        let shared = self
            .standing
            .iter()
            .take_while(|one| one.mode == Mode::Shared);
        let count = shared.count().max(1).min(self.standing.len());
        &self.standing[..count]
    }

    pub(super) fn waiters(&self) -> usize {
        self.standing.len() - self.holders().len()
    }

    /// Whether numbers are about to run out: servers from 3.6 on do not count on from the last one,
    /// but give it to all who come. Once all who stand here are gone the node of the key is deleted,
    /// and its next one counts from 0.
    pub(super) fn is_used_up(&self, position: usize) -> bool {
        let number = self.standing.get(position).map(|one| one.sequence);
        number.is_some_and(|number| number >= i32::MAX - RESERVE)
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.standing.iter().position(|one| one.name == name)
    }

    /// Whom the one at this position waits for: the one before it, in shared mode the nearest
    /// exclusive one before it.
    pub(super) fn ahead_of(&self, position: usize) -> Option<Standing<'a>> {
        let (before, from) = self.standing.split_at(position);
        let mode = from.first()?.mode;
        before
            .iter()
            .rev()
            .find(|one| mode == Mode::Exclusive || one.mode == Mode::Exclusive)
            .copied()
    }

    /// Whether one who comes now would have to wait.
    pub(super) fn keeps_out(&self, mode: Mode) -> bool {
        self.standing
            .iter()
            .any(|one| mode == Mode::Exclusive || one.mode == Mode::Exclusive)
    }

    /// The nodes whose names begin like this.
    pub(super) fn beginning_with(&self, prefix: &str) -> impl Iterator<Item = &'a str> {
        self.standing
            .iter()
            .map(|one| one.name)
            .filter(move |name| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(of: &[(char, i32)]) -> Vec<String> {
        let name = |&(kind, sequence): &(char, i32)| match kind {
            'r' => format!("_c_x-read-lock-{sequence:010}"),
            'w' => format!("_c_x-lock-{sequence:010}"),
            _ => format!("config{sequence}"),
        };
        of.iter().map(name).collect()
    }

    #[track_caller]
    fn queue(children: &[String]) -> Queue<'_> {
        Queue::read(NodeLayout::Curator, children).unwrap()
    }

    fn ahead(children: &[String], name: &str) -> Option<i32> {
        let queue = queue(children);
        let position = queue.position(name).unwrap();
        queue.ahead_of(position).map(|one| one.sequence)
    }

    #[test]
    fn an_exclusive_one_waits_for_the_one_before_it() {
        let names = children(&[('w', 9), ('?', 1), ('r', 4), ('w', 3), ('r', 5)]);
        assert_eq!(ahead(&names, "_c_x-lock-0000000009"), Some(5));
        assert_eq!(ahead(&names, "_c_x-lock-0000000003"), None);
        let queue = queue(&names);
        assert_eq!(queue.holders().len(), 1);
        assert_eq!(queue.waiters(), 3);
    }

    #[test]
    fn a_shared_one_waits_for_the_nearest_exclusive_one() {
        let names = children(&[('r', 1), ('r', 2), ('w', 3), ('r', 4), ('r', 5), ('w', 6)]);
        assert_eq!(ahead(&names, "_c_x-read-lock-0000000002"), None);
        assert_eq!(ahead(&names, "_c_x-read-lock-0000000005"), Some(3));
        assert_eq!(ahead(&names, "_c_x-lock-0000000003"), Some(2));
        let queue = queue(&names);
        assert_eq!(queue.holders().len(), 2);
        assert!(queue.keeps_out(Mode::Shared));
        assert!(!self::queue(&names[..2]).keeps_out(Mode::Shared));
        assert!(self::queue(&names[..2]).keeps_out(Mode::Exclusive));
    }

    #[test]
    fn numbers_wrap_around() {
        let names = children(&[('w', i32::MIN), ('w', i32::MAX), ('w', i32::MIN + 1)]);
        assert_eq!(ahead(&names, &format!("_c_x-lock-{}", i32::MAX)), None);
        assert_eq!(
            ahead(&names, &format!("_c_x-lock-{}", i32::MIN)),
            Some(i32::MAX)
        );
        assert_eq!(
            ahead(&names, &format!("_c_x-lock-{}", i32::MIN + 1)),
            Some(i32::MIN)
        );
    }

    #[test]
    fn an_empty_queue_keeps_nobody_out() {
        let queue = queue(&[]);
        assert!(queue.holders().is_empty() && queue.waiters() == 0);
        assert!(!queue.keeps_out(Mode::Exclusive));
    }

    #[test]
    fn other_layouts_are_refused() {
        let names = ["0123__lock__0000000001".to_owned()];
        let refused = Queue::read(NodeLayout::Curator, &names);
        assert!(refused.is_err_and(|trouble| !trouble.may_pass()));
    }
}

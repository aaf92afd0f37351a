//! A queue with gaps: entries come in the order of their numbers, and go in nearly the same order.

use std::collections::VecDeque;

/// Entries with consecutive numbers. No lookup and no allocation per entry.
#[derive(Debug)]
pub(super) struct TicketQueue<T> {
    /// The number of the oldest entry.
    first: u64,
    /// The entries in the order of their numbers; `None` where one was taken before an older one.
    entries: VecDeque<Option<T>>,
    /// The entries that are left.
    len: usize,
}

impl<T> Default for TicketQueue<T> {
    fn default() -> Self {
        Self { first: 0, entries: VecDeque::new(), len: 0 }
    }
}

impl<T> TicketQueue<T> {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry with the next number, which is returned.
    pub(super) fn push(&mut self, entry: T) -> u64 {
        let number = self.first + self.entries.len() as u64;
        self.push_as(number, entry);
        number
    }

    /// Adds an entry with a number that was given to it elsewhere: the next one, or any if the queue is empty.
    pub(super) fn push_as(&mut self, number: u64, entry: T) {
        if self.entries.is_empty() {
            self.first = number;
        }
        assert_eq!(number, self.first + self.entries.len() as u64, "numbers are given one by one");
        self.entries.push_back(Some(entry));
        self.len += 1;
    }

    /// Takes the entry with this number.
    pub(super) fn take(&mut self, number: u64) -> T {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let entry = at.and_then(|at| self.entries.get_mut(at)).and_then(Option::take);
        let entry = entry.expect("every number has one entry, which is taken once");
        self.len -= 1;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_may_be_overtaken_by_later_ones() {
        let mut queue = TicketQueue::default();
        (5..9).for_each(|number| queue.push_as(number, number));
        assert_eq!((queue.take(6), queue.take(7), queue.len()), (6, 7, 2));
        assert_eq!(queue.push(9), 9);
        assert_eq!((queue.take(5), queue.len()), (5, 2));
        assert_eq!((queue.entries.len(), queue.first), (2, 8), "gaps are gone with what was before them");
        assert_eq!((queue.take(9), queue.take(8), queue.len()), (9, 8, 0));
        assert!(queue.entries.is_empty());
        assert_eq!(queue.push(10), 10, "numbers go on");
        assert_eq!(queue.take(10), 10);
    }

    #[test]
    #[should_panic(expected = "taken once")]
    fn entry_is_not_taken_twice() {
        let mut queue = TicketQueue::default();
        queue.push('a');
        queue.push('b');
        queue.take(1);
        queue.take(1);
    }
}

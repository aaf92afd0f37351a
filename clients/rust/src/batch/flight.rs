//! A batch on the wire: it is sent once, and each of its lines is answered, refused, or left without an answer.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::answer::{Answer, line_result};
use super::ticket::Tickets;
use crate::error::Error;
use crate::transport::{Call, ContentType, Failure, Repeat, Transport};

/// A line of a batch: where it is in the body, its end included.
#[derive(Debug)]
pub(super) struct Line {
    /// Its ticket.
    pub(super) index: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether sending it twice is the same as once.
    pub(super) is_repeatable: bool,
}

/// Lines that were taken from the queue. Those that have no answer when it is dropped fail.
#[derive(Debug)]
pub(crate) struct Batch<A> {
    body: Bytes,
    lines: Vec<Line>,
    tickets: Arc<Tickets<A>>,
}

/// A line that is sent as a request of its own. It fails if it is dropped without an answer.
#[derive(Debug)]
pub(crate) struct SingleLine<A> {
    /// The request, without the end of its line.
    pub(crate) text: Bytes,
    pub(crate) is_repeatable: bool,
    tickets: Arc<Tickets<A>>,
    index: usize,
}

impl<A> Batch<A> {
    pub(super) fn new(body: Vec<u8>, lines: Vec<Line>, tickets: Arc<Tickets<A>>) -> Self {
        Self { body: body.into(), lines, tickets }
    }

    /// The number of lines that have no answer.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Removes the lines whose answers nothing waits for.
    pub(crate) fn remove_abandoned(&mut self) {
        let tickets = Arc::clone(&self.tickets);
        self.remove(|line| tickets.is_closed(line.index));
    }

    /// Fails the lines that must not be sent again after this failure, and removes them.
    pub(crate) fn fail_unless_repeatable(&mut self, failure: &Failure) {
        let tickets = Arc::clone(&self.tickets);
        self.remove(|line| {
            let is_left = match failure.repeat {
                Repeat::Any => true,
                Repeat::IfSafe => line.is_repeatable,
                Repeat::Never => false,
            };
            if !is_left {
                tickets.answer(line.index, Err(failure.for_line(line.is_repeatable)));
            }
            !is_left
        });
    }

    /// Fails every line.
    pub(crate) fn fail(mut self, error: &Error) {
        for line in self.lines.drain(..) {
            let error = error.clone().with_repeatable(line.is_repeatable);
            self.tickets.answer(line.index, Err(Failure::new(error, Repeat::Never)));
        }
    }

    /// Passes the failure to every line.
    pub(crate) fn hand_back(mut self, failure: &Failure) {
        for line in self.lines.drain(..) {
            self.tickets.answer(line.index, Err(failure.for_line(line.is_repeatable)));
        }
    }

    fn remove(&mut self, is_removed: impl Fn(&Line) -> bool) {
        self.lines.retain(|line| !is_removed(line));
    }

    /// Makes the body that of the lines that are left.
    fn compact(&mut self) {
        let bytes: usize = self.lines.iter().map(|line| line.end - line.start).sum();
        if bytes == self.body.len() {
            return;
        }
        let mut body = Vec::with_capacity(bytes);
        for line in &mut self.lines {
            let start = body.len();
            body.extend_from_slice(&self.body[line.start..line.end]);
            (line.start, line.end) = (start, body.len());
        }
        self.body = body.into();
    }

    /// Takes the line of a batch that has no other.
    pub(crate) fn take_only(&mut self) -> Option<SingleLine<A>> {
        let [only] = &*self.lines else { return None };
        let only = self.single(only);
        self.lines.clear();
        Some(only)
    }

    fn single(&self, line: &Line) -> SingleLine<A> {
        SingleLine {
            text: self.text_of(line),
            is_repeatable: line.is_repeatable,
            tickets: Arc::clone(&self.tickets),
            index: line.index,
        }
    }

    /// The text of a line without its end.
    fn text_of(&self, line: &Line) -> Bytes {
        self.body.slice(line.start..line.end - 1)
    }

    #[cfg(test)]
    pub(super) fn text(&mut self) -> String {
        self.compact();
        String::from_utf8(self.body.to_vec()).expect("UTF-8")
    }
}

impl<A: Answer> Batch<A> {
    /// Sends the batch once. Lines that succeed are answered, lines that are refused are passed to `refuse`.
    ///
    /// # Errors
    /// Why the lines that are left have no answer.
    pub(crate) async fn send(
        &mut self,
        transport: &Transport,
        path: &'static str,
        mut refuse: impl FnMut(SingleLine<A>, Failure),
    ) -> Result<(), Failure> {
        self.compact();
        let mut call = Call::post(path, self.body.clone());
        call.content_type = ContentType::Lines;
        let reply = transport.attempt(&call).await?;
        // What the broker may still hold of the body is not waited for.
        drop(call);
        let mut answered = 0;
        for answer in lines_of(&reply.body).take(self.lines.len()) {
            let line = &self.lines[answered];
            answered += 1;
            match line_result::<A>(&reply.body[answer]) {
                Ok(result) => self.tickets.answer(line.index, Ok(result)),
                Err(failure) => refuse(self.single(line), failure),
            }
        }
        self.lines.drain(..answered);
        if self.lines.is_empty() {
            return Ok(());
        }
        Err(reply.cut.unwrap_or_else(|| {
            let message = format!("{} lines of a batch have no answer", self.lines.len());
            Failure::new(Error::protocol(message), Repeat::Never)
        }))
    }
}

/// The lines that have an end, without it.
fn lines_of(body: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    memchr::memchr_iter(b'\n', body).map(move |end| std::mem::replace(&mut start, end + 1)..end)
}

impl<A> Drop for Batch<A> {
    fn drop(&mut self) {
        for line in &self.lines {
            self.tickets.fail(line.index, line.is_repeatable);
        }
    }
}

impl<A> SingleLine<A> {
    /// Answers the line.
    pub(crate) fn answer(self, result: Result<A, Error>) {
        let result = result.map_err(|error| Failure::new(error, Repeat::Never));
        self.tickets.answer(self.index, result);
    }

    /// Answers the line with a failure that its caller may repeat.
    pub(crate) fn hand_back(self, failure: &Failure) {
        self.tickets.answer(self.index, Err(failure.for_line(self.is_repeatable)));
    }
}

impl<A> Drop for SingleLine<A> {
    fn drop(&mut self) {
        self.tickets.fail(self.index, self.is_repeatable);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::batch::{Limits, Queue, Ticket};
    use crate::error::{Error, ErrorKind};
    use crate::transport::{Failure, Repeat};

    fn add(queue: &Queue<u8>, text: &str, is_repeatable: bool) -> Ticket<u8> {
        let write = |out: &mut Vec<u8>| {
            out.extend_from_slice(text.as_bytes());
            Ok(())
        };
        queue.add(is_repeatable, write).expect("added")
    }

    fn kinds(failure: &Failure) -> (ErrorKind, bool) {
        (failure.error.kind(), failure.error.retry_is_safe())
    }

    #[tokio::test]
    async fn line_that_nothing_waits_for_is_not_sent() {
        let queue = Queue::new(Limits { lines: 10, bytes: 100 });
        let tickets = ["a", "bb", "c"].map(|text| add(&queue, text, true));
        let mut batch = queue.next(Duration::ZERO).await.expect("a batch");
        let [first, second, third] = tickets;
        drop(second);
        batch.remove_abandoned();
        assert_eq!(batch.text(), "a\nc\n");
        drop(first);
        batch.remove_abandoned();
        let only = batch.take_only().expect("one is left");
        assert_eq!(only.text, "c");
        only.answer(Ok(7));
        assert_eq!(third.await.expect("an answer"), 7);
    }

    #[tokio::test]
    async fn only_lines_that_cannot_double_are_left_after_a_cut() {
        let queue = Queue::new(Limits { lines: 10, bytes: 100 });
        let (plain, keyed) = (add(&queue, "plain", false), add(&queue, "keyed", true));
        let mut batch = queue.next(Duration::ZERO).await.expect("a batch");
        let cut = Failure::new(Error::new(ErrorKind::Unknown, "cut"), Repeat::IfSafe);
        batch.fail_unless_repeatable(&cut);
        assert_eq!((batch.len(), batch.text()), (1, "keyed\n".to_owned()));
        assert_eq!(kinds(&plain.await.expect_err("unknown")), (ErrorKind::Unknown, false));
        drop(batch);
        assert_eq!(kinds(&keyed.await.expect_err("stopped")), (ErrorKind::Unknown, true));
    }
}

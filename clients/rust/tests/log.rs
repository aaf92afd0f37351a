//! What the client logs and which spans it opens, collected for the whole process: heartbeats have a thread of their
//! own, so that a subscriber of one thread would miss what is logged there.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static COLLECTED: LazyLock<Collected> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(Collector { next: AtomicU64::new(1) }).expect("the only subscriber");
    Collected::default()
});

#[derive(Default)]
struct Collected {
    lines: Mutex<Vec<String>>,
    spans: Mutex<Vec<Opened>>,
}

/// A span that was opened.
#[derive(Clone)]
struct Opened {
    id: u64,
    text: String,
    entered: usize,
}

/// Collects from now on.
pub(crate) fn collect() {
    LazyLock::force(&COLLECTED);
}

/// The lines so far that have a text, as `LEVEL message name=value`.
pub(crate) fn lines_with(text: &str) -> Vec<String> {
    let lines = COLLECTED.lines.lock().expect("not poisoned");
    lines.iter().filter(|line| line.contains(text)).cloned().collect()
}

/// The spans so far that have a text, and how often each was entered.
pub(crate) fn spans_with(text: &str) -> Vec<(String, usize)> {
    let spans = COLLECTED.spans.lock().expect("not poisoned");
    spans.iter().filter(|span| span.text.contains(text)).map(|span| (span.text.clone(), span.entered)).collect()
}

struct Collector {
    next: AtomicU64,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("driftq_client")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        COLLECTED.spans.lock().expect("not poisoned").push(Opened { id, text: text.0, entered: 0 });
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        COLLECTED.lines.lock().expect("not poisoned").push(text.0);
    }

    fn enter(&self, id: &Id) {
        let mut spans = COLLECTED.spans.lock().expect("not poisoned");
        if let Some(span) = spans.iter_mut().find(|span| span.id == id.into_u64()) {
            span.entered += 1;
        }
    }

    fn exit(&self, _: &Id) {}
}

/// The fields of a line.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => {
                // It is recorded last.
                let (level, fields) = self.0.split_once(' ').unwrap_or((&self.0, ""));
                self.0 = format!("{level} {value:?} {fields}").trim_end().to_owned();
                Ok(())
            }
            name => write!(self.0, " {name}={value:?}"),
        };
        written.expect("a text can be written to");
    }
}

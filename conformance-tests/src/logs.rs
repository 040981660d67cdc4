//! Records the log output of the library during a case.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::faulty::lock;

/// Records from its creation.
pub(crate) struct Logs {
    start: usize,
}

static WRITTEN: Mutex<String> = Mutex::new(String::new());

impl Logs {
    /// Starts to record the whole process, because keepers have their own threads.
    ///
    /// # Panics
    /// If the process has another global subscriber.
    pub(crate) fn listen() -> Self {
        static SET: OnceLock<bool> = OnceLock::new();
        let set = *SET.get_or_init(|| tracing::subscriber::set_global_default(Listener).is_ok());
        assert!(
            set,
            "this case needs the process's global tracing subscriber: remove the one that the test target sets"
        );
        Self { start: lock(&WRITTEN).len() }
    }

    /// The recorded text.
    pub(crate) fn text(&self) -> String {
        lock(&WRITTEN)[self.start..].to_owned()
    }
}

/// Writes every span and event at every level into one string.
struct Listener;

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Records Leasehold and the client libraries of stores, and not the runtime.
        !["tokio", "mio"].iter().any(|quiet| metadata.target().starts_with(quiet))
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut line = Line(attributes.metadata().name().to_owned());
        attributes.record(&mut line);
        line.end();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line(String::new());
        values.record(&mut line);
        line.end();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().target().to_owned());
        event.record(&mut line);
        line.end();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Line {
    fn end(self) {
        let mut written = lock(&WRITTEN);
        written.push_str(&self.0);
        written.push('\n');
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

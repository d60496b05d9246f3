//! Tells a collector of OpenTelemetry's what became of requests and when.
//!
//! A request's place among traces comes with it (`traceparent`) or is drawn; when it ends, its spans join a line
//! of bounded length, from which a thread sends them.  Nothing that is asked waits for a collector, and no text of
//! requests or answers is in a span.

mod context;
mod export;
mod line;
mod otlp;
mod sampler;
mod settings;
mod spans;

use std::fmt::Error;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;

pub(crate) use context::{Context, Parent, TRACE_RESPONSE};
use export::Exporter;
use line::Line;
use sampler::Sampler;
pub use settings::{TraceError, TraceOptions};
pub(crate) use spans::{Answered, operation};

/// How long a server that ends waits for its last spans to be taken.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// A number by chance.
pub(crate) fn drawn() -> u64 {
    RandomState::new().hash_one(0)
}

/// What happened to spans.
#[derive(Clone, Debug, Default)]
struct Counts {
    sent: Counter,
    dropped: Counter,
}

/// Takes spans.  Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    line: Arc<Line>,
    sampler: Sampler,
    counts: Counts,
}

/// The thread that sends; dropping it sends what there is, within a bounded time.
pub(crate) struct Sending {
    line: Arc<Line>,
    done: Receiver<()>,
}

impl Tracer {
    /// Starts the thread that sends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(options: TraceOptions) -> io::Result<(Self, Sending)> {
        let (line, counts) = (Arc::new(Line::default()), Counts::default());
        let (tell, done) = mpsc::channel();
        let sampler = options.sampler;
        let exporter = Exporter::new(options, Arc::clone(&line), counts.clone());
        let work = move || {
            exporter.run();
            // Nobody hears it where the server did not wait.
            _ = tell.send(());
        };
        std::thread::Builder::new().name("traces".to_owned()).spawn(work)?;
        Ok((Self { line: Arc::clone(&line), sampler, counts }, Sending { line, done }))
    }

    /// A request's place: beneath its parent, or the first of a trace.
    pub(crate) fn begin(&self, parent: Option<Parent>) -> Context {
        Context::begin(parent, &self.sampler)
    }

    /// Tells of a request that ended, unless nobody wants to know.
    pub(crate) fn tell(&self, answered: &Answered<'_>) {
        if !answered.context.is_sampled {
            return;
        }
        let dropped = self.line.push(spans::of(answered));
        self.counts.dropped.inc_by(dropped as u64);
        if dropped > 0 && self.line.is_first_loss() {
            tracing::warn!(
                "traces are lost: the collector is slower than requests, or says nothing"
            );
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.line.end(DRAIN_TIME_MAX);
        // A collector that takes longer is left, and the thread ends with the process.
        _ = self.done.recv_timeout(DRAIN_TIME_MAX);
    }
}

impl Collector for Tracer {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counters = [
            ("otlp_spans_sent", "Spans that a collector took", &self.counts.sent),
            (
                "otlp_spans_dropped",
                "Spans that no collector took, or that found no place in the line",
                &self.counts.dropped,
            ),
        ];
        for (name, help, counter) in counters {
            let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&counter.get(), None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

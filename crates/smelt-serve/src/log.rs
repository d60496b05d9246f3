//! Writes the log to standard error: an event a line, as text or as JSON.

use std::fmt;
use std::io;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes what happens from now on.  The first call of a process counts.
///
/// `least` is the least important that is written.  Of text, words of importance are coloured if `is_coloured`.
pub fn log_to_stderr(is_json: bool, is_coloured: bool, least: LevelFilter) {
    let log = tracing_subscriber::fmt()
        .with_max_level(least)
        .with_writer(io::stderr)
        // The library has no colours built in, and complains where they are asked for.
        .with_ansi(false)
        .with_target(false);
    let set = match (is_json, is_coloured) {
        (true, _) => {
            tracing::subscriber::set_global_default(log.json().flatten_event(true).finish())
        }
        (false, true) => {
            tracing::subscriber::set_global_default(log.map_event_format(Coloured).finish())
        }
        (false, false) => tracing::subscriber::set_global_default(log.finish()),
    };
    // Whoever set another log before wants that one.
    drop(set);
}

/// Lines of another form, the word for their importance coloured.
struct Coloured<F>(F);

impl<S, N, F> FormatEvent<S, N> for Coloured<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(&coloured(&line, *event.metadata().level()))
    }
}

/// A line with the first word for its importance, which stands behind the time, in the terminal's own colour.
fn coloured(line: &str, level: Level) -> String {
    let code = match level {
        Level::ERROR => "1;31",
        Level::WARN => "33",
        Level::INFO => "32",
        _ => return line.to_owned(),
    };
    let word = level.as_str();
    line.replacen(word, &format!("\x1b[{code}m{word}\x1b[0m"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_for_importance_alone_is_coloured() {
        let line = "2026-01-01T00:00:00Z  WARN a WARN in a text";
        let expect = "2026-01-01T00:00:00Z  \x1b[33mWARN\x1b[0m a WARN in a text";
        assert_eq!(coloured(line, Level::WARN), expect);
        assert_eq!(coloured("t DEBUG x", Level::DEBUG), "t DEBUG x");
    }
}

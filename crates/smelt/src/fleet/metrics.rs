//! Writes what is known of a fleet in Prometheus' text format, for the textfile collector of node_exporter.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::fmt::Write as _;

use smelt_fleet::beat::Heard;
use smelt_fleet::counts::Counts;

use super::survey::Survey;

/// Each with its samples: labels, as they are written, and a value.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    samples: Vec<(String, f64)>,
}

/// All that is known, a line each.
pub(crate) fn exposition(survey: &Survey) -> String {
    let mut text = String::new();
    let all =
        of_server(survey).into_iter().chain(of_boards(survey)).chain(of_counts(&survey.counts));
    for Metric { name, kind, help, samples } in all.filter(|it| !it.samples.is_empty()) {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "{name}{labels} {value}");
        }
    }
    text
}

fn gauge(name: &'static str, help: &'static str, samples: Vec<(String, f64)>) -> Metric {
    Metric { name, kind: "gauge", help, samples }
}

fn counter(name: &'static str, help: &'static str, samples: Vec<(String, f64)>) -> Metric {
    Metric { name, kind: "counter", help, samples }
}

/// A sample without labels, where it is known.
fn one(value: Option<f64>) -> Vec<(String, f64)> {
    value.map(|value| (String::new(), value)).into_iter().collect()
}

fn of_server(survey: &Survey) -> [Metric; 5] {
    let answer = survey.answer.as_ref().ok();
    let disk = answer.and_then(|answer| answer.disk);
    let is_up = |is_up: bool| f64::from(u8::from(is_up));
    let lock = survey.lock.as_ref().map(|_| is_up(survey.boards.is_ok()));
    [
        gauge(
            "smelt_fleet_server_up",
            "Whether the server of results answers.",
            vec![(labels(&[("server", &survey.server)]), is_up(answer.is_some()))],
        ),
        gauge(
            "smelt_fleet_server_round_trip_seconds",
            "How long the server of results took to answer.",
            one(answer.map(|answer| answer.round_trip.as_secs_f64())),
        ),
        gauge(
            "smelt_fleet_server_used_bytes",
            "What the server of results holds, where it tells.",
            one(disk.map(|disk| disk.used as f64)),
        ),
        gauge(
            "smelt_fleet_server_quota_bytes",
            "What the server of results may hold, where it tells.",
            one(disk.and_then(|disk| disk.quota).map(|quota| quota as f64)),
        ),
        gauge("smelt_fleet_lock_server_up", "Whether the server of leases answers.", one(lock)),
    ]
}

fn of_boards(survey: &Survey) -> [Metric; 2] {
    let boards = survey.boards.as_ref().ok().filter(|_| survey.lock.is_some());
    let heard = |Heard { beat, by }: &Heard| {
        let role = beat.role.to_string();
        (labels(&[("board", by), ("role", &role)]), beat.at as f64)
    };
    [
        gauge(
            "smelt_fleet_board_heard_timestamp_seconds",
            "When a board was heard of last, in seconds of the Unix era.",
            boards.map(|all| all.heard.iter().map(heard).collect()).unwrap_or_default(),
        ),
        gauge(
            "smelt_fleet_boards_refused",
            "Announcements of boards that do not count: of unknown keys, old or forged.",
            one(boards.map(|all| all.refused.len() as f64)),
        ),
    ]
}

fn of_counts(counts: &Counts) -> [Metric; 5] {
    let source = |source, bytes: u64| (labels(&[("source", source)]), bytes as f64);
    let count = |value: u64| one(Some(value as f64));
    [
        counter("smelt_fleet_hits_total", "Outputs taken from the fleet.", count(counts.hits)),
        counter(
            "smelt_fleet_misses_total",
            "Stages that nobody in the fleet had published.",
            count(counts.misses),
        ),
        counter(
            "smelt_fleet_refused_total",
            "Outputs that the fleet had and that were not taken.",
            count(counts.refused),
        ),
        counter(
            "smelt_fleet_pulled_bytes_total",
            "Bytes of the outputs taken, by whence they came.",
            vec![
                source("server", counts.server_bytes),
                source("peer", counts.peer_bytes),
                source("disk", counts.disk_bytes),
            ],
        ),
        counter(
            "smelt_fleet_build_seconds_saved_total",
            "What building the outputs taken had cost their builders.",
            one(Some(counts.saved_ms as f64 / 1e3)),
        ),
    ]
}

/// Names and values in braces.
fn labels(pairs: &[(&str, &str)]) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs = pairs.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use smelt_fleet::reapi::{Capabilities, DiskUsage};
    use smelt_fleet::trust::Trust;

    use super::*;
    use crate::exit::{Exit, Failed};
    use crate::fleet::survey::{Answer, Boards};

    fn survey(answer: Result<Answer, Failed>) -> Survey {
        Survey {
            server: "grpc://a\"b\\c:1".to_owned(),
            answer,
            lock: None,
            boards: Ok(Boards::default()),
            counts: Counts { hits: 3, peer_bytes: 7, saved_ms: 61_500, ..Counts::default() },
            trust: Trust::default(),
            time: 0,
        }
    }

    #[test]
    fn what_is_known_is_a_line_and_what_is_not_is_none() {
        let gone = exposition(&survey(Err(Failed::new(Exit::NotSeen, "gone"))));
        for line in [
            r#"smelt_fleet_server_up{server="grpc://a\"b\\c:1"} 0"#,
            "# TYPE smelt_fleet_hits_total counter\nsmelt_fleet_hits_total 3",
            r#"smelt_fleet_pulled_bytes_total{source="peer"} 7"#,
            "smelt_fleet_build_seconds_saved_total 61.5",
        ] {
            assert!(gone.contains(&format!("{line}\n")), "{line}: {gone}");
        }
        assert!(!gone.contains("round_trip") && !gone.contains("lock") && !gone.contains("board_"));
        let disk = Some(DiskUsage { used: 5, quota: None });
        let capabilities = Capabilities { takes_entries: true, batch_bytes_max: 1, packs: false };
        let answer = Answer { round_trip: Duration::from_millis(2), capabilities, disk };
        let there = exposition(&survey(Ok(answer)));
        assert!(there.contains("smelt_fleet_server_round_trip_seconds 0.002\n"), "{there}");
        assert!(there.contains("smelt_fleet_server_used_bytes 5\n") && !there.contains("quota"));
    }
}

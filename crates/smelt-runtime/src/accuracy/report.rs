//! Sets the figures of several deployments in a table, and in one JSON document.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::score::{Score, Tally};

/// What was measured of one deployment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it is called.
    pub target: String,
    /// Its figures.
    pub score: Score,
    /// The most memory the process that answered held.
    pub peak_rss_bytes: u64,
    /// The most memory that a stage took which built it, where that is known.
    pub build_rss_bytes: Option<u64>,
}

/// The figures as a Markdown table, a row for each deployment, the first being what others are
/// compared with.
pub fn markdown(rows: &[Row]) -> String {
    let tasks: BTreeSet<&str> =
        rows.iter().flat_map(|row| row.score.tasks.keys().map(String::as_str)).collect();
    // The figures of a lone task are those of all.
    let tasks: Vec<&str> = tasks.into_iter().filter(|_| !has_one_task(rows)).collect();
    let mut header = vec!["Target", "Exact"];
    header.extend(&tasks);
    header.extend([
        "Image tokens",
        "Perplexity",
        "KL, nats",
        "Engines",
        "First token",
        "Tokens/s",
        "Peak RSS",
    ]);
    let is_built = rows.iter().any(|row| row.build_rss_bytes.is_some());
    header.extend(is_built.then_some("Build RSS"));
    let header: Vec<String> = header.into_iter().map(escaped).collect();
    // Names to the left, figures to the right.
    let rule: Vec<String> =
        (0..header.len()).map(|column| if column == 0 { "---" } else { "---:" }.into()).collect();
    let body = rows.iter().map(|row| {
        let built = row.build_rss_bytes.map_or("-".to_owned(), mebibytes);
        cells(row, &tasks).into_iter().chain(is_built.then_some(built)).collect()
    });
    let lines = [header, rule].into_iter().chain(body);
    lines.map(|cells| format!("| {} |\n", cells.join(" | "))).collect()
}

fn has_one_task(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.score.tasks.len() == 1)
}

fn cells(row: &Row, tasks: &[&str]) -> Vec<String> {
    let Row { target, score, peak_rss_bytes, .. } = row;
    let all = score.overall();
    let mut cells = vec![escaped(target), format!("{} ({}/{})", percent(all), all.right, all.of)];
    let of_task = |task: &&str| score.tasks.get(*task).map_or("-".to_owned(), |&t| percent(t));
    cells.extend(tasks.iter().map(of_task));
    cells.extend([
        format!("{:.1}", score.image_tokens),
        format!("{:.5}", score.perplexity()),
        score.kl_nats.map_or("-".to_owned(), |kl| format!("{kl:.6}")),
        mebibytes(score.engine_bytes()),
        format!("{:.1} ms", score.first_token_s * 1e3),
        score.tokens_per_second.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
        mebibytes(*peak_rss_bytes),
    ]);
    cells
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|")
}

fn percent(tally: Tally) -> String {
    format!("{:.1} %", tally.share() * 100.0)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The figures as one document.
pub fn document(rows: &[Row]) -> Value {
    let target = |row: &Row| {
        let Row { target, score, peak_rss_bytes, build_rss_bytes } = row;
        json!({
            "target": target,
            "scheme": score.scheme,
            "exact": score.overall(),
            "exact_interval": score.overall().interval(),
            "image_tokens": score.image_tokens,
            "tasks": score.tasks,
            "answer_tokens": score.answer_tokens,
            "perplexity": score.perplexity(),
            "kl_nats": score.kl_nats,
            "vision_bytes": score.vision_bytes,
            "llm_bytes": score.llm_bytes,
            "first_token_s": score.first_token_s,
            "tokens_per_second": score.tokens_per_second,
            "peak_rss_bytes": peak_rss_bytes,
            "build_rss_bytes": build_rss_bytes,
        })
    };
    let baseline = rows.first().map(|row| &row.target);
    json!({ "baseline": baseline, "targets": rows.iter().map(target).collect::<Vec<_>>() })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn row(target: &str, right: u64, llm_mib: u64, rate: f64) -> Row {
        let tally = |right| Tally { right, of: 100 };
        let tasks = [("count".to_owned(), tally(right)), ("read".to_owned(), tally(100))];
        let score = Score {
            scheme: "int8".into(),
            tasks: tasks.into(),
            image_tokens: 36.0,
            smaller: 0,
            answer_tokens: 300,
            nll_nats: 0.0,
            kl_nats: Some(0.25),
            vision_bytes: 1 << 20,
            llm_bytes: llm_mib << 20,
            first_token_s: 0.0125,
            tokens_per_second: Some(rate),
        };
        Row { target: target.into(), score, peak_rss_bytes: 3 << 19, build_rss_bytes: None }
    }

    #[test]
    fn the_table_has_a_row_for_each_target() {
        let mut other = row("b|c", 50, 1, 20.0);
        other.score.tasks.remove("read");
        other.score.kl_nats = None;
        other.score.tokens_per_second = None;
        assert_eq!(
            markdown(&[row("a", 90, 3, 10.0), other]),
            "\
| Target | Exact | count | read | Image tokens | Perplexity | KL, nats | Engines | First token | Tokens/s | Peak RSS |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| a | 95.0 % (190/200) | 90.0 % | 100.0 % | 36.0 | 1.00000 | 0.250000 | 4.0 MiB | 12.5 ms | 10.0 | 1.5 MiB |
| b\\|c | 50.0 % (50/100) | 50.0 % | - | 36.0 | 1.00000 | - | 2.0 MiB | 12.5 ms | - | 1.5 MiB |
"
        );
    }

    #[test]
    fn what_building_took_has_a_column_where_it_is_known() {
        let known = Row { build_rss_bytes: Some(5 << 20), ..row("a", 90, 3, 10.0) };
        let table = markdown(&[known, row("b", 90, 3, 10.0)]);
        let ends =
            ["| Peak RSS | Build RSS |", "---: |", "| 1.5 MiB | 5.0 MiB |", "| 1.5 MiB | - |"];
        for (line, end) in table.lines().zip(ends) {
            assert!(line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn a_lone_task_has_no_column_of_its_own() {
        let mut only = row("a", 90, 3, 10.0);
        only.score.tasks.remove("read");
        assert!(markdown(&[only]).starts_with("| Target | Exact | Image tokens |"));
    }

    #[test]
    fn the_document_names_the_baseline() {
        let document = document(&[row("a", 90, 3, 10.0), row("b", 50, 1, 20.0)]);
        assert_eq!(document["baseline"], "a");
        assert_eq!(document["targets"][1]["exact"], json!({ "right": 150, "of": 200 }));
        assert_eq!(document["targets"][1]["llm_bytes"], 1 << 20);
    }
}

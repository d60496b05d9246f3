//! `smelt fleet status`: whether the servers answer, which boards were heard of, what the fleet gave, and who is believed.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use smelt_fleet::beat::{Beat, Heard, NotHeard};
use smelt_fleet::counts::Counts;
use smelt_fleet::trust::{Trust, TrustedKey, date_text};

use crate::console::{answer, tell};
use crate::exit::{Exit, Failed};
use crate::flags::FleetStatusFlags;
use crate::fleet::metrics::exposition;
use crate::fleet::survey::{Answer, Boards, Survey};
use crate::table::{Table, bytes};

/// Of what was refused so many lines are told; all are in the JSON.
const REFUSED_TOLD_MAX: usize = 5;
/// What tells devices apart; all facts are in the JSON.
const FACTS_TOLD: [&str; 4] = ["sm", "l4t", "tensorrt", "arch"];

pub(crate) fn run(flags: &FleetStatusFlags) -> Result<Exit, Failed> {
    let survey = Survey::ask(&flags.fleet)?;
    if flags.metrics {
        // That a server is gone is what they say.
        answer(exposition(&survey))?;
        return Ok(Exit::Ok);
    }
    if flags.json {
        answer(format_args!("{}\n", as_json(&survey)))?;
    } else {
        tell_all(&survey)?;
    }
    survey.end()
}

fn tell_all(survey: &Survey) -> Result<(), Failed> {
    if let Ok(Answer { round_trip, capabilities, disk }) = &survey.answer {
        let writes = if capabilities.takes_entries { "takes results" } else { "takes no results" };
        let millis = round_trip.as_secs_f64() * 1e3;
        let free = disk.and_then(|disk| disk.free()).map(|free| format!(", {} free", bytes(free)));
        let (server, free) = (&survey.server, free.unwrap_or_default());
        answer(format_args!("{server} answers in {millis:.1} ms and {writes}{free}\n"))?;
    }
    if let (Ok(boards), Some(address)) = (&survey.boards, &survey.lock) {
        answer(format_args!("builders agree by {address}\n"))?;
        tell_boards(boards, survey.time)?;
    }
    answer(format_args!("{}\n", counted(&survey.counts)))?;
    if !survey.trust.keys.is_empty() {
        return answer(believed(&survey.trust));
    }
    if survey.answer.is_ok() {
        tell("nobody is believed, so nothing is taken: smelt fleet trust KEY --name NAME");
    }
    Ok(())
}

fn tell_boards(boards: &Boards, time: u64) -> Result<(), Failed> {
    if !boards.heard.is_empty() {
        let names =
            ["Board", "Key", "Does", "Heard", "Deployment", "Version", "Device", "Hits", "Saved"];
        let mut table = Table::new(&names);
        boards.heard.iter().for_each(|heard| table.row(row(heard, time)));
        answer(table)?;
    }
    for (name, why) in boards.refused.iter().take(REFUSED_TOLD_MAX) {
        tell(format_args!("board {name} is left out: {why}"));
    }
    let more = boards.refused.len().saturating_sub(REFUSED_TOLD_MAX) + boards.left_out;
    if more > 0 {
        tell(format_args!(
            "{more} more are left out: smelt fleet status --json lists those that were read"
        ));
    }
    Ok(())
}

fn row(Heard { beat, by }: &Heard, time: u64) -> [String; 9] {
    let deployments = beat.deployments.iter().map(|it| format!("{} {}", it.name, it.tree.short()));
    let deployments = deployments.collect::<Vec<_>>().join(", ");
    [
        beat.board.clone(),
        by.clone(),
        beat.role.to_string(),
        ago(time.saturating_sub(beat.at)),
        if deployments.is_empty() { "-".to_owned() } else { deployments },
        beat.version.clone(),
        device(&beat.facts),
        beat.counts.hits.to_string(),
        minutes(&beat.counts),
    ]
}

/// How long ago, to the unit.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        _ => format!("{} h ago", seconds / 3600),
    }
}

fn device(facts: &BTreeMap<String, String>) -> String {
    let told = FACTS_TOLD.iter().filter_map(|name| Some(format!("{name} {}", facts.get(*name)?)));
    told.collect::<Vec<_>>().join(", ")
}

fn minutes(counts: &Counts) -> String {
    format!("{:.1} min", counts.saved_ms as f64 / 60e3)
}

/// What the fleet has given this board, in a line.
fn counted(counts: &Counts) -> String {
    let Counts { hits, misses, refused, server_bytes, peer_bytes, disk_bytes, .. } = counts;
    let [server, peers, disk] = [server_bytes, peer_bytes, disk_bytes].map(|all| bytes(*all));
    format!(
        "here: {hits} hits, {misses} misses, {refused} refused; {server} from the server, {peers} from neighbours, {disk} from this disk; builds of {} saved",
        minutes(counts)
    )
}

fn believed(trust: &Trust) -> Table {
    let mut table = Table::new(&["Name", "Key", "For", "Until", "Revoked"]);
    for key in &trust.keys {
        let date = |date: Option<u64>| date.map_or_else(|| "-".to_owned(), date_text);
        let purposes: Vec<&str> = key.purposes.iter().map(|purpose| purpose.word()).collect();
        table.row([
            key.name.clone(),
            key.key.to_string(),
            purposes.join(","),
            date(key.until),
            date(key.revoked),
        ]);
    }
    table
}

fn as_json(survey: &Survey) -> Value {
    let key = |key: &TrustedKey| json!({ "name": key.name, "key": key.key.to_string(), "until": key.until.map(date_text), "revoked": key.revoked.map(date_text) });
    let mut text = json!({
        "server": survey.server, "answers": survey.answer.is_ok(), "lock": survey.lock, "lock_answers": survey.boards.is_ok(),
        "counts": survey.counts, "trusted": survey.trust.keys.iter().map(key).collect::<Vec<_>>(),
    });
    if let Ok(Answer { round_trip, capabilities, disk }) = &survey.answer {
        text["round_trip_ms"] = json!(round_trip.as_secs_f64() * 1e3);
        text["takes_entries"] = json!(capabilities.takes_entries);
        text["message_bytes_max"] = json!(capabilities.batch_bytes_max);
        text["used_bytes"] = json!(disk.map(|disk| disk.used));
        text["free_bytes"] = json!(disk.and_then(|disk| disk.free()));
    }
    if let Ok(boards) = &survey.boards {
        text["boards"] = boards.heard.iter().map(board_as_json).collect();
        let refused =
            |(name, why): &(String, NotHeard)| json!({ "board": name, "why": why.to_string() });
        text["refused"] = boards.refused.iter().map(refused).collect();
        text["left_out"] = json!(boards.left_out);
    }
    text
}

fn board_as_json(Heard { beat, by }: &Heard) -> Value {
    let Beat { board, key, role, at, version, facts, deployments, counts, .. } = beat;
    json!({
        "board": board, "name": by, "key": key.to_string(), "role": role, "heard_s": at, "version": version,
        "facts": facts, "deployments": deployments, "counts": counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_devices_are_told_shortly() {
        assert_eq!(
            [0, 119, 120, 7199, 7200].map(ago),
            ["0 s ago", "119 s ago", "2 min ago", "119 min ago", "2 h ago"]
        );
        let facts = [("cpu", "x"), ("arch", "aarch64"), ("sm", "87")];
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(device(&BTreeMap::from(facts)), "sm 87, arch aarch64");
        let counts = Counts { hits: 2, peer_bytes: 2048, saved_ms: 90_000, ..Counts::default() };
        let told = counted(&counts);
        assert!(
            told.starts_with("here: 2 hits") && told.ends_with("builds of 1.5 min saved"),
            "{told}"
        );
    }
}

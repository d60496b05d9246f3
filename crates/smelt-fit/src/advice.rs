//! Weighs the choices of a model on a device, and says which one is advised and why, or what would have to change.

use serde::Serialize;

use crate::device::DeviceProfile;
use crate::forecast::{FitLine, line};
use crate::history::MeasuredAnswer;
use crate::model::ModelFacts;
use crate::settings::{Choices, Picked, Wanted};

/// The choices of a model on a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitTable {
    /// What the model may hold of the device's memory.
    pub budget_bytes: u64,
    /// The choices: the advised one first if there is one, then such as differ from it in one setting.
    pub lines: Vec<FitLine>,
    /// Whether the first line is advised; else nothing fits, and it is the smallest.
    pub is_advised: bool,
    /// Why, in a sentence.
    pub why: String,
    /// What would have to change where nothing fits.
    pub instead: Vec<Instead>,
}

/// A change with which a model would fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "change")]
pub enum Instead {
    /// Leaving out what was fixed: with these settings it fits.
    Settings {
        /// The line.
        line: Box<FitLine>,
    },
    /// A device with so much memory.
    Memory {
        /// Bytes that its kernel hands out.
        memory_bytes: u64,
    },
}

/// Weighs the choices of `model` on `device` that `wanted` leaves open; `history` is what was measured there, the newest
/// last.
pub fn table(
    model: &ModelFacts,
    device: &DeviceProfile,
    wanted: &Wanted,
    history: &[MeasuredAnswer],
) -> FitTable {
    let budget_bytes = wanted.memory_bytes.unwrap_or_else(|| device.budget_bytes());
    let choices = Choices::of(model, wanted);
    let weigh = Weigh { model, device, budget_bytes, history };
    let best = weigh.best(&choices);
    let advised = best.fits.then_some(&best.picked);
    let mut lines = vec![best.line.clone()];
    for other in weigh.beside(&choices, &best.picked) {
        if lines.iter().all(|line| line.settings != other.settings) {
            lines.push(other);
        }
    }
    let instead = match advised {
        Some(_) => Vec::new(),
        None => weigh.instead(wanted, &best.line),
    };
    let why = why(&lines, advised.is_some(), budget_bytes);
    FitTable { budget_bytes, lines, is_advised: advised.is_some(), why, instead }
}

struct Weigh<'a> {
    model: &'a ModelFacts,
    device: &'a DeviceProfile,
    budget_bytes: u64,
    history: &'a [MeasuredAnswer],
}

/// A choice and what it takes.
struct Weighed<'a> {
    picked: Picked<'a>,
    line: FitLine,
    fits: bool,
}

impl<'a> Weigh<'a> {
    fn line(&self, picked: &Picked<'_>) -> FitLine {
        line(self.model, picked, (self.device, self.history), self.budget_bytes)
    }

    /// The first choice that fits, in the order in which they are preferred; the smallest where none does.
    fn best(&self, choices: &Choices<'a>) -> Weighed<'a> {
        let weighed = in_order(choices).map(|picked| {
            let line = self.line(&picked);
            Weighed { picked, fits: line.fits, line }
        });
        let mut smallest: Option<Weighed<'a>> = None;
        for one in weighed {
            if one.fits {
                return one;
            }
            let is_smaller =
                |least: &Weighed<'_>| one.line.serving_bytes < least.line.serving_bytes;
            if smallest.as_ref().is_none_or(is_smaller) {
                smallest = Some(one);
            }
        }
        smallest.expect("there is one choice at least, of nothing where there are none")
    }

    /// The choices that differ from `picked` in one setting.
    fn beside(&self, choices: &Choices<'a>, picked: &Picked<'a>) -> Vec<FitLine> {
        let base = *picked;
        let decoders = choices.decoders.iter().map(|it| Picked { decoder: Some(*it), ..base });
        let towers = choices.towers.iter().map(|it| Picked { tower: Some(*it), ..base });
        let contexts = choices.contexts.iter().map(|context| {
            let fewer = base.photograph.filter(|it| it.tokens < *context);
            let photograph = fewer.or_else(|| choices.photograph(Some(*context)));
            Picked { context: Some(*context), photograph, ..base }
        });
        let tiles = choices.photographs().map(|it| Picked { photograph: Some(it), ..base });
        let kv = choices.kv.iter().map(|it| Picked { kv: Some(*it), ..base });
        let all = decoders.chain(towers).chain(contexts).chain(tiles).chain(kv);
        all.map(|picked| self.line(&picked)).collect()
    }

    /// What would have to change where nothing that is wanted fits, of which `least` holds least.
    fn instead(&self, wanted: &Wanted, least: &FitLine) -> Vec<Instead> {
        let free = Wanted { memory_bytes: wanted.memory_bytes, ..Wanted::default() };
        let open = (*wanted != free).then(|| self.best(&Choices::of(self.model, &free)));
        let smaller = open.as_ref().map_or(least, |open| &open.line);
        match &open {
            Some(open) if open.fits => {
                vec![Instead::Settings { line: Box::new(open.line.clone()) }]
            }
            _ => {
                let held = smaller.serving_bytes.min(least.serving_bytes);
                vec![Instead::Memory { memory_bytes: DeviceProfile::memory_for(held) }]
            }
        }
    }
}

/// All choices, the most preferred first: for each scheme the usual context, then smaller keys and values, then a
/// smaller context.  Larger contexts are never advised, only told.
fn in_order<'a>(choices: &Choices<'a>) -> impl Iterator<Item = Picked<'a>> {
    let usual = choices.contexts.first().copied();
    let smaller = choices.contexts.iter().copied().filter(|context| Some(*context) < usual);
    let contexts = one_or_none(usual.into_iter().chain(smaller).collect());
    let (decoders, towers) = (some_or_none(&choices.decoders), some_or_none(&choices.towers));
    let kv = some_or_none(&choices.kv);
    let mut all = Vec::new();
    for decoder in &decoders {
        for tower in &towers {
            for context in &contexts {
                for kv in &kv {
                    let photograph = choices.photograph(*context);
                    let (decoder, tower, kv) = (*decoder, *tower, *kv);
                    all.push(Picked { decoder, tower, context: *context, photograph, kv });
                }
            }
        }
    }
    all.into_iter()
}

/// Each of them, or nothing once where there are none.
fn some_or_none<'a, T>(all: &[&'a T]) -> Vec<Option<&'a T>> {
    one_or_none(all.to_vec())
}

fn one_or_none<T>(all: Vec<T>) -> Vec<Option<T>> {
    match all.is_empty() {
        true => vec![None],
        false => all.into_iter().map(Some).collect(),
    }
}

/// Why the first line is advised, or why none is.
fn why(lines: &[FitLine], is_advised: bool, budget_bytes: u64) -> String {
    let first = &lines[0];
    let held = gib(first.serving_bytes);
    if !is_advised {
        return format!(
            "nothing fits: the smallest choice holds {held} while it serves, of {} that a model may hold here",
            gib(budget_bytes)
        );
    }
    let fits = format!("it holds {held} of {} that a model may hold here", gib(budget_bytes));
    let is_other_scheme = |line: &&FitLine| line.settings.scheme != first.settings.scheme;
    let others = lines[1..].iter().filter(is_other_scheme);
    let (larger, smaller): (Vec<&FitLine>, Vec<&FitLine>) =
        others.partition(|line| line.serving_bytes > first.serving_bytes);
    let names = |lines: &[&FitLine]| {
        let names = lines.iter().filter_map(|line| line.settings.scheme.as_deref());
        names.collect::<Vec<_>>().join(", ")
    };
    let (too_large, slower): (Vec<&FitLine>, Vec<&FitLine>) =
        larger.into_iter().partition(|line| !line.fits);
    let mut reasons = vec![fits];
    if !too_large.is_empty() {
        reasons.push(format!("{} would not fit", names(&too_large)));
    }
    if !slower.is_empty() {
        reasons.push(format!("{} would read more for every token", names(&slower)));
    }
    if !smaller.is_empty() {
        reasons.push(format!("{} would round more coarsely without need", names(&smaller)));
    }
    reasons.join("; ")
}

/// Bytes as people read them.
fn gib(bytes: u64) -> String {
    match bytes >> 20 {
        mib if mib < 1024 => format!("{mib} MiB"),
        _ => format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
    }
}

#[cfg(test)]
mod tests;

//! Weighs the choices of a model on a device, and says which one is advised and why, or what would have to change.

use serde::Serialize;

use crate::device::DeviceProfile;
use crate::forecast::{FitLine, line};
use crate::gpu::Gpu;
use crate::history::MeasuredAnswer;
use crate::model::ModelFacts;
use crate::settings::{Choices, Picked, Wanted, WantedDevice};

/// The choices of a model on a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FitTable {
    /// What the model may hold of the device's memory.
    pub budget_bytes: u64,
    /// What it may hold of the GPU's own, where its engines are weighed and it has such.
    pub gpu_budget_bytes: Option<u64>,
    /// The choices: the advised one first if there is one, then such as differ from it in one setting.
    pub lines: Vec<FitLine>,
    /// Whether the first line is advised; else nothing fits, and it is the smallest.
    pub is_advised: bool,
    /// Why, in a sentence.
    pub why: String,
    /// Why the GPU that is there is left out where nobody said so, in a line with what to do.
    pub without_gpu: Option<String>,
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
/// last.  Where the GPU is wanted and [`gpu_refusal`] says why not, processors are weighed.
pub fn table(
    model: &ModelFacts,
    device: &DeviceProfile,
    wanted: &Wanted,
    history: &[MeasuredAnswer],
) -> FitTable {
    let budget_bytes = wanted.memory_bytes.unwrap_or_else(|| device.budget_bytes());
    let device = &device.held_to(wanted.memory_bytes);
    let weigh = Weigh { model, device, budget_bytes, history };
    let places = weigh.places(wanted);
    let best = weigh.best(&places, wanted);
    let advised = best.fits.then_some(&best.picked);
    let mut lines = vec![best.line.clone()];
    for other in weigh.beside(&places, &best.picked) {
        if lines.iter().all(|line| line.settings != other.settings) {
            lines.push(other);
        }
    }
    let instead = match advised {
        Some(_) => Vec::new(),
        None => weigh.instead(wanted, &best.line),
    };
    let gpu = places.iter().find_map(|place| place.gpu);
    let budgets = Budgets { host_bytes: budget_bytes, gpu_bytes: gpu.and_then(Gpu::budget_bytes) };
    FitTable {
        budget_bytes,
        gpu_budget_bytes: budgets.gpu_bytes,
        why: why(&lines, advised.is_some(), budgets),
        without_gpu: weigh.without_gpu(wanted, &best.picked, budgets),
        lines,
        is_advised: advised.is_some(),
        instead,
    }
}

/// Why no engine of `model` runs on the GPU of `device`, in one line; nothing where one does, even if it is built elsewhere.
pub fn gpu_refusal(model: &ModelFacts, device: &DeviceProfile, wanted: &Wanted) -> Option<String> {
    on_gpu(model, device, wanted).err()
}

/// The choices of `model` on the GPU of `device`.
fn on_gpu<'a>(
    model: &'a ModelFacts,
    device: &'a DeviceProfile,
    wanted: &Wanted,
) -> Result<Choices<'a>, String> {
    let none = || format!("no GPU is known of {}", device.name);
    let gpu = device.gpu.as_ref().ok_or_else(none)?;
    match (&gpu.target, &gpu.obstacle) {
        (None, Some(obstacle)) => Err(obstacle.clone()),
        (None, None) => Err(none()),
        (Some(_), _) => Choices::on_gpu(model, gpu, wanted),
    }
}

/// What a model may hold.
#[derive(Clone, Copy)]
struct Budgets {
    host_bytes: u64,
    /// Of a GPU's own memory.
    gpu_bytes: Option<u64>,
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

    /// The choices of each place that is wanted, the one to be advised first.
    fn places(&self, wanted: &Wanted) -> Vec<Choices<'a>> {
        let own = || Choices::of(self.model, wanted);
        let gpu = on_gpu(self.model, self.device, wanted).ok();
        match (wanted.device, gpu) {
            (WantedDevice::Processors, _) | (_, None) => vec![own()],
            (WantedDevice::Gpu, Some(gpu)) => vec![gpu],
            (WantedDevice::Auto, Some(gpu)) => vec![gpu, own()],
        }
    }

    /// The first choice that fits, in the order in which they are preferred; the smallest where none does.  What cannot be
    /// built here is taken where it is asked for alone.
    fn best(&self, places: &[Choices<'a>], wanted: &Wanted) -> Weighed<'a> {
        let is_meant = |place: &&Choices<'_>| {
            let is_built_here = place.gpu.is_none_or(|gpu| gpu.obstacle.is_none());
            is_built_here || wanted.device == WantedDevice::Gpu
        };
        let weighed = places.iter().filter(is_meant).flat_map(in_order).map(|picked| {
            let line = self.line(&picked);
            Weighed { picked, fits: line.fits, line }
        });
        let mut smallest: Option<Weighed<'a>> = None;
        for one in weighed {
            if one.fits {
                return one;
            }
            let is_smaller = |least: &Weighed<'_>| one.line.held_bytes() < least.line.held_bytes();
            if smallest.as_ref().is_none_or(is_smaller) {
                smallest = Some(one);
            }
        }
        smallest.expect("there is one choice at least, of nothing where there are none")
    }

    /// The choices that differ from `picked` in one setting, or in the place where it runs.
    fn beside(&self, places: &[Choices<'a>], picked: &Picked<'a>) -> Vec<FitLine> {
        let base = *picked;
        let (own, others): (Vec<_>, Vec<_>) =
            places.iter().partition(|place| place.gpu == picked.gpu);
        let [choices] = own[..] else { return Vec::new() };
        let elsewhere = others.iter().map(|place| place.counterpart(picked));
        let decoders = choices.decoders.iter().map(|it| Picked { decoder: Some(*it), ..base });
        let towers = choices.towers.iter().map(|it| Picked { tower: Some(*it), ..base });
        let contexts = choices.contexts.iter().map(|context| {
            let fewer = base.photograph.filter(|it| it.tokens < *context);
            let photograph = fewer.or_else(|| choices.photograph(Some(*context)));
            Picked { context: Some(*context), photograph, ..base }
        });
        let tiles = choices.photographs().map(|it| Picked { photograph: Some(it), ..base });
        let kv = choices.kv.iter().map(|it| Picked { kv: Some(*it), ..base });
        let all = elsewhere.chain(decoders).chain(towers).chain(contexts).chain(tiles).chain(kv);
        all.map(|picked| self.line(&picked)).collect()
    }

    /// Why the GPU is left out of the advice where nobody said so, though there is one.
    fn without_gpu(&self, wanted: &Wanted, best: &Picked<'_>, budgets: Budgets) -> Option<String> {
        let gpu = self.device.gpu.as_ref()?;
        if wanted.device != WantedDevice::Auto || best.gpu.is_some() {
            return None;
        }
        let too_large = |choices: Choices<'a>| {
            let asked = Wanted { device: WantedDevice::Gpu, ..wanted.clone() };
            let least = self.best(&[choices], &asked).line;
            format!("the smallest choice on it holds {}", holding(&least, "", budgets))
        };
        let why = match on_gpu(self.model, self.device, wanted) {
            Ok(choices) => gpu.obstacle.clone().unwrap_or_else(|| too_large(choices)),
            Err(why) => why,
        };
        Some(format!("the GPU is left out: {why}"))
    }

    /// What would have to change where nothing that is wanted fits, of which `least` holds least.
    fn instead(&self, wanted: &Wanted, least: &FitLine) -> Vec<Instead> {
        let free = Wanted { memory_bytes: wanted.memory_bytes, ..Wanted::default() };
        let open = (*wanted != free).then(|| self.best(&self.places(&free), &free));
        let smaller = open.as_ref().map_or(least, |open| &open.line);
        match &open {
            Some(open) if open.fits => {
                vec![Instead::Settings { line: Box::new(open.line.clone()) }]
            }
            _ => {
                let held = smaller.held_bytes().min(least.held_bytes());
                vec![Instead::Memory { memory_bytes: DeviceProfile::memory_for(held) }]
            }
        }
    }
}

/// All choices, the most preferred first: for each scheme the usual context, then smaller keys and values, then a
/// smaller context.  Larger contexts are never advised, only told.
fn in_order<'a>(choices: &Choices<'a>) -> Vec<Picked<'a>> {
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
                    let (decoder, tower, kv, gpu) = (*decoder, *tower, *kv, choices.gpu);
                    all.push(Picked { decoder, tower, context: *context, photograph, kv, gpu });
                }
            }
        }
    }
    all
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

/// What a choice holds, of what it may hold; `when` stands behind the former.
fn holding(line: &FitLine, when: &str, budgets: Budgets) -> String {
    let (held, budget) = (gib(line.serving_bytes), gib(budgets.host_bytes));
    let of_host = format!("{held}{when} of {budget} that a model may hold here");
    match line.gpu_bytes.zip(budgets.gpu_bytes) {
        Some((held, budget)) => {
            format!("{} of {} of the GPU's memory, and {of_host}", gib(held), gib(budget))
        }
        None => of_host,
    }
}

/// Why the first line is advised, or why none is.
fn why(lines: &[FitLine], is_advised: bool, budgets: Budgets) -> String {
    let first = &lines[0];
    if !is_advised {
        let held = holding(first, " while it serves,", budgets);
        return format!("nothing fits: the smallest choice holds {held}");
    }
    let fits = format!("it holds {}", holding(first, "", budgets));
    let is_other_scheme = |line: &&FitLine| {
        line.settings.scheme != first.settings.scheme
            && line.settings.target == first.settings.target
    };
    let others = lines[1..].iter().filter(is_other_scheme);
    let (larger, smaller): (Vec<&FitLine>, Vec<&FitLine>) =
        others.partition(|line| line.held_bytes() > first.held_bytes());
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

//! Chooses, of several engines that answer alike, the one that this device runs best.
//!
//! Headings and facts in, a place in the list out.  Knows no file and no driver: who opens engines says what the device is.

use std::collections::BTreeMap;

use crate::Heading;

/// What a fact is worth where the device has no such thing.
const ABSENT: &str = "none";

/// A device, as far as engines depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Targets that can run here, best first: `cuda`, `cpu`, …
    pub targets: Vec<String>,
    /// What is true of it, by the words of pipelines (`sm`, `tensorrt`, …); what it does not have is `none`, or not
    /// there.
    pub facts: BTreeMap<String, String>,
    /// Bytes of the memory that its engines live in; nothing where that is not known.
    pub memory_bytes: Option<u64>,
}

/// None of the engines runs here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEngine {
    /// Their targets are others.
    #[error(
        "the engines are for {}, and this device runs {}; build one for it",
        engines.join(", "),
        targets.join(", ")
    )]
    Targets {
        /// The engines' targets.
        engines: Vec<String>,
        /// Targets that this device runs.
        targets: Vec<String>,
    },
    /// They were built for devices that differ from this one.
    #[error("no engine fits this device ({}); build one for it", misfits.join("; "))]
    Facts {
        /// Of each engine why.
        misfits: Vec<String>,
    },
}

/// Which engine this device runs: of those that fit it, the first in the list of those for its best target.
///
/// # Errors
/// [`NoEngine`] where it runs none of them.
pub fn choose(engines: &[Heading], device: &Device) -> Result<usize, NoEngine> {
    let first = |target: &String| {
        let fits = |engine: &Heading| engine.target == *target && misfit(engine, device).is_none();
        engines.iter().position(fits)
    };
    device.targets.iter().find_map(first).ok_or_else(|| none(engines, device))
}

/// What of a device differs from what an engine needs, if anything; whether its target runs there is another question.
pub fn misfit(engine: &Heading, device: &Device) -> Option<String> {
    let differs = |(fact, built): (&String, &String)| {
        let here = device.facts.get(fact).map_or(ABSENT, String::as_str);
        (here != built).then(|| format!("{fact} {built}, here {here}"))
    };
    let memory = engine.device_bytes.zip(device.memory_bytes).filter(|(needs, has)| needs > has);
    let memory = memory.map(|(needs, has)| {
        format!("{} MiB of the device's memory, here {} MiB", needs.div_ceil(1 << 20), has >> 20)
    });
    let wants: Vec<String> = engine.device.iter().filter_map(differs).chain(memory).collect();
    (!wants.is_empty()).then(|| format!("it wants {}", wants.join(", and ")))
}

/// Why no engine runs on the device.
fn none(engines: &[Heading], device: &Device) -> NoEngine {
    let runs = |engine: &Heading| device.targets.contains(&engine.target);
    if !engines.iter().any(runs) {
        let targets = engines.iter().map(|engine| engine.target.clone()).collect();
        return NoEngine::Targets { engines: targets, targets: device.targets.clone() };
    }
    let why = |engine: &Heading| {
        let why = misfit(engine, device).filter(|_| runs(engine));
        let why = why.unwrap_or_else(|| "it does not run here".to_owned());
        format!("{}: {why}", engine.target)
    };
    NoEngine::Facts { misfits: engines.iter().map(why).collect() }
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn engine(target: &str, facts: &[(&str, &str)]) -> Heading {
        let device = facts.iter().map(|&(fact, value)| (fact.into(), value.into())).collect();
        let (kind, target) = ("llm".to_owned(), target.to_owned());
        Heading { format: 3, kind, target, device, device_bytes: None }
    }

    fn device(targets: &[&str], facts: &[(&str, &str)], gib: u64) -> Device {
        Device {
            targets: targets.iter().map(|target| (*target).into()).collect(),
            facts: facts.iter().map(|&(fact, value)| (fact.into(), value.into())).collect(),
            memory_bytes: Some(gib << 30),
        }
    }

    /// What each smelt with every back end would run, best first.
    const ALL: [&str; 3] = ["tensorrt", "cuda", "cpu"];

    fn orin() -> Device {
        device(&ALL, &[("sm", "87"), ("tensorrt", "10.3.0"), ("cuda", "12.6.11")], 8)
    }

    fn h100() -> Device {
        device(&ALL, &[("sm", "90"), ("tensorrt", "10.7.0"), ("cuda", "12.6.11")], 80)
    }

    fn cpu_only() -> Device {
        device(&ALL, &[("sm", "none"), ("tensorrt", "none")], 16)
    }

    #[track_caller]
    fn check(engines: &[&str], targets: &[&str], expect: Result<usize, &str>) {
        let engines: Vec<Heading> = engines.iter().map(|target| engine(target, &[])).collect();
        let found = choose(&engines, &device(targets, &[], 8)).map_err(|error| error.to_string());
        assert_eq!(found, expect.map_err(str::to_owned));
    }

    #[test]
    fn the_best_target_of_a_device_is_chosen() {
        let both = ["cpu", "cuda-sm87"];
        check(&both, &["cuda-sm87", "cpu"], Ok(1));
        check(&both, &["cuda-sm110", "cpu"], Ok(0));
        check(&["cpu", "cpu"], &["cpu"], Ok(0));
        check(&["cuda-sm87", "cuda-sm110", "cpu"], &["cuda-sm110", "cuda-sm87", "cpu"], Ok(1));
    }

    #[test]
    fn who_runs_none_is_told_what_there_is() {
        let why =
            "the engines are for cuda-sm87, and this device runs cuda-sm90, cpu; build one for it";
        check(&["cuda-sm87"], &["cuda-sm90", "cpu"], Err(why));
    }

    #[test]
    fn each_device_runs_the_engine_that_was_built_for_it() {
        let engines = [
            engine("cpu", &[]),
            engine("cuda", &[("sm", "87")]),
            engine("cuda", &[("sm", "90")]),
            engine("tensorrt", &[("sm", "90"), ("tensorrt", "10.3.0")]),
        ];
        let chosen = [orin(), h100(), cpu_only()].map(|device| choose(&engines, &device));
        assert_eq!(chosen, [Ok(1), Ok(2), Ok(0)], "no TensorRT here is that of the last engine");
        let older = [("sm", "90"), ("tensorrt", "10.3.0")];
        assert_eq!(choose(&engines, &device(&ALL, &older, 80)), Ok(3));
    }

    fn owned((fact, value): (&str, &str)) -> (String, String) {
        (fact.to_owned(), value.to_owned())
    }

    #[test]
    fn what_does_not_fit_into_the_memory_is_passed_over() {
        let large = Heading { device_bytes: Some(12 << 30), ..engine("cuda", &[("sm", "87")]) };
        let small = Heading { device_bytes: Some(3 << 30), ..large.clone() };
        let engines = [large, small];
        assert_eq!(choose(&engines, &orin()), Ok(1));
        assert_eq!(choose(&engines, &Device { memory_bytes: Some(64 << 30), ..orin() }), Ok(0));
        assert_eq!(choose(&engines, &Device { memory_bytes: None, ..orin() }), Ok(0));
        let error = choose(&engines[..1], &orin()).unwrap_err().to_string();
        assert!(error.contains("it wants 12288 MiB of the device's memory, here 8192 MiB"));
    }

    #[test]
    fn one_line_says_why_none_fits() {
        let engines = [
            engine("cuda", &[("sm", "87")]),
            engine("tensorrt", &[("sm", "90"), ("tensorrt", "10.3.0")]),
            engine("npu", &[]),
        ];
        let why = |device| choose(&engines, &device).unwrap_err().to_string();
        assert_eq!(
            why(h100()),
            "no engine fits this device (cuda: it wants sm 87, here 90; tensorrt: it wants tensorrt 10.3.0, here 10.7.0; npu: it does not run here); build one for it"
        );
        assert!(
            why(cpu_only()).contains(
                "tensorrt: it wants sm 90, here none, and tensorrt 10.3.0, here none; npu"
            )
        );
    }

    /// A heading or device of few words, so that they often agree.
    fn drawn(random: &mut Random) -> BTreeMap<String, String> {
        let facts = ["sm", "tensorrt", "cuda", "gpu-driver"];
        let facts = facts.into_iter().filter(|_| random.coin()).collect::<Vec<_>>();
        facts.into_iter().map(|fact| owned((fact, random.pick(&["1", "2", "none"])))).collect()
    }

    fn drawn_engine(random: &mut Random) -> Heading {
        let target = random.pick(&["tensorrt", "cuda", "cpu", "npu"]);
        // What runs on processors depends on no device.
        let device = if target == "cpu" { BTreeMap::new() } else { drawn(random) };
        let device_bytes = (target != "cpu" && random.coin()).then(|| random.below(8) as u64);
        Heading { device, device_bytes, ..engine(target, &[]) }
    }

    fn drawn_device(random: &mut Random) -> Device {
        let mut targets = ALL.map(str::to_owned).to_vec();
        random.shuffle(&mut targets);
        targets.truncate(random.below(4));
        let memory_bytes = random.coin().then(|| random.below(8) as u64);
        Device { targets, facts: drawn(random), memory_bytes }
    }

    #[test]
    fn the_choice_fits_nothing_better_does_and_what_is_passed_over_changes_nothing() {
        let mut chosen_of_several = 0;
        for seed in 0..20_000 {
            let random = &mut Random::new(seed);
            let device = drawn_device(random);
            let engines: Vec<Heading> =
                (0..random.below(6)).map(|_| drawn_engine(random)).collect();
            let rank =
                |engine: &Heading| device.targets.iter().position(|one| *one == engine.target);
            let fits =
                |engine: &Heading| rank(engine).filter(|_| misfit(engine, &device).is_none());
            let best =
                engines.iter().enumerate().filter_map(|(at, engine)| Some((fits(engine)?, at)));
            let best = best.min().map(|(_, at)| at);
            let found = choose(&engines, &device);
            assert_eq!(found.clone().ok(), best, "seed {seed}");
            let told = match &found {
                Ok(at) => {
                    let alone = choose(std::slice::from_ref(&engines[*at]), &device);
                    assert_eq!(alone, Ok(0), "seed {seed}: it needs no others");
                    chosen_of_several += usize::from(engines.len() > 1);
                    continue;
                }
                Err(why) => why.to_string(),
            };
            assert_eq!(told.lines().count(), usize::from(!told.is_empty()), "seed {seed}: {told}");
            for engine in &engines {
                assert!(told.contains(&engine.target), "seed {seed}: {told}");
            }
        }
        assert!(chosen_of_several > 1000, "{chosen_of_several}");
    }

    #[test]
    fn facts_that_no_engine_names_mean_nothing() {
        for seed in 0..2_000 {
            let random = &mut Random::new(seed);
            let mut device = drawn_device(random);
            let engines: Vec<Heading> = (0..4).map(|_| drawn_engine(random)).collect();
            let before = choose(&engines, &device);
            device.facts.insert("kernel".to_owned(), "6.8".to_owned());
            assert_eq!(choose(&engines, &device), before, "seed {seed}");
        }
    }
}

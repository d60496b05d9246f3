//! Judges what NVIDIA's driver says: which cards there are, and whether engines can be built for them and run.

use serde::{Deserialize, Serialize};

use crate::finding::{Finding, Severity, size};

/// What is known of NVIDIA's GPUs; whoever runs engines on them asks the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpus {
    /// The cards that the driver gives.
    pub cards: Vec<Gpu>,
    /// Why it gives none, where files say that there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// For which targets kernels can be compiled here, each with the compiler's version.
    pub compilers: Vec<String>,
}

/// A card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpu {
    /// What its maker calls it.
    pub name: String,
    /// The version of its instructions: 87.
    pub sm: u32,
    /// Processors that blocks are spread over.
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Whether that is the host's.
    pub unified: bool,
    /// The newest CUDA that its driver knows: 12.6.
    pub driver: String,
    /// What engines for it call their target, if there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

const ID: &str = "gpu";

/// A finding for each card, or why there is none.
pub(crate) fn check(gpus: &Gpus) -> Vec<Finding> {
    if let Some(why) = &gpus.missing {
        let finding =
            Finding::new(Severity::Warning, ID, "a GPU is here, and no engine runs on it");
        return vec![finding.seen(why).because(
            "Engines for GPUs need the driver's own library and nothing else of CUDA. Without it \
             the processors' engines run.",
        )];
    }
    gpus.cards.iter().map(|card| of_card(card, &gpus.compilers)).collect()
}

fn of_card(card: &Gpu, compilers: &[String]) -> Finding {
    let Gpu { name, sm, multiprocessors, memory_bytes, unified, driver, target } = card;
    let whose = if *unified { "shared with the processors" } else { "of its own" };
    let memory = size(*memory_bytes);
    let title = format!("{name}, sm_{sm}, {multiprocessors} multiprocessors, {memory} {whose}");
    let Some(target) = target else {
        return Finding::new(Severity::Note, ID, title)
            .seen(format!("its driver knows CUDA {driver}"))
            .because("No engines are built for its instructions; the processors' run.");
    };
    let compiler = compilers.iter().find(|compiler| compiler.starts_with(target.as_str()));
    let compiler = compiler.map_or_else(
        || format!("no NVRTC compiles for {target} here: engines come from elsewhere"),
        |compiler| format!("kernels are compiled here for {compiler}"),
    );
    let finding = Finding::new(Severity::Ok, ID, title);
    finding.seen(format!("its driver knows CUDA {driver}")).seen(compiler)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orin() -> Gpu {
        Gpu {
            name: "Orin".to_owned(),
            sm: 87,
            multiprocessors: 8,
            memory_bytes: 8_000_000_000,
            unified: true,
            driver: "12.6".to_owned(),
            target: Some("cuda-sm87".to_owned()),
        }
    }

    #[track_caller]
    fn check(gpus: &Gpus, severity: Severity, title: &str, evidence: &str) {
        let found = super::check(gpus);
        assert_eq!((found.len(), found[0].severity), (1, severity));
        assert_eq!(found[0].title, title);
        assert!(found[0].evidence.iter().any(|line| line == evidence), "{:?}", found[0].evidence);
    }

    #[test]
    fn a_card_is_told_with_what_builds_for_it() {
        let title = "Orin, sm_87, 8 multiprocessors, 7.5 GiB shared with the processors";
        let without = Gpus { cards: vec![orin()], ..Gpus::default() };
        let none = "no NVRTC compiles for cuda-sm87 here: engines come from elsewhere";
        check(&without, Severity::Ok, title, none);
        let compilers = vec!["cuda-sm87 by NVRTC 12.6.85".to_owned()];
        let with = Gpus { compilers, ..without };
        check(
            &with,
            Severity::Ok,
            title,
            "kernels are compiled here for cuda-sm87 by NVRTC 12.6.85",
        );
    }

    #[test]
    fn a_card_without_engines_is_a_note_and_one_without_a_driver_a_warning() {
        let old = Gpu { sm: 75, unified: false, target: None, ..orin() };
        let gpus = Gpus { cards: vec![old], ..Gpus::default() };
        let title = "Orin, sm_75, 8 multiprocessors, 7.5 GiB of its own";
        check(&gpus, Severity::Note, title, "its driver knows CUDA 12.6");
        let gpus = Gpus { missing: Some("no libcuda".to_owned()), ..Gpus::default() };
        check(&gpus, Severity::Warning, "a GPU is here, and no engine runs on it", "no libcuda");
        assert!(super::check(&Gpus::default()).is_empty());
    }
}

//! Says which device engines run on: what `--device` asks for, which card there is, and why it is not the GPU.
//!
//! The driver is asked only where that matters: where a deployment has an engine for GPUs, or the command line names one.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use smelt_cuda::{CardFacts, CudaTarget, NoCard, Sm};

/// What engines of processors call their target.
pub(crate) const PROCESSORS: &str = "cpu";
/// What a card is called.
pub(crate) const CUDA: &str = "cuda";

/// What `--device` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The GPU where card and engine agree, else the processors.
    #[default]
    Auto,
    /// The processors.
    Processors,
    /// The card of this number.
    Card(u32),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |rest: &str| rest.strip_prefix(':')?.parse().ok();
        match text {
            "auto" => Ok(Self::Auto),
            PROCESSORS => Ok(Self::Processors),
            CUDA => Ok(Self::Card(0)),
            _ => text
                .strip_prefix(CUDA)
                .and_then(number)
                .map(Self::Card)
                .ok_or_else(|| "auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Processors => f.write_str(PROCESSORS),
            Self::Card(ordinal) => write!(f, "{CUDA}:{ordinal}"),
        }
    }
}

/// Most cards of one machine: more is a mistake.
const CARDS_MAX: usize = 64;

/// What `--device` asks for where several cards may answer together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceChoices {
    first: DeviceChoice,
    /// Cards beside the first.
    others: Vec<u32>,
}

impl DeviceChoices {
    /// The only device, or the first of several.
    pub(crate) fn first(&self) -> DeviceChoice {
        self.first
    }

    /// The numbers of all cards behind the first.
    pub(crate) fn others(&self) -> &[u32] {
        &self.others
    }
}

impl FromStr for DeviceChoices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = || "auto, cpu, cuda, cuda:N, or several cards as in cuda:0,cuda:1".to_owned();
        let all = text.split(',').map(DeviceChoice::from_str).collect::<Result<Vec<_>, _>>();
        let all = all.map_err(|_| words())?;
        if let [first] = all[..] {
            return Ok(Self { first, others: Vec::new() });
        }
        let ordinal = |choice: &DeviceChoice| match choice {
            DeviceChoice::Card(ordinal) => Some(*ordinal),
            DeviceChoice::Auto | DeviceChoice::Processors => None,
        };
        let mut cards = all.iter().map(ordinal).collect::<Option<Vec<u32>>>().ok_or_else(words)?;
        if cards.len() > CARDS_MAX {
            return Err(format!("{CARDS_MAX} cards at most"));
        }
        let is_twice = |(at, card): (usize, &u32)| cards[..at].contains(card).then_some(*card);
        if let Some(card) = cards.iter().enumerate().find_map(is_twice) {
            return Err(format!("each card once; {CUDA}:{card} is named twice"));
        }
        Ok(Self { first: all[0], others: cards.split_off(1) })
    }
}

impl fmt::Display for DeviceChoices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.others.iter().try_for_each(|card| write!(f, ",{CUDA}:{card}"))
    }
}

static WANTED: OnceLock<DeviceChoice> = OnceLock::new();

/// Lets all engines of this process run on what the command line asks for.
pub(crate) fn want(wanted: DeviceChoice) {
    // A command is one, and asks once.
    let _ = WANTED.set(wanted);
}

/// What was asked for; of who asked for nothing, whatever is there.
pub(crate) fn wanted() -> DeviceChoice {
    WANTED.get().copied().unwrap_or_default()
}

/// The card that engines for GPUs run on here, as the driver tells it once.
pub(crate) fn card() -> Result<CardFacts, NoCard> {
    static CARD: OnceLock<Result<CardFacts, NoCard>> = OnceLock::new();
    CARD.get_or_init(|| found(wanted())).clone()
}

/// The card of a choice, as the driver tells it now.
pub(crate) fn found(wanted: DeviceChoice) -> Result<CardFacts, NoCard> {
    one(wanted, smelt_cuda::cards()?)
}

/// The card that was asked for, else the first.
fn one(wanted: DeviceChoice, cards: Vec<CardFacts>) -> Result<CardFacts, NoCard> {
    let ordinal = match wanted {
        DeviceChoice::Card(ordinal) => ordinal,
        DeviceChoice::Auto | DeviceChoice::Processors => 0,
    };
    let count = cards.len() as u32;
    cards.into_iter().nth(ordinal as usize).ok_or(NoCard::NoSuchCard { count, ordinal })
}

/// Targets of engines that run here, best first.
pub(crate) fn targets(wanted: DeviceChoice, card: Option<&CardFacts>) -> Vec<String> {
    let card = card.filter(|_| wanted != DeviceChoice::Processors);
    let gpu = card.and_then(|card| CudaTarget::of(card.sm)).map(CudaTarget::word);
    gpu.into_iter().chain([PROCESSORS]).map(str::to_owned).collect()
}

/// What is to be said of the device that a deployment's engine runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: it is as wished.
    Fine,
    /// It runs, and the line says why it does not run on the GPU.
    Told(String),
    /// It does not run as asked for; the line says what to do.
    Refused(String),
}

/// What a deployment's engines are for, and what there is.
pub(crate) struct Situation<'a> {
    /// What was asked for.
    pub(crate) wanted: DeviceChoice,
    /// The targets of its engines.
    pub(crate) engines: &'a [String],
    /// The target of the one that was chosen.
    pub(crate) chosen: &'a str,
    /// The SM of a GPU that is here, by what files say.
    pub(crate) seen: Option<Sm>,
}

/// Judges the choice; `card` asks the driver.
pub(crate) fn judge(
    situation: &Situation<'_>,
    card: impl FnOnce() -> Result<CardFacts, NoCard>,
) -> Verdict {
    let Situation { wanted, engines, chosen, seen } = situation;
    let is_for_gpus = *chosen != PROCESSORS;
    match wanted {
        DeviceChoice::Processors if is_for_gpus => Verdict::Refused(format!(
            "--device cpu: the engine is for {chosen} alone; build one with target = \"cpu\""
        )),
        DeviceChoice::Processors => Verdict::Fine,
        DeviceChoice::Card(_) => match card() {
            Ok(card) if CudaTarget::of(card.sm).map(CudaTarget::word) == Some(*chosen) => {
                Verdict::Fine
            }
            Ok(card) => {
                Verdict::Refused(format!("--device {wanted}: {}", none_for(engines, &card)))
            }
            Err(why) => Verdict::Refused(format!("--device {wanted}: {why}")),
        },
        DeviceChoice::Auto if is_for_gpus => match card() {
            Ok(card) if CudaTarget::of(card.sm).map(CudaTarget::word) == Some(*chosen) => {
                Verdict::Fine
            }
            Ok(card) => Verdict::Refused(none_for(engines, &card)),
            Err(why) => Verdict::Refused(format!("the engine is for {chosen}, and {why}")),
        },
        DeviceChoice::Auto if engines.iter().any(|engine| engine != PROCESSORS) => match card() {
            Ok(card) => Verdict::Told(format!("it runs on the CPU: {}", none_for(engines, &card))),
            Err(why) => Verdict::Told(format!("it runs on the CPU: {why}")),
        },
        DeviceChoice::Auto => match seen.and_then(CudaTarget::of) {
            Some(target) => Verdict::Told(format!(
                "it runs on the CPU: the deployment has no engine for the GPU; build one with target = \"{}\"",
                target.word()
            )),
            None => Verdict::Fine,
        },
    }
}

/// Why a card runs none of the engines.
fn none_for(engines: &[String], card: &CardFacts) -> String {
    let (engines, CardFacts { name, sm, .. }) = (engines.join(" and "), card);
    match CudaTarget::of(*sm) {
        Some(target) if engines.contains(target.word()) => {
            format!("the engine for {} does not fit {name}", target.word())
        }
        Some(target) => format!(
            "the engines are for {engines}, and {name} is {sm}; build one with target = \"{}\"",
            target.word()
        ),
        None => {
            format!("the engines are for {engines}, and none are built for {name}, which is {sm}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card_of(sm: u32) -> CardFacts {
        CardFacts {
            ordinal: 0,
            name: "NVIDIA A1".to_owned(),
            sm: Sm(sm),
            multiprocessors: 8,
            memory_bytes: 8 << 30,
            unified: false,
            shared_bytes_max: 99 << 10,
            l2_bytes: 2 << 20,
            driver: 12060,
        }
    }

    #[test]
    fn devices_have_words() {
        for (text, wanted) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Processors),
            ("cuda:0", DeviceChoice::Card(0)),
            ("cuda:12", DeviceChoice::Card(12)),
        ] {
            assert_eq!((text.parse(), wanted.to_string().as_str()), (Ok(wanted), text));
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Card(0)));
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:a", "cuda0", "cuda:0,cuda:1"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn several_cards_are_named_each_once() {
        for text in ["auto", "cpu", "cuda:3", "cuda:0,cuda:1", "cuda:2,cuda:0,cuda:7"] {
            assert_eq!(text.parse::<DeviceChoices>().unwrap().to_string(), text);
        }
        let several: DeviceChoices = "cuda,cuda:1".parse().unwrap();
        assert_eq!((several.first(), several.others()), (DeviceChoice::Card(0), &[1][..]));
        let refused = |text: &str| text.parse::<DeviceChoices>().unwrap_err();
        for text in ["", ",", "cuda:0,", "cpu,cuda:1", "cuda:0,auto", "cuda:0 cuda:1"] {
            assert!(refused(text).contains("cuda:0,cuda:1"), "{text}");
        }
        assert!(refused("cuda:1,cuda:0,cuda:1").contains("cuda:1 is named twice"));
        let many: Vec<String> = (0..65).map(|card| format!("cuda:{card}")).collect();
        assert!(refused(&many.join(",")).contains("64"));
    }

    #[test]
    fn a_card_runs_engines_for_its_sm_before_those_of_processors() {
        let of = |wanted, sm: Option<u32>| targets(wanted, sm.map(card_of).as_ref());
        assert_eq!(of(DeviceChoice::Auto, Some(87)), ["cuda-sm87", "cpu"]);
        assert_eq!(of(DeviceChoice::Card(0), Some(90)), ["cuda-sm90", "cpu"]);
        assert_eq!(of(DeviceChoice::Auto, Some(86)), ["cpu"], "no engines are built for it");
        assert_eq!(
            (of(DeviceChoice::Processors, Some(87)), of(DeviceChoice::Auto, None)),
            (vec!["cpu".to_owned()], vec!["cpu".to_owned()])
        );
    }

    /// `engines` begins with the one that was chosen; a card is its SM.
    #[track_caller]
    fn check(wanted: &str, engines: &[&str], card: Result<u32, NoCard>, expect: Verdict) {
        let owned: Vec<String> = engines.iter().map(|engine| (*engine).to_owned()).collect();
        let seen = card.as_ref().ok().map(|&sm| Sm(sm));
        let wanted = wanted.parse().unwrap();
        let situation = Situation { wanted, engines: &owned, chosen: engines[0], seen };
        assert_eq!(judge(&situation, || card.map(card_of)), expect);
    }

    fn told(text: &str) -> Verdict {
        Verdict::Told(format!("it runs on the CPU: {text}"))
    }

    fn refused(text: &str) -> Verdict {
        Verdict::Refused(text.to_owned())
    }

    const NO_LIBRARY: &str = "no libcuda.so.1 is on this machine; install NVIDIA's driver, or name the file in SMELT_LIBCUDA";

    #[test]
    fn what_is_asked_for_and_there_needs_no_word() {
        let both = ["cuda-sm87", "cpu"];
        check("auto", &both, Ok(87), Verdict::Fine);
        check("cuda", &both, Ok(87), Verdict::Fine);
        check("cpu", &["cpu", "cuda-sm87"], Ok(87), Verdict::Fine);
        check("auto", &["cpu"], Err(NoCard::NoLibrary), Verdict::Fine);
        check("auto", &["cpu"], Ok(86), Verdict::Fine);
    }

    #[test]
    fn who_takes_the_processors_instead_is_told_why() {
        let both = ["cpu", "cuda-sm87"];
        check("auto", &both, Err(NoCard::NoLibrary), told(NO_LIBRARY));
        check(
            "auto",
            &both,
            Ok(90),
            told(
                "the engines are for cpu and cuda-sm87, and NVIDIA A1 is sm_90; build one with target = \"cuda-sm90\"",
            ),
        );
        check("auto", &both, Ok(87), told("the engine for cuda-sm87 does not fit NVIDIA A1"));
        check(
            "auto",
            &["cpu"],
            Ok(87),
            told("the deployment has no engine for the GPU; build one with target = \"cuda-sm87\""),
        );
    }

    #[test]
    fn what_is_asked_for_and_absent_is_refused_in_one_line() {
        check(
            "cuda",
            &["cpu"],
            Err(NoCard::NoLibrary),
            refused(&format!("--device cuda:0: {NO_LIBRARY}")),
        );
        let gone = NoCard::NoSuchCard { count: 1, ordinal: 1 };
        check(
            "cuda:1",
            &["cuda-sm87"],
            Err(gone),
            refused("--device cuda:1: the driver finds 1 cards, and card 1 is none of them"),
        );
        check(
            "cuda",
            &["cpu"],
            Ok(90),
            refused(
                "--device cuda:0: the engines are for cpu, and NVIDIA A1 is sm_90; build one with target = \"cuda-sm90\"",
            ),
        );
        check(
            "cuda",
            &["cuda-sm87"],
            Ok(86),
            refused(
                "--device cuda:0: the engines are for cuda-sm87, and none are built for NVIDIA A1, which is sm_86",
            ),
        );
        check(
            "cpu",
            &["cuda-sm87"],
            Ok(87),
            refused(
                "--device cpu: the engine is for cuda-sm87 alone; build one with target = \"cpu\"",
            ),
        );
        check(
            "auto",
            &["cuda-sm87"],
            Err(NoCard::NoLibrary),
            refused(&format!("the engine is for cuda-sm87, and {NO_LIBRARY}")),
        );
        check(
            "auto",
            &["cuda-sm87"],
            Ok(90),
            refused(
                "the engines are for cuda-sm87, and NVIDIA A1 is sm_90; build one with target = \"cuda-sm90\"",
            ),
        );
    }

    #[test]
    fn the_card_that_is_asked_for_is_taken() {
        let cards = || vec![card_of(87), CardFacts { ordinal: 1, ..card_of(90) }];
        assert_eq!(one(DeviceChoice::Auto, cards()).unwrap().ordinal, 0);
        assert_eq!(one(DeviceChoice::Card(1), cards()).unwrap().sm, Sm(90));
        let error = one(DeviceChoice::Card(2), cards()).unwrap_err();
        assert_eq!(error, NoCard::NoSuchCard { count: 2, ordinal: 2 });
    }
}

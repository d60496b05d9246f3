//! Tries settings and samplers: golden distributions of transformers, and what must hold for any row.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use smelt_random::Random;

use super::*;

/// An answer whose tokens are chosen on the host.
#[derive(Debug)]
struct Sampler {
    draws: super::Sampler,
    chooser: Chooser,
}

impl Sampler {
    fn new(settings: &Settings, prompt: &[u32], vocab: usize) -> Result<Self, SettingError> {
        let draws = super::Sampler::new(settings, prompt, vocab)?;
        Ok(Self { draws, chooser: Chooser::default() })
    }

    fn choose(&mut self, logits: &[f32], mask: Option<Mask<'_>>) -> Result<Chosen, NotFinite> {
        let chosen = self.chooser.choose(logits, &self.draws.draw(mask))?;
        self.count(chosen.token);
        Ok(chosen)
    }

    fn count(&mut self, token: u32) {
        self.draws.count(token);
    }

    fn distribution(&mut self, logits: &[f32]) -> Result<Vec<(u32, f64)>, NotFinite> {
        self.chooser.distribution(logits, &self.draws.draw(None))
    }
}

/// A row is copied only where something changes it.
#[test]
fn only_bias_and_penalties_adjust_a_row() {
    let adjusts = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        Draw { settings: &settings, ..super::GREEDY }.is_adjusting()
    };
    assert!(!adjusts(|_| {}));
    assert!(adjusts(|s| s.logit_bias = vec![(0, 1.0)]));
    assert!(adjusts(|s| s.repetition_penalty = 1.1));
    assert!(adjusts(|s| s.presence_penalty = 1.0));
    assert!(adjusts(|s| s.frequency_penalty = 1.0));
}

#[track_caller]
fn check(change: impl Fn(&mut Settings), expect: &str) {
    let mut settings = Settings::default();
    change(&mut settings);
    let said = settings.check().map_or_else(|error| error.to_string(), |()| String::new());
    assert_eq!(said, expect);
}

#[test]
fn settings_out_of_range_are_named() {
    check(|_| {}, "");
    check(|s| s.temperature = 2.0, "");
    check(|s| s.temperature = -0.1, "temperature must be 0 to 2, not -0.1");
    check(|s| s.temperature = f32::NAN, "temperature must be 0 to 2, not NaN");
    check(|s| s.top_p = 0.0, "top_p must be more than 0 and at most 1, not 0");
    check(|s| s.top_p = f32::NAN, "top_p must be more than 0 and at most 1, not NaN");
    check(|s| s.min_p = 1.5, "min_p must be 0 to 1, not 1.5");
    check(|s| s.repetition_penalty = 0.0, "repetition_penalty must be 0.1 to 10, not 0");
    check(|s| s.presence_penalty = 3.0, "presence_penalty must be -2 to 2, not 3");
    check(|s| s.frequency_penalty = -3.0, "frequency_penalty must be -2 to 2, not -3");
    check(|s| s.logit_bias = vec![(0, 101.0)], "logit_bias must be -100 to 100, not 101");
    let many = "entries of logit_bias must be at most 1024, not 1025";
    check(|s| s.logit_bias = vec![(0, 0.0); 1025], many);
    check(|s| s.top_logprobs = Some(21), "top_logprobs must be at most 20, not 21");
    check(|s| s.logit_bias = vec![(0, 0.0); BIASES_MAX], "");
    check(|s| s.top_logprobs = Some(TOP_LOGPROBS_MAX), "");
}

#[test]
fn the_default_and_the_smallest_temperatures_are_greedy() {
    assert!(Settings::default().is_greedy());
    assert!(Settings { temperature: 9e-6, ..Settings::default() }.is_greedy());
    assert!(!Settings { temperature: 2e-5, ..Settings::default() }.is_greedy());
    assert!(!Settings { temperature: TEMPERATURE_MIN, ..Settings::default() }.is_greedy());
}

/// Fields of `cases.json`; its README says what they mean.
#[derive(Deserialize)]
struct Golden {
    settings: serde_json::Map<String, serde_json::Value>,
    prompt: Vec<u32>,
    said: Vec<u32>,
    logits: Vec<f32>,
    greedy: u32,
    greedy_logprob: f32,
    top_logprobs: Vec<(u32, f32)>,
    probabilities: Vec<(u32, f64)>,
}

impl Golden {
    fn all() -> Vec<Self> {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/sampling");
        serde_json::from_str(&fs::read_to_string(data.join("cases.json")).unwrap()).unwrap()
    }

    /// Every setting of the case; neutral where it names none.
    fn settings(&self) -> Settings {
        let mut settings = Settings { temperature: 1.0, ..Settings::default() };
        for (name, value) in &self.settings {
            let number = value.as_f64().unwrap_or_default() as f32;
            match &name[..] {
                "temperature" => settings.temperature = number,
                "top_k" => settings.top_k = number as usize,
                "top_p" => settings.top_p = number,
                "min_p" => settings.min_p = number,
                "repetition_penalty" => settings.repetition_penalty = number,
                "presence_penalty" => settings.presence_penalty = number,
                "frequency_penalty" => settings.frequency_penalty = number,
                "logit_bias" => {
                    settings.logit_bias = serde_json::from_value(value.clone()).unwrap();
                }
                name => panic!("no setting {name}"),
            }
        }
        settings
    }

    /// A sampler that has said what the case says.
    fn sampler(&self, settings: &Settings) -> Sampler {
        let mut sampler = Sampler::new(settings, &self.prompt, self.logits.len()).unwrap();
        self.said.iter().for_each(|token| sampler.count(*token));
        sampler
    }
}

#[test]
fn distributions_are_those_of_transformers() {
    let golden = Golden::all();
    assert_eq!(golden.len(), 60);
    for case in golden {
        let found = case.sampler(&case.settings()).distribution(&case.logits).unwrap();
        let tokens = |list: &[(u32, f64)]| list.iter().map(|(token, _)| *token).collect::<Vec<_>>();
        assert_eq!(tokens(&found), tokens(&case.probabilities), "{:?}", case.settings);
        for (found, expect) in found.iter().zip(&case.probabilities) {
            let off = (found.1 - expect.1).abs();
            assert!(
                off < 1e-6 && off < 1e-8 + 2e-5 * expect.1,
                "{found:?} {expect:?} {:?}",
                case.settings
            );
        }
    }
}

#[test]
fn greedy_tokens_and_logprobs_are_those_of_transformers() {
    for case in Golden::all() {
        let settings = Settings { temperature: 0.0, top_logprobs: Some(5), ..case.settings() };
        let mut sampler = case.sampler(&settings);
        let choice = sampler.choose(&case.logits, None).unwrap();
        assert_eq!(choice.token, case.greedy, "{:?}", case.settings);
        let logprobs = choice.logprobs.unwrap();
        assert!((logprobs.chosen - case.greedy_logprob).abs() < 2e-6);
        assert_eq!(logprobs.top.len(), 5);
        for (found, expect) in logprobs.top.iter().zip(&case.top_logprobs) {
            assert!(
                found.0 == expect.0 && (found.1 - expect.1).abs() < 2e-6,
                "{found:?} {expect:?}"
            );
        }
    }
}

/// So many logits; of some sizes many are equal.
fn any_row(random: &mut Random, tokens: usize) -> Vec<f32> {
    let steps: f32 = random.pick(&[3.0, 50.0, 1e6]);
    (0..tokens).map(|_| (random.unit() * steps).round() / steps * 16.0 - 8.0).collect()
}

fn any_settings(random: &mut Random) -> Settings {
    let top_k = random.pick(&[0, 0, 1, 5, 300]);
    let top_p = if random.coin() { 1.0 } else { 0.01 + 0.98 * random.unit() };
    let min_p = if random.coin() { 0.0 } else { random.unit() };
    let temperature = 0.05 + 1.9 * random.unit();
    let seed = random.next_u64();
    Settings { temperature, top_k, top_p, min_p, seed, ..Settings::default() }
}

#[test]
fn any_distribution_is_whole_and_holds_the_smallest_set() {
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let tokens = 1 + random.below(700);
        let (row, settings) = (any_row(&mut random, tokens), any_settings(&mut random));
        let distribution = |settings: &Settings| {
            Sampler::new(settings, &[], tokens).unwrap().distribution(&row).unwrap()
        };
        let kept = distribution(&settings);
        let sum: f64 = kept.iter().map(|(_, part)| part).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{settings:?}: {sum}");
        assert!(settings.top_k == 0 || kept.len() <= settings.top_k, "{settings:?}");
        // Against all that top-k leaves: those kept reach top-p, and not without the least likely.
        let before = distribution(&Settings { top_p: 1.0, min_p: 0.0, ..settings.clone() });
        let cut = distribution(&Settings { min_p: 0.0, ..settings.clone() });
        let mut parts: Vec<f64> = before
            .iter()
            .filter(|(token, _)| cut.iter().any(|(kept, _)| kept == token))
            .map(|(_, part)| *part)
            .collect();
        parts.sort_by(f64::total_cmp);
        let sum: f64 = parts.iter().sum();
        let top_p = f64::from(settings.top_p);
        assert!(sum > top_p - 1e-6, "{settings:?}: {sum}");
        assert!(top_p == 1.0 || parts.len() == 1 || sum - parts[0] < top_p + 1e-6, "{settings:?}");
        // And min-p takes from these exactly the too unlikely.
        let most = parts[parts.len() - 1];
        let likely =
            parts.iter().filter(|part| **part > (f64::from(settings.min_p) + 1e-6) * most).count();
        let maybe =
            parts.iter().filter(|part| **part > (f64::from(settings.min_p) - 1e-6) * most).count();
        assert!((likely..=maybe).contains(&kept.len()), "{settings:?}");
    }
}

#[test]
fn no_temperature_and_one_candidate_are_greedy() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let tokens = 1 + random.below(300);
        let row = any_row(&mut random, tokens);
        let settings = any_settings(&mut random);
        let choose = |settings: Settings| {
            Sampler::new(&settings, &[], row.len()).unwrap().choose(&row, None).unwrap().token
        };
        let greedy = choose(Settings::default());
        let largest = row.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(Some(greedy as usize), row.iter().position(|logit| *logit == largest));
        assert_eq!(choose(Settings { temperature: 0.0, ..settings.clone() }), greedy);
        assert_eq!(choose(Settings { top_k: 1, ..settings.clone() }), greedy);
        // Nearly none finds one of the equally likely.
        let near = choose(Settings { temperature: 2e-5, ..settings });
        assert!(largest - row[near as usize] < 1e-3);
    }
}

#[test]
fn draws_are_as_frequent_as_they_are_likely() {
    /// Passed once in a thousand with so many degrees of freedom (Wilson and Hilferty).
    fn limit(freedom: f64) -> f64 {
        let part = 2.0 / (9.0 * freedom);
        freedom * (1.0 - part + 3.09 * part.sqrt()).powi(3)
    }
    const DRAWS: u32 = 20_000;
    let changes: [fn(&mut Settings); 4] =
        [|_| {}, |s| s.top_k = 9, |s| s.top_p = 0.9, |s| s.min_p = 0.1];
    // Two hundred tokens are several blocks of weights.
    let row: Vec<f32> = (0..200).map(|token| ((token * 37) % 50) as f32 / 12.0).collect();
    for change in changes {
        let mut settings = Settings { temperature: 0.9, seed: 11, ..Settings::default() };
        change(&mut settings);
        let mut sampler = Sampler::new(&settings, &[], row.len()).unwrap();
        let distribution = sampler.distribution(&row).unwrap();
        let mut counts = vec![0u32; row.len()];
        for _ in 0..DRAWS {
            counts[sampler.choose(&row, None).unwrap().token as usize] += 1;
        }
        let expected = |part: f64| part * f64::from(DRAWS);
        let mut chi_square = 0.0;
        for &(token, part) in &distribution {
            let count = f64::from(std::mem::take(&mut counts[token as usize]));
            chi_square += (count - expected(part)).powi(2) / expected(part);
        }
        let limit = limit(distribution.len() as f64 - 1.0);
        assert!(chi_square < limit, "{settings:?}: {chi_square} of {limit}");
        assert_eq!(counts.iter().sum::<u32>(), 0, "{settings:?}: only what counts is drawn");
    }
}

#[test]
fn equal_seeds_give_equal_tokens_at_any_place_of_a_batch() {
    let mut random = Random::new(3);
    let rows: Vec<Vec<f32>> = (0..40).map(|_| any_row(&mut random, 500)).collect();
    let settings: Vec<Settings> = (0..8).map(|_| any_settings(&mut random)).collect();
    let sampler = |settings: &Settings| Sampler::new(settings, &[1, 2], 500).unwrap();
    let alone = |settings: &Settings| -> Vec<u32> {
        let mut sampler = sampler(settings);
        rows.iter().map(|row| sampler.choose(row, None).unwrap().token).collect()
    };
    // Eight answers step together; each begins one step after the one before.
    let mut batch: Vec<Sampler> = settings.iter().map(sampler).collect();
    let mut said = vec![Vec::new(); batch.len()];
    for step in 0..rows.len() + batch.len() {
        for (slot, sampler) in batch.iter_mut().enumerate() {
            if let Some(row) = step.checked_sub(slot).and_then(|step| rows.get(step)) {
                said[slot].push(sampler.choose(row, None).unwrap().token);
            }
        }
    }
    for (settings, said) in settings.iter().zip(&said) {
        assert_eq!(*said, alone(settings));
    }
    let seeded = |seed| alone(&Settings { temperature: 1.0, seed, ..Settings::default() });
    assert_ne!(seeded(1), seeded(2), "the seed matters");
}

#[test]
fn penalties_see_what_was_chosen() {
    let settings = Settings { frequency_penalty: 1.0, ..Settings::default() };
    let mut sampler = Sampler::new(&settings, &[0], 3).unwrap();
    let said: Vec<u32> =
        (0..6).map(|_| sampler.choose(&[2.5, 1.8, -1.0], None).unwrap().token).collect();
    // The first two of the rows: 2.5 1.8, 1.5 1.8, 1.5 0.8, 0.5 0.8, 0.5 -0.2, -0.5 -0.2.
    assert_eq!(said, [0, 1, 0, 1, 0, 1]);
}

#[test]
fn only_the_answer_pays_for_presence_and_frequency() {
    let settings = Settings {
        repetition_penalty: 2.0,
        presence_penalty: 1.0,
        frequency_penalty: 1.0,
        ..Settings::default()
    };
    let mut sampler = Sampler::new(&settings, &[0], 2).unwrap();
    let said: Vec<u32> = (0..3).map(|_| sampler.choose(&[4.0, 1.5], None).unwrap().token).collect();
    // The rows: 2 1.5, then 0 1.5, then 0 -1.25.
    assert_eq!(said, [0, 1, 0]);
}

#[test]
fn a_set_ends_where_it_has_its_probability() {
    // Equal weights of one add up without rounding, so that the bound itself is met.
    let kept = |tokens: usize, settings: &Settings| {
        let row = vec![0.0; tokens];
        Sampler::new(settings, &[], tokens).unwrap().distribution(&row).unwrap().len()
    };
    let half = Settings { temperature: 1.0, top_p: 0.5, ..Settings::default() };
    assert_eq!(kept(2, &half), 1);
    assert_eq!(kept(64, &half), 32);
    assert_eq!(kept(128, &half), 64, "of more than are looked at first");
    assert_eq!(kept(400, &half), 200);
    let of_ten = Settings { top_k: 10, ..half };
    assert_eq!(kept(400, &of_ten), 5);
}

#[test]
fn rows_that_are_not_finite_are_refused_by_every_way() {
    let mut random = Random::new(9);
    for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 63, 99] {
            let mut row = any_row(&mut random, 100);
            row[place] = fault;
            for seed in 0..20 {
                let mut settings = any_settings(&mut Random::new(seed));
                settings.top_logprobs = (seed % 2 == 0).then_some(3);
                settings.repetition_penalty = 1.0 + (seed % 3) as f32;
                let mut sampler = Sampler::new(&settings, &[place as u32], 100).unwrap();
                assert_eq!(sampler.choose(&row, None), Err(NotFinite));
            }
            assert_eq!(
                Sampler::new(&Settings::GREEDY, &[], 100).unwrap().choose(&row, None),
                Err(NotFinite)
            );
        }
    }
    assert_eq!(Sampler::new(&Settings::GREEDY, &[], 0).unwrap().choose(&[], None), Err(NotFinite));
    // Logits that only a penalty takes out of range.
    let settings = Settings { repetition_penalty: 10.0, ..Settings::default() };
    let mut sampler = Sampler::new(&settings, &[0], 2).unwrap();
    assert_eq!(sampler.choose(&[-3e38, 0.0], None), Err(NotFinite));
}

#[test]
fn a_mask_leaves_what_it_allows_and_all_of_it_changes_nothing() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let tokens = 1 + random.below(3000);
        let (row, mut settings) = (any_row(&mut random, tokens), any_settings(&mut random));
        settings.frequency_penalty = (seed % 2) as f32;
        settings.temperature *= (seed % 3) as f32 / 2.0;
        settings.top_logprobs = Some(3);
        let choose = |mask: Option<&[u32]>| {
            let mut sampler = Sampler::new(&settings, &[], tokens).unwrap();
            let choice = sampler.choose(&row, mask.map(Mask::new)).unwrap();
            (choice.token, choice.logprobs.unwrap())
        };
        let words: Vec<u32> = (0..tokens.div_ceil(32))
            .map(|_| random.next_u64() as u32 & random.next_u64() as u32)
            .collect();
        let all = vec![u32::MAX; words.len()];
        assert_eq!(choose(None), choose(Some(&all)), "{settings:?}");
        let is_empty = Mask::new(&words).tokens().all(|token| token as usize >= tokens);
        let mut sampler = Sampler::new(&settings, &[], tokens).unwrap();
        let choice = sampler.choose(&row, Some(Mask::new(&words)));
        if is_empty {
            assert_eq!(choice, Err(NotFinite));
            continue;
        }
        let choice = choice.unwrap();
        assert!(Mask::new(&words).allows(choice.token), "{settings:?}");
        let (_, plain) = choose(None);
        assert_eq!(choice.logprobs.unwrap().top, plain.top, "the model's own distribution");
        // One that allows nothing else is chosen however unlikely it is.
        let only = random.below(tokens);
        let mut words = vec![0; only / 32 + 1];
        words[only / 32] = 1 << (only % 32);
        assert_eq!(choose(Some(&words)).0 as usize, only);
    }
}

#[test]
fn what_a_mask_takes_away_must_be_finite_too() {
    let mut sampler = Sampler::new(&Settings::GREEDY, &[], 3).unwrap();
    assert_eq!(sampler.choose(&[0.0, f32::NAN, 1.0], Some(Mask::new(&[0b101]))), Err(NotFinite));
}

#[test]
fn a_bias_on_no_token_of_the_model_is_refused() {
    let settings = Settings { logit_bias: vec![(7, 1.0)], ..Settings::default() };
    let error = Sampler::new(&settings, &[], 7).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias names token 7, but the model has 7");
    assert!(Sampler::new(&settings, &[], 8).is_ok());
}

/// Devices choose later than they are asked.
#[test]
fn a_draw_that_is_kept_is_the_draw_that_was_made() {
    let settings = Settings { temperature: 1.0, frequency_penalty: 0.5, ..Settings::default() };
    let mut sampler = Sampler::new(&settings, &[], 70).unwrap();
    sampler.count(3);
    let mask = Mask::new(&[0, 1 << 8]);
    let draw = sampler.draws.draw(Some(mask));
    let kept = OwnDraw::of(&draw);
    let again = kept.as_draw();
    assert_eq!((again.settings, again.counts), (&settings, draw.counts));
    assert_eq!((again.mask, again.uniform), (Some(mask), draw.uniform));
}

//! Runs services of several decoders: what is answered is what one would answer, and a device that is lost takes no more
//! with it than it was doing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use smelt_backend::Decoder;
use smelt_backend::sampling::Chosen;
use smelt_backend::simulated::{Behaviour, SimulatedDecoder};
use smelt_random::Random;
use smelt_runtime::deployment::{Deployment, Text};
use smelt_runtime::generation::{Finish, SamplingParams};
use smelt_runtime::prepare::Prepared;
use smelt_runtime::service::{
    Client, Event, EventReceiver, Failure, KvMemory, Options, Priority, Refused, Reopen,
    ReplicaStatus, Seat, Service,
};
use smelt_runtime::vision::Vision;

use crate::patterns::{Asked, alone, asked, behaviour, engine, kv, text};

/// Answers of each replica at once, and its slots.
const RUNNING_MAX: usize = 2;
const SLOTS: usize = 4;
/// Steps of a decoder before requests come: a prompt, then batches of every size.
const WARM_STEPS: u64 = 1 + RUNNING_MAX as u64;

fn decoder(vocab: usize, lost_after: u64) -> Box<dyn Decoder> {
    let behaviour = Behaviour { lost_after, ..behaviour(vocab) };
    Box::new(SimulatedDecoder::open(kv(SLOTS), behaviour))
}

/// Steps after which a decoder is lost, or never, and what opens it anew.
type Kind = (Option<u64>, Option<Reopen>);

fn service(text: &Arc<Text>, kinds: Vec<Kind>) -> Service {
    let vision = Vision::new(text.spec.image.clone().unwrap(), vec![engine(Duration::ZERO)]);
    let all = kinds.into_iter().enumerate().map(|(at, (steps, reopen))| {
        let seat = Seat { name: format!("cuda:{at}"), reopen };
        (seat, decoder(text.vocab, steps.map_or(0, |steps| WARM_STEPS + steps)))
    });
    let mut all: Vec<_> = all.collect();
    let (seat, llm) = all.remove(0);
    let (text, vision) = (Arc::clone(text), Some(vision.unwrap()));
    let usage = llm.kv_usage();
    let kv = KvMemory::Bytes((usage.blocks_total * usage.block_bytes) as u64);
    let options = Options { running_max: RUNNING_MAX, kv, ..Options::default() };
    let deployment = Deployment { text, vision, llm, engines: None };
    Service::start_replicas(deployment, seat, all, options, &mut |_| {}).unwrap()
}

fn sound(count: usize) -> Vec<Kind> {
    (0..count).map(|_| (None, None)).collect()
}

/// A prompt of words of its own, answered with so many tokens.
fn prompt(number: u32, tokens: u32, answer: usize) -> Asked {
    let word = |at: u32| (number * 31 + at * 7 + 1) % 200;
    Asked {
        prepared: Prepared { tokens: (0..tokens).map(word).collect(), ..Prepared::default() },
        choice_params: vec![SamplingParams { ignore_eos: true, ..SamplingParams::greedy(answer) }],
        priority: Priority::Normal,
        client: Client::default(),
        leaves: false,
    }
}

/// All that a request was answered: tokens by choice, or why it has none.
struct Heard {
    chosen: Vec<Vec<Chosen>>,
    finish: Vec<Option<Finish>>,
    cached_tokens: usize,
    failure: Option<Failure>,
}

fn hear(events: &mut EventReceiver, answers: usize) -> Heard {
    let (chosen, finish) = (vec![Vec::new(); answers], vec![None; answers]);
    let mut heard = Heard { chosen, finish, cached_tokens: 0, failure: None };
    while let Some(event) = events.wait() {
        match event {
            Event::Emitted { choice, tokens, .. } => {
                let own = |said| {
                    let smelt_runtime::service::TokenInfo { token, logprobs } = said;
                    Chosen { token, logprobs }
                };
                heard.chosen[choice].extend(tokens.into_iter().map(own));
            }
            Event::Ended { choice, finish, .. } => heard.finish[choice] = Some(finish),
            Event::Failed(failure) => heard.failure = Some(failure),
            Event::Read { cached_tokens, .. } => heard.cached_tokens = cached_tokens,
            Event::Looking { .. } | Event::Scored { .. } => {}
        }
    }
    heard
}

/// Whether an answer is what the request would be answered alone.
#[track_caller]
fn compare(text: &Text, asked: &Asked, heard: &Heard, what: &str) {
    assert_eq!(heard.failure, None, "{what}");
    for (params, (found, finish)) in
        asked.choice_params.iter().zip(heard.chosen.iter().zip(&heard.finish))
    {
        let expected = alone(text, &asked.prepared, params);
        match finish {
            Some(Finish::Full) => assert!(expected.starts_with(found), "{what}"),
            _ => assert_eq!(*found, expected, "{what}"),
        }
    }
}

#[test]
fn any_pattern_is_answered_by_several_as_each_request_alone() {
    let text = text();
    for seed in 1..=300 {
        let mut random = Random::new(seed);
        let service = service(&text, sound(random.between(2, 4) as usize));
        let mut waiting = Vec::new();
        for _ in 0..random.between(1, 12) {
            let asked = asked(&mut random, &text);
            match service.submit(asked.request()) {
                Ok(events) if !asked.leaves => waiting.push((asked, events)),
                Ok(_) | Err(Refused::TooLong { .. } | Refused::Busy { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        // What was taken is answered though nothing more is.
        service.drain();
        let refused = service.submit(prompt(1, 9, 1).request()).map(drop);
        assert!(matches!(refused, Err(Refused::Draining)), "seed {seed}");
        for (asked, mut events) in waiting {
            let heard = hear(&mut events, asked.choice_params.len());
            compare(&text, &asked, &heard, &format!("seed {seed}"));
        }
    }
}

#[test]
fn requests_are_spread_and_what_goes_on_goes_where_it_was() {
    let text = text();
    let service = service(&text, sound(2));
    let (first, second) = (prompt(1, 100, 250), prompt(2, 100, 5));
    let mut long = service.submit(first.request()).unwrap();
    let mut short = service.submit(second.request()).unwrap();
    compare(&text, &second, &hear(&mut short, 1), "the second");
    compare(&text, &first, &hear(&mut long, 1), "the first");
    // Both owe nothing: without its beginning the next would be the first one's.
    let mut on = prompt(2, 100, 5);
    on.prepared.tokens.extend([7, 8, 9]);
    let heard = hear(&mut service.submit(on.request()).unwrap(), 1);
    compare(&text, &on, &heard, "what goes on");
    assert!(heard.cached_tokens >= 96, "{}", heard.cached_tokens);
    assert_eq!((service.running_max(), service.stats().kv.block_tokens), (2 * RUNNING_MAX, 16));
    assert!(service.replicas().iter().all(|state| state.status == ReplicaStatus::Ready));
}

/// Asks `service` so much at once that all replicas answer; gives how many were answered right, and why others were not.
fn ask(service: &Service, text: &Text, from: u32) -> (usize, Vec<Failure>) {
    let all: Vec<Asked> = (from..from + 4).map(|number| prompt(number, 20, 30)).collect();
    let events: Vec<_> = all.iter().map(|asked| service.submit(asked.request()).unwrap()).collect();
    let (mut right, mut failures) = (0, Vec::new());
    for (asked, mut events) in all.iter().zip(events) {
        let heard = hear(&mut events, 1);
        match &heard.failure {
            Some(failure) => failures.push(failure.clone()),
            None => {
                compare(text, asked, &heard, "beside a device that was lost");
                right += 1;
            }
        }
    }
    (right, failures)
}

#[test]
fn a_device_that_is_lost_takes_only_its_own_requests() {
    let text = text();
    let service = service(&text, vec![(Some(10), None), (None, None)]);
    let (right, failures) = ask(&service, &text, 1);
    assert!(right >= 2 && !failures.is_empty(), "{right} {failures:?}");
    for failure in failures {
        let told = failure.to_string();
        assert!(told.contains("cuda:0 was lost: the device is lost"), "{told}");
    }
    assert!(service.is_alive());
    for from in [10, 20, 30] {
        assert_eq!(ask(&service, &text, from), (4, Vec::new()), "the other one goes on");
    }
    let states = service.replicas();
    assert_eq!(states[0].status, ReplicaStatus::Lost);
    assert!(states[0].why.as_ref().is_some_and(|why| why.starts_with("the device is lost")));
    assert_eq!((states[0].losses, states[1].losses), (1, 0));
    assert_eq!(states[1].status, ReplicaStatus::Ready);
}

#[test]
fn a_device_that_is_lost_is_opened_anew_and_goes_on() {
    let text = text();
    let vocab = text.vocab;
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let reopen: Reopen = Box::new(move || {
        count.fetch_add(1, Ordering::AcqRel);
        Ok(decoder(vocab, 0))
    });
    let service = service(&text, vec![(Some(10), Some(reopen))]);
    let (_, failures) = ask(&service, &text, 1);
    assert!(!failures.is_empty());
    for from in [10, 20] {
        assert_eq!(ask(&service, &text, from), (4, Vec::new()));
    }
    let state = service.replicas().remove(0);
    assert_eq!((state.status, state.losses), (ReplicaStatus::Ready, 1));
    assert_eq!(opened.load(Ordering::Acquire), 1);
}

#[test]
fn a_device_that_is_lost_at_once_again_is_given_up_and_a_service_without_any_says_so() {
    let text = text();
    let vocab = text.vocab;
    let reopen: Reopen = Box::new(move || Ok(decoder(vocab, 1)));
    let service = service(&text, vec![(Some(3), Some(reopen))]);
    let mut told = Vec::new();
    for from in 0..20 {
        if !service.is_alive() {
            break;
        }
        told.extend(ask(&service, &text, from * 10).1);
    }
    assert!(!told.is_empty());
    assert_eq!(service.replicas()[0].status, ReplicaStatus::Lost);
    let heard = hear(&mut service.submit(prompt(1, 9, 1).request()).unwrap(), 1);
    let failure = heard.failure.unwrap().to_string();
    assert!(failure.contains("every device of the model was lost"), "{failure}");
}

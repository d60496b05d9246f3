//! Asks a service many things at once; what each is answered must be what it is answered alone.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::shapes_model::{checkpoint, deploy, prompts};
use serde_json::Value;
use smelt_engine::BACKENDS;
use smelt_engine::llm::{KvOptions, KvType};
use smelt_runtime::deployment::Deployment;
use smelt_runtime::dialect::Thinking;
use smelt_runtime::generation::{Constraint, Finish, SamplingParams};
use smelt_runtime::grammar::Grammar;
use smelt_runtime::image::{Image, MediaItem};
use smelt_runtime::prepare::{Prepared, Question};
use smelt_runtime::prompt::Turn;
use smelt_runtime::sampling::Settings;
use smelt_runtime::service::kept::KeptError;
use smelt_runtime::service::{
    Client, Event, EventReceiver, Failure, KvMemory, Options, Priority, Refused, Request, Service,
    TokenInfo,
};
use smelt_runtime::template::Context;
use tempfile::TempDir;

const SLOTS: usize = 6;

fn start(dir: &Path, blocks: Option<u64>, options: Options) -> Service {
    let deployed = deploy(&checkpoint("shapes-vl"), dir, SLOTS);
    let block_bytes =
        Deployment::open(BACKENDS, &deployed).unwrap().llm.kv_usage().block_bytes as u64;
    let kv = blocks.map_or(KvMemory::Free, |blocks| KvMemory::Bytes(blocks * block_bytes));
    Service::start(Deployment::open(BACKENDS, &deployed).unwrap(), Options { kv, ..options })
        .unwrap()
}

fn prepared(service: &Service, question: &str, pictures: &[Image]) -> Prepared {
    let turns = [Turn::from_marked("user", question, pictures.len()).unwrap()];
    let shown: Vec<MediaItem> = pictures.iter().cloned().map(MediaItem::from).collect();
    let context = &Context::default();
    service
        .text()
        .prepare(&Question {
            turns: &turns,
            shown: &shown,
            context,
            answer_max: None,
            now_s: 0,
            reuse: None,
        })
        .unwrap()
}

fn request(prepared: Prepared, sampling_params: SamplingParams) -> Request {
    let (constraint, priority) = (Constraint::default(), Priority::Normal);
    let client = Client::default();
    Request {
        client,
        prepared,
        choice_params: vec![sampling_params],
        constraint,
        priority,
        deadline: None,
        scored: None,
    }
}

/// Everything of one answer.
fn hear(events: &mut EventReceiver) -> (String, Vec<u32>, Option<Finish>) {
    let (mut all, mut said, mut end) = (String::new(), Vec::new(), None);
    while let Some(event) = events.wait() {
        match event {
            Event::Emitted { text, tokens, .. } => {
                all += &text;
                said.extend(tokens.iter().map(|token| token.token));
            }
            Event::Ended { finish, tokens, .. } => {
                assert_eq!(tokens, said.len());
                end = Some(finish);
            }
            Event::Failed(failure) => panic!("{failure}"),
            Event::Looking { .. } | Event::Read { .. } | Event::Scored { .. } => {}
        }
    }
    (all, said, end)
}

/// What PyTorch answers.
fn golden() -> Vec<Value> {
    let text = std::fs::read_to_string(checkpoint("shapes-vl").join("answers.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asks `count` golden questions at once, every third beside one whose asker leaves.
fn ask_all(service: &Service, count: usize) {
    let golden = golden();
    let mut event_streams = Vec::new();
    for (index, (pictures, question)) in prompts().take(count).enumerate() {
        let prepared = prepared(service, &question, &pictures);
        if index % 3 == 0 {
            let long = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(200) };
            drop(service.submit(request(prepared.clone(), long)).unwrap());
        }
        event_streams.push(service.submit(request(prepared, SamplingParams::greedy(64))).unwrap());
    }
    for (events, golden) in event_streams.iter_mut().zip(&golden) {
        let (text, tokens, finish) = hear(events);
        assert_eq!(golden["tokens"], serde_json::json!(tokens), "{text}");
        assert_eq!(finish, Some(Finish::Stop));
    }
}

/// Whether nothing is under way any more, within a second.
fn is_idle(service: &Service) -> bool {
    let until = Instant::now() + Duration::from_secs(1);
    while service.live() > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    service.live() == 0
}

#[test]
fn many_at_once_are_answered_as_each_alone() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options { queue_max: 100, ..Options::default() });
    ask_all(&service, 40);
    assert!(is_idle(&service) && service.is_alive());
    let stats = service.stats();
    assert_eq!((stats.endings.stop, stats.endings.failed, stats.preemptions), (40, 0, 0));
    assert!(stats.batch.sum > stats.batch.count() as f64, "steps are shared");
    // Each is asked about twice or more, and looked at once.
    assert_eq!(stats.pictures_seen, 26);
    assert!(stats.cached_tokens > 0, "prompts begin alike");
    ask_all(&service, 3);
    assert_eq!(service.stats().pictures_seen, 26);
    assert!(service.stats().pictures_cached >= stats.pictures_cached + 2);
}

#[test]
fn little_memory_changes_no_answer() {
    let dir = TempDir::new().unwrap();
    // Prompts of these questions take two to three blocks, and answers grow into the next.
    let service = start(dir.path(), Some(8), Options { queue_max: 100, ..Options::default() });
    ask_all(&service, 24);
    let long = |seed| {
        let sampling = Settings { temperature: 1.5, seed, ..Settings::GREEDY };
        SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(150) }
    };
    let words = |service: &Service| service.text().prepare_text("a red circle and").unwrap();
    let submit = |seed| service.submit(request(words(&service), long(seed))).unwrap();
    let alone: Vec<_> = (0..5).map(|seed| hear(&mut submit(seed))).collect();
    let mut together: Vec<_> = (0..5).map(submit).collect();
    let together: Vec<_> = together.iter_mut().map(hear).collect();
    assert_eq!(alone, together);
    assert!(alone[0] != alone[1], "answers are drawn");
    assert!(service.stats().preemptions > 0, "{:?}", service.stats());
    assert!(is_idle(&service));
}

/// A picture of slopes that is cut into some tiles; no two are alike.
fn slopes(index: usize) -> Image {
    let (width, height) = [(300, 220), (400, 110), (90, 380), (250, 250)][index % 4];
    let pixel = |x: usize, y: usize| [x as u8, (y + 7 * index) as u8, (x * y / 50) as u8];
    let rgb = (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(x, y))).collect();
    Image::from_rgb(width, height, rgb).unwrap()
}

#[test]
fn pictures_that_are_shown_smaller_are_answered_beside_31_others_as_alone() {
    const TOGETHER: usize = 32;
    let dir = TempDir::new().unwrap();
    let deployed = deploy(&checkpoint("shapes-vl"), dir.path(), TOGETHER);
    let start = |blocks: Option<u64>| {
        // Two tiles of 36 tokens have room beside the text and the answer, and no five.
        let options = KvOptions { max_seq_len: Some(170), ..KvOptions::default() };
        let deployment = Deployment::open_with(BACKENDS, &deployed, options).unwrap();
        let block_bytes = deployment.llm.kv_usage().block_bytes as u64;
        let kv = blocks.map_or(KvMemory::Free, |blocks| KvMemory::Bytes(blocks * block_bytes));
        let options = Options { queue_max: 100, running_max: TOGETHER, kv, ..Options::default() };
        Service::start(deployment, options).unwrap()
    };
    let sampling = Settings { top_logprobs: Some(3), ..Settings::GREEDY };
    let sampling_params =
        SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(60) };
    let asked = |service: &Service, index: usize| {
        let pictures: Vec<Image> = (0..1 + index % 2).map(|at| slopes(index + at)).collect();
        prepared(service, &format!("How many circles of kind {index} are there?"), &pictures)
    };
    let submit = |service: &Service, prepared| {
        service.submit(request(prepared, sampling_params.clone())).unwrap()
    };
    let hear = |events: &mut EventReceiver| {
        let mut all = Vec::new();
        while let Some(event) = events.wait() {
            match event {
                Event::Emitted { tokens, .. } => all.extend(tokens),
                Event::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        assert!(!all.is_empty());
        all
    };
    let service = start(None);
    let prompts: Vec<Prepared> = (0..TOGETHER).map(|index| asked(&service, index)).collect();
    let smaller = prompts.iter().filter(|prompt| prompt.seen.smaller > 0).count();
    assert!(smaller > TOGETHER / 2, "{smaller}");
    let alone: Vec<_> =
        prompts.iter().map(|prompt| hear(&mut submit(&service, prompt.clone()))).collect();
    drop(service);
    let service = start(Some(9));
    let again: Vec<Prepared> = (0..TOGETHER).map(|index| asked(&service, index)).collect();
    assert!(prompts == again, "memory decides nothing");
    let mut event_streams: Vec<EventReceiver> =
        again.into_iter().map(|prompt| submit(&service, prompt)).collect();
    let together: Vec<_> = event_streams.iter_mut().map(hear).collect();
    assert!(alone == together, "tokens and how likely each is");
    assert!(alone[0] != alone[2], "answers differ");
    let stats = service.stats();
    assert!(stats.preemptions > 0 && stats.endings.failed == 0, "{stats:?}");
}

#[test]
fn several_answers_to_one_prompt_read_it_once() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options::default());
    let (pictures, question) = prompts().nth(3).unwrap();
    let prepared = prepared(&service, &question, &pictures);
    let choice_params: Vec<SamplingParams> = (0..4)
        .map(|seed| {
            let sampling = Settings { temperature: 2.0, seed, ..Settings::GREEDY };
            SamplingParams { sampling, ..SamplingParams::greedy(20) }
        })
        .collect();
    let alone: Vec<_> = choice_params
        .iter()
        .map(|sampling_params| {
            let request = request(prepared.clone(), sampling_params.clone());
            hear(&mut service.submit(request).unwrap()).0
        })
        .collect();
    let before = service.stats();
    let request = Request { choice_params, ..request(prepared.clone(), SamplingParams::greedy(1)) };
    let mut events = service.submit(request).unwrap();
    let (mut texts, mut ended) = (vec![String::new(); 4], 0);
    while let Some(event) = events.wait() {
        match event {
            Event::Emitted { choice, text, .. } => texts[choice] += &text,
            Event::Ended { .. } => ended += 1,
            Event::Read { prompt_tokens, .. } => assert_eq!(prompt_tokens, prepared.tokens.len()),
            Event::Looking { .. } => {}
            Event::Scored { .. } => panic!("nobody asked"),
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
    assert_eq!((texts, ended), (alone, 4));
    let stats = service.stats();
    let read =
        (stats.prompt_tokens - before.prompt_tokens) - (stats.cached_tokens - before.cached_tokens);
    assert_eq!(read, 4, "all but the last token of each was there");
}

#[test]
fn a_prompt_is_as_likely_as_it_was_when_it_was_said() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options::default());
    let asked = service.text().prepare_text("a red circle and a").unwrap();
    let sampling = Settings { top_logprobs: Some(2), ..Settings::GREEDY };
    // Longer than a chunk, so that the prompt is read in several.
    let sampling_params =
        SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(150) };
    let mut events = service.submit(request(asked.clone(), sampling_params)).unwrap();
    let mut said = Vec::new();
    while let Some(event) = events.wait() {
        if let Event::Emitted { tokens, .. } = event {
            said.extend(tokens);
        }
    }
    let tokens = asked.tokens.iter().copied().chain(said.iter().map(|said| said.token));
    let prepared = service.text().prepare_words(tokens.collect()).unwrap();
    let choice_params = vec![SamplingParams::greedy(1); 2];
    // Twice: what slots hold does not matter.
    for _ in 0..2 {
        let request = Request {
            choice_params: choice_params.clone(),
            ..request(prepared.clone(), choice_params[0].clone())
        };
        let mut events = service.submit(Request { scored: Some(2), ..request }).unwrap();
        let (mut scored, mut ended) = (Vec::new(), 0);
        while let Some(event) = events.wait() {
            match event {
                Event::Read { cached_tokens, .. } => assert_eq!(cached_tokens, 0),
                Event::Scored { choice, tokens } => {
                    assert_eq!((choice, ended), (scored.len(), 0));
                    scored.push(tokens);
                }
                Event::Looking { .. } | Event::Emitted { .. } => {}
                Event::Ended { .. } => ended += 1,
                Event::Failed(failure) => panic!("{failure}"),
            }
        }
        assert_eq!((scored.len(), ended), (2, 2));
        for scored in scored {
            let (before, after) = scored.split_at(asked.tokens.len());
            assert_eq!((before[0].token, &before[0].logprobs), (asked.tokens[0], &None));
            assert!(before[1..].iter().all(|said| said.logprobs.is_some()));
            assert_eq!(after, said);
        }
    }
}

#[test]
fn who_leaves_frees_the_slot_at_once() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options::default());
    let prepared = service.text().prepare_text("a red circle and").unwrap();
    let sampling_params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(300) };
    let mut events = service.submit(request(prepared, sampling_params)).unwrap();
    assert!(matches!(events.wait(), Some(Event::Read { cached_tokens: 0, .. })));
    drop(events);
    assert!(is_idle(&service));
    let stats = service.stats();
    assert_eq!(stats.endings.cancelled, 1);
    assert!(stats.said_tokens < 300, "{}", stats.said_tokens);
}

#[test]
fn what_is_too_much_is_refused_and_what_is_late_is_ended() {
    let dir = TempDir::new().unwrap();
    let options = Options { queue_max: 1, running_max: 1, ..Options::default() };
    let service = start(dir.path(), Some(4), options);
    let words = |count| service.text().prepare_text(&"a ".repeat(count)).unwrap();
    let long = || SamplingParams { ignore_eos: true, ..SamplingParams::greedy(200) };
    let first = service.submit(request(words(3), long())).unwrap();
    let deadline = Some(Instant::now() + Duration::from_millis(30));
    let mut late = service.submit(Request { deadline, ..request(words(4), long()) }).unwrap();
    let refused = service.submit(request(words(5), long())).unwrap_err();
    assert!(
        matches!(refused, Refused::Busy { live: 2, retry_after } if retry_after.as_secs() >= 1)
    );
    let last = std::iter::from_fn(|| late.wait()).last();
    assert_eq!(last, Some(Event::Failed(Failure::Deadline)));
    drop(first);
    assert!(is_idle(&service));
    let refused = service.submit(request(words(260), long())).unwrap_err().to_string();
    assert!(refused.contains("room for 255"), "{refused}");
    let nothing = Request { choice_params: Vec::new(), ..request(words(3), long()) };
    assert!(matches!(service.submit(nothing), Err(Refused::Answers(0))));
    let bias = Settings { logit_bias: vec![(1 << 20, 1.0)], ..Settings::GREEDY };
    let wrong = SamplingParams { sampling: bias, ..SamplingParams::greedy(1) };
    assert!(matches!(service.submit(request(words(3), wrong)), Err(Refused::SamplingParams(_))));
    assert_eq!(service.live(), 0);
    service.drain();
    assert!(matches!(service.submit(request(words(3), long())), Err(Refused::Draining)));
}

#[test]
fn an_answer_ends_where_memory_does() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), Some(2), Options::default());
    let plan = service.plan();
    assert_eq!((plan.tokens, plan.context_max, plan.batch_max), (128, 128, 1));
    let prepared = service.text().prepare_text("a red circle and").unwrap();
    let prompt = prepared.tokens.len();
    let sampling_params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(300) };
    let (_, tokens, finish) =
        hear(&mut service.submit(request(prepared, sampling_params)).unwrap());
    assert_eq!((prompt + tokens.len(), finish), (129, Some(Finish::Full)));
}

#[test]
fn answers_are_held_to_a_form_each_to_its_own() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options::default());
    let text = service.text();
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "shape": { "enum": ["circle", "square"] }, "count": { "type": "integer" } },
        "required": ["shape", "count"],
        "additionalProperties": false,
    });
    let matcher = text.compiler().unwrap().compile(&Grammar::JsonSchema(schema)).unwrap();
    let (pictures, question) = prompts().next().unwrap();
    let prepared = prepared(&service, &question, &pictures);
    let sampling = |seed| Settings { temperature: 1.0, seed, ..Settings::GREEDY };
    let sampling_params =
        |seed| SamplingParams { sampling: sampling(seed), ..SamplingParams::greedy(150) };
    let held = Request {
        choice_params: (0..4).map(sampling_params).collect(),
        constraint: Constraint { matcher: Some(matcher), thinking: None },
        ..request(prepared.clone(), SamplingParams::greedy(1))
    };
    let mut free = service.submit(request(prepared, SamplingParams::greedy(64))).unwrap();
    let mut held = service.submit(held).unwrap();
    let mut texts = vec![String::new(); 4];
    while let Some(event) = held.wait() {
        match event {
            Event::Emitted { choice, text, .. } => texts[choice] += &text,
            Event::Ended { finish: Finish::Stop, choice, .. } => {
                let value: Value = serde_json::from_str(&texts[choice]).unwrap();
                assert!(["circle", "square"].contains(&value["shape"].as_str().unwrap()));
                assert!(value["count"].is_i64() || value["count"].is_f64(), "{value}");
            }
            // A count may go on for ever.
            Event::Ended { choice, .. } => assert!(texts[choice].starts_with('{')),
            Event::Looking { .. } | Event::Read { .. } | Event::Scored { .. } => {}
            Event::Failed(failure) => panic!("{failure}"),
        }
    }
    assert_eq!(golden()[0]["tokens"], serde_json::json!(hear(&mut free).1));
}

#[test]
fn thinking_ends_with_its_budget_and_the_form_holds_behind_it() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), None, Options::default());
    let text = service.text();
    let choice = Grammar::Choice(vec!["two".to_owned()]);
    let matcher = text.compiler().unwrap().compile(&choice).unwrap();
    let tag = |word: &str| text.tokenizer.encode(word).unwrap();
    // The model knows no tags; any of its words will do.
    let (open, close) = (tag("red"), tag("blue"));
    assert_eq!((open.len(), close.len()), (1, 1));
    let constraint = |is_open| Constraint {
        matcher: Some(matcher.clone()),
        thinking: Some(Thinking::new(open.clone(), close.clone(), 3, is_open)),
    };
    let prepared = text.prepare_text("a red circle and").unwrap();
    let said = |constraint| {
        // By itself the model neither closes nor ends.
        let never = |token: &u32| (*token, -100.0);
        let logit_bias = close.iter().chain(&text.spec.eos).map(never).collect();
        let sampling = Settings { logit_bias, ..Settings::GREEDY };
        let sampling_params = SamplingParams { sampling, ..SamplingParams::greedy(20) };
        let request = Request { constraint, ..request(prepared.clone(), sampling_params) };
        hear(&mut service.submit(request).unwrap())
    };
    let (_, tokens, finish) = said(constraint(true));
    assert_eq!((tokens[3], finish), (close[0], Some(Finish::Stop)));
    assert_eq!(text.tokenizer.decode(&tokens[4..], true).unwrap().trim(), "two");
    // Not open, the model may think or answer, and nothing else.
    let (_, tokens, finish) = said(constraint(false));
    let answer = if tokens[0] == open[0] { 5 } else { 0 };
    assert_eq!(text.tokenizer.decode(&tokens[answer..], true).unwrap().trim(), "two");
    assert_eq!(finish, Some(Finish::Stop));
}

/// An answer's tokens, how likely each was, and how much of its prompt was known.
fn likely(
    service: &Service,
    client: Client,
    prepared: &Prepared,
    seed: u64,
) -> (Vec<TokenInfo>, usize) {
    let sampling = Settings { temperature: 1.5, seed, top_logprobs: Some(3), ..Settings::GREEDY };
    let sampling_params =
        SamplingParams { sampling, ignore_eos: true, ..SamplingParams::greedy(40) };
    let mut events =
        service.submit(Request { client, ..request(prepared.clone(), sampling_params) }).unwrap();
    let (mut said, mut known) = (Vec::new(), 0);
    while let Some(event) = events.wait() {
        match event {
            Event::Emitted { tokens, .. } => said.extend(tokens),
            Event::Read { cached_tokens, .. } => known = cached_tokens,
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    (said, known)
}

#[test]
fn what_was_saved_is_put_back_and_answers_are_the_same_to_the_bit() {
    let dir = TempDir::new().unwrap();
    let deployed = deploy(&checkpoint("shapes-vl"), dir.path(), SLOTS);
    let start = |kv: KvOptions| {
        Service::start(Deployment::open_with(BACKENDS, &deployed, kv).unwrap(), Options::default())
            .unwrap()
    };
    let client = Client { id: 7, slot: 3, ..Client::default() };
    let stranger = Client { id: 8, ..client };
    let (pictures, question) = prompts().next().unwrap();
    let ask = |service: &Service, words: &str| {
        prepared(service, &format!("{question} {words}"), &pictures)
    };
    let first = start(KvOptions::default());
    let (long, other) = (ask(&first, &"red ".repeat(90)), ask(&first, "blue"));
    let nothing = first.save(&client, u64::MAX, &mut Vec::new());
    assert!(matches!(nothing, Err(KeptError::Nothing(3))), "{nothing:?}");
    let alone = likely(&first, client, &long, 1);
    let mut file = Vec::new();
    let saved = first.save(&client, u64::MAX, &mut file).unwrap();
    assert_eq!(saved.bytes, file.len() as u64);
    // The last token that was said was put into no slot.
    assert_eq!(saved.tokens, long.tokens.len() + 39);
    let short = first.save(&client, saved.bytes - 1, &mut Vec::new());
    assert!(matches!(short, Err(KeptError::TooLong { .. })), "{short:?}");
    let strange = first.save(&stranger, u64::MAX, &mut Vec::new());
    assert!(matches!(strange, Err(KeptError::Nothing(_))), "{strange:?}");
    assert_eq!(first.named(&stranger).unwrap(), []);
    assert_eq!(first.erase(&client).unwrap(), saved.tokens);
    assert_eq!(first.named(&client).unwrap(), []);
    assert_eq!(likely(&first, client, &long, 1), (alone.0.clone(), 0), "it was forgotten");
    drop(first);

    let second = start(KvOptions::default());
    // In company: others are answered while the file is put back.
    let busy = second.clone();
    let beside = std::thread::spawn({
        let other = other.clone();
        move || likely(&busy, Client::default(), &other, 5).0
    });
    assert_eq!(second.restore(&client, &mut &file[..]).unwrap(), saved);
    let beside = beside.join().unwrap();
    let named = second.named(&client).unwrap();
    assert_eq!(named.len(), 1);
    assert_eq!((named[0].name, named[0].tokens, named[0].is_busy), (3, saved.tokens, false));
    let again = likely(&second, client, &long, 1);
    assert_eq!(
        (again.0, again.1),
        (alone.0, long.tokens.len() - 1),
        "nothing but the last token is read"
    );
    assert_eq!(beside, likely(&start(KvOptions::default()), Client::default(), &other, 5).0);
    let mut same = Vec::new();
    second.restore(&client, &mut &file[..]).unwrap();
    second.save(&client, u64::MAX, &mut same).unwrap();
    assert!(same == file, "what is put back is saved as it was");

    // What is cut off or changed anywhere is refused, whatever was put back before.
    for cut in [0, 10, 40, 400, file.len() / 2, file.len() - 1] {
        let refused = second.restore(&client, &mut &file[..cut]);
        assert!(matches!(refused, Err(KeptError::Damaged(_))), "{cut}: {refused:?}");
    }
    for at in (0..file.len()).step_by(file.len() / 97) {
        let mut changed = file.clone();
        changed[at] ^= 1;
        assert!(second.restore(&client, &mut &changed[..]).is_err(), "{at}");
    }
    assert_eq!(likely(&second, client, &long, 1).0, likely(&second, stranger, &long, 1).0);
    let little = Client { kept_bytes_max: Some(1), ..client };
    let refused = second.restore(&little, &mut &file[..]);
    assert!(matches!(refused, Err(KeptError::TooMuch { .. })), "{refused:?}");

    for (more, fits) in [(0, true), (-1, false)] {
        let max_seq_len = saved.tokens.checked_add_signed(more);
        let short = start(KvOptions { max_seq_len, ..KvOptions::default() });
        let put = short.restore(&client, &mut &file[..]);
        match fits {
            true => assert!(put.is_ok(), "{put:?}"),
            false => assert!(matches!(put, Err(KeptError::TooMuch { .. })), "{put:?}"),
        }
    }
    let other_kv = start(KvOptions { kind: Some(KvType::F32), ..KvOptions::default() });
    let refused = other_kv.restore(&client, &mut &file[..]);
    assert!(matches!(refused, Err(KeptError::Other("--kv"))), "{refused:?}");
    let spec = Deployment::open(BACKENDS, &deployed).unwrap().text.spec.clone();
    let engine = spec.engines(BACKENDS, &deployed).unwrap().llm.join("engine.json");
    let said = std::fs::read_to_string(&engine).unwrap();
    std::fs::write(&engine, said + "\n").unwrap();
    let refused = start(KvOptions::default()).restore(&client, &mut &file[..]);
    assert!(matches!(refused, Err(KeptError::Other("engine"))), "{refused:?}");
}

#[test]
fn a_slot_is_neither_saved_nor_emptied_while_it_is_answered_in_and_gives_way_to_answers() {
    let dir = TempDir::new().unwrap();
    let service = start(dir.path(), Some(6), Options::default());
    let words = |count| service.text().prepare_text(&"a ".repeat(count)).unwrap();
    let long = |count, tokens| {
        let sampling_params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(tokens) };
        service.submit(request(words(count), sampling_params)).unwrap()
    };
    let client = Client::default();
    let mut events = long(100, 200);
    assert!(matches!(events.wait(), Some(Event::Read { .. })));
    let busy = service.save(&client, u64::MAX, &mut Vec::new());
    assert!(matches!(busy, Err(KeptError::Busy(0))), "{busy:?}");
    assert!(matches!(service.erase(&client), Err(KeptError::Busy(0))));
    hear(&mut events);
    let mut file = Vec::new();
    service.save(&client, u64::MAX, &mut file).unwrap();
    // What an answer holds leaves too little.
    let mut full = long(200, 110);
    assert!(matches!(full.wait(), Some(Event::Read { .. })));
    let refused = service.restore(&client, &mut &file[..]);
    assert!(matches!(refused, Err(KeptError::Crowded | KeptError::Gone(0))), "{refused:?}");
    assert_eq!(hear(&mut full).1.len(), 110);
    assert_eq!(service.stats().preemptions, 0);
    service.restore(&client, &mut &file[..]).unwrap();
    service.drain();
    assert!(matches!(service.named(&client), Err(KeptError::Ended)));
}

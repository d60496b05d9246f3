//! Holds every kernel against f64 on odd shapes, and a row's bits in any company against its bits alone.
//!
//! The same checks run on the twin of each kernel, here, and on a card, where tests that have `on_a_card` in their names ask
//! for one: they are ignored elsewhere.  Code comes from the folder that `SMELT_KEPT_KERNELS` names, or from NVRTC.  What is
//! written begins as numbers that are none.

mod attending;
mod choosing;
mod graphs;
mod products;
mod rows;

use std::path::PathBuf;
use std::sync::Arc;

use half::f16;
use smelt_backend::KvType;

use super::form::WeightForm;
use super::layout::{activation_at, activation_len};
use super::page::HeadShape;
use super::source::{KernelSet, graph_source, source};
use super::twin;
use crate::driver::{Driver, Priority};
use crate::nvrtc::{Source, compile};
use crate::owned::{DeviceBuffer, OwnedModule, OwnedStream};
use crate::recording::{RecordingDriver, card};
use crate::{CudaTarget, Launch, Processors, Sm, open};

/// Where compiled kernels are kept by content.
const KEPT_VARIABLE: &str = "SMELT_KEPT_KERNELS";

/// Forms that are compiled at once.
const AT_ONCE: usize = 6;

/// Heads of each kind of page, of odd and of usual sizes.
const HEADS: [HeadShape; 6] = [
    HeadShape { dim: 128, kind: KvType::F16 },
    HeadShape { dim: 128, kind: KvType::Int8 },
    HeadShape { dim: 64, kind: KvType::F16 },
    HeadShape { dim: 64, kind: KvType::Int8 },
    HeadShape { dim: 24, kind: KvType::F16 },
    HeadShape { dim: 8, kind: KvType::Int8 },
];

/// The sets of forms, and one for each head.
fn sets() -> Vec<KernelSet> {
    let forms = WeightForm::ALL.chunks(AT_ONCE);
    let forms = forms.map(|forms| KernelSet { forms: forms.to_vec(), head: HEADS[0] });
    let heads = HEADS.into_iter().map(|head| KernelSet { forms: Vec::new(), head });
    forms.chain(heads).collect()
}

/// Numbers of the heads of graphs: the towers' and what is odd.
const GRAPH_HEADS: [usize; 4] = [64, 80, 72, 16];

/// The code of a set.
fn image(set: &KernelSet, target: CudaTarget) -> Vec<u8> {
    image_of(source(set), target)
}

fn image_of(text: String, target: CudaTarget) -> Vec<u8> {
    let kept = std::env::var_os(KEPT_VARIABLE).map(PathBuf::from);
    let name = "kernels.cu".to_owned();
    let text = Source { name, text, defines: Vec::new() };
    let compiled = compile(&text, target, kept.as_deref());
    compiled.unwrap_or_else(|error| panic!("{error}")).image
}

/// A device with the kernels of a set.
struct Bench {
    driver: Arc<dyn Driver>,
    stream: OwnedStream,
    module: OwnedModule,
    is_card: bool,
}

impl Bench {
    fn new(driver: Arc<dyn Driver>, image: &[u8], is_card: bool) -> Self {
        let stream = OwnedStream::new(&driver, Priority::High).unwrap();
        let module = OwnedModule::new(&driver, image).unwrap();
        Self { driver, stream, module, is_card }
    }

    /// The first card of this machine.
    fn card(set: &KernelSet) -> Self {
        Self::card_of(|target| image(set, target))
    }

    /// The same with the kernels of graphs.
    fn graph_card(head: usize) -> Self {
        Self::card_of(|target| image_of(graph_source(head), target))
    }

    /// A device whose kernels of graphs are functions of the host.
    fn graph_twin(head: usize) -> Self {
        let twin = RecordingDriver::new(card(Sm(90), 1 << 30, false));
        twin::teach_graph(&twin, head);
        Self::new(Arc::new(twin), &[], false)
    }

    fn card_of(image: impl Fn(CudaTarget) -> Vec<u8>) -> Self {
        let driver = open(0).unwrap_or_else(|why| panic!("this test asks for a card: {why}"));
        let target = CudaTarget::of(driver.card().sm).expect("the card is of a target");
        Self::new(driver, &image(target), true)
    }

    /// A device whose kernels are functions of the host.
    fn twin(set: &KernelSet) -> Self {
        let twin = RecordingDriver::new(card(Sm(90), 1 << 30, false));
        twin::teach(&twin, set);
        Self::new(Arc::new(twin), &[], false)
    }

    /// The processors of an H200, with the instructions of this device.
    fn processors(&self) -> Processors {
        Processors { count: 132, sm: self.driver.card().sm }
    }

    /// Memory that holds these bytes.
    fn put(&self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = DeviceBuffer::new(&self.driver, bytes.len().max(1) as u64).unwrap();
        self.driver.copy_to_device(self.stream.id(), buffer.address(), bytes).unwrap();
        buffer
    }

    fn put_floats(&self, numbers: &[f32]) -> DeviceBuffer {
        self.put(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
    }

    fn put_words(&self, words: &[u32]) -> DeviceBuffer {
        self.put(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
    }

    /// Memory whose every number is none.
    fn poisoned(&self, bytes: usize) -> DeviceBuffer {
        self.put(&vec![0xff; bytes])
    }

    /// Activations `[tokens, columns]`; what fills the last block of tokens is no number.
    fn put_activations(&self, x: &[f32], tokens: usize, columns: usize) -> DeviceBuffer {
        let mut bytes = vec![0xff; activation_len(tokens, columns) * 2];
        for token in 0..tokens {
            for k in 0..columns {
                let at = activation_at(k, token, tokens) * 2;
                let half = f16::from_f32(x[token * columns + k]);
                bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
        self.put(&bytes)
    }

    fn run(&self, launches: &[Launch]) {
        for launch in launches {
            self.module.launch(self.stream.id(), launch).unwrap();
        }
        self.stream.synchronize().unwrap();
    }

    fn bytes(&self, buffer: &DeviceBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.bytes() as usize];
        self.driver.copy_to_host(self.stream.id(), &mut bytes, buffer.address()).unwrap();
        bytes
    }

    fn floats(&self, buffer: &DeviceBuffer) -> Vec<f32> {
        let bytes = self.bytes(buffer);
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// Activations `[tokens, columns]`.
    fn activations(&self, buffer: &DeviceBuffer, tokens: usize, columns: usize) -> Vec<f32> {
        let bytes = self.bytes(buffer);
        let number = |token: usize, k: usize| {
            let at = activation_at(k, token, tokens) * 2;
            f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
        };
        (0..tokens * columns).map(|at| number(at / columns, at % columns)).collect()
    }
}

/// The norm of what two rows of numbers differ by, as a part of that of the second.
fn apart(found: &[f32], expect: &[f64]) -> f64 {
    assert_eq!(found.len(), expect.len());
    let square = |x: f64| x * x;
    let off: f64 = found.iter().zip(expect).map(|(f, e)| square(f64::from(*f) - e)).sum();
    let all: f64 = expect.iter().copied().map(square).sum();
    (off / all.max(f64::MIN_POSITIVE)).sqrt()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Compiles what the other tests load; the only one that asks for no card, but for NVRTC and a folder.
#[test]
#[ignore = "writes into the folder that SMELT_KEPT_KERNELS names"]
fn kernels_for_cards_are_kept() {
    assert!(std::env::var_os(KEPT_VARIABLE).is_some(), "{KEPT_VARIABLE} names a folder");
    for set in sets() {
        image(&set, CudaTarget::Sm90);
    }
    for head in GRAPH_HEADS {
        image_of(graph_source(head), CudaTarget::Sm90);
    }
}

#[test]
#[ignore = "asks for a card"]
fn products_equal_f64_and_themselves_in_any_company_on_a_card() {
    for forms in WeightForm::ALL.chunks(AT_ONCE) {
        let bench = Bench::card(&KernelSet { forms: forms.to_vec(), head: HEADS[0] });
        for form in forms {
            products::check(&bench, *form, (200, 1024), &products::TOKENS);
            products::check(&bench, *form, (64, 3072), &products::TOKENS[..7]);
        }
    }
}

#[test]
#[ignore = "asks for a card"]
fn products_of_prompts_equal_f64_and_themselves_in_any_company_on_a_card() {
    for forms in WeightForm::ALL.chunks(AT_ONCE) {
        let bench = Bench::card(&KernelSet { forms: forms.to_vec(), head: HEADS[0] });
        for form in forms {
            products::check_prompts(&bench, *form);
        }
    }
}

#[test]
#[ignore = "asks for a card"]
fn attention_is_one_function_of_what_a_token_sees_on_a_card() {
    for head in HEADS {
        let bench = Bench::card(&KernelSet { forms: Vec::new(), head });
        attending::check(
            &bench,
            head,
            (16, 8),
            &[(0, 356), (333, 100), (2047, 1), (63, 2), (0, 1)],
        );
        attending::check(&bench, head, (14, 2), &[(70, 1), (0, 70), (129, 2), (4200, 1)]);
        attending::check(&bench, head, (4, 4), &[(64, 64), (5, 16), (0, 1), (127, 1)]);
    }
}

#[test]
#[ignore = "asks for a card"]
fn rows_equal_f64_on_a_card() {
    let bench = Bench::card(&KernelSet { forms: Vec::new(), head: HEADS[0] });
    rows::check(&bench, &[(1, 48), (7, 896), (9, 2100), (100, 2048)]);
}

#[test]
#[ignore = "asks for a card"]
fn what_graphs_compute_equals_f64_and_itself_in_any_company_on_a_card() {
    let bench = Bench::graph_card(GRAPH_HEADS[0]);
    graphs::check(&bench, &[(1, 48), (7, 896), (9, 2100), (100, 1152), (33, 3), (1025, 1024)]);
    for (outputs, columns, rows) in [(200, 1024, 333), (72, 256, 5), (1024, 128, 1025)] {
        graphs::outcomes(&bench, outputs, columns, rows);
    }
    // Of one group of columns, two whole ones, and one and three that end early.
    for (outputs, columns, rows) in
        [(330, 1152, 460), (200, 4096, 273), (76, 2176, 300), (72, 4480, 257)]
    {
        graphs::outcomes(&bench, outputs, columns, rows);
    }
    for most in GRAPH_HEADS {
        let bench = Bench::graph_card(most);
        for (batch, heads, rows) in [(2, 1, 1025), (2, 3, 64), (2, 1, 65), (3, 4, 1), (12, 2, 130)]
        {
            for dim in [most, most - 3] {
                let odd = graphs::Attending { batch, heads, rows, dim, most };
                odd.check(&bench);
            }
        }
    }
}

#[test]
#[ignore = "asks for a card"]
fn tokens_are_those_of_the_host_on_a_card() {
    let bench = Bench::card(&KernelSet { forms: Vec::new(), head: HEADS[0] });
    for vocab in [151_936, 50_257, 32_000, 10_000, 1000, 63, 1] {
        choosing::check(&bench, vocab, 16);
    }
}

/// The smallest shapes, on the twin and for what slows a card down a hundredfold.
mod small {
    use super::*;

    fn products(bench: &Bench, forms: &[WeightForm]) {
        for form in forms {
            products::check(bench, *form, (80, 256), &[1, 9]);
        }
    }

    fn graphs(bench: &Bench, most: usize) {
        graphs::check(bench, &[(1, 48), (9, 35)]);
        graphs::outcomes(bench, 72, 128, 9);
        for (rows, dim) in [(70, most), (9, most - 3)] {
            graphs::Attending { batch: 2, heads: 2, rows, dim, most }.check(bench);
        }
    }

    fn attention(bench: &Bench, head: HeadShape) {
        attending::check(bench, head, (4, 2), &[(0, 20), (63, 2), (70, 1)]);
    }

    #[test]
    fn twins_hold_what_kernels_hold() {
        for form in WeightForm::ALL {
            let set = KernelSet { forms: vec![form], head: HEADS[0] };
            products(&Bench::twin(&set), &[form]);
        }
        let form = WeightForm::parse("i4g128").unwrap();
        let set = KernelSet { forms: vec![form], head: HEADS[0] };
        // So many tokens have kernels of their own.
        products::check(&Bench::twin(&set), form, (72, 128), &[257]);
        for head in HEADS {
            attention(&Bench::twin(&KernelSet { forms: Vec::new(), head }), head);
        }
        let bench = Bench::twin(&KernelSet { forms: Vec::new(), head: HEADS[0] });
        rows::check(&bench, &[(1, 48), (9, 300)]);
        choosing::check(&bench, 300, 3);
        graphs(&Bench::graph_twin(24), 24);
        // A group of columns, and a part of one.
        graphs::outcomes(&Bench::graph_twin(24), 8, 2176, 3);
    }

    #[test]
    #[ignore = "asks for a card"]
    fn all_of_it() {
        for forms in WeightForm::ALL.chunks(AT_ONCE) {
            let set = KernelSet { forms: forms.to_vec(), head: HEADS[0] };
            products(&Bench::card(&set), forms);
        }
        for head in HEADS {
            attention(&Bench::card(&KernelSet { forms: Vec::new(), head }), head);
        }
        let bench = Bench::card(&KernelSet { forms: Vec::new(), head: HEADS[0] });
        rows::check(&bench, &[(3, 48), (9, 300)]);
        choosing::check(&bench, 300, 3);
        graphs(&Bench::graph_card(GRAPH_HEADS[3]), GRAPH_HEADS[3]);
    }

    /// So many tokens have kernels of their own.
    #[test]
    #[ignore = "asks for a card"]
    fn prompts() {
        let form = WeightForm::parse("i4g128z").unwrap();
        let forms = WeightForm::ALL.chunks(AT_ONCE).find(|forms| forms.contains(&form)).unwrap();
        let set = KernelSet { forms: forms.to_vec(), head: HEADS[0] };
        products::check(&Bench::card(&set), form, (200, 384), &[257]);
        graphs::outcomes(&Bench::graph_card(GRAPH_HEADS[3]), 72, 2176, 257);
    }
}

//! Every kernel of every form, compiled for every target without a GPU, and what each takes held to a table.
//!
//! `UPDATE=1 cargo test -p smelt-cuda` writes the table anew; who changes it reads the difference: a kernel that takes more
//! registers runs in fewer blocks at once.  Spills fail the compiling itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;

use smelt_backend::KvType;
use smelt_cuda::CudaTarget;
use smelt_cuda::kernels::form::WeightForm;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::{KernelSet, graph_source, source};
use smelt_cuda::nvrtc::{self, Source};

const TABLE: &str = include_str!("data/kernels.txt");

/// The heads of shipped families, and the smallest of all.
const HEADS: [HeadShape; 6] = [
    HeadShape { dim: 128, kind: KvType::F16 },
    HeadShape { dim: 128, kind: KvType::Int8 },
    HeadShape { dim: 64, kind: KvType::F16 },
    HeadShape { dim: 64, kind: KvType::Int8 },
    HeadShape { dim: 16, kind: KvType::F16 },
    HeadShape { dim: 16, kind: KvType::Int8 },
];

/// Heads of the towers of shipped families, the largest that a graph may have, and the smallest of all.
const GRAPH_HEADS: [usize; 5] = [64, 72, 80, 128, 16];

/// The kernels that graphs have beside products.
const OF_GRAPHS: [&str; 7] = [
    "pack_halves",
    "norm_numbers",
    "arrange_heads",
    "attend_all",
    "attend_masked",
    "map_numbers",
    "gather_numbers",
];

/// Kernels with an array on the stack: the rest of a large angle by pi is taken digit by digit, once a position or where a
/// graph takes sines.
const ON_STACK: [&str; 2] = ["rotations", "map_numbers"];

/// Where compiled kernels are kept by content between runs.
fn kept() -> Option<PathBuf> {
    std::env::var_os("SMELT_KEPT_KERNELS").map(PathBuf::from)
}

/// Forms that are compiled at once: each set has the kernels of heads besides.
const AT_ONCE: usize = 6;

/// The sets whose kernels together are all: those of heads, and those of some forms beside the first.
fn sets() -> Vec<(String, KernelSet)> {
    let forms = |forms: &[WeightForm]| {
        let name = format!("{} to {}", forms[0].name, forms[forms.len() - 1].name);
        (name, KernelSet { forms: forms.to_vec(), head: HEADS[0] })
    };
    let head = |head: HeadShape| {
        let name = format!("heads of {} in {}", head.dim, head.kind.word());
        (name, KernelSet { forms: Vec::new(), head })
    };
    HEADS.into_iter().map(head).chain(WeightForm::ALL.chunks(AT_ONCE).map(forms)).collect()
}

/// A line for each kernel of a target: its registers, bytes of stack and of shared memory that it declares.
fn table(target: CudaTarget) -> String {
    let mut lines = String::new();
    for (name, set) in sets() {
        // Sets of forms have the kernels of heads too, which have lines of their own.
        let is_own = |kernel: &str| {
            let is_of = |form: &WeightForm| kernel.starts_with(&format!("{}_", form.name));
            set.forms.is_empty() || set.forms.iter().any(is_of)
        };
        lines += &rows(target, &name, source(&set), &is_own);
    }
    for head in GRAPH_HEADS {
        let name = format!("graphs with heads of {head}");
        lines += &rows(target, &name, graph_source(head), &|kernel| OF_GRAPHS.contains(&kernel));
    }
    lines
}

/// The lines of the kernels of a source that are its own.
fn rows(target: CudaTarget, name: &str, text: String, is_own: &dyn Fn(&str) -> bool) -> String {
    let source = Source { name: format!("{name}.cu"), text, defines: Vec::new() };
    let compiled = nvrtc::compile(&source, target, kept().as_deref());
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(compiled.cubin.sm, target.sm());
    let mut lines = String::new();
    for (kernel, facts) in compiled.cubin.kernels.iter().filter(|(kernel, _)| is_own(kernel)) {
        let (registers, stack, shared) = (facts.registers, facts.stack_bytes, facts.shared_bytes);
        let word = target.word();
        writeln!(lines, "{word} | {name} | {kernel} | {registers} | {stack} | {shared}").unwrap();
    }
    lines
}

/// The lines of a target.
fn of_target(table: &str, target: CudaTarget) -> String {
    let start = format!("{} |", target.word());
    table.lines().filter(|line| line.starts_with(&start)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_kernel_compiles_for_every_target_and_takes_what_the_table_says() {
    let here: Vec<CudaTarget> =
        CudaTarget::ALL.into_iter().filter(|&target| super::nvrtc::is_here(target)).collect();
    let found: Vec<(CudaTarget, String)> = thread::scope(|scope| {
        let all: Vec<_> =
            here.iter().map(|&target| (target, scope.spawn(move || table(target)))).collect();
        all.into_iter().map(|(target, thread)| (target, thread.join().unwrap())).collect()
    });
    if std::env::var_os("UPDATE").is_some() && here.len() == CudaTarget::ALL.len() {
        let head =
            "# target | set | kernel | registers | bytes of stack | bytes of shared memory\n";
        let all: String = found.iter().map(|(_, lines)| lines.as_str()).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/kernels.txt");
        std::fs::write(path, head.to_owned() + &all).unwrap();
        return;
    }
    for (target, lines) in found {
        let expect = of_target(TABLE, target);
        for (found, expect) in lines.lines().zip(expect.lines()) {
            assert_eq!(found, expect);
        }
        assert_eq!(lines.lines().count(), expect.lines().count(), "{}", target.word());
    }
}

#[test]
fn no_kernel_keeps_numbers_on_its_stack_or_takes_more_registers_than_a_thread_has() {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for row in rows {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [target, _, kernel, registers, stack, shared] = fields[..] else {
            panic!("{row:?} is no row");
        };
        let number = |text: &str| text.parse::<u32>().unwrap();
        assert!(CudaTarget::parse(target).is_some(), "{row}");
        assert!(number(registers) <= 255, "{row}");
        assert!(number(stack) == 0 || ON_STACK.contains(&kernel), "{row}");
        assert!(number(shared) <= 48 << 10, "{row}");
        count += 1;
    }
    assert!(count > 3 * WeightForm::ALL.len() * 8, "{count} kernels");
}

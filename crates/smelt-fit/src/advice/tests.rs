use super::{
    DeviceProfile, FitLine, FitTable, Instead, MeasuredAnswer, ModelFacts, Wanted, gpu_refusal,
};
use crate::building::COMPILING_BYTES;
use crate::gpu::Gpu;
use crate::model::{DecoderOption, GpuWays, KvSize, PhotographCost, TowerOption};
use crate::rate::{Rate, RateBasis};
use crate::settings::{FitSettings, WantedDevice};

const MIB: u64 = 1 << 20;

fn decoder(scheme: &str, mib: u64) -> DecoderOption {
    DecoderOption {
        scheme: scheme.to_owned(),
        method: (scheme != "none").then_some("rtn"),
        weights_bytes: mib * MIB,
        step_bytes: mib * MIB * 9 / 10,
        prompt_products: 1_300_000_000,
        is_integer: scheme != "none",
        layers: 28,
        attention_products: 28 * 2 * 2048,
        kv_heads: 8,
        checkpoint_bytes: mib * MIB,
        building_bytes: 512 * MIB,
    }
}

/// A model of some billions of weights that sees, its decoder of so many MiB in 16 bits.
fn model(mib: u64) -> ModelFacts {
    let tower = |precision, mib| TowerOption {
        precision,
        weights_bytes: mib * MIB,
        working_bytes: 45 * MIB,
        patch_products: 300_000_000,
        graph_bytes: 600 * MIB,
    };
    let photograph = |tiles: usize, seen: usize| PhotographCost {
        tiles: Some(tiles),
        tokens: 256 * seen,
        patches: 1024 * seen,
    };
    ModelFacts {
        name: "m".to_owned(),
        family: "qwen2".to_owned(),
        fetch_bytes: mib * MIB,
        positions: 32_768,
        decoders: vec![
            decoder("int8", mib / 2),
            decoder("int4-g128", mib / 4),
            decoder("none", mib),
        ],
        towers: vec![tower("int8", 300), tower("f32", 600)],
        kv: vec![
            KvSize { kind: "f16", block_tokens: 64, block_bytes: 2 << 20 },
            KvSize { kind: "int8", block_tokens: 64, block_bytes: 1 << 20 },
        ],
        tiles_usual: 6,
        photographs: vec![photograph(1, 1), photograph(6, 7), photograph(12, 13)],
        pictures_bytes: 320 * MIB,
        on_gpu: Ok(GpuWays {
            decoders: [("int8", 2), ("int4-g128", 4), ("none", 1)]
                .map(|(scheme, part)| decoder(scheme, mib / part + 1))
                .to_vec(),
            towers: vec![tower("f16", 600)],
            kv: vec![
                KvSize { kind: "f16", block_tokens: 64, block_bytes: 2 << 20 },
                KvSize { kind: "int8", block_tokens: 64, block_bytes: 1 << 20 },
            ],
        }),
    }
}

fn on(word: &str) -> DeviceProfile {
    DeviceProfile::named(word).unwrap()
}

/// The table of a device on which nothing was measured.
fn table(model: &ModelFacts, device: &DeviceProfile, wanted: &Wanted) -> FitTable {
    super::table(model, device, wanted, &[])
}

fn advised(model: &ModelFacts, word: &str) -> (bool, FitSettings) {
    let table = table(model, &on(word), &Wanted::default());
    (table.is_advised, table.lines[0].settings.clone())
}

#[track_caller]
fn check(mib: u64, word: &str, scheme: &str, context: usize, kv: &str) {
    let (is_advised, settings) = advised(&model(mib), word);
    let found =
        (settings.scheme.as_deref().unwrap(), settings.context.unwrap(), settings.kv.unwrap());
    assert!(is_advised, "{settings:?}");
    assert_eq!(found, (scheme, context, kv));
}

#[test]
fn the_finest_that_fits_is_advised() {
    check(4_000, "8GB", "int8", 4096, "f16");
    check(4_000, "16GB", "int8", 4096, "f16");
    check(4_000, "4GB", "int8", 4096, "f16");
    check(4_900, "4GB", "int8", 4096, "int8");
    check(5_050, "4GB", "int8", 2048, "int8");
    check(6_000, "4GB", "int4-g128", 4096, "f16");
    check(16_000, "8GB", "int4-g128", 4096, "f16");
}

#[test]
fn a_device_holds_what_is_advised_for_it_and_a_larger_one_does_too() {
    for mib in (200..40_000).step_by(371) {
        let model = model(mib);
        let mut was_advised = false;
        for gb in ["0.5GB", "1GB", "2GB", "4GB", "8GB", "16GB", "32GB", "64GB"] {
            let device = on(gb);
            let table = table(&model, &device, &Wanted::default());
            let first = &table.lines[0];
            assert_eq!(table.is_advised, first.fits, "{mib} on {gb}");
            assert!(!first.fits || first.serving_bytes <= device.budget_bytes(), "{mib} on {gb}");
            assert!(table.is_advised || !was_advised, "{mib} fits less than {gb}, and not this");
            was_advised |= table.is_advised;
        }
    }
}

#[test]
fn all_that_a_line_holds_is_in_its_sum() {
    let table = table(&model(4_000), &on("8GB"), &Wanted::default());
    for line in &table.lines {
        let parts = [line.weights_bytes, line.kv_bytes, line.working_bytes, line.pictures_bytes];
        assert_eq!(line.serving_bytes, parts.iter().sum::<u64>() + (64 << 20));
        assert!(line.disk_bytes > line.engines_bytes && line.engines_bytes >= line.weights_bytes);
        let context = line.settings.context.unwrap() as u64;
        assert_eq!(line.kv_bytes, line.kv_token_bytes * context, "whole blocks");
    }
}

#[test]
fn other_lines_differ_in_one_setting_and_none_is_there_twice() {
    let table = table(&model(4_000), &on("8GB"), &Wanted::default());
    let first = &table.lines[0].settings;
    for (at, line) in table.lines.iter().enumerate().skip(1) {
        let own = &line.settings;
        let differences = [
            own.scheme != first.scheme,
            own.vision != first.vision,
            own.context != first.context,
            own.tiles != first.tiles && own.context == first.context,
            own.kv != first.kv,
        ];
        assert_eq!(differences.iter().filter(|is| **is).count(), 1, "{own:?}");
        assert!(table.lines[..at].iter().all(|other| other.settings != *own));
    }
}

#[test]
fn tiles_leave_room_for_words() {
    let tiles = |context| {
        let wanted = Wanted { context: Some(context), ..Wanted::default() };
        let table = table(&model(1_000), &on("8GB"), &wanted);
        (table.lines[0].settings.tiles.unwrap(), table.lines[0].image_tokens.unwrap())
    };
    assert_eq!(tiles(4096), (6, 7 * 256));
    assert_eq!(tiles(2048), (1, 256));
    assert_eq!(tiles(300), (1, 256));
    let wanted = Wanted { tiles: Some(12), ..Wanted::default() };
    let table = table(&model(1_000), &on("8GB"), &wanted);
    assert_eq!(table.lines[0].image_tokens, Some(13 * 256));
}

#[test]
fn what_is_fixed_stays_and_what_would_do_is_told() {
    let wanted = Wanted { scheme: Some("none".to_owned()), ..Wanted::default() };
    let table_of = |word| table(&model(8_000), &on(word), &wanted);
    assert!(table_of("16GB").is_advised);
    let small = table_of("8GB");
    assert!(!small.is_advised);
    assert!(small.lines.iter().all(|line| line.settings.scheme.as_deref() == Some("none")));
    let [Instead::Settings { line }] = &small.instead[..] else { panic!("{:?}", small.instead) };
    assert_eq!(line.settings.scheme.as_deref(), Some("int8"));
    assert!(line.fits);
}

#[test]
fn of_a_model_that_is_far_too_large_the_memory_that_would_do_is_told() {
    let large = model(140_000);
    let small = table(&large, &on("8GB"), &Wanted::default());
    assert!(!small.is_advised && small.why.starts_with("nothing fits: "), "{}", small.why);
    let [Instead::Memory { memory_bytes }] = small.instead[..] else { panic!("{small:?}") };
    let enough = DeviceProfile { memory_bytes: memory_bytes + MIB, ..on("8GB") };
    assert!(table(&large, &enough, &Wanted::default()).is_advised);
    let less = DeviceProfile { memory_bytes: memory_bytes - 64 * MIB, ..on("8GB") };
    assert!(!table(&large, &less, &Wanted::default()).is_advised);
}

#[test]
fn memory_that_was_fixed_is_the_budget() {
    let wanted = Wanted { memory_bytes: Some(1_500 * MIB), ..Wanted::default() };
    let table = table(&model(4_000), &on("16GB"), &wanted);
    assert_eq!(table.budget_bytes, 1_500 * MIB);
    assert!(!table.is_advised || table.lines[0].serving_bytes <= 1_500 * MIB);
    assert_ne!(table.lines[0].settings.scheme.as_deref(), Some("int8"));
}

#[test]
fn more_cores_and_more_bandwidth_are_faster_and_nothing_is_said_without_rates() {
    let speed = |cores, gb_per_s: f64| {
        let rate = |per_second| Some(Rate { per_second, basis: RateBasis::Measured });
        let (memory_rate, core_rate) = (rate(gb_per_s * 1e9), rate(40e9));
        let integer_rate = rate(150e9);
        let device = DeviceProfile { cores, memory_rate, core_rate, integer_rate, ..on("16GB") };
        table(&model(4_000), &device, &Wanted::default()).lines[0].speed.unwrap()
    };
    let (two, sixteen) = (speed(2, 40.0), speed(16, 40.0));
    assert_eq!(two.basis, RateBasis::Estimated, "rates were measured, and no answer");
    let gained = sixteen.tokens_per_s.unwrap() / two.tokens_per_s.unwrap();
    assert!((0.95..1.05).contains(&gained), "memory gives no more: {gained}");
    assert!(two.first_token_s.unwrap() > 7.9 * sixteen.first_token_s.unwrap());
    assert!(speed(2, 80.0).tokens_per_s > two.tokens_per_s);
    let unknown = table(&model(4_000), &on("8GB"), &Wanted::default());
    assert!(unknown.lines.iter().all(|line| line.speed.is_none()));
    let stated = table(&model(4_000), &on("orin-nano-8gb"), &Wanted::default());
    assert_eq!(stated.lines[0].speed.unwrap().basis, RateBasis::Stated);
}

#[test]
fn an_encoder_has_neither_a_decoder_nor_a_context() {
    let encoder = ModelFacts { decoders: vec![], kv: vec![], photographs: vec![], ..model(100) };
    let table = table(&encoder, &on("4GB"), &Wanted::default());
    let first = &table.lines[0];
    assert!(table.is_advised, "{}", table.why);
    assert_eq!((first.settings.context, first.kv_bytes, first.pictures_bytes), (None, 0, 0));
    assert_eq!(table.lines.len(), 2, "in 8 bits and as it is");
}

#[test]
fn the_reason_names_what_was_not_chosen() {
    let table = table(&model(4_000), &on("8GB"), &Wanted::default());
    assert!(table.why.contains("none would read more for every token"), "{}", table.why);
    assert!(table.why.contains("int4-g128 would round more coarsely"), "{}", table.why);
}

#[test]
fn what_was_measured_here_goes_before_what_is_estimated() {
    let model = model(4_000);
    let measured = MeasuredAnswer {
        target: None,
        decoder_bytes: model.decoders[0].weights_bytes,
        tower_bytes: Some(model.towers[0].weights_bytes + 1000),
        tokens_per_s: Some(12.5),
        prompt_tokens_per_s: Some(500.0),
        image_tokens_per_s: Some(256.0),
    };
    let table = super::table(&model, &on("orin-nano-8gb"), &Wanted::default(), &[measured]);
    let speed = table.lines[0].speed.unwrap();
    assert_eq!((speed.tokens_per_s, speed.basis), (Some(12.5), RateBasis::Measured));
    let expect = (7.0 * 256.0 + 40.0) / 500.0 + 7.0;
    assert!((speed.first_token_s.unwrap() - expect).abs() < 1e-9, "{speed:?}");
    let is_other = |line: &&FitLine| line.settings.scheme.as_deref() != Some("int8");
    let other = table.lines.iter().find(is_other).unwrap();
    assert_eq!(other.speed.unwrap().basis, RateBasis::Stated, "of another size nothing is known");
}

/// The device with its GPU's engines built where `obstacle` says nothing.
fn with_engines(
    device: DeviceProfile,
    target: Option<&str>,
    obstacle: Option<&str>,
) -> DeviceProfile {
    let [target, obstacle] = [target, obstacle].map(|word| word.map(str::to_owned));
    DeviceProfile { gpu: device.gpu.map(|gpu| Gpu { target, obstacle, ..gpu }), ..device }
}

/// Jetson Orin Nano of 8 GB.
fn orin() -> DeviceProfile {
    with_engines(on("orin-nano-8gb"), Some("cuda-sm87"), None)
}

/// A machine of 64 GB and the card of that name.
fn with_card(name: &str) -> DeviceProfile {
    let gpu = Some(Gpu::of_card(name, 90));
    with_engines(DeviceProfile { cores: 16, gpu, ..on("64GB") }, Some("cuda-sm90"), None)
}

fn target(table: &FitTable) -> Option<&str> {
    table.lines[0].settings.target.as_deref()
}

#[test]
fn a_gpu_that_holds_the_model_is_advised_and_the_processors_are_told() {
    for (device, word) in [(orin(), "cuda-sm87"), (with_card("NVIDIA H200"), "cuda-sm90")] {
        let table = table(&model(1_000), &device, &Wanted::default());
        let first = &table.lines[0];
        assert!(table.is_advised && first.fits, "{}", table.why);
        assert_eq!((target(&table), first.settings.vision), (Some(word), Some("f16")));
        assert_eq!(table.without_gpu, None);
        let on_processors =
            table.lines.iter().filter(|line| line.settings.target.as_deref() == Some("cpu"));
        let others: Vec<&FitLine> = on_processors.collect();
        assert_eq!(others.len(), 1, "one of the same settings");
        assert_eq!(others[0].settings.scheme, first.settings.scheme);
    }
}

#[test]
fn a_gpu_without_memory_of_its_own_shares_one_pool_and_another_has_two() {
    let [own, shared] =
        [with_card("NVIDIA H200"), orin()].map(|it| table(&model(1_000), &it, &Wanted::default()));
    let (card, pool) = (&own.lines[0], &shared.lines[0]);
    let held = |line: &FitLine| line.weights_bytes + line.kv_bytes + line.working_bytes;
    assert_eq!(card.gpu_bytes, Some(held(card)));
    assert_eq!(card.serving_bytes, (320 + 64) * MIB, "pictures and the program");
    assert_eq!((pool.gpu_bytes, shared.gpu_budget_bytes), (None, None));
    assert_eq!(pool.serving_bytes, held(pool) + (320 + 64) * MIB, "weights are there once");
    assert_eq!(card.weights_bytes, card.engines_bytes, "the embedding, too");
    assert_eq!(card.building_bytes, 512 * MIB + COMPILING_BYTES);
    assert!(own.why.contains("of the GPU's memory, and 384 MiB of"), "{}", own.why);
}

/// A model whose weights alone are more than the GPU may hold is not for it.
#[test]
fn what_a_person_allows_holds_of_a_gpu_s_memory_too() {
    let allowed = |mib: u64| {
        let wanted = Wanted { memory_bytes: Some(mib * MIB), ..Wanted::default() };
        table(&model(1_000), &with_card("NVIDIA H200"), &wanted)
    };
    let (much, little) = (allowed(4_000), allowed(600));
    assert_eq!((target(&much), much.gpu_budget_bytes), (Some("cuda-sm90"), Some(4_000 * MIB)));
    assert_ne!(target(&little), Some("cuda-sm90"));
    assert!(little.without_gpu.as_ref().is_some_and(|why| why.contains("holds")), "{little:?}");
}

#[test]
fn what_is_not_built_here_is_told_with_what_to_do_and_not_advised() {
    let device = with_engines(orin(), Some("cuda-sm87"), Some("no NVRTC; run pip"));
    let told = table(&model(1_000), &device, &Wanted::default());
    assert_eq!(target(&told), Some("cpu"));
    assert_eq!(told.without_gpu.as_deref(), Some("the GPU is left out: no NVRTC; run pip"));
    let is_on_gpu = |line: &&FitLine| line.settings.target.as_deref() == Some("cuda-sm87");
    assert_eq!(told.lines.iter().filter(is_on_gpu).count(), 1);
    let wanted = Wanted { device: WantedDevice::Gpu, ..Wanted::default() };
    let asked = table(&model(1_000), &device, &wanted);
    assert_eq!((target(&asked), &asked.without_gpu), (Some("cuda-sm87"), &None));
    assert_eq!(gpu_refusal(&model(1_000), &device, &wanted), None, "it may be built elsewhere");
}

#[test]
fn a_gpu_that_no_engine_is_for_is_told_and_changes_nothing() {
    let laptop =
        DeviceProfile { gpu: Some(Gpu::of_card("NVIDIA GeForce RTX 4060", 89)), ..on("16GB") };
    let laptop = with_engines(laptop, None, Some("none are built for sm_89"));
    let without = table(&model(1_000), &on("16GB"), &Wanted::default());
    let told = table(&model(1_000), &laptop, &Wanted::default());
    let line = "the GPU is left out: none are built for sm_89".to_owned();
    assert_eq!(told, FitTable { without_gpu: Some(line), ..without });
    let refused = gpu_refusal(&model(1_000), &laptop, &Wanted::default());
    assert_eq!(refused.as_deref(), Some("none are built for sm_89"));
    let none = gpu_refusal(&model(1_000), &on("8GB"), &Wanted::default());
    assert_eq!(none.as_deref(), Some("no GPU is known of a device with 8GB"));
}

#[test]
fn the_last_byte_of_a_card_turns_the_advice() {
    let model = model(1_000);
    let of = |free: u64, wanted: &Wanted| {
        let device = with_card("NVIDIA H200");
        let gpu = device.gpu.map(|gpu| Gpu { free_bytes: Some(free), ..gpu });
        table(&model, &DeviceProfile { gpu, ..device }, wanted)
    };
    let wanted = Wanted {
        scheme: Some("int4-g128".to_owned()),
        context: Some(2048),
        kv: Some("int8".to_owned()),
        ..Wanted::default()
    };
    let held = of(64 << 30, &wanted).lines[0].gpu_bytes.unwrap();
    assert_eq!(target(&of(held, &wanted)), Some("cuda-sm90"));
    let small = of(held - 1, &wanted);
    assert_eq!((target(&small), small.is_advised), (Some("cpu"), true));
    let why = small.without_gpu.unwrap();
    assert!(
        why.starts_with("the GPU is left out: the smallest choice on it holds 1.6 GiB of"),
        "{why}"
    );
    // What is left open gives way before the GPU does.
    let open = Wanted { scheme: None, ..wanted };
    let settings = of(held, &open).lines[0].settings.clone();
    assert_eq!(settings.scheme.as_deref(), Some("int4-g128"));
    let asked = Wanted { device: WantedDevice::Gpu, ..open };
    let none = of(held - 1, &asked);
    assert!(!none.is_advised && none.why.contains("of the GPU's memory"), "{}", none.why);
    let [Instead::Settings { line }] = &none.instead[..] else { panic!("{:?}", none.instead) };
    assert_eq!(line.settings.target.as_deref(), Some("cpu"));
}

#[test]
fn the_last_byte_of_a_shared_pool_turns_the_advice() {
    let of = |memory_bytes| {
        let wanted = Wanted {
            scheme: Some("none".to_owned()),
            context: Some(2048),
            kv: Some("int8".to_owned()),
            memory_bytes: Some(memory_bytes),
            ..Wanted::default()
        };
        table(&model(1_000), &orin(), &wanted)
    };
    let held = of(6 << 30).lines[0].serving_bytes;
    assert_eq!(target(&of(held)), Some("cuda-sm87"));
    let less = of(held - 1);
    assert_eq!((target(&less), less.is_advised), (Some("cpu"), true));
}

#[test]
fn who_says_what_runs_it_is_kept_to() {
    let of = |device, kv: Option<&str>| {
        let wanted = Wanted { device, kv: kv.map(str::to_owned), ..Wanted::default() };
        let told = table(&model(1_000), &orin(), &wanted);
        let targets = told.lines.iter().map(|line| line.settings.target.clone().unwrap());
        (targets.collect::<std::collections::BTreeSet<_>>(), told.without_gpu, wanted)
    };
    let one = |word: &str| [word.to_owned()].into();
    let (targets, told, _) = of(WantedDevice::Processors, None);
    assert_eq!((targets, told), (one("cpu"), None));
    let (targets, told, _) = of(WantedDevice::Gpu, None);
    assert_eq!((targets, told), (one("cuda-sm87"), None));
    let (targets, told, wanted) = of(WantedDevice::Auto, Some("f32"));
    assert_eq!(targets, one("cpu"));
    let why = "engines for GPUs keep no keys and values in f32";
    assert_eq!(told.unwrap(), format!("the GPU is left out: {why}"));
    assert_eq!(gpu_refusal(&model(1_000), &orin(), &wanted).as_deref(), Some(why));
    let refused = ModelFacts { on_gpu: Err("heads are too large".to_owned()), ..model(1_000) };
    let told = table(&refused, &orin(), &Wanted::default());
    assert_eq!(told.without_gpu.as_deref(), Some("the GPU is left out: heads are too large"));
}

#[test]
fn boards_that_nothing_ran_on_are_projected_and_cards_by_their_maker() {
    let speed = |device: &DeviceProfile| {
        table(&model(1_000), device, &Wanted::default()).lines[0].speed.unwrap()
    };
    assert_eq!(speed(&orin()).basis, RateBasis::Projected);
    let h200 = speed(&with_card("NVIDIA H200"));
    assert_eq!(h200.basis, RateBasis::Stated);
    let (tokens, first) = (h200.tokens_per_s.unwrap(), h200.first_token_s.unwrap());
    assert!(tokens > 5.0 * speed(&orin()).tokens_per_s.unwrap() && first < 0.1, "{h200:?}");
    let unknown = with_card("NVIDIA Z1");
    let gpu = unknown.gpu.clone().map(|gpu| Gpu { memory_bytes: 64 << 30, ..gpu });
    let unknown = table(&model(1_000), &DeviceProfile { gpu, ..unknown }, &Wanted::default());
    assert_eq!((target(&unknown), unknown.lines[0].speed), (Some("cuda-sm90"), None));
}

#[test]
fn what_was_measured_on_a_gpu_is_that_of_its_engines() {
    let model = model(1_000);
    let ways = model.on_gpu.as_ref().unwrap();
    let measured = |target: &str| MeasuredAnswer {
        target: Some(target.to_owned()),
        decoder_bytes: ways.decoders[0].weights_bytes,
        tower_bytes: Some(ways.towers[0].weights_bytes),
        tokens_per_s: Some(12.5),
        prompt_tokens_per_s: Some(500.0),
        image_tokens_per_s: Some(256.0),
    };
    let basis = |target| {
        let history = [measured(target)];
        super::table(&model, &orin(), &Wanted::default(), &history).lines[0].speed.unwrap().basis
    };
    assert_eq!(basis("cuda-sm87"), RateBasis::Measured);
    assert_eq!(basis("cuda-sm90"), RateBasis::Projected);
}

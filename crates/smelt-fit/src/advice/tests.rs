use super::{DeviceProfile, FitLine, FitTable, Instead, MeasuredAnswer, ModelFacts, Wanted};
use crate::device::{Rate, RateBasis};
use crate::model::{DecoderOption, KvSize, PhotographCost, TowerOption};
use crate::settings::FitSettings;

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

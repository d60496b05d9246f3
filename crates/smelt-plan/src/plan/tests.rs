use super::*;
use crate::pipeline::Escalation;
use crate::pipeline::Overrides;

/// A pipeline of `command` stages: "c: a b" is stage c needing a and b.
fn pipeline(lines: &[&str]) -> Pipeline {
    let mut text = "smelt = 1\nname = \"t\"\n".to_owned();
    for line in lines {
        let (name, needs) = line.split_once(':').unwrap();
        let needs: Vec<_> = needs.split_whitespace().map(|need| format!("\"{need}\"")).collect();
        text.push_str(&format!(
            "[stage.{name}]\nkind = \"command\"\nargv = [\"make\", \"{name}\"]\ninputs = [{}]\noutputs = [\"o\"]\n",
            needs.join(", ")
        ));
    }
    Pipeline::parse("t.toml", &text, &Overrides::default()).unwrap()
}

fn plan(lines: &[&str]) -> Result<Plan, PipelineError> {
    Plan::build(&pipeline(lines), &Pins::default())
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.stages().map(|(_, stage)| stage.name.as_str()).collect()
}

#[test]
fn needs_come_first_and_ties_keep_the_order_of_the_file() {
    let plan = plan(&["z: b", "b:", "a:", "y: z a", "c: a a"]).unwrap();
    assert_eq!(names(&plan), ["b", "z", "a", "y", "c"]);
    for (id, stage) in plan.stages() {
        assert!(stage.needs().all(|need| need < id));
    }
}

#[test]
fn circles_are_named() {
    let check = |lines: &[&str], words: &str| {
        let error = plan(lines).unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.place.is_some());
    };
    check(&["a: c", "b: a", "c: b", "d: c"], "a needs c needs b needs a");
    check(&["x:", "a: a"], "a needs a");
    check(&["d: c", "c: b", "b: c"], "c needs b needs c");
}

#[test]
fn unknown_stages_are_refused() {
    let error = plan(&["alpha:", "b: alhpa"]).unwrap_err().to_string();
    assert!(error.starts_with("t.toml:11:"), "{error}");
    assert!(error.contains("did you mean \"alpha\"?"), "{error}");
}

#[test]
fn an_edge_must_point_to_a_fitting_kind() {
    let text = "smelt = 1\nname = \"t\"\n[stage.c]\nkind = \"source\"\nfrom = \"synthetic:x\"\n\
        [stage.e]\nkind = \"engine-build\"\nonnx = \"c\"\n";
    let pipeline = Pipeline::parse("t.toml", text, &Overrides::default()).unwrap();
    let error = Plan::build(&pipeline, &Pins::default()).unwrap_err().to_string();
    assert!(
        error.contains("takes a stage of kind onnx-export or graph-surgery or command"),
        "{error}"
    );
}

#[test]
fn a_change_reaches_exactly_the_recipe_keys_below_it() {
    let before = plan(&["a:", "b: a", "c: b", "d:"]).unwrap();
    let mut changed = pipeline(&["a:", "b: a", "c: b", "d:"]);
    changed.stages[1].params.insert("argv".into(), Value::from(vec!["other"]));
    let after = Plan::build(&changed, &Pins::default()).unwrap();
    let differs: Vec<_> = before
        .stages()
        .zip(after.stages())
        .filter(|(b, a)| b.1.recipe_key != a.1.recipe_key)
        .map(|(b, _)| b.1.name.as_str())
        .collect();
    assert_eq!(differs, ["b", "c"]);
}

#[test]
fn limits_and_retry_enter_no_key() {
    let plain = pipeline(&["a:"]);
    let mut other = plain.clone();
    other.stages[0].limits.memory_bytes_max = Some(1 << 30);
    other.stages[0].retry.attempts_max = 3;
    other.stages[0].retry.escalate = vec![Escalation::default()];
    let key = |p| Plan::build(p, &Pins::default()).unwrap().stages().next().unwrap().1.recipe_key;
    assert_eq!(key(&plain), key(&other));
}

#[test]
fn escalation_overrides_one_attempt() {
    let mut pipeline = pipeline(&["a:"]);
    let argv = |word: &str| Value::from(vec![word]);
    let step = |word: &str| Escalation {
        params: [("argv".to_owned(), argv(word))].into(),
        text: word.to_owned(),
        ..Escalation::default()
    };
    pipeline.stages[0].retry.escalate = vec![step("second"), step("third")];
    let plan = Plan::build(&pipeline, &Pins::default()).unwrap();
    let (_, stage) = plan.stages().next().unwrap();
    assert_eq!(stage.attempt(1).changed, None);
    assert_eq!(stage.attempt(2).params["argv"], argv("second"));
    assert_eq!(stage.attempt(3).params["argv"], argv("third"));
    assert_eq!(stage.attempt(9).params["argv"], argv("third"));
}

#[test]
fn closure_is_everything_needed() {
    let plan = plan(&["a:", "b: a", "c: b", "d: a"]).unwrap();
    let wanted = plan.closure(&[plan.find("c").unwrap()]);
    let names: Vec<_> = wanted.iter().map(|&id| plan.stage(id).name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(plan.find("bb").unwrap_err().near.as_deref(), Some("b"));
}

#[test]
fn the_names_a_program_finds_its_inputs_by_are_in_its_key() {
    let key_of_c = |lines: &[&str]| {
        let plan = plan(lines).unwrap();
        let c = plan.find("c").unwrap();
        // Both inputs hold the same, so only their names can tell the keys apart.
        plan.content_key(c, |_| Digest::from_bytes([1; 32]))
    };
    assert_ne!(key_of_c(&["a:", "b:", "c: a b"]), key_of_c(&["a:", "b:", "c: b a"]));
}

#[test]
fn a_commit_is_in_the_keys_and_its_branch_and_place_are_not() {
    let text = "smelt = 1\nname = \"t\"\n[stage.c]\nkind = \"source\"\nfrom = \"hf:o/n@main\"\n";
    let pipeline = Pipeline::parse("t.toml", text, &Overrides::default()).unwrap();
    let keys = |repo: &str, revision: &str, commit: &str, path: &str| {
        let [repo, revision, commit] = [repo, revision, commit].map(str::to_owned);
        let pin = HubPin { repo, revision, commit, file: None, path: path.into() };
        let hubs = [("o/n@main".to_owned(), pin.clone())].into();
        let plan = Plan::build(&pipeline, &Pins { hubs, ..Pins::default() }).unwrap();
        let (id, stage) = plan.stages().next().unwrap();
        assert_eq!((stage.fetched(), stage.given()), (Some(&pin), None));
        (stage.recipe_key, plan.content_key(id, |_| unreachable!("it needs no stage")))
    };
    let base = keys("o/n", "main", "1", "/a");
    assert_eq!(base, keys("o/n", "v1", "1", "/b"));
    for other in [keys("o/n", "main", "2", "/a"), keys("o/m", "main", "1", "/a")] {
        assert!(base.0 != other.0 && base.1 != other.1);
    }
}

/// A decoder that a back end builds from a checkpoint, and what serves it.
const ENGINE: &str = "smelt = 1\nname = \"t\"\n[stage.c]\nkind = \"source\"\nfrom = \"synthetic:x\"\n\
    [stage.e]\nkind = \"llm-engine-build\"\ncheckpoint = \"c\"\n\
    [stage.d]\nkind = \"deployment\"\ncheckpoint = \"c\"\nllm = \"e\"\n";

/// The plan of it on a device, by a back end that depends on so much of that.
fn built_by(text: &str, facts: &'static [&'static str], device: &[(&'static str, &str)]) -> Plan {
    let mut pipeline = Pipeline::parse("t.toml", text, &Overrides::default()).unwrap();
    pipeline.depend(|_| facts.iter().copied().collect());
    let device = device.iter().map(|&(fact, value)| (fact, value.to_owned())).collect();
    Plan::build(&pipeline, &Pins { device, ..Pins::default() }).unwrap()
}

#[test]
fn what_a_back_end_depends_on_enters_both_keys_of_what_it_builds_and_is_named() {
    const VENDOR: &[&str] = &["sm", "tensorrt", "cuda", "gpu-driver"];
    let orin = [("sm", "87"), ("tensorrt", "10.3.0"), ("kernel", "5.15")];
    let newer = [("sm", "87"), ("tensorrt", "10.7.0"), ("kernel", "6.8")];
    let output = |_| Digest::from_bytes([1; 32]);
    let keys = |plan: &Plan, name: &str| {
        let id = plan.find(name).unwrap();
        (plan.stage(id).recipe_key, plan.content_key(id, output))
    };
    let (before, after) = (built_by(ENGINE, VENDOR, &orin), built_by(ENGINE, VENDOR, &newer));
    let (then, now) = (keys(&before, "e"), keys(&after, "e"));
    assert!(then.0 != now.0 && then.1 != now.1, "another TensorRT builds another engine");
    assert_eq!(keys(&before, "c"), keys(&after, "c"), "no back end has a part in a checkpoint");
    // An engine that is equal all the same stops the wave.
    assert_eq!(keys(&before, "d").1, keys(&after, "d").1);

    let fields = |plan: &Plan| plan.content_fields(plan.find("e").unwrap(), output);
    let differs = crate::explain::differences(&fields(&before), &fields(&after));
    let names: Vec<&str> = differs.iter().map(|differs| differs.name.as_str()).collect();
    assert_eq!(names, ["device tensorrt"], "and not the kernel, on which it does not depend");
    assert_eq!(differs[0].before.as_deref(), Some("10.3.0"));
    assert_eq!(differs[0].now.as_deref(), Some("10.7.0"));
    let lacks = built_by(ENGINE, VENDOR, &[]);
    let (_, stage) = lacks.stages().nth(1).unwrap();
    assert!(stage.device.iter().all(|(_, value)| value == device::ABSENT));
    assert_eq!(stage.device.len(), VENDOR.len());
}

#[test]
fn what_depends_on_no_device_has_the_keys_it_always_had() {
    let keys = |plan: &Plan| plan.stages().map(|(_, stage)| stage.recipe_key).collect::<Vec<_>>();
    let untouched = Pipeline::parse("t.toml", ENGINE, &Overrides::default()).unwrap();
    let untouched = keys(&Plan::build(&untouched, &Pins::default()).unwrap());
    assert_eq!(keys(&built_by(ENGINE, &[], &[("sm", "87")])), untouched);
    assert_ne!(keys(&built_by(ENGINE, &["sm"], &[("sm", "87")])), untouched);
}

#[test]
fn a_key_for_any_device_covers_all_but_the_device() {
    let keys = |text: &str, sm| built_by(text, &["sm"], &[("sm", sm)]).keys_anywhere();
    assert_eq!(keys(ENGINE, "87"), keys(ENGINE, "89"));
    let longer = ENGINE.replace("[stage.d]", "max-seq-len = 99\n[stage.d]");
    assert_ne!(keys(&longer, "87")[1], keys(ENGINE, "87")[1]);
    let plan = built_by(ENGINE, &["sm"], &[("sm", "87")]);
    let recipes = plan.stages().map(|(_, stage)| stage.recipe_key);
    assert!(recipes.zip(plan.keys_anywhere()).all(|(recipe, anywhere)| recipe != anywhere));
}

#[test]
fn a_content_key_follows_from_what_somebody_says_the_inputs_were() {
    let plan = built_by(ENGINE, &["sm"], &[("sm", "87")]);
    let id = plan.find("d").unwrap();
    let output = |id: StageId| Digest::of(&[id.index() as u8]);
    let labels = plan.stage(id).inputs.iter().map(|input| input.label.clone());
    let said: Vec<(String, Digest)> = labels.zip(plan.stage(id).needs().map(output)).collect();
    assert_eq!(plan.content_key_of(id, &said), Some(plan.content_key(id, output)));
    assert_eq!(plan.content_key_of(id, &said[1..]), None);
    let turned: Vec<_> = said.into_iter().rev().collect();
    assert_eq!(plan.content_key_of(id, &turned), None);
}

#[test]
fn a_fact_that_the_file_and_the_back_end_name_is_in_the_key_once() {
    let declared = ENGINE.replace(
        "checkpoint = \"c\"\n[stage.d]",
        "checkpoint = \"c\"\ndevice = [\"sm\"]\n[stage.d]",
    );
    assert_ne!(declared, ENGINE);
    let device = [("sm", "87"), ("cuda", "12.6.11")];
    let keys = |text: &str, facts| {
        let plan = built_by(text, facts, &device);
        let (_, stage) = plan.stages().nth(1).unwrap();
        (stage.device.clone(), stage.recipe_key)
    };
    assert_eq!(keys(&declared, &["cuda", "sm"]), keys(ENGINE, &["sm", "cuda"]));
    assert_eq!(keys(&declared, &[]), keys(ENGINE, &["sm"]));
}

#[test]
fn engines_for_several_devices_are_an_edge_each_and_one_is_keyed_as_before() {
    let of = |llm: &str| {
        let other = "[stage.f]\nkind = \"llm-engine-build\"\ncheckpoint = \"c\"\nmax-slots = 2\n";
        let text = ENGINE.replace("llm = \"e\"", &format!("llm = {llm}")) + other;
        let plan = built_by(&text, &[], &[]);
        let id = plan.find("d").unwrap();
        (plan.stage(id).recipe_key, plan.content_fields(id, |_| Digest::from_bytes([1; 32])))
    };
    let (alone, fields) = of("\"e\"");
    assert_eq!((alone, fields), of("[\"e\"]"));
    let (both, fields) = of("[\"e\", \"f\"]");
    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.ends_with(&["input checkpoint", "input llm", "input llm #2"]), "{names:?}");
    assert!(both != alone && both != of("[\"f\", \"e\"]").0, "their order is the order of choice");
    let wrong = ENGINE.replace("llm = \"e\"", "llm = [\"e\", \"c\"]");
    let pipeline = Pipeline::parse("t.toml", &wrong, &Overrides::default()).unwrap();
    let error = Plan::build(&pipeline, &Pins::default()).unwrap_err().to_string();
    assert!(error.contains("takes a stage of kind llm-engine-build or command"), "{error}");
}

/// A stage of every kind, with words and numbers that are given and such that are filled in.
const EVERY_KIND: &str = r#"
smelt = 1
name = "t"
[stage.source]
kind = "source"
from = "synthetic:x"
[stage.tune]
kind = "tune"
[stage.export]
kind = "onnx-export"
checkpoint = "source"
grids = ["448x448"]
probe = true
[stage.surgery]
kind = "graph-surgery"
onnx = "export"
rule = "split-head"
max-bytes = "200MiB"
[stage.engine]
kind = "engine-build"
onnx = "surgery"
precision = "int8"
tactics = "tune"
[stage.calibrate]
kind = "calibrate"
checkpoint = "source"
texts = ["a"]
vision = "engine"
[stage.quantize]
kind = "quantize"
checkpoint = "source"
scheme = "int4-g128"
method = "best"
budget = 2
calibration = "calibrate"
allow-requantize = true
[stage.llm]
kind = "llm-engine-build"
checkpoint = "quantize"
[stage.verify]
kind = "verify"
vision = "engine"
llm = "llm"
against = "source"
weights = "quantize"
full = true
[stage.deployment]
kind = "deployment"
checkpoint = "source"
vision = "engine"
llm = "llm"
slots = 4
verified = "verify"
[stage.command]
kind = "command"
argv = ["true"]
inputs = ["deployment"]
outputs = ["o"]
env = { A = "1" }
writes = ["/"]
capabilities = ["mknod"]
[stage.accuracy]
kind = "accuracy"
deployment = "deployment"
against = "deployment"
verified = "verify"
questions = "path:q"
limit = 8
min-exact = "0.95"
max-kl-nats = "0.01"
"#;

/// A deployment of a checkpoint that comes from `from`, quantised on the way.
const QUANTISED: &str = "smelt = 1\nname = \"t\"\n[stage.c]\nkind = \"source\"\nfrom = \"FROM\"\n\
    [stage.q]\nkind = \"quantize\"\ncheckpoint = \"c\"\nscheme = \"int8\"\n\
    [stage.e]\nkind = \"llm-engine-build\"\ncheckpoint = \"q\"\n";

#[test]
fn where_a_stage_s_model_is_from_is_told_as_people_write_it() {
    let check = |from: &str, expect: &str| {
        let text = QUANTISED.replace("FROM", from);
        let pipeline = Pipeline::parse("t.toml", &text, &Overrides::default()).unwrap();
        let pin = Pin { path: "/models/x".into(), digest: Digest::of(b"x") };
        let (repo, commit) = ("org/name".to_owned(), "0".repeat(40));
        let hub = |text: &str| {
            let (rest, file) = text.split_once(':').map_or((text, None), |(r, f)| (r, Some(f)));
            let revision = rest.split_once('@').map_or("main", |(_, revision)| revision);
            let (revision, file) = (revision.to_owned(), file.map(str::to_owned));
            let path = "/hf".into();
            HubPin { repo: repo.clone(), revision, commit: commit.clone(), file, path }
        };
        let hubs = pipeline.hubs().into_iter().map(|text| (text.to_owned(), hub(text))).collect();
        let pins = Pins { paths: [("x".to_owned(), pin)].into(), hubs, ..Pins::default() };
        let plan = Plan::build(&pipeline, &pins).unwrap();
        let origin = |name: &str| plan.origin(plan.find(name).unwrap());
        assert_eq!([origin("c"), origin("e")], [None, Some(expect.to_owned())]);
    };
    check("hf:org/name", "hf:org/name");
    check("hf:org/name@main", "hf:org/name");
    check("hf:org/name@v2:a-Q4_K_M.gguf", "hf:org/name@v2:a-Q4_K_M.gguf");
    check("path:x", "path:/models/x");
    check("synthetic:internvl3-tiny", "synthetic:internvl3-tiny");
    let alone = plan(&["a:"]).unwrap();
    assert_eq!(alone.origin(alone.find("a").unwrap()), None);
}

/// Stores are full of results under these keys.  They change only where a kind's version does: then they are computed
/// anew, as `key` says.
#[test]
fn keys_of_every_kind_are_what_they_were() {
    let pipeline = Pipeline::parse("t.toml", EVERY_KIND, &Overrides::default()).unwrap();
    let pin = Pin { path: "/q".into(), digest: Digest::of(b"q") };
    let pins = Pins { paths: [("q".to_owned(), pin)].into(), ..Pins::default() };
    let plan = Plan::build(&pipeline, &pins).unwrap();
    let found = plan.stages().map(|(_, stage)| (stage.name.as_str(), stage.recipe_key.to_string()));
    let expect = [
        ("source", "79477dcbcea2b4804890a72e04d465e01f5b2b91868e13cb222546fb04c589c8"),
        ("tune", "a888de07a10c2d7973e707c1594cae07c98d9c4a8d6e077f2adecf718336cb8b"),
        ("export", "fc0e82050c145e885120731d296035767d0658d9418516c61c19fbae54a1d398"),
        ("surgery", "7661e77ba4c80ff8666dd763eb2ed8e832b6a2deef1bcc8f62f16c13224c87ef"),
        ("engine", "202e6f06d00ff02feec19e32a2ebcc1a3f42ed78f18db8155d4dc3e157249d0c"),
        ("calibrate", "261a4716ed01292bccf32e1e3f82883b36a288ddec37c39676a89e56e1a6cbac"),
        ("quantize", "1939283dece1bec49e6701a049cec6405e5effe83116f2af2a8f09ab1b4f4d84"),
        ("llm", "708a5e16016c8fd9409d12ebadbfc462d45bed9415bed8da9a126c8b4dab0e3e"),
        ("verify", "bb1c479d14343e94480bbcba2e49a29d6060222ebdc17a0b01cbb9a8eaaebbf4"),
        ("deployment", "612f8a850dca9ba472aad526f4f9cae93092c0dd3e166eca9224620ef38e0d25"),
        ("command", "18f7da62ace7af02a08713dfda170ed10619abefe906f864416c3d38ac7b931e"),
        ("accuracy", "96e663686ac2ade318701fd9fe05f5029e6affcb5d519723ad362fbc9514d135"),
    ];
    let expect = expect.map(|(name, key)| (name, key.to_owned()));
    assert_eq!(found.collect::<BTreeMap<_, _>>(), BTreeMap::from(expect));
}

#[test]
fn spec_keys_know_the_file_and_nothing_of_the_machine() {
    let text = |argv: &str, on: &str| {
        format!(
            "smelt = 1\nname = \"t\"\n[stage.q]\nkind = \"source\"\nfrom = \"path:q\"\n\
             [stage.e]\nkind = \"command\"\nargv = [\"{argv}\"]\ninputs = [\"q\"]\noutputs = [\"o\"]\n\
             device = [\"gpu\"]\n{on}"
        )
    };
    let on = "on = \"host\"\n";
    let keys = |text: &str, content: &[u8]| {
        let pipeline = Pipeline::parse("t.toml", text, &Overrides::default()).unwrap();
        let pin = Pin { path: "/q".into(), digest: Digest::of(content) };
        let tool = Tool { name: "x".to_owned(), pin: pin.clone() };
        let pins = Pins {
            paths: [("q".to_owned(), pin)].into(),
            device: [("gpu", String::from_utf8(content.to_vec()).unwrap())].into(),
            tools: [(StageName::parse("e").unwrap(), vec![tool])].into(),
            ..Pins::default()
        };
        let plan = Plan::build(&pipeline, &pins).unwrap();
        let stage = plan.stage(plan.find("e").unwrap());
        (stage.recipe_key, stage.spec_key)
    };
    let (host, device) = (keys(&text("x", on), b"host"), keys(&text("x", on), b"device"));
    assert_ne!(host.0, device.0);
    assert!(host.1.is_some() && host.1 == device.1);
    assert_ne!(keys(&text("y", on), b"host").1, host.1);
    assert_eq!(keys(&text("x", ""), b"host").1, None);
}

#[test]
fn a_program_that_no_key_covers_is_shared_only_where_its_stage_says_so() {
    let shared = |share: &str, tools: Vec<Tool>| {
        let text = format!(
            "smelt = 1\nname = \"t\"\n[stage.s]\nkind = \"source\"\nfrom = \"synthetic:x\"\n{share}\
             [stage.e]\nkind = \"command\"\nargv = [\"x\"]\noutputs = [\"o\"]\n{share}"
        );
        let pipeline = Pipeline::parse("t.toml", &text, &Overrides::default()).unwrap();
        let tools = [(StageName::parse("e").unwrap(), tools)].into();
        let plan = Plan::build(&pipeline, &Pins { tools, ..Pins::default() }).unwrap();
        let of = |name: &str| plan.stage(plan.find(name).unwrap());
        ([of("s").is_shared(), of("e").is_shared()], of("e").recipe_key)
    };
    let pin = Pin { path: "/x".into(), digest: Digest::of(b"x") };
    let tool = vec![Tool { name: "x".to_owned(), pin }];
    assert_eq!(shared("", Vec::new()).0, [true, false]);
    assert_eq!(shared("", tool.clone()).0, [true, true]);
    assert_eq!(shared("share = true\n", Vec::new()).0, [true, true]);
    assert_eq!(shared("share = false\n", tool).0, [false, false]);
    assert_eq!(shared("", Vec::new()).1, shared("share = true\n", Vec::new()).1, "it is in a key");
}

#[test]
fn a_stage_of_another_machine_is_keyed_by_what_is_said_of_that() {
    let text =
        ENGINE.replace("[stage.d]", "where = { sm = \"87\", arch = \"aarch64\" }\n[stage.d]");
    assert_ne!(text, ENGINE);
    let of = |text: &str, device: &[(&'static str, &str)]| {
        let plan = built_by(text, &["sm", "cuda"], device);
        let stage = plan.stage(plan.find("e").unwrap()).clone();
        (stage.elsewhere, stage.device, stage.recipe_key)
    };
    let orin = [("sm", "87"), ("arch", "aarch64"), ("cuda", "12.6")];
    let (elsewhere, device, there) = of(&text, &orin);
    assert_eq!(elsewhere, None, "this is such a machine");
    assert_eq!((device.len(), there), (2, of(ENGINE, &orin).2), "where it is built enters no key");
    let desk = [("sm", "89"), ("arch", "x86_64"), ("cuda", "12.6")];
    let (elsewhere, device, key) = of(&text, &desk);
    assert_eq!(elsewhere.unwrap()["arch"], "aarch64");
    assert_eq!(device, [("sm", "87".to_owned())], "its CUDA is not known here");
    assert!(key != there && key != of(ENGINE, &desk).2);
    assert_eq!(key, of(&text, &[]).2, "whatever is true here");
    // Where all that counts is said, the key is that which the machine itself has.
    let all = text.replace("sm = \"87\",", "sm = \"87\", cuda = \"12.6\",");
    assert_eq!(of(&all, &desk).2, of(&all, &orin).2);
}

#[test]
fn a_content_key_follows_from_what_another_machine_says_of_itself() {
    let text = ENGINE.replace("[stage.d]", "where = { sm = \"87\" }\n[stage.d]");
    let orin = built_by(&text, &["sm", "cuda"], &[("sm", "87"), ("cuda", "12.6")]);
    let desk = built_by(&text, &["sm", "cuda"], &[("sm", "89"), ("cuda", "13.0")]);
    let id = desk.find("e").unwrap();
    let input = Digest::from_bytes([1; 32]);
    let inputs = [("checkpoint".to_owned(), input)];
    let there = orin.content_key(id, |_| input);
    let said = orin.stage(id).device.clone();
    assert_eq!(desk.content_key_by(id, &said, &[], &inputs), Some(there));
    assert_ne!(desk.content_key_by(id, &said[..1], &[], &inputs), Some(there));
    assert_ne!(desk.content_key_of(id, &inputs), Some(there), "a fact is not known here");
}

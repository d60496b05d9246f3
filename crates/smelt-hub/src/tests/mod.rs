//! Downloads from a hub on this machine that cuts, lies and refuses.

mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use self::server::{COMMIT, Fault, REPO, Server, git, sha256};
use super::{Address, Commit, Hub, HubError, Progress, Settings, Token};

const CONFIG: &[u8] = b"{\"model_type\": \"tiny\"}";

/// Larger than a chunk and than a socket's buffer, and no two pages alike.
fn weights() -> Vec<u8> {
    (0..900_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

struct World {
    server: Server,
    dir: TempDir,
    weights: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let weights = weights();
        let server = Server::start(&[
            ("README.md", b"read me", false),
            ("config.json", CONFIG, false),
            ("model.safetensors", &weights, true),
            ("onnx/model.safetensors", b"other", true),
            ("pytorch_model.bin", b"pickle", true),
            ("tokenizer.json", b"{}", false),
        ]);
        Self { server, dir: TempDir::new().unwrap(), weights }
    }

    fn settings(&self) -> Settings {
        Settings {
            endpoint: self.server.url.clone(),
            token: None,
            cache: self.dir.path().to_owned(),
            is_offline: false,
            authorities: None,
            pause: Duration::from_millis(1),
            silence_max: Duration::from_millis(300),
        }
    }

    fn hub(&self) -> Hub {
        Hub::new(self.settings()).unwrap()
    }

    fn offline(&self) -> Hub {
        Hub::new(Settings { is_offline: true, ..self.settings() }).unwrap()
    }

    fn download(&self) -> Result<PathBuf, HubError> {
        self.hub().download(&address(), &commit(), &mut |_| {})
    }

    fn check_content(&self, dir: &Path) {
        assert_eq!(fs::read(dir.join("config.json")).unwrap(), CONFIG);
        assert!(fs::read(dir.join("model.safetensors")).unwrap() == self.weights);
        assert_eq!(fs::read(dir.join("tokenizer.json")).unwrap(), b"{}");
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("models--org--tiny-model")
    }

    fn snapshot(&self) -> PathBuf {
        self.root().join("snapshots").join(COMMIT)
    }

    fn blobs(&self) -> Vec<String> {
        let dir = self.root().join("blobs");
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn address() -> Address {
    REPO.parse().unwrap()
}

fn commit() -> Commit {
    Commit::parse(COMMIT).unwrap()
}

#[test]
fn what_was_fetched_of_a_repository_is_counted() {
    let world = World::new();
    let (hub, address): (_, Address) = (world.hub(), REPO.parse().unwrap());
    assert_eq!(hub.cached(&address.repo), None);
    let commit = hub.resolve(&address).unwrap().commit;
    hub.download(&address, &commit, &mut |_| {}).unwrap();
    let bytes = CONFIG.len() + world.weights.len() + "{}".len();
    let folder = world.dir.path().join("models--org--tiny-model");
    assert_eq!(hub.cached(&address.repo), Some((folder, bytes as u64)));
}

#[test]
fn a_part_of_a_file_is_read_and_nothing_is_written() {
    let world = World::new();
    let (repo, hub) = (address().repo, world.hub());
    let read = |hub: &Hub, range| hub.part(&repo, &commit(), "model.safetensors", range);
    let all = world.weights.len() as u64;
    for range in [0..1, 0..70_000, 5..9, all - 3..all, 0..all] {
        let expect = &world.weights[range.start as usize..range.end as usize];
        assert!(read(&hub, range.clone()).unwrap() == expect, "{range:?}");
    }
    let ranges = world.server.asked().into_iter().filter_map(|asked| asked.range);
    assert!(ranges.clone().any(|range| range == "bytes=5-8"), "{:?}", ranges.collect::<Vec<_>>());
    // What was cut off is asked for again; what is sent whole is no part.
    world.server.set(|state| state.faults = [Fault::Cut(2)].into());
    assert_eq!(read(&hub, 5..9).unwrap(), world.weights[5..9]);
    world.server.set(|state| state.faults = [Fault::Whole].into());
    assert!(matches!(read(&hub, 5..9), Err(HubError::NoParts { .. })));
    assert!(matches!(read(&hub, all + 5..all + 9), Err(HubError::NoParts { .. })));
    assert!(matches!(read(&world.offline(), 5..9), Err(HubError::Offline { .. })));
    let absent = hub.part(&repo, &commit(), "absent.safetensors", 0..1);
    assert!(matches!(absent, Err(HubError::NoFile { .. })));
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "nothing is written");
}

#[test]
fn what_is_still_to_be_fetched_is_known_before() {
    let world = World::new();
    let missing = || world.hub().missing_bytes(&address(), &commit()).unwrap();
    let all = world.weights.len() as u64;
    assert_eq!(missing(), Some(all));
    let faults = [Fault::Cut(100_000), Fault::Status(404)];
    world.server.set(|state| state.faults = faults.into());
    assert!(world.download().is_err(), "it was cut and is gone");
    assert_eq!(missing(), Some(all - 100_000));
    world.download().unwrap();
    assert_eq!(missing(), Some(0));
    world.server.set(|state| state.has_blobs = false);
    assert_eq!(missing(), None, "the list says nothing of sizes");
    assert!(world.offline().missing_bytes(&address(), &commit()).is_err());
}

#[test]
fn a_small_file_is_read_and_nothing_is_written() {
    let world = World::new();
    let (repo, hub) = (address().repo, world.hub());
    let read = |hub: &Hub, file: &str| hub.small_file(&repo, &commit(), file);
    assert_eq!(read(&hub, "config.json").unwrap().unwrap().as_bytes(), CONFIG);
    assert_eq!(read(&hub, "preprocessor_config.json").unwrap(), None);
    let error = read(&hub, "model.safetensors").unwrap_err().to_string();
    assert!(error.contains("more than 1048576 bytes"), "{error}");
    assert!(read(&world.offline(), "config.json").is_err());
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "nothing is written");
    world.download().unwrap();
    world.server.asked();
    assert_eq!(read(&world.offline(), "config.json").unwrap().unwrap().as_bytes(), CONFIG);
    assert_eq!(read(&hub, "preprocessor_config.json").unwrap(), None);
    assert!(world.server.asked().is_empty(), "what is here is not asked for");
}

#[test]
fn a_mirror_is_not_asked_for_what_its_list_lacks() {
    let world = World::new();
    world.server.set(|state| state.names_no_errors = true);
    let (repo, hub) = (address().repo, world.hub());
    hub.resolve(&address()).unwrap();
    world.server.asked();
    let read = |file: &str| hub.small_file(&repo, &commit(), file).unwrap();
    assert_eq!(read("chat_template.jinja"), None);
    assert!(world.server.asked().is_empty(), "the list that came with the commit says so");
    assert!(read("config.json").is_some());
    assert!(hub.lists(&repo, &commit(), "tokenizer.json").unwrap());
    assert_eq!(world.server.asked().len(), 1, "the one file that is there");
    // Of a commit that was not resolved here the list is asked for once.
    let hub = world.hub();
    for file in ["chat_template.json", "chat_template.jinja"] {
        assert_eq!(hub.small_file(&repo, &commit(), file).unwrap(), None);
    }
    assert_eq!(world.server.asked().len(), 1);
}

#[test]
fn a_checkpoint_arrives_in_the_hubs_own_layout() {
    let world = World::new();
    let resolved = world.hub().resolve(&address()).unwrap();
    assert_eq!((resolved.commit, resolved.remembered), (commit(), None));
    assert_eq!(fs::read_dir(world.dir.path()).unwrap().count(), 0, "resolving writes nothing");
    let mut last = (0, 0);
    let dir = world.hub().download(&address(), &commit(), &mut |progress| {
        let &Progress::Fetching { done_bytes, all_bytes, .. } = progress else {
            panic!("{progress:?}")
        };
        assert!(done_bytes >= last.0 && done_bytes <= all_bytes);
        last = (done_bytes, all_bytes);
    });
    let dir = dir.unwrap();
    let bytes = (world.weights.len() + CONFIG.len() + 2) as u64;
    assert_eq!(last, (bytes, bytes));
    let root = world.dir.path().join("models--org--tiny-model");
    assert_eq!(dir, root.join("smelt").join(COMMIT));
    assert_eq!(dir, world.hub().view(&address(), &commit()));
    for dir in [&dir, &root.join("snapshots").join(COMMIT)] {
        world.check_content(dir);
        let link = fs::read_link(dir.join("model.safetensors")).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(sha256(&world.weights)));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 3);
    }
    assert_eq!(fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    let mut blobs = vec![sha256(&world.weights), git(CONFIG), git(b"{}")];
    blobs.sort();
    assert_eq!(world.blobs(), blobs);
}

#[test]
fn what_others_add_to_the_snapshot_is_not_seen() {
    let world = World::new();
    let dir = world.download().unwrap();
    fs::write(world.snapshot().join("README.md"), "added").unwrap();
    fs::write(dir.join("stray.json"), "{}").unwrap();
    assert_eq!(world.download().unwrap(), dir);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    assert!(world.snapshot().join("README.md").exists());
}

#[test]
fn what_is_there_is_not_fetched_again_and_serves_offline() {
    let world = World::new();
    let missing = world.offline().resolve(&address()).unwrap_err();
    assert!(matches!(missing, HubError::Offline { .. }), "{missing}");
    let dir = world.download().unwrap();
    world.server.asked();
    assert_eq!(world.download().unwrap(), dir);
    let asked = world.server.asked();
    assert!(asked.iter().all(|asked| asked.path.starts_with("/api/")), "{asked:?}");
    let offline = world.offline();
    let resolved = offline.resolve(&address()).unwrap();
    assert_eq!(resolved.commit, commit());
    assert_eq!(resolved.remembered.as_deref(), Some("HF_HUB_OFFLINE is set"));
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(offline.download(&address(), &commit(), &mut |_| {}).unwrap(), dir);
    world.check_content(&dir);
    assert!(world.server.asked().is_empty());
    fs::remove_file(world.snapshot().join("model.safetensors")).unwrap();
    let half = offline.download(&address(), &commit(), &mut |_| {}).unwrap_err();
    assert!(half.to_string().contains("HF_HUB_OFFLINE"), "{half}");
    // The blob is still there, so only the link is made.
    world.download().unwrap();
    assert!(world.server.asked().iter().all(|asked| !asked.is_storage));
    world.check_content(&dir);
}

#[test]
fn a_hub_that_is_away_is_replaced_by_the_cache() {
    let world = World::new();
    let dir = world.download().unwrap();
    let settings = Settings { endpoint: "http://127.0.0.1:1".to_owned(), ..world.settings() };
    let hub = Hub::new(settings).unwrap();
    let resolved = hub.resolve(&address()).unwrap();
    assert_eq!(resolved.commit, commit());
    assert!(resolved.remembered.unwrap().ends_with("(2 tries)"), "it is told why");
    let mut said = Vec::new();
    let again = hub.download(&address(), &commit(), &mut |progress| {
        said.push(format!("{progress:?}"));
    });
    assert_eq!(again.unwrap(), dir);
    assert!(said[0].starts_with("Unasked"), "{said:?}");
    let error = hub.resolve(&"org/other".parse().unwrap()).unwrap_err();
    assert!(matches!(error, HubError::Unreachable { tries: 5, .. }), "{error}");
}

#[test]
fn shards_count_as_there_only_together() {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let server = Server::start(&[
        ("config.json", CONFIG, false),
        ("model.safetensors.index.json", index, false),
        ("model-1.safetensors", b"one", true),
        ("model-2.safetensors", b"two", true),
    ]);
    let world = World { server, dir: TempDir::new().unwrap(), weights: Vec::new() };
    let dir = world.download().unwrap();
    let offline = || world.offline().download(&address(), &commit(), &mut |_| {});
    assert_eq!(offline().unwrap(), dir);
    fs::remove_file(world.snapshot().join("model-2.safetensors")).unwrap();
    assert!(matches!(offline(), Err(HubError::Offline { .. })));
}

#[test]
fn a_snapshot_that_lacks_what_python_has_listed_is_not_complete() {
    let world = World::new();
    let dir = world.download().unwrap();
    let list = |names: &[&str]| {
        let files: Vec<String> = names.iter().map(|name| format!("\"{name}\": {{}}")).collect();
        let text = format!("{{\"format_version\": 1, \"files\": {{{}}}}}", files.join(", "));
        fs::create_dir_all(world.root().join("trees")).unwrap();
        fs::write(world.root().join(format!("trees/{COMMIT}.json")), text).unwrap();
        world.offline().download(&address(), &commit(), &mut |_| {})
    };
    let here = ["README.md", "a.bin", "config.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(list(&here).unwrap(), dir);
    let refused = list(&[&here[..], &["merges.txt"]].concat()).unwrap_err();
    assert!(matches!(refused, HubError::Offline { .. }), "{refused}");
}

#[test]
fn a_damaged_file_in_the_cache_is_noticed_and_fetched_again() {
    let world = World::new();
    let dir = world.download().unwrap();
    let blob = fs::canonicalize(dir.join("model.safetensors")).unwrap();
    let mut bytes = world.weights.clone();
    bytes[12345] ^= 1;
    fs::write(&blob, &bytes).unwrap();
    let error = world.offline().download(&address(), &commit(), &mut |_| {}).unwrap_err();
    assert!(matches!(&error, HubError::Damaged { path, .. } if *path == blob), "{error}");
    let mut damaged = 0;
    let again = world.hub().download(&address(), &commit(), &mut |progress| {
        damaged += usize::from(matches!(progress, Progress::Damaged { .. }));
    });
    assert_eq!((again.unwrap(), damaged), (dir.clone(), 1));
    world.check_content(&dir);
}

#[test]
fn a_cache_that_was_copied_without_links_is_used_as_it_is() {
    let world = World::new();
    let dir = world.download().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        let path = world.snapshot().join(file);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    fs::remove_dir_all(world.root().join("blobs")).unwrap();
    world.server.asked();
    for hub in [world.hub(), world.offline()] {
        fs::remove_dir_all(&dir).unwrap();
        world.check_content(&hub.download(&address(), &commit(), &mut |_| {}).unwrap());
    }
    assert!(world.server.asked().iter().all(|asked| !asked.is_storage), "nothing is fetched");
}

#[test]
fn a_revision_is_remembered_only_with_its_files() {
    let world = World::new();
    world.hub().note(&address(), &commit()).unwrap();
    assert_eq!(world.hub().remembered(&address()), None);
    world.download().unwrap();
    let tag: Address = format!("{REPO}@v1").parse().unwrap();
    assert_eq!(world.hub().remembered(&tag), None);
    world.hub().note(&tag, &commit()).unwrap();
    assert_eq!(world.hub().remembered(&tag), Some(commit()));
}

#[test]
fn cut_connections_go_on_where_they_ended() {
    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Cut(1_000_000), Fault::Cut(700_000)].into());
    let dir = world.download().unwrap();
    world.check_content(&dir);
    let asked = world.server.asked();
    let asked: Vec<_> = asked.iter().filter(|asked| asked.is_storage).collect();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[1].range.as_deref(), Some("bytes=1000000-"));
    assert_eq!(asked[1].if_range.as_deref(), Some("\"storage-tag\""));
    assert_eq!(asked[2].range.as_deref(), Some("bytes=1700000-"));
}

/// What an earlier process left of the weights.
fn leave(world: &World, bytes: &[u8]) {
    let blobs = world.dir.path().join("models--org--tiny-model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let name = format!("{}.incomplete", sha256(&world.weights));
    fs::write(blobs.join(name), bytes).unwrap();
}

#[test]
fn what_an_earlier_process_left_is_continued() {
    let world = World::new();
    leave(&world, &world.weights[..500_000]);
    world.check_content(&world.download().unwrap());
    let asked = world.server.asked();
    let ranges: Vec<_> = asked.iter().filter(|asked| asked.is_storage).map(|a| &a.range).collect();
    assert_eq!(ranges, [&Some("bytes=500000-".to_owned())]);
}

#[test]
fn leftovers_that_are_wrong_or_too_long_are_dropped() {
    for leftovers in [vec![7; 500_000], vec![7; 4_000_000]] {
        let world = World::new();
        leave(&world, &leftovers);
        // Not held against the server: it may still be wrong once.
        world.server.set(|state| state.faults = [Fault::Wrong].into());
        world.check_content(&world.download().unwrap());
        assert_eq!(world.blobs().len(), 3);
    }
}

#[test]
fn a_file_that_changed_or_a_server_without_ranges_begins_anew() {
    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Cut(1_000_000), Fault::Whole].into());
    world.check_content(&world.download().unwrap());
}

#[test]
fn wrong_bytes_are_fetched_once_more_and_then_refused() {
    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Wrong].into());
    world.check_content(&world.download().unwrap());

    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Wrong; 9].into());
    let error = world.download().unwrap_err();
    let HubError::WrongHash { file, expected, found, .. } = &error else { panic!("{error}") };
    assert_eq!((file.as_str(), expected), ("model.safetensors", &sha256(&world.weights)));
    assert_ne!(expected, found);
    assert_eq!(world.server.asked().iter().filter(|asked| asked.is_storage).count(), 2);
    assert!(!world.snapshot().join("model.safetensors").exists());
    assert!(!world.hub().view(&address(), &commit()).join("config.json").exists());
    assert_eq!(world.blobs(), [git(CONFIG)], "nothing wrong has a name");
}

#[test]
fn more_bytes_than_promised_are_refused() {
    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Long].into());
    let error = world.download().unwrap_err();
    assert!(matches!(error, HubError::TooLarge { .. }), "{error}");
}

#[test]
fn passing_failures_are_tried_again_but_not_for_ever() {
    let world = World::new();
    let faults = [Fault::Status(503), Fault::Stall(1), Fault::Status(403), Fault::Cut(0)];
    world.server.set(|state| {
        state.faults = faults.into();
        state.statuses = [500, 502].into();
    });
    world.check_content(&world.download().unwrap());

    let world = World::new();
    world.server.set(|state| state.faults = [Fault::Status(503); 9].into());
    let error = world.download().unwrap_err();
    assert!(error.to_string().ends_with("status 503 (5 tries)"), "{error}");
}

#[test]
fn two_downloads_at_once_fetch_a_file_once() {
    let world = World::new();
    std::thread::scope(|scope| {
        let both = [0; 2].map(|_| scope.spawn(|| world.download().unwrap()));
        both.into_iter().for_each(|one| world.check_content(&one.join().unwrap()));
    });
    assert_eq!(world.server.asked().iter().filter(|asked| asked.is_storage).count(), 1);
}

#[test]
fn what_no_disk_holds_and_no_file_is_are_refused_before_they_come() {
    let check = |bytes: u64, file: usize, words: &str| {
        let world = World::new();
        world.server.set(|state| state.claim = Some((file, bytes)));
        let error = world.download().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(world.server.asked().iter().all(|asked| !asked.is_storage));
        error
    };
    assert!(check(500 << 30, 2, "No space left on device: org/tiny-model needs").is_disk_full());
    check(600 << 30, 2, "model.safetensors of org/tiny-model has 644245094400 bytes");
    check(300 << 20, 5, "tokenizer.json of org/tiny-model has 314572800 bytes");
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let world = World::new();
    world.server.set(|state| state.token = Some("hf_secret"));
    let error = world.download().unwrap_err();
    let page = format!("{}/{REPO}", world.server.url);
    assert!(error.to_string().contains(&format!("accept its licence at {page}")), "{error}");
    let token = Token::parse("hf_secret", "HF_TOKEN").unwrap();
    let hub = Hub::new(Settings { token, ..world.settings() }).unwrap();
    world.server.asked();
    world.check_content(&hub.download(&address(), &commit(), &mut |_| {}).unwrap());
    let asked = world.server.asked();
    assert!(asked.iter().any(|asked| asked.is_storage));
    for asked in asked {
        assert_eq!(asked.authorization.is_some(), !asked.is_storage, "{asked:?}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    let check = |status, code, words: &str| {
        let world = World::new();
        world.server.set(|state| state.refusal = Some((status, code)));
        let error = world.hub().resolve(&address()).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    };
    check(401, "GatedRepo", "accept its licence");
    check(403, "GatedRepo", "accept its licence");
    check(401, "RepoNotFound", "is not on http://127.0.0.1");
    check(404, "RepoNotFound", "has no model org/tiny-model");
    check(404, "RevisionNotFound", "has no revision \"main\"");
    check(400, "", "refused with status 400");
}

#[test]
fn a_listing_without_hashes_is_completed_by_headers() {
    let world = World::new();
    world.server.set(|state| state.has_blobs = false);
    world.check_content(&world.download().unwrap());
    assert!(world.blobs().contains(&sha256(&world.weights)));
}

#[test]
fn answers_of_something_else_are_refused() {
    let check = |change: fn(&mut server::State), words: &str| {
        let world = World::new();
        world.server.set(change);
        let error = world.download().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check(|state| state.files[0].0 = "../../../evil.json".to_owned(), "evil.json");
    check(|state| state.files[0].0 = "/etc/config.json".to_owned(), "/etc/config.json");
    check(|state| state.commit = "main".to_owned(), "no commit");
    check(|state| state.commit = "1".repeat(40), "it lists 1111");
    check(|state| drop(state.files.remove(1)), "holds no config.json");
    check(|state| drop(state.files.remove(2)), "only pickled weights (pytorch_model.bin)");
    check(|state| state.files.retain(|file| !file.0.contains("model")), "no safetensors weights");
    let two = |state: &mut server::State| {
        state.files.iter_mut().for_each(|file| file.0 = file.0.replace(".safetensors", ".gguf"));
        state.files[0].0 = "another.gguf".to_owned();
    };
    check(two, "holds 2 GGUF models (another.gguf, model.gguf); name one of them, as in hf:");
}

#[test]
fn one_gguf_file_of_several_arrives_with_its_parts_and_the_small_files() {
    let server = Server::start(&[
        ("README.md", b"read me", false),
        ("config.json", CONFIG, false),
        ("m-Q4_0.gguf", b"other", true),
        ("q8/m-00001-of-00002.gguf", b"first", true),
        ("q8/m-00002-of-00002.gguf", b"second", true),
        ("model.safetensors", b"floats", true),
    ]);
    let world = World { server, dir: TempDir::new().unwrap(), weights: Vec::new() };
    let address = |file: &str| -> Address { format!("{REPO}:{file}").parse().unwrap() };
    let split = address("q8/m-00001-of-00002.gguf");
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    let all = ["config.json", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let dir = world.hub().download(&split, &commit(), &mut |_| {}).unwrap();
    assert_eq!(dir, world.hub().view(&split, &commit()));
    assert_eq!(names(&dir), all);
    assert_eq!(fs::read(dir.join(all[2])).unwrap(), b"second");
    let snapshot = world.snapshot().join("q8").join(all[1]);
    assert_eq!(fs::read(snapshot).unwrap(), b"first", "where Python looks for it");
    // Another file of the same commit lies elsewhere, and neither is in the other's way.
    let other = world.hub().download(&address("m-Q4_0.gguf"), &commit(), &mut |_| {}).unwrap();
    assert_eq!(names(&other), ["config.json", "m-Q4_0.gguf"]);
    assert_eq!(names(&dir), all);
    let whole = world.download().unwrap();
    assert_eq!(names(&whole), ["config.json", "model.safetensors"]);
    world.server.asked();
    for hub in [world.hub(), world.offline()] {
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(hub.download(&split, &commit(), &mut |_| {}).unwrap(), dir);
        assert_eq!(names(&dir), all);
    }
    assert!(world.server.asked().iter().all(|asked| !asked.is_storage), "nothing is fetched");
    let missing = world.hub().download(&address("n.gguf"), &commit(), &mut |_| {}).unwrap_err();
    assert!(matches!(&missing, HubError::NoFile { file, .. } if file == "n.gguf"), "{missing}");
    fs::remove_file(world.snapshot().join("q8").join(all[2])).unwrap();
    let half = world.offline().download(&split, &commit(), &mut |_| {}).unwrap_err();
    assert!(matches!(half, HubError::Offline { .. }), "{half}");
}

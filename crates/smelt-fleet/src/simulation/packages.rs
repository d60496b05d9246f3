//! What is to be done, brought by a server that loses and changes it.

use std::collections::BTreeMap;

use super::Server;
use crate::execution::Package;
use crate::remote::{Blob, Remote as _};
use crate::work::WORK_BYTES_MAX;

const REQUEST: &[u8] = b"{\"payload\":\"\"}";
const TEXT: &[u8] = b"smelt = 1\n";

/// A package on a server, and its action.
fn sent() -> (Server, Vec<u8>) {
    let machine = BTreeMap::from([("sm".to_owned(), "87".to_owned())]);
    let package = Package::of(REQUEST.to_vec(), TEXT.to_vec(), &machine);
    let server = Server::default();
    server.write(package.blobs()).unwrap();
    let (_, action) = package.blobs().last().unwrap().clone();
    (server, action)
}

#[test]
fn what_is_to_be_done_comes_back_as_it_was_sent() {
    let (server, action) = sent();
    assert_eq!(Package::read(&server, &action), Ok((REQUEST.to_vec(), TEXT.to_vec())));
    // Two that want the same are one to a scheduler; on another machine it is something else.
    assert_eq!(sent().1, action);
    let elsewhere = Package::of(REQUEST.to_vec(), TEXT.to_vec(), &BTreeMap::new());
    assert_ne!(elsewhere.blobs().last().unwrap().1, action);
}

#[test]
fn what_is_lost_or_changed_is_told_and_not_done() {
    let (server, action) = sent();
    let names: Vec<_> = server.blobs.borrow().keys().copied().collect();
    for name in names {
        let whole = server.blobs.borrow_mut().remove(&name).unwrap();
        if whole == action {
            continue;
        }
        let lost = Package::read(&server, &action).unwrap_err();
        assert_eq!(lost, "one of its blobs is gone");
        let mut changed = whole.clone();
        changed[0] ^= 1;
        server.blobs.borrow_mut().insert(name, changed);
        let changed = Package::read(&server, &action).unwrap_err();
        assert_eq!(changed, "one of its blobs is not what it is named by");
        server.blobs.borrow_mut().insert(name, whole);
    }
    for call in 1..=4 {
        server.begin(call);
        assert!(Package::read(&server, &action).unwrap_err().contains("it is gone"), "{call}");
    }
    server.begin(0);
    assert!(Package::read(&server, &action).is_ok());
}

#[test]
fn what_is_none_of_smelt_s_is_not_done() {
    use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
    use prost::Message as _;
    let (server, action) = sent();
    let changed = |change: &dyn Fn(&mut api::Action)| {
        let mut action = api::Action::decode(&*action).unwrap();
        change(&mut action);
        Package::read(&server, &action.encode_to_vec()).unwrap_err()
    };
    let command = api::Command { arguments: vec!["cc\u{1b}".to_owned()], ..Default::default() };
    let command = server.put(command.encode_to_vec());
    let named = |blob: &Blob| Some(crate::reapi::named(blob));
    let other = changed(&|action| action.command_digest = named(&command));
    assert!(other.contains("none of smelt's") && !other.contains('\u{1b}'), "{other}");
    assert!(changed(&|action| action.input_root_digest = None).contains("no blob"));
    let empty = server.put(Vec::new());
    assert!(changed(&|action| action.input_root_digest = named(&empty)).contains("no blob"));
    let large = Blob { bytes: WORK_BYTES_MAX as u32 + 1, ..empty };
    assert!(changed(&|action| action.input_root_digest = named(&large)).contains("bytes"));
    assert!(Package::read(&server, b"\xff").is_err());
}

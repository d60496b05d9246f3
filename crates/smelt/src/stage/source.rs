//! `source`: brings a checkpoint, from a hub or made of random numbers.
//!
//! A hub's files stay in the hub's cache: the supervisor records where they are.

use std::path::Path;

use smelt_hub::{Address, Commit, Hub};
use smelt_model::synthetic;
use smelt_plan::kind;

use super::Worker;
use super::request::{Fetch, Request, say};
use crate::exit::{Exit, Failed};
use crate::hub;

pub(super) const WORKER: Worker = Worker::new(run);

fn run(request: &Request) -> Result<(), Failed> {
    if let Some(commit) = &request.fetch {
        return fetch(commit, request.input("from")?);
    }
    let name = kind::source::synthetic(&request.params);
    let name = name.ok_or_else(|| Failed::usage("the stage's request names no synthetic model"))?;
    synthetic::write(name, &request.out, &mut say).map_err(Failed::model)
}

fn fetch(fetch: &Fetch, to: &Path) -> Result<(), Failed> {
    let name = |error| hub::failed(&error);
    let repo = fetch.repo.parse().map_err(name)?;
    let file = fetch.file.as_ref().map(|file| file.parse()).transpose().map_err(name)?;
    let address = Address { repo, revision: fetch.revision.parse().map_err(name)?, file };
    let commit = Commit::parse(&fetch.commit)
        .ok_or_else(|| Failed::usage(format!("the request's \"{}\" is no commit", fetch.commit)))?;
    let hub = Hub::from_env().map_err(name)?;
    let dir = hub::fetch(&hub, &address, &commit, &mut say).map_err(name)?;
    if dir != to {
        let message = format!(
            "the files lie in {} and not in {}, as was planned",
            dir.display(),
            to.display()
        );
        return Err(Failed::new(Exit::StageFailed, message));
    }
    Ok(())
}

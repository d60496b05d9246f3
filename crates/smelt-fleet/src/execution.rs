//! Has a machine that a server of the Remote Execution API finds do some work, and waits for what comes of it.
//!
//! What is to be done travels as any action does: its input root holds the signed request and the pipeline's text, its
//! platform says what machine it takes.  <https://github.com/bazelbuild/remote-apis>,
//! `build/bazel/remote/execution/v2/remote_execution.proto`.

use std::collections::BTreeMap;
use std::time::Duration;

use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
use bazel_remote_apis::google::longrunning::operations_client::OperationsClient;
use bazel_remote_apis::google::longrunning::{CancelOperationRequest, Operation, operation};
use bazel_remote_apis::google::protobuf::Any;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tonic::codec::Streaming;
use tonic::{Code, Status};

use api::execution_client::ExecutionClient;
use api::execution_stage::Value as Stage;

use crate::reapi::{ASK_MAX, Client, blob_of, named, problem, within};
use crate::remote::{Blob, Remote, RemoteError, plain};
use crate::work::{PIPELINE_BYTES_MAX, WORK_BYTES_MAX};

/// The files of the input root.
const REQUEST: &str = "request.json";
const PIPELINE: &str = "pipeline.toml";
/// What a worker of another kind would try to run; smelt's reads the request.
const WORDS: [&str; 2] = ["smelt", "work-1"];
/// How soon whoever waits is told how it goes, and heard.
const TICK: Duration = Duration::from_millis(500);
/// A server that was restarted is back within a minute, and knows what it was asked for.
const LOST_MAX: u32 = 20;
const LOST_PAUSE: Duration = Duration::from_secs(3);

/// What is to be done, as blobs.
pub struct Package {
    /// The action, the last.
    blobs: Vec<(Blob, Vec<u8>)>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// No machine has taken it.
    Queued,
    /// One does it.
    Running,
}

/// What a stage took where it was built, as metadata beside a result.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize, Deserialize)]
pub struct Took {
    /// On the clock.
    #[prost(uint64, tag = "1")]
    pub wall_ms: u64,
    /// The most that its processes held of RAM.
    #[prost(uint64, tag = "2")]
    pub peak_rss_bytes: u64,
    /// The most that was mapped.
    #[prost(uint64, tag = "3")]
    pub peak_vms_bytes: u64,
}

impl Took {
    const TYPE: &str = "type.googleapis.com/smelt.Took";

    pub(crate) fn into_any(self) -> Any {
        Any { type_url: Self::TYPE.to_owned(), value: self.encode_to_vec() }
    }

    fn of_any(any: &Any) -> Option<Self> {
        (any.type_url == Self::TYPE).then(|| Self::decode(&*any.value).ok())?
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// 0 where it went well.
    pub exit: i32,
    /// What the worker says of it.
    pub told: Vec<u8>,
    /// The last lines of its log, for a person.
    pub log: String,
    /// The machine's name.
    pub worker: String,
    /// What it took, as far as that is said.
    pub took: Option<Took>,
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum ExecutionError {
    /// The server refuses or is gone.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// Whoever waited gave up; the server was told.
    #[error("given up")]
    GivenUp,
}

impl Package {
    /// A request as whoever wants it signed it, with its pipeline's text, for a machine with these facts.
    pub fn of(request: Vec<u8>, pipeline: Vec<u8>, machine: &BTreeMap<String, String>) -> Self {
        let blob = |content: Vec<u8>| (Blob::of(&content), content);
        let (pipeline, request) = (blob(pipeline), blob(request));
        let file = |name: &str, blob: &Blob| api::FileNode {
            name: name.to_owned(),
            digest: Some(named(blob)),
            ..Default::default()
        };
        // In the order of their names, as the format has it.
        let files = vec![file(PIPELINE, &pipeline.0), file(REQUEST, &request.0)];
        let root = blob(api::Directory { files, ..Default::default() }.encode_to_vec());
        let arguments = WORDS.map(str::to_owned).to_vec();
        let command = api::Command { arguments, ..Default::default() };
        let command = blob(command.encode_to_vec());
        let action = api::Action {
            command_digest: Some(named(&command.0)),
            input_root_digest: Some(named(&root.0)),
            platform: Some(platform(machine)),
            ..Default::default()
        };
        let action = blob(action.encode_to_vec());
        Self { blobs: vec![pipeline, request, root, command, action] }
    }

    /// All that it takes, the action last.
    #[cfg(test)]
    pub(crate) fn blobs(&self) -> &[(Blob, Vec<u8>)] {
        &self.blobs
    }

    fn action(&self) -> &Blob {
        let (action, _) = self.blobs.last().expect("it has five");
        action
    }

    /// What an action brings: the request and the pipeline's text.
    ///
    /// # Errors
    /// In words, where it is not one of smelt's, or its blobs are not to be had.
    pub(crate) fn read(remote: &dyn Remote, action: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
        let action = api::Action::decode(action).map_err(|error| error.to_string())?;
        let [command, root] = [&action.command_digest, &action.input_root_digest]
            .map(|digest| small(remote, digest.as_ref(), WORK_BYTES_MAX));
        let command = api::Command::decode(&*command?).map_err(|error| error.to_string())?;
        if command.arguments != WORDS {
            return Err(format!("its command is {:?}, none of smelt's", plain_all(&command)));
        }
        let root = api::Directory::decode(&*root?).map_err(|error| error.to_string())?;
        let file = |name: &str, bytes_max: usize| {
            let file = root.files.iter().find(|file| file.name == name);
            small(remote, file.and_then(|file| file.digest.as_ref()), bytes_max)
        };
        Ok((file(REQUEST, WORK_BYTES_MAX)?, file(PIPELINE, PIPELINE_BYTES_MAX)?))
    }
}

fn plain_all(command: &api::Command) -> String {
    plain(&command.arguments.join(" "))
}

/// The properties that a machine must have; sorted by name, as the format has it.
fn platform(machine: &BTreeMap<String, String>) -> api::Platform {
    let property = |(name, value): (&String, &String)| api::platform::Property {
        name: name.clone(),
        value: value.clone(),
    };
    api::Platform { properties: machine.iter().map(property).collect() }
}

/// A blob of no more than so many bytes.
fn small(
    remote: &dyn Remote,
    digest: Option<&api::Digest>,
    bytes_max: usize,
) -> Result<Vec<u8>, String> {
    let blob = blob_of(digest).ok_or("it names no blob where it should")?;
    if blob.bytes as usize > bytes_max {
        return Err(format!("one of its blobs has {} bytes", blob.bytes));
    }
    let read = remote.read(&[blob]).map_err(|error| error.to_string())?.pop().flatten();
    let content = read.ok_or("one of its blobs is gone")?;
    match Blob::of(&content) == blob {
        true => Ok(content),
        false => Err("one of its blobs is not what it is named by".to_owned()),
    }
}

/// A server's answer, message by message.
enum Next {
    Course(Course),
    Done(Executed),
    /// The line to it is lost; the operation may go on.
    Lost(Status),
    Failed(Status),
    GivenUp,
}

impl Client {
    /// Has it done, whatever was done before.  `told` hears every half second how far it is, and says whether to go on.
    ///
    /// # Errors
    /// If the server takes it not, or loses it, or whoever waits gives up.
    pub fn execute(
        &self,
        package: &Package,
        told: &mut dyn FnMut(Course) -> bool,
    ) -> Result<Executed, ExecutionError> {
        self.write_missing(&package.blobs)?;
        let (name, course, losses) = (String::new(), Course::Queued, 0);
        let mut waiting = Waiting { client: self, package, told, name, course, losses };
        let ended = waiting.end();
        if ended.is_err() {
            self.cancel(&waiting.name);
        }
        ended
    }

    /// Nobody waits for it any more.
    fn cancel(&self, name: &str) {
        if name.is_empty() {
            return;
        }
        let request = self.request(CancelOperationRequest { name: name.to_owned() }, ASK_MAX);
        // A server that does not hear it builds what nobody fetches.
        let _ = self.whatever(async {
            within(ASK_MAX, OperationsClient::new(self.channel()).cancel_operation(request)).await
        });
    }

    fn write_missing(&self, blobs: &[(Blob, Vec<u8>)]) -> Result<(), RemoteError> {
        let names: Vec<Blob> = blobs.iter().map(|(blob, _)| *blob).collect();
        let missing = self.missing(&names)?;
        let blobs: Vec<(Blob, Vec<u8>)> =
            blobs.iter().filter(|(blob, _)| missing.contains(blob)).cloned().collect();
        self.write(&blobs)
    }
}

/// Somebody who waits for what a server has done.
struct Waiting<'a> {
    client: &'a Client,
    package: &'a Package,
    told: &'a mut dyn FnMut(Course) -> bool,
    /// The server's name of the operation, once it has one.
    name: String,
    course: Course,
    /// How often in a row the line to the server was lost.
    losses: u32,
}

impl Waiting<'_> {
    fn end(&mut self) -> Result<Executed, ExecutionError> {
        loop {
            match self.follow() {
                Next::Done(executed) => return Ok(executed),
                Next::Failed(status) => return Err(self.client.wrong(problem(&status)).into()),
                Next::Lost(status) if self.losses >= LOST_MAX => {
                    return Err(self.client.gone(problem(&status)).into());
                }
                Next::Lost(_) => self.losses += 1,
                Next::GivenUp => return Err(ExecutionError::GivenUp),
                Next::Course(_) => {}
            }
            // Who stops it is heard by the next question.
            let _ = self.client.until_stopped(async {
                tokio::time::sleep(LOST_PAUSE).await;
                Ok(())
            });
            if !(self.told)(self.course) {
                return Err(ExecutionError::GivenUp);
            }
        }
    }

    /// Hears what the server says until that is all, or the line is lost.
    fn follow(&mut self) -> Next {
        let client = self.client;
        let next = client.until_stopped(async {
            let mut stream = match self.begin().await {
                Ok(stream) => stream,
                Err(status) => return Ok(of_failure(status)),
            };
            loop {
                match next(&mut stream, &mut self.name).await {
                    Some(Next::Course(course)) => (self.course, self.losses) = (course, 0),
                    Some(other) => return Ok(other),
                    None => {}
                }
                if !(self.told)(self.course) {
                    return Ok(Next::GivenUp);
                }
            }
        });
        next.unwrap_or_else(Next::Failed)
    }

    /// The stream of the operation, which is begun where it was not.
    async fn begin(&self) -> Result<Streaming<Operation>, Status> {
        let client = self.client;
        let mut execution = ExecutionClient::new(client.channel());
        let stream = if self.name.is_empty() {
            let message = api::ExecuteRequest {
                instance_name: client.instance().to_owned(),
                // Keys were asked for before, and whoever builds asks again.
                skip_cache_lookup: true,
                action_digest: Some(named(self.package.action())),
                digest_function: api::digest_function::Value::Sha256 as i32,
                ..Default::default()
            };
            within(ASK_MAX, execution.execute(client.unlimited(message))).await
        } else {
            let message = api::WaitExecutionRequest { name: self.name.clone() };
            within(ASK_MAX, execution.wait_execution(client.unlimited(message))).await
        };
        Ok(stream?.into_inner())
    }
}

/// What the server says next; nothing where it says nothing for a tick.
async fn next(stream: &mut Streaming<Operation>, name: &mut String) -> Option<Next> {
    match tokio::time::timeout(TICK, stream.message()).await {
        Err(_) => None,
        Ok(Ok(Some(operation))) => {
            name.clone_from(&operation.name);
            Some(of_operation(operation))
        }
        Ok(Ok(None)) => Some(Next::Lost(Status::unavailable("it ended its answer"))),
        Ok(Err(status)) => Some(of_failure(status)),
    }
}

/// Whether the line is lost or the work.  Some servers fail inside where many ask for the same at once.
fn of_failure(status: Status) -> Next {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::DeadlineExceeded => Next::Lost(status),
        Code::Aborted | Code::Internal | Code::ResourceExhausted => Next::Lost(status),
        _ => Next::Failed(status),
    }
}

fn of_operation(operation: Operation) -> Next {
    let Operation { metadata, done, result, .. } = operation;
    if !done {
        let metadata =
            metadata.and_then(|any| api::ExecuteOperationMetadata::decode(&*any.value).ok());
        let stage = metadata.map_or(Stage::Unknown, |metadata| metadata.stage());
        let is_running = matches!(stage, Stage::Executing | Stage::Completed);
        return Next::Course(if is_running { Course::Running } else { Course::Queued });
    }
    match result {
        Some(operation::Result::Response(any)) => match api::ExecuteResponse::decode(&*any.value) {
            Ok(response) => of_response(response),
            Err(error) => Next::Failed(Status::data_loss(error.to_string())),
        },
        Some(operation::Result::Error(status)) => {
            Next::Failed(Status::new(Code::from(status.code), status.message))
        }
        None => Next::Failed(Status::data_loss("it is done, and nothing came of it")),
    }
}

fn of_response(response: api::ExecuteResponse) -> Next {
    let api::ExecuteResponse { result, status, .. } = response;
    if let Some(status) = status.filter(|status| status.code != 0) {
        return Next::Failed(Status::new(Code::from(status.code), status.message));
    }
    let Some(result) = result else {
        return Next::Failed(Status::data_loss("it is done, and nothing came of it"));
    };
    let metadata = result.execution_metadata.unwrap_or_default();
    let log = String::from_utf8_lossy(&result.stderr_raw).lines().map(plain).collect::<Vec<_>>();
    Next::Done(Executed {
        exit: result.exit_code,
        told: result.stdout_raw,
        log: log.join("\n"),
        worker: plain(&metadata.worker),
        took: metadata.auxiliary_metadata.iter().find_map(Took::of_any),
    })
}

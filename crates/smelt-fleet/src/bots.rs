//! Takes work from a scheduler: the bots of Google's Remote Workers API, as BuildGrid and its like speak it.
//!
//! A bot opens a session with what is true of its machine, asks again and again, and hears of leases: an action to do.
//! It says with each question that it still does it, and once what came of it.  A lease that is not in the answer is taken back.
//! <https://github.com/googleapis/googleapis>, `google/devtools/remoteworkers/v1test2/{bots,worker}.proto`.

use std::collections::BTreeMap;
use std::time::Duration;

use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
use bazel_remote_apis::google::protobuf::Any;
use bazel_remote_apis::google::rpc;
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Response, Status};
use tonic_prost::ProstCodec;

use crate::execution::{Package, Took};
use crate::reapi::{ASK_MAX, Client, problem, within};
use crate::remote::{Remote as _, RemoteError, plain, told};

const CREATE: &str = "/google.devtools.remoteworkers.v1test2.Bots/CreateBotSession";
const UPDATE: &str = "/google.devtools.remoteworkers.v1test2.Bots/UpdateBotSession";
/// A server answers a bot that has nothing to do when there is something, or somewhat before this is over.  One that is given
/// less than four seconds does not wait at all.
const POLL_MAX: Duration = Duration::from_secs(20);
const RESULT_TYPE: &str = "type.googleapis.com/build.bazel.remote.execution.v2.ActionResult";
const ACTION_TYPE: &str = "build.bazel.remote.execution.v2.Action";

/// `BotStatus`.
const BOT_OK: i32 = 1;
const BOT_TERMINATING: i32 = 4;
/// `LeaseState`.
const ACTIVE: i32 = 2;
const COMPLETED: i32 = 4;

/// `BotSession`, without what no scheduler here reads.
#[derive(Clone, PartialEq, Message)]
struct BotSession {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    bot_id: String,
    #[prost(int32, tag = "3")]
    status: i32,
    #[prost(message, optional, tag = "4")]
    worker: Option<Worker>,
    #[prost(message, repeated, tag = "5")]
    leases: Vec<Lease>,
    /// The server's count of what it has told; it waits only with whoever knows all of that.
    #[prost(string, tag = "7")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Worker {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, Message)]
struct Device {
    #[prost(string, tag = "1")]
    handle: String,
    #[prost(message, repeated, tag = "2")]
    properties: Vec<Property>,
}

#[derive(Clone, PartialEq, Message)]
struct Property {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int32, tag = "2")]
    state: i32,
    #[prost(message, optional, tag = "3")]
    status: Option<rpc::Status>,
    #[prost(string, tag = "7")]
    id: String,
    #[prost(message, optional, tag = "8")]
    payload: Option<Any>,
    #[prost(message, optional, tag = "9")]
    result: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateBotSessionRequest {
    #[prost(string, tag = "1")]
    parent: String,
    #[prost(message, optional, tag = "2")]
    bot_session: Option<BotSession>,
}

#[derive(Clone, PartialEq, Message)]
struct UpdateBotSessionRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    bot_session: Option<BotSession>,
}

/// A session with a scheduler, for one piece of work at a time.
pub struct Bot<'a> {
    client: &'a Client,
    session: BotSession,
}

/// A piece of work that was leased to this bot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    id: String,
    /// The request as it was signed, and the pipeline's text; or why that cannot be read.
    pub work: Result<(Vec<u8>, Vec<u8>), String>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkOutcome {
    /// 0 where it went well.
    pub exit: i32,
    /// What whoever asked is told.
    pub told: Vec<u8>,
    /// The last lines of its log.
    pub log: String,
    /// What it took, where it was built.
    pub took: Option<Took>,
}

impl<'a> Bot<'a> {
    /// Opens a session for the machine of that name, of which these facts are true.
    ///
    /// # Errors
    /// If the server has no work to give, or does not answer.
    pub fn open(
        client: &'a Client,
        name: &str,
        facts: &BTreeMap<String, String>,
    ) -> Result<Self, RemoteError> {
        let property =
            |(key, value): (&String, &String)| Property { key: key.clone(), value: value.clone() };
        let properties = facts.iter().map(property).collect();
        let device = Device { handle: name.to_owned(), properties };
        let session = BotSession {
            bot_id: name.to_owned(),
            status: BOT_OK,
            worker: Some(Worker { devices: vec![device] }),
            ..Default::default()
        };
        let mut bot = Self { client, session };
        bot.create()?;
        Ok(bot)
    }

    fn create(&mut self) -> Result<(), RemoteError> {
        let session =
            BotSession { name: String::new(), leases: Vec::new(), ..self.session.clone() };
        let message = CreateBotSessionRequest {
            parent: self.client.instance().to_owned(),
            bot_session: Some(session),
        };
        self.session = self.asked(CREATE, message)?;
        Ok(())
    }

    /// Waits for a piece of work for so long as a server lets one wait; `None` where there is none yet.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn wait(&mut self) -> Result<Option<Leased>, RemoteError> {
        if self.session.leases.is_empty() {
            self.update()?;
        }
        let Some(lease) = self.session.leases.first_mut() else { return Ok(None) };
        lease.state = ACTIVE;
        let lease = lease.clone();
        let work = match lease.payload {
            Some(payload) if payload.type_url.ends_with(ACTION_TYPE) => {
                Package::read(self.client, &payload.value)
            }
            _ => Err("it is no action".to_owned()),
        };
        Ok(Some(Leased { id: lease.id, work }))
    }

    /// Says that it is still done; whether it is still wanted.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn goes_on(&mut self, leased: &Leased) -> Result<bool, RemoteError> {
        self.update()?;
        Ok(self.session.leases.iter().any(|lease| lease.id == leased.id))
    }

    /// Says what came of it.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn done(&mut self, leased: &Leased, outcome: &WorkOutcome) -> Result<(), RemoteError> {
        let worker = self.session.bot_id.clone();
        for lease in self.session.leases.iter_mut().filter(|lease| lease.id == leased.id) {
            lease.state = COMPLETED;
            lease.status = Some(rpc::Status::default());
            lease.result =
                Some(Any { type_url: RESULT_TYPE.to_owned(), value: outcome.encode(&worker) });
        }
        let told = self.update();
        // What nobody has heard of is done all the same.
        told.inspect_err(|_| self.session.leases.clear())
    }

    /// Says that no more work is taken; what was not done somebody else is to do.
    pub fn leave(mut self) {
        self.session.status = BOT_TERMINATING;
        for lease in &mut self.session.leases {
            lease.state = COMPLETED;
            let (code, message) = (Code::Unavailable as i32, "the worker was stopped".to_owned());
            lease.status = Some(rpc::Status { code, message, ..Default::default() });
        }
        // A server that does not hear it notices by itself.
        let _ = self.client.whatever(self.ask(UPDATE, self.message()));
    }

    fn message(&self) -> UpdateBotSessionRequest {
        UpdateBotSessionRequest {
            name: self.session.name.clone(),
            bot_session: Some(self.session.clone()),
        }
    }

    fn update(&mut self) -> Result<(), RemoteError> {
        self.session = self.asked(UPDATE, self.message())?;
        Ok(())
    }

    async fn ask(
        &self,
        path: &'static str,
        message: impl Message + 'static,
    ) -> Result<BotSession, Status> {
        let request = self.client.request(message, POLL_MAX);
        let mut client = Grpc::new(self.client.channel());
        let ready = client.ready().await;
        ready.map_err(|error| Status::unavailable(told(&error)))?;
        let path = PathAndQuery::from_static(path);
        let answer = client.unary(request, path, ProstCodec::default());
        within(POLL_MAX + ASK_MAX, answer).await.map(Response::into_inner)
    }

    fn asked(
        &self,
        path: &'static str,
        message: impl Message + 'static,
    ) -> Result<BotSession, RemoteError> {
        let answer = self.client.until_stopped(self.ask(path, message));
        answer.map_err(|status| match status.code() {
            Code::Unimplemented => {
                self.client.wrong("it has no work to give: it is no scheduler".to_owned())
            }
            Code::Unavailable | Code::DeadlineExceeded | Code::Unknown => {
                self.client.gone(problem(&status))
            }
            _ => self.client.wrong(problem(&status)),
        })
    }
}

impl WorkOutcome {
    fn encode(&self, worker: &str) -> Vec<u8> {
        let metadata = api::ExecutedActionMetadata {
            worker: plain(worker),
            auxiliary_metadata: self.took.map(Took::into_any).into_iter().collect(),
            ..Default::default()
        };
        let result = api::ActionResult {
            exit_code: self.exit,
            stdout_raw: self.told.clone(),
            stderr_raw: self.log.clone().into_bytes(),
            execution_metadata: Some(metadata),
            ..Default::default()
        };
        result.encode_to_vec()
    }
}

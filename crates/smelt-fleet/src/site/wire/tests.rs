//! A peer on a socket: what it gives to boards that ask as they do, and to others.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::peer::{PeerOptions, Sealed, Sent, Shelf, serve};
use crate::site::tests::{Server, World, read_all};

/// A peer on a socket, with a file that it serves.
struct Served {
    _dir: tempfile::TempDir,
    file: std::path::PathBuf,
    order: Vec<Blob>,
    shelf: Arc<Shelf>,
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Sent>>,
}

impl Served {
    fn new(token: Option<&str>, rate: Option<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut chance = smelt_random::Random::new(5);
        let content: Vec<u8> = (0..3_000_000).map(|_| chance.below(256) as u8).collect();
        let file = dir.path().join("weights");
        std::fs::write(&file, &content).unwrap();
        let order = crate::chunk::cut(&content[..], 3_000_000).map(|it| it.unwrap().0).collect();
        let (tree, folder) = (Digest::of(b"tree"), dir.path().to_owned());
        let sealed = Sealed { tree, folder, files: vec![("weights".to_owned(), 3_000_000)] };
        let (shelf, stop) = (Arc::new(Shelf::default()), Arc::new(AtomicBool::new(false)));
        shelf.set_sealed(&[sealed], &stop);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (token, id) = (token.map(str::to_owned), "here".to_owned());
        let options = PeerOptions { token, bytes_per_s: rate, id };
        let (shelf_too, stop_too) = (shelf.clone(), stop.clone());
        let serving = move || serve(listener, shelf_too, &options, &stop_too).unwrap();
        let thread = Some(thread::spawn(serving));
        Self { _dir: dir, file, order, shelf, address, stop, thread }
    }

    fn wire(&self, token: Option<&str>, own: Option<&str>) -> Wire {
        let list = self.address.parse().unwrap();
        Wire::new(&list, token, own.map(str::to_owned), 1).unwrap()
    }

    /// A server that has the same.
    fn server(&self) -> Server {
        let content = std::fs::read(&self.file).unwrap();
        let cut = crate::chunk::cut(&content[..], 3_000_000).map(|it| it.unwrap());
        let blobs = cut.map(|(chunk, content)| (chunk.digest, content)).collect();
        Server::of(blobs)
    }

    fn read_all(&self, wire: &Wire, server: &Server) -> Result<usize, RemoteError> {
        read_all(server, wire, &self.order, &World::new(&[]))
    }

    fn end(&mut self) -> Sent {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_peer_serves_what_a_server_has_lost() {
    let mut served = Served::new(None, None);
    let wire = served.wire(None, None);
    let count = served.order.len();
    assert_eq!(served.read_all(&wire, &Server::default()), Ok(count));
    let sent = served.end();
    assert_eq!((sent.chunks as usize, sent.bytes), (count, 3_000_000));
}

/// Its own board and strangers get nothing, and are not held up.
#[test]
fn a_peer_wants_the_token_and_a_board_leaves_itself_out() {
    let served = Served::new(Some("secret"), None);
    let server = served.server();
    let known = served.wire(Some("secret"), Some("elsewhere"));
    assert_eq!(served.read_all(&known, &server), Ok(served.order.len()));
    for (token, own) in [(None, None), (Some("other"), None), (Some("secret"), Some("here"))] {
        let wire = served.wire(token, own);
        assert!(wire.look(&served.order).is_empty(), "{token:?} {own:?}");
        let is_told = !wire.refusing().is_empty();
        assert_eq!(is_told, own.is_none(), "a wrong token is told, and the own board is not");
        assert_eq!(served.read_all(&wire, &served.server()), Ok(0));
    }
}

#[test]
fn a_damaged_disk_does_not_spread() {
    let served = Served::new(None, None);
    let server = served.server();
    let mut content = std::fs::read(&served.file).unwrap();
    content[0] ^= 1;
    std::fs::write(&served.file, content).unwrap();
    let wire = served.wire(None, None);
    let of_neighbours = served.read_all(&wire, &server).unwrap();
    assert_eq!(of_neighbours, served.order.len() - 1);
    assert_eq!(served.shelf.count(), of_neighbours);
}

#[test]
fn a_peer_that_is_gone_costs_a_moment() {
    let mut served = Served::new(None, None);
    let (wire, server) = (served.wire(None, None), served.server());
    assert_eq!(wire.look(&served.order).len(), 1);
    served.end();
    let begin = Instant::now();
    assert_eq!(served.read_all(&wire, &server), Ok(0));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
}

/// 3 MB at 1 MB/s: not at once, and the server does not help, which is no faster.
#[test]
fn a_peer_sends_no_more_than_its_rate() {
    let served = Served::new(None, Some(1_000_000));
    let begin = Instant::now();
    let count = served.read_all(&served.wire(None, None), &Server::default());
    assert_eq!(count, Ok(served.order.len()));
    let took = begin.elapsed().as_secs_f64();
    assert!((1.5..12.0).contains(&took), "{took}");
}

mod calls {
    //! What a peer answers to calls that no board of ours makes.

    use bazel_remote_apis::build::bazel::remote::execution::v2 as api;
    use tonic::{Code, Status};

    use super::*;
    use api::content_addressable_storage_client::ContentAddressableStorageClient;

    fn call<T>(
        served: &Served,
        call: impl AsyncFnOnce(
            ContentAddressableStorageClient<tonic::transport::Channel>,
        ) -> Result<T, Status>,
    ) -> Result<T, Code> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = format!("http://{}", served.address);
        let answer = runtime.block_on(async {
            let client = ContentAddressableStorageClient::connect(address).await.unwrap();
            call(client).await
        });
        answer.map_err(|status| status.code())
    }

    fn digest(hash: &str, size_bytes: i64) -> api::Digest {
        api::Digest { hash: hash.to_owned(), size_bytes }
    }

    fn read(served: &Served, digests: Vec<api::Digest>) -> Result<Vec<i32>, Code> {
        let request = api::BatchReadBlobsRequest { digests, ..Default::default() };
        let answer = call(served, async |mut client| client.batch_read_blobs(request).await)?;
        let codes = answer.into_inner().responses.into_iter();
        Ok(codes.map(|response| response.status.unwrap().code).collect())
    }

    #[test]
    fn it_answers_digests_and_takes_nothing() {
        let served = Served::new(None, None);
        let one = served.order[0];
        let known = digest(&one.digest.to_string(), one.bytes.into());
        assert_eq!(read(&served, vec![known.clone()]), Ok(vec![Code::Ok as i32]));
        let other = Digest::of(b"another").to_string();
        assert_eq!(read(&served, vec![digest(&other, 7)]), Ok(vec![Code::NotFound as i32]));
        // A name of a file is none of a blob.
        for odd in ["../../etc/passwd", "", "weights"] {
            assert_eq!(read(&served, vec![digest(odd, 1)]), Err(Code::InvalidArgument));
        }
        assert_eq!(read(&served, vec![digest(&other, -1)]), Err(Code::InvalidArgument));
        assert_eq!(read(&served, vec![digest(&other, 1 << 31)]), Err(Code::InvalidArgument));
        assert_eq!(read(&served, vec![known; 10_001]), Err(Code::InvalidArgument));
        let update = api::BatchUpdateBlobsRequest::default();
        let taken = call(&served, async |mut client| client.batch_update_blobs(update).await);
        assert_eq!(taken.err(), Some(Code::PermissionDenied));
        let tree = api::GetTreeRequest::default();
        let listed = call(&served, async |mut client| client.get_tree(tree).await);
        assert_eq!(listed.err(), Some(Code::Unimplemented));
    }
}

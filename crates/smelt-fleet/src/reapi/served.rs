//! A server in this process that takes and gives blobs packed, and gives out parts of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use bazel_remote_apis::google::bytestream::byte_stream_server::{ByteStream, ByteStreamServer};
use bazel_remote_apis::google::bytestream::{
    QueryWriteStatusRequest, QueryWriteStatusResponse, ReadRequest, ReadResponse, WriteRequest,
    WriteResponse,
};
use futures_util::stream::{self, Stream};
use smelt_random::Random;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

use api::capabilities_server::{Capabilities as Says, CapabilitiesServer};
use api::content_addressable_storage_server::{
    ContentAddressableStorage, ContentAddressableStorageServer,
};

use super::*;
use crate::remote::Remote as _;

type Answer<T> = Result<Response<T>, Status>;
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A blob as it came, and how it is packed.
type Held = (Vec<u8>, i32);

/// Whose blobs lie as they came: packed, or not.
#[derive(Clone, Default)]
struct Storage {
    packs: bool,
    /// It sends what is damaged.
    is_damaged: bool,
    held: Arc<Mutex<HashMap<String, Held>>>,
}

impl Storage {
    fn unpacked(&self, hash: &str) -> Option<Vec<u8>> {
        let (data, compressor) = self.held.lock().unwrap().get(hash)?.clone();
        let unpacked = || zstd::bulk::decompress(&data, 1 << 24).unwrap();
        Some(if compressor == ZSTD { unpacked() } else { data.clone() })
    }
}

#[tonic::async_trait]
impl Says for Storage {
    async fn get_capabilities(
        &self,
        _: Request<api::GetCapabilitiesRequest>,
    ) -> Answer<api::ServerCapabilities> {
        let compressors = if self.packs { vec![ZSTD] } else { Vec::new() };
        let cache = api::CacheCapabilities {
            digest_functions: vec![Sha256 as i32],
            supported_compressors: compressors.clone(),
            supported_batch_update_compressors: compressors,
            ..Default::default()
        };
        Ok(Response::new(api::ServerCapabilities {
            cache_capabilities: Some(cache),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl ContentAddressableStorage for Storage {
    async fn find_missing_blobs(
        &self,
        _: Request<api::FindMissingBlobsRequest>,
    ) -> Answer<api::FindMissingBlobsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn batch_update_blobs(
        &self,
        request: Request<api::BatchUpdateBlobsRequest>,
    ) -> Answer<api::BatchUpdateBlobsResponse> {
        for one in request.into_inner().requests {
            if one.compressor != IDENTITY && !self.packs {
                return Err(Status::invalid_argument("nothing packed was asked for"));
            }
            let hash = one.digest.unwrap().hash;
            self.held.lock().unwrap().insert(hash, (one.data, one.compressor));
        }
        Ok(Response::new(api::BatchUpdateBlobsResponse::default()))
    }

    async fn batch_read_blobs(
        &self,
        request: Request<api::BatchReadBlobsRequest>,
    ) -> Answer<api::BatchReadBlobsResponse> {
        let request = request.into_inner();
        let is_packed = request.acceptable_compressors.contains(&ZSTD);
        let one = |digest: api::Digest| {
            let mut data = self.unpacked(&digest.hash).unwrap();
            let mut compressor = IDENTITY;
            if is_packed {
                (data, compressor) = (zstd::bulk::compress(&data, 3).unwrap(), ZSTD);
            }
            if self.is_damaged {
                data.pop();
            }
            let (digest, status) = (Some(digest), None);
            api::batch_read_blobs_response::Response { digest, data, status, compressor }
        };
        let responses = request.digests.into_iter().map(one).collect();
        Ok(Response::new(api::BatchReadBlobsResponse { responses }))
    }

    type GetTreeStream = Parts<api::GetTreeResponse>;

    async fn get_tree(&self, _: Request<api::GetTreeRequest>) -> Answer<Self::GetTreeStream> {
        Err(Status::unimplemented(""))
    }

    async fn split_blob(
        &self,
        _: Request<api::SplitBlobRequest>,
    ) -> Answer<api::SplitBlobResponse> {
        Err(Status::unimplemented(""))
    }

    type GetChunkMappingStream = Parts<api::GetChunkMappingResponse>;

    async fn get_chunk_mapping(
        &self,
        _: Request<api::GetChunkMappingRequest>,
    ) -> Answer<Self::GetChunkMappingStream> {
        Err(Status::unimplemented(""))
    }

    async fn splice_blob(
        &self,
        _: Request<api::SpliceBlobRequest>,
    ) -> Answer<api::SpliceBlobResponse> {
        Err(Status::unimplemented(""))
    }

    async fn register_chunk_mapping(
        &self,
        _: Request<Streaming<api::RegisterChunkMappingRequest>>,
    ) -> Answer<api::RegisterChunkMappingResponse> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl ByteStream for Storage {
    type ReadStream = Parts<ReadResponse>;

    async fn read(&self, request: Request<ReadRequest>) -> Answer<Self::ReadStream> {
        let ReadRequest { resource_name, read_offset, read_limit } = request.into_inner();
        if self.is_damaged {
            return Err(Status::unavailable("nothing leads there"));
        }
        let hash = resource_name.strip_prefix("site/blobs/").and_then(|it| it.split('/').next());
        let content = hash.and_then(|hash| self.unpacked(hash)).ok_or(Status::not_found(""))?;
        let from = read_offset as usize;
        let part = content[from..(from + read_limit as usize).min(content.len())].to_vec();
        // In pieces, as large answers come.
        let pieces: Vec<_> =
            part.chunks(1000).map(|data| Ok(ReadResponse { data: data.to_vec() })).collect();
        Ok(Response::new(Box::pin(stream::iter(pieces))))
    }

    async fn write(&self, _: Request<Streaming<WriteRequest>>) -> Answer<WriteResponse> {
        Err(Status::unimplemented(""))
    }

    async fn query_write_status(
        &self,
        _: Request<QueryWriteStatusRequest>,
    ) -> Answer<QueryWriteStatusResponse> {
        Err(Status::unimplemented(""))
    }
}

/// A client of this storage.
fn client(storage: &Storage) -> (Client, Capabilities) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let storage = storage.clone();
    let incoming = {
        let _guard = runtime.enter();
        TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap()
    };
    let port = incoming.local_addr().unwrap().port();
    runtime.spawn(
        Server::builder()
            .add_service(CapabilitiesServer::new(storage.clone()))
            .add_service(ContentAddressableStorageServer::new(storage.clone()))
            .add_service(ByteStreamServer::new(storage))
            .serve_with_incoming(incoming),
    );
    // It serves until the process ends.
    std::mem::forget(runtime);
    let address = format!("grpc://127.0.0.1:{port}/site").parse().unwrap();
    Client::connect(&address, None, None, &Arc::default()).unwrap()
}

fn blobs() -> Vec<(Blob, Vec<u8>)> {
    let mut chance = Random::new(3);
    let noise = (0..100_000).map(|_| chance.below(256) as u8).collect();
    let all = [b"words and words ".repeat(5000), noise, b"short".to_vec(), Vec::new()];
    all.map(|content| (Blob::of(&content), content)).into()
}

#[test]
fn blobs_go_and_come_packed_where_the_server_says_so() {
    for packs in [false, true] {
        let storage = Storage { packs, ..Storage::default() };
        let (client, capabilities) = client(&storage);
        assert_eq!(capabilities.packs, packs);
        let blobs = blobs();
        client.write(&blobs).unwrap();
        let names: Vec<Blob> = blobs.iter().map(|(blob, _)| *blob).collect();
        let expected: Vec<_> = blobs.iter().map(|(_, content)| Some(content.clone())).collect();
        assert_eq!(client.read(&names), Ok(expected));
        let held = storage.held.lock().unwrap();
        let packed = |blob: &Blob| held[&blob.digest.to_string()].1 == ZSTD;
        assert_eq!(names.iter().map(packed).collect::<Vec<_>>(), [packs, false, false, false]);
    }
}

/// What is sent damaged, or is another size when it is unpacked, is no blob.
#[test]
fn what_does_not_unpack_is_refused() {
    for packs in [false, true] {
        let storage = Storage { packs, ..Storage::default() };
        let (first, _) = client(&storage);
        let blobs = blobs();
        first.write(&blobs).unwrap();
        let (second, _) = client(&Storage { is_damaged: true, ..storage });
        let error = second.read(&[blobs[0].0]).unwrap_err();
        assert!(error.problem.contains("another size"), "{error}");
    }
}

#[test]
fn parts_of_blobs_are_read() {
    let storage = Storage { packs: true, ..Storage::default() };
    let (client, _) = client(&storage);
    let blobs = blobs();
    client.write(&blobs).unwrap();
    let (blob, content) = &blobs[1];
    let lost = Blob::of(b"lost");
    let part = |blob: Blob, from: u32, bytes: u32| Range { blob, from, bytes };
    // More than one call takes, one that is not there, and one that goes beyond the end.
    let mut asked: Vec<Range> = (0..40).map(|at| part(*blob, at * 2500, 2500)).collect();
    asked.extend([part(lost, 0, 2), part(*blob, 99_999, 2)]);
    let read = client.ranges().unwrap().read_ranges(&asked).unwrap();
    assert_eq!(read[40..], [None, None]);
    assert!(read[..40].iter().flatten().flatten().eq(content));
}

/// Whoever gave out none is asked for none any more: whole chunks come instead.
#[test]
fn a_server_that_gives_out_no_parts_is_asked_once() {
    let (client, _) = client(&Storage { is_damaged: true, ..Storage::default() });
    let part = Range { blob: Blob::of(b"abc"), from: 0, bytes: 1 };
    let error = client.ranges().unwrap().read_ranges(&[part]).unwrap_err();
    assert!(error.problem.contains("nothing leads there") && !error.is_gone, "{error}");
    assert!(client.ranges().is_none());
}

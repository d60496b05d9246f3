"""Sends files to a server of the Remote Execution API, or fetches them, as whole blobs by ByteStream: the least a client can do.

usage: bytestream.py put|get HOST:PORT FOLDER     `get` reads the names, digests and sizes that `put` left in FOLDER/list
"""

import hashlib
import os
import sys
import uuid

import grpc
from buildstream._protos.google.bytestream import bytestream_pb2, bytestream_pb2_grpc

PIECE = 1 << 20


def put(stub, folder):
    rows = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        size, hasher = os.path.getsize(path), hashlib.sha256()
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                hasher.update(piece)
        digest = hasher.hexdigest()

        def pieces():
            resource, offset = f"uploads/{uuid.uuid4()}/blobs/{digest}/{size}", 0
            with open(path, "rb") as file:
                while piece := file.read(PIECE):
                    last = offset + len(piece) == size
                    yield bytestream_pb2.WriteRequest(
                        resource_name=resource, write_offset=offset, data=piece, finish_write=last
                    )
                    offset += len(piece)

        assert stub.Write(pieces()).committed_size == size
        rows.append(f"{name} {digest} {size}\n")
    with open(folder.rstrip("/") + ".list", "w") as file:
        file.writelines(rows)


def get(stub, folder):
    os.makedirs(folder)
    for row in open(folder.rstrip("/") + ".list"):
        name, digest, size = row.split()
        request, hasher = bytestream_pb2.ReadRequest(resource_name=f"blobs/{digest}/{size}"), hashlib.sha256()
        with open(os.path.join(folder, name), "wb") as file:
            for answer in stub.Read(request):
                hasher.update(answer.data)
                file.write(answer.data)
            file.flush()
            os.fsync(file.fileno())
        assert hasher.hexdigest() == digest


verb, address, folder = sys.argv[1:]
stub = bytestream_pb2_grpc.ByteStreamStub(grpc.insecure_channel(address))
{"put": put, "get": get}[verb](stub, folder)

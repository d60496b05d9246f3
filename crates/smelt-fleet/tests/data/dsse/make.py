"""Makes an envelope with securesystemslib, and keys with OpenSSL and cryptography, for the tests of smelt-fleet.

    python3 -m venv venv && venv/bin/pip install securesystemslib==1.6.0 cryptography==50.0.2
    venv/bin/python make.py

The statement is written here from the documents of in-toto and SLSA, by nothing of smelt.  The keys are for tests only.
"""

import hashlib
import json
import pathlib
import struct
import subprocess
from base64 import b64encode

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey

HERE = pathlib.Path(__file__).parent


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tree(files):
    framed = b"smelt tree 1\n" + struct.pack("<Q", len(files))
    for name, content, executable in files:
        framed += struct.pack("<Q", len(name.encode())) + name.encode() + bytes([executable])
        framed += struct.pack("<Q", len(content)) + hashlib.sha256(content).digest()
    return sha256(framed)


def named(name, data):
    return {"name": name, "digest": {"sha256": sha256(data)}}


def row(name, content, executable):
    return {"name": name, "size": len(content)} | ({"executable": True} if executable else {})


def statement():
    files = [("bin/run", b"#!/bin/sh\n", True), ("llm.engine", b"an engine", False)]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [named(name, content) for name, content, _ in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:smelt:stage:1",
                "externalParameters": {
                    "stage": "llm",
                    "kind": "engine",
                    "kindVersion": 3,
                    "pipeline": "orin",
                    "params": {"precision": "fp16", "batch": 4, "ratio": 0.5},
                },
                "internalParameters": {
                    "key": sha256(b"content"),
                    "recipes": [sha256(b"recipe")],
                    "instance": "fleet/one",
                    "tree": tree(files),
                    "files": [row(*file) for file in files],
                    "refers": [],
                    "device": {"sm": "87"},
                    "record": {"wall_s": 12.5, "note": "é \U0001f48e"},
                },
                "resolvedDependencies": [named("tool trtexec", b"tool"), named("input llm.onnx", b"input")],
            },
            "runDetails": {
                "builder": {"id": "urn:smelt:builder:1", "version": {"smelt": "0.1.0"}},
                "metadata": {"invocationId": "20261128-132500", "finishedOn": "2026-11-28T13:25:00Z"},
            },
        },
    }


def secret_pem(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_id(key):
    return sha256(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def python_key():
    key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"a key for tests only").digest())
    raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    (HERE / "python.pem").write_bytes(secret_pem(key))
    (HERE / "python.pub.pem").write_bytes(public_pem(key))
    (HERE / "public.txt").write_text(f"ed25519:{b64encode(raw).decode()}\n")
    return key


def openssl(*arguments, data=None):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


def openssl_key():
    secret = openssl("genpkey", "-algorithm", "ed25519")
    public = openssl("pkey", "-pubout", data=secret)
    der = openssl("pkey", "-pubout", "-outform", "DER", data=secret)
    (HERE / "openssl.pem").write_bytes(secret)
    (HERE / "openssl.pub.pem").write_bytes(public)
    (HERE / "openssl.id").write_text(sha256(der) + "\n")


def envelope(key):
    public = SSlibKey.from_crypto(key.public_key(), keyid=key_id(key))
    made = Envelope(json.dumps(statement(), indent=1).encode(), "application/vnd.in-toto+json", {})
    made.sign(CryptoSigner(key, public))
    (HERE / "envelope.json").write_text(json.dumps(made.to_dict(), indent=1) + "\n")


if __name__ == "__main__":
    if not (HERE / "openssl.pem").exists():
        openssl_key()
    envelope(python_key())

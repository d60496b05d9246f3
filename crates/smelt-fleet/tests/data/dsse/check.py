"""Verifies with securesystemslib the envelope that smelt wrote, ours.json; make.py says which version.

    venv/bin/python check.py

Its keys are those of the seeds 01 01 01… and 02 02 02…; each must have signed, and neither may have signed anything else.
"""

import json
import pathlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from make import key_id, statement

HERE = pathlib.Path(__file__).parent


def key(seed):
    public = Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32))
    return SSlibKey.from_crypto(public.public_key(), keyid=key_id(public))


def read():
    return Envelope.from_dict(json.loads((HERE / "ours.json").read_text()))


def fails(envelope, keys, threshold):
    try:
        envelope.verify(keys, threshold)
    except VerificationError:
        return True
    return False


if __name__ == "__main__":
    keys = [key(1), key(2)]
    assert len(read().verify(keys, 2)) == 2
    assert json.loads(read().payload) == statement()
    assert fails(read(), [key(1), key(3)], 2)
    changed = read()
    changed.payload += b" "
    assert fails(changed, keys, 1)
    print("ours.json holds")

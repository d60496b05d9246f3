"""Sends a server thousands of requests as clients at their worst do, and wants it to be as before.

usage: soak.py URL PID PICTURE REQUESTS

Every connection gets an answer that it deserves, or is one that was cut by its client; answers that are
checked are right whatever goes on beside them; at the end nothing is under way and memory has not
grown since a tenth of the requests.
"""

import base64
import json
import pathlib
import random
import socket
import struct
import sys
import threading
import time
import urllib.request
import zlib

url, pid, picture, count = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4])
host, port = url.removeprefix("http://").split(":")
THREADS = 16
# What allocators keep for later, beside what a tenth of the requests made them keep.
GROWTH_MIB_MAX = 24
PNG = picture.read_bytes()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb():
    """A PNG of some KB whose pixels take 900 MB."""
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1 << 20))) + chunk(b"IEND", b"")


def shown(image, question="How many circles are there?", kind="image/png", **fields):
    data = f"data:{kind};base64,{base64.b64encode(image).decode()}"
    content = [{"type": "image_url", "image_url": {"url": data}}, {"type": "text", "text": question}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}).encode()


def post(body, length=None, path="/v1/chat/completions"):
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def exchange(request, leave_after=None):
    """The status and the body; nothing of a client that leaves."""
    with socket.create_connection((host, int(port)), timeout=120) as stream:
        try:
            stream.sendall(request)
        except OSError:
            pass  # Who is refused may be cut off before all is sent.
        if leave_after is not None:
            time.sleep(leave_after)
            return None, b""
        answer = b""
        try:
            while piece := stream.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
    status = int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0
    return status, answer.partition(b"\r\n\r\n")[2]


def right(rng):
    status, body = exchange(post(shown(PNG)))
    if status == 429:
        return
    assert status == 200, (status, body[:300])
    assert json.loads(body)["choices"][0]["message"]["content"] == "2", body


def streamed(rng):
    status, body = exchange(post(shown(PNG, stream=True)))
    assert status == 429 or (status == 200 and body.rstrip().endswith(b"0") or b"[DONE]" in body), (status, body[:300])


def leaves(rng):
    body = shown(PNG, stream=rng.random() < 0.5, ignore_eos=True, n=rng.randint(1, 4), max_tokens=400)
    exchange(post(body), leave_after=rng.uniform(0, 0.05))


QUESTION = "How many circles are there?"
IMAGE = base64.b64encode(PNG).decode()
SEEN = [{"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}, {"type": "input_text", "text": QUESTION}]
SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE}
RANKED = {"model": "ranks", "query": "a", "documents": ["b", "c d"]}

# What every protocol is asked, and how its answer tells that it is right.
ASKED = [
    ("/v1/responses", {"input": [{"role": "user", "content": SEEN}], "temperature": 0},
     lambda answer: answer["output"][0]["content"][0]["text"] == "2"),
    ("/v1/messages", {"max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": [
        {"type": "image", "source": SOURCE}, {"type": "text", "text": QUESTION}]}]},
     lambda answer: answer["content"][0]["text"] == "2"),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": QUESTION}]},
     lambda answer: answer["input_tokens"] > 0),
    ("/v1/completions", {"prompt": QUESTION, "max_tokens": 4, "echo": True},
     lambda answer: answer["choices"][0]["text"].startswith(QUESTION)),
    ("/api/chat", {"stream": False, "options": {"temperature": 0}, "messages": [
        {"role": "user", "content": QUESTION, "images": [IMAGE]}]},
     lambda answer: answer["done"] and answer["message"]["content"] == "2"),
    ("/api/generate", {"stream": False, "prompt": QUESTION, "images": [IMAGE], "options": {"temperature": 0}},
     lambda answer: answer["done"] and answer["response"] == "2"),
    ("/v1/embeddings", {"model": "letters", "input": ["a", "b"]}, lambda answer: len(answer["data"]) == 2),
    ("/api/embed", {"model": "letters", "input": ["a", "b"]}, lambda answer: len(answer["embeddings"]) == 2),
    ("/v1/rerank", RANKED, lambda answer: sorted(one["index"] for one in answer["results"]) == [0, 1]),
    ("/v1/score", {"model": "ranks", "text_1": "a", "text_2": ["b", "c"]}, lambda answer: len(answer["data"]) == 2),
    ("/predict", {"model": "labels", "inputs": "a"}, lambda answer: len(answer) > 0),
    ("/tokenize", {"prompt": QUESTION}, lambda answer: answer["count"] == len(answer["tokens"]) > 0),
]


def asked_otherwise(rng):
    path, fields, is_right = rng.choice(ASKED)
    fields = fields if "model" in fields else {"model": "shapes-vl", **fields}
    status, body = exchange(post(json.dumps(fields).encode(), path=path))
    assert status == 429 or status == 200 and is_right(json.loads(body)), (path, status, body[:300])


def spoiled(rng):
    """Fields of one protocol that another's clients would send, lack, or send as something else."""
    path, fields, _ = rng.choice(ASKED)
    fields = {"model": "shapes-vl", **fields, "max_tokens": 4}
    name = rng.choice(sorted(fields))
    other = rng.choice([None, [], {}, -1, 1e300, "", "a" * 5000, [[[]]], {"type": "x"}, True])
    body = json.dumps({**fields, name: other}).encode()
    status, answer = exchange(post(body, path=rng.choice(ASKED)[0]))
    assert status in (200, 400, 404, 429), (path, name, other, status, answer[:300])
    assert status < 400 or "error" in json.loads(answer), (path, name, other, answer[:300])


def refused(*statuses):
    def check(request):
        status, body = exchange(request)
        # A body that is cut off while it is refused may take its answer along.
        assert status in (0, 429, *statuses), (status, body[:300])
        if status:
            assert "message" in json.loads(body)["error"], body[:300]
    return check


def hostile(rng):
    bad = refused(400, 413, 415)
    garbage = bytes(rng.randrange(256) for _ in range(rng.randint(1, 400)))
    bad(rng.choice([
        lambda: post(garbage),
        lambda: post(shown(garbage)),
        lambda: post(shown(PNG[: rng.randrange(len(PNG) - 16)])),  # without its end mark it is whole
        lambda: post(shown(PNG, kind="text/html")),
        lambda: post(shown(PNG)[: rng.randrange(200)]),
        lambda: post(shown(PNG, max_tokens=-rng.randint(0, 9) - 1)),
        lambda: post(shown(PNG, temperature=1e9)),
        lambda: post(b'{"messages": [{"role": "user", "content": "\xff"}]}'),
        lambda: post(b"[" * 100_000),
    ])())


def heavy(rng):
    refused(400, 413)(rng.choice([lambda: post(shown(bomb())), lambda: post(b" " * (40 << 20))])())


def cut(rng):
    whole = post(shown(PNG))
    exchange(whole[: rng.randrange(1, len(whole))], leave_after=0)


def metric(name):
    text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
    lines = (line for line in text.splitlines() if line.startswith((name + " ", name + "{")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def anonymous_mib():
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024
    return own - metric("smelt_kv_blocks_held") * metric("smelt_kv_block_bytes") / 2**20


def settle():
    until = time.monotonic() + 60
    busy = lambda: sum(metric(f"smelt_answers_{state}") for state in ("looking", "waiting", "reading", "saying"))
    while busy() > 0:
        assert time.monotonic() < until, "answers are stuck"
        time.sleep(0.1)


KINDS = [(right, 25), (asked_otherwise, 20), (spoiled, 10), (streamed, 10), (leaves, 15), (hostile, 15), (cut, 4), (heavy, 1)]
faults = []


def work(seed, requests):
    rng = random.Random(seed)
    for _ in range(requests):
        kind = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        try:
            kind(rng)
        except Exception as error:
            faults.append(f"{kind.__name__}: {type(error).__name__}: {error}")
        if len(faults) > 10:
            return


def send(seed, requests):
    threads = [threading.Thread(target=work, args=[seed + at, requests // THREADS]) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle()
    assert not faults, "\n".join(faults)


send(0, count // 10)
before = anonymous_mib()
begun = time.monotonic()
send(1000, count - count // 10)
after = anonymous_mib()
right(random.Random(0))
print(f"{count} requests, {time.monotonic() - begun:.0f} s: {before:.0f} MiB after a tenth of them, {after:.0f} MiB at the end")
assert after - before < GROWTH_MIB_MAX, "memory grows"

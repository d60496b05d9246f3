"""Sends a server thousands of requests as clients at their worst do, and wants it to be as before.

usage: soak.py URL PID PICTURE REQUESTS

Every connection gets an answer that it deserves, or is one that was cut by its client.  Honest requests of every protocol
are answered what each was answered alone, before all others; at the end nothing is under way and memory has not grown since
a tenth of the requests.
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


QUESTION = "How many circles are there?"
LETTERS = {"model": "letters", "input": ["a", "b"]}
RANKED = {"model": "ranks", "query": "a", "documents": ["b", "c d"]}


def of_chats(image, kind="image/png"):
    return json.loads(shown(image, kind=kind))


def of_responses(image, kind="image/png"):
    seen = {"type": "input_image", "image_url": f"data:{kind};base64,{base64.b64encode(image).decode()}"}
    content = [seen, {"type": "input_text", "text": QUESTION}]
    return {"input": [{"role": "user", "content": content}], "temperature": 0}


def of_messages(image, kind="image/png"):
    source = {"type": "base64", "media_type": kind, "data": base64.b64encode(image).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    return {"max_tokens": 40, "temperature": 0, "messages": [{"role": "user", "content": content}]}


def of_ollama(image, kind="image/png"):
    data = base64.b64encode(image).decode()
    image = data if kind == "image/png" else f"data:{kind};base64,{data}"
    turn = {"role": "user", "content": QUESTION, "images": [image]}
    return {"stream": False, "options": {"temperature": 0}, "messages": [turn]}


def of_prompts(image, kind="image/png"):
    turn = of_ollama(image, kind)["messages"][0]
    return {"stream": False, "options": {"temperature": 0}, "prompt": QUESTION, "images": turn["images"]}


# How the protocols that speak are shown a picture, what they say of it, and what of an event of a stream is said.
SPEAKING = {
    "/v1/chat/completions": (of_chats, lambda answer: answer["choices"][0]["message"]["content"],
                             lambda event: event["choices"] and event["choices"][0]["delta"].get("content")),
    "/v1/responses": (of_responses, lambda answer: answer["output"][0]["content"][0]["text"],
                      lambda event: event["type"] == "response.output_text.delta" and event["delta"]),
    "/v1/messages": (of_messages, lambda answer: answer["content"][0]["text"],
                     lambda event: event["type"] == "content_block_delta" and event["delta"].get("text")),
    "/api/chat": (of_ollama, lambda answer: answer["message"]["content"], lambda event: event["message"]["content"]),
    "/api/generate": (of_prompts, lambda answer: answer["response"], lambda event: event["response"]),
}

# The word with which each stream ends.
LAST = {"/v1/chat/completions": b"data: [DONE]", "/v1/responses": b"response.completed", "/v1/messages": b"message_stop",
        "/api/chat": b'"done":true', "/api/generate": b'"done":true'}

# What every protocol is asked, and what of its answer is the same whoever asks beside it.
ASKED = [(path, of(PNG), said) for path, (of, said, _) in SPEAKING.items()] + [
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": QUESTION}]}, lambda answer: answer),
    ("/v1/completions", {"prompt": QUESTION, "max_tokens": 4, "echo": True, "temperature": 0},
     lambda answer: answer["choices"][0]["text"]),
    ("/v1/embeddings", LETTERS, lambda answer: [one["embedding"] for one in answer["data"]]),
    ("/api/embed", LETTERS, lambda answer: answer["embeddings"]),
    ("/v1/rerank", RANKED, lambda answer: [(one["index"], one["relevance_score"]) for one in answer["results"]]),
    ("/v1/score", {"model": "ranks", "text_1": "a", "text_2": ["b", "c"]},
     lambda answer: [one["score"] for one in answer["data"]]),
    ("/predict", {"model": "labels", "inputs": "a"}, lambda answer: answer),
    ("/tokenize", {"prompt": QUESTION}, lambda answer: answer["tokens"]),
]
ALONE = {}


def body_of(fields):
    return json.dumps(fields if "model" in fields else {"model": "shapes-vl", **fields}).encode()


def ask_alone():
    """Takes down what every protocol is answered while nobody else asks."""
    for path, fields, of in ASKED:
        status, body = exchange(post(body_of(fields), path=path))
        assert status == 200, (path, status, body[:300])
        ALONE[path] = of(json.loads(body))
    for path in SPEAKING:
        assert ALONE[path] == "2", (path, ALONE[path])
    assert ALONE["/v1/completions"].startswith(QUESTION) and ALONE["/tokenize"]
    assert len(ALONE["/v1/embeddings"]) == len(ALONE["/v1/score"]) == len(ALONE["/v1/rerank"]) == 2
    assert any(ALONE["/v1/embeddings"][0]) and ALONE["/v1/embeddings"][0] != ALONE["/v1/embeddings"][1]


def asked_otherwise(rng):
    path, fields, of = rng.choice(ASKED)
    status, body = exchange(post(body_of(fields), path=path))
    if status == 429:
        return
    assert status == 200, (path, status, body[:300])
    assert of(json.loads(body)) == ALONE[path], (path, body[:300])


def unchunked(body):
    """What a body in pieces says; nothing of one that does not end."""
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        whole += body[:length]
        body = body[length + 2 :]
        if length == 0:
            return whole if size == b"0" else b""


def streamed(rng):
    path = rng.choice(sorted(SPEAKING))
    of, _, said = SPEAKING[path]
    status, body = exchange(post(body_of({**of(PNG), "stream": True}), path=path))
    if status == 429:
        return
    assert status == 200, (path, status, body[:300])
    whole = unchunked(body)
    lines = [line.removeprefix(b"data: ") for line in whole.splitlines() if line.startswith((b"data: {", b"{"))]
    text = "".join(said(json.loads(line)) or "" for line in lines)
    assert text == "2" and LAST[path] in whole[whole.rstrip().rfind(b"\n") :], (path, body)


def leaves(rng):
    path = rng.choice(sorted(SPEAKING))
    fields = {**SPEAKING[path][0](PNG), "stream": rng.random() < 0.5, "ignore_eos": True}
    if path == "/v1/chat/completions":
        fields |= {"n": rng.randint(1, 4), "max_tokens": 400}
    elif path == "/v1/messages":
        fields |= {"max_tokens": 400}
    exchange(post(body_of(fields), path=path), leave_after=rng.uniform(0, 0.05))


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
            error = json.loads(body)["error"]
            assert error if isinstance(error, str) else error["message"], body[:300]
    return check


def hostile(rng):
    bad = refused(400, 413, 415)
    garbage = bytes(rng.randrange(256) for _ in range(rng.randint(1, 400)))
    path = rng.choice(sorted(SPEAKING))
    of = SPEAKING[path][0]
    whole = body_of(of(PNG))
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    hot = {"options": {"temperature": 1e9}} if path.startswith("/api/") else {"temperature": 1e9}
    bad(post(rng.choice([
        lambda: garbage,
        lambda: body_of(of(garbage)),
        lambda: body_of(of(PNG[: rng.randrange(len(PNG) - 16)])),  # without its end mark it is whole
        lambda: body_of(of(PNG, "text/html")),
        lambda: whole[: rng.randrange(200)],
        lambda: body_of({**of(PNG), limit: -rng.randint(0, 9) - 1}),
        lambda: body_of({**of(PNG), **hot}),
        lambda: whole.replace(b"How many", b"\xff"),
        lambda: b"[" * 100_000,
    ])(), path=path))


def heavy(rng):
    path = rng.choice(sorted(SPEAKING))
    of = SPEAKING[path][0]
    whole = body_of(of(PNG))
    refused(400, 413)(post(rng.choice([
        lambda: body_of(of(bomb())),
        lambda: b" " * (40 << 20),
        lambda: whole.replace(b"How many", b"<" * (31 << 20)),
    ])(), path=path))


def cut(rng):
    path, fields, _ = rng.choice(ASKED)
    whole = post(body_of(fields), path=path)
    exchange(whole[: rng.randrange(1, len(whole))], leave_after=0)


def metric(name):
    text = urllib.request.urlopen(f"{url}/metrics", timeout=60).read().decode()
    lines = (line for line in text.splitlines() if line.startswith((name + " ", name + "{")))
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def held_mib():
    """What the process holds by itself, and all that is resident of it, keys and values apart."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    kept = metric("smelt_kv_blocks_held") * metric("smelt_kv_block_bytes") / 2**20
    read = lambda name: next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024 - kept
    return read("RssAnon:"), read("VmRSS:")


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


ask_alone()
send(0, count // 10)
before = held_mib()
begun = time.monotonic()
send(1000, count - count // 10)
after = held_mib()
right(random.Random(0))
of = lambda held: f"{held[0]:.0f} MiB, {held[1]:.0f} MiB resident,"
print(f"{count} requests, {time.monotonic() - begun:.0f} s: {of(before)} after a tenth of them, {of(after)} at the end")
for grown in [later - earlier for earlier, later in zip(before, after)]:
    assert grown < GROWTH_MIB_MAX, "memory grows"

"""Stands for another program's server: OpenAI's chat route, and the ways in which such servers go wrong.

    server.py WAY PORT [DIR]

Answers one request at a time, word by word.  DIR is what it would read: it must be there.  WAY is `well`, or how it goes
wrong: `closed` opens no port, `ends` ends before it is well, `hangs` is well and answers nothing more, `tenth` dies of
its tenth request, `nonsense` answers what is no JSON, `cuts` ends its events without [DONE], `grows` takes memory, `mute`
says megabytes without a newline.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAY, PORT = sys.argv[1], int(sys.argv[2])
WORDS = ["one", " two", " three"]
count, lock, held = 0, threading.Lock(), []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, body, kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if WAY == "hangs" and count > 0:
            time.sleep(3600)
        self.send(200 if self.path == "/health" else 404, {"status": "ok"})

    def do_POST(self):
        global count
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            return self.send(404, {"error": {"message": f"no route {self.path}"}})
        if asked["model"] != "words":
            return self.send(404, {"error": {"message": f"no model {asked['model']}"}})
        if not asked.get("messages"):
            return self.send(422, {"detail": "messages are missing"})
        if not lock.acquire(blocking=False):
            print("two at once", file=sys.stderr, flush=True)
            os._exit(9)
        self.is_at_it = True
        try:
            self.answer(asked)
        finally:
            self.has_said_all()

    def has_said_all(self):
        """It may be asked again as soon as its last bytes are there, so before they are written."""
        if self.is_at_it:
            self.is_at_it = False
            lock.release()

    def answer(self, asked):
        global count
        count += 1
        if WAY == "tenth" and count == 10:
            print("CUDA error: an illegal memory access was encountered", file=sys.stderr, flush=True)
            os._exit(1)
        if WAY == "hangs" and count > 1:
            time.sleep(3600)
        if WAY == "nonsense" and count > 1:
            return self.send(200, b"Segmentation fault", "text/plain")
        usage = {"prompt_tokens": 5, "completion_tokens": len(WORDS), "total_tokens": 8}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            self.has_said_all()
            return self.send(200, {"object": "chat.completion", "model": "words", "choices": [choice],
                                   "usage": usage})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        slow = float(os.environ.get("SLOW", "0")) or 3600 * (asked["messages"][0]["content"] == "endless")
        for word in WORDS:
            self.event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}}]})
            time.sleep(min(slow, 0.2))
        while slow > 1:
            self.event({"object": "chat.completion.chunk", "choices": []})
            time.sleep(0.05)
        if WAY == "cuts" and count > 1:
            self.close_connection = True
            return
        self.event({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        self.has_said_all()
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, value):
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


if len(sys.argv) > 3 and not os.path.isdir(sys.argv[3]):
    sys.exit(f"{sys.argv[3]} is not there")
if WAY == "ends":
    sys.exit("error: engine file is of TensorRT 10.3, this is 10.7")
if WAY == "mute":
    sys.stdout.write("." * (8 << 20))
    sys.stdout.flush()
if WAY == "closed":
    time.sleep(3600)
if WAY == "grows":
    def grow():
        time.sleep(3)
        while True:
            held.append(bytearray(os.urandom(1 << 20) * 16))
            time.sleep(0.05)
    threading.Thread(target=grow, daemon=True).start()
# A child of its own, as servers have: it must not outlive anybody.
if os.fork() == 0:
    time.sleep(3600)
ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()

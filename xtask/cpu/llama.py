"""llama.cpp's side of `cargo xtask bench cpu`: one measured run a process, through its C functions.

    llama.py GGUF THREADS PREFILL DECODE SLOTS CONTEXT

Does what `bench_cpu llm` does: a warm-up, a prompt for each slot, greedy steps of one token a slot
in one batch.  CONTEXT is the longest a slot may grow.  Prints one line of JSON, times in seconds;
`idle_rss_mib` is what Python and its modules take before a model is there.
"""

import ctypes
import json
import sys
import time

import llama_cpp as llama
import numpy as np

WARM_PROMPT = 16
WARM_STEPS = 4


def rss_mib(field):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) / 1024


class Batch:
    """A batch of llama.cpp's, filled anew for each call."""

    def __init__(self, tokens_max):
        self.batch = llama.llama_batch_init(tokens_max, 0, 1)

    def decode(self, context, rows):
        """Runs rows of (slot, place, token, whether its logits are wanted); gives the seconds."""
        for index, (slot, place, token, wanted) in enumerate(rows):
            self.batch.token[index] = token
            self.batch.pos[index] = place
            self.batch.n_seq_id[index] = 1
            self.batch.seq_id[index][0] = slot
            self.batch.logits[index] = wanted
        self.batch.n_tokens = len(rows)
        begin = time.perf_counter()
        if llama.llama_decode(context, self.batch) != 0:
            sys.exit("llama_decode failed")
        llama.llama_synchronize(context)
        return time.perf_counter() - begin


def largest(context, index, vocab):
    logits = llama.llama_get_logits_ith(context, index)
    return int(np.argmax(np.ctypeslib.as_array(logits, (vocab,))))


def generate(context, batch, vocab, slots, prefill, decode):
    """Seconds of all prompts, seconds of all steps, the first slot's tokens."""
    last, prefill_s = [], 0.0
    for slot in range(slots):
        tokens = [(1 + slot * 1009 + place * 7919) % vocab for place in range(prefill)]
        rows = [(slot, p, t, p == prefill - 1) for p, t in enumerate(tokens)]
        prefill_s += batch.decode(context, rows)
        last.append(largest(context, prefill - 1, vocab))
    tokens, decode_s = [], 0.0
    for step in range(decode):
        tokens.append(last[0])
        rows = [(slot, prefill + step, last[slot], True) for slot in range(slots)]
        decode_s += batch.decode(context, rows)
        last = [largest(context, slot, vocab) for slot in range(slots)]
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    return prefill_s, decode_s, tokens


def main():
    path = sys.argv[1]
    threads, prefill, decode, slots, longest = map(int, sys.argv[2:])
    # Its log is long, and what goes wrong ends the process anyway.
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    idle = rss_mib("VmRSS")
    begin = time.perf_counter()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx = longest * slots
    params.n_batch = max(512, prefill)
    params.n_seq_max = slots
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp cannot run {path}")
    load_s = time.perf_counter() - begin
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    batch = Batch(params.n_batch)
    generate(context, batch, vocab, slots, WARM_PROMPT, WARM_STEPS)
    prefill_s, decode_s, tokens = generate(context, batch, vocab, slots, prefill, decode)
    print(
        json.dumps(
            {
                "load_s": load_s,
                "prefill_s": prefill_s,
                "decode_s": decode_s,
                "tokens": tokens,
                "idle_rss_mib": idle,
            }
        )
    )


main()

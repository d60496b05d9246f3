"""Makes a Q4_K_M file with llama.cpp's own quantiser, and says what llama.cpp answers from it.

    k_m.py FROM TO PROMPTS TOKENS

FROM is a GGUF file, whatever its types; TO becomes the new one.  PROMPTS is a JSON list whose entries have the token
ids of a `prompt`.  Prints one line of JSON: how many tensors there are of each `types`, and the `answers`: the
tokens said greedily, at most TOKENS, up to an end; their text; and the least distance between the likeliest token
and the next, since what is decided by less than rounding decides nothing.
"""

import ctypes
import json
import sys
from collections import Counter

import gguf
import llama_cpp as llama
import numpy as np

Q4_K_M = 15


def quantise(source, target):
    params = llama.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = Q4_K_M, True
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        sys.exit(f"llama.cpp cannot quantise {source}")


def answer(context, vocab, prompt, most):
    """The tokens behind `prompt`, and the least distance."""
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    count, said, least, rest = llama.llama_vocab_n_tokens(vocab), [], float("inf"), list(prompt)
    while len(said) < most:
        tokens = (llama.llama_token * len(rest))(*rest)
        if llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(rest))) != 0:
            sys.exit("llama_decode failed")
        logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (count,))
        second, first = np.argpartition(logits, -2)[-2:]
        if logits[second] > logits[first]:
            first, second = second, first
        least = min(least, float(logits[first] - logits[second]))
        if llama.llama_vocab_is_eog(vocab, int(first)):
            break
        said.append(int(first))
        rest = [int(first)]
    return said, least


def text(vocab, tokens):
    def piece(token):
        room = ctypes.create_string_buffer(256)
        length = llama.llama_token_to_piece(vocab, token, room, len(room), 0, False)
        return room.raw[:length]

    return b"".join(map(piece, tokens)).decode()


def main():
    source, target, prompts, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    quantise(source, target)
    model = llama.llama_model_load_from_file(target.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    # Threads of llama.cpp spin while they wait, which takes minutes where others work too.
    params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
    context = llama.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp cannot run {target}")
    vocab = llama.llama_model_get_vocab(model)
    answers = []
    for entry in json.load(open(prompts)):
        said, least = answer(context, vocab, entry["prompt"], most)
        answers.append({"tokens": said, "text": text(vocab, said), "least": least})
    types = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(target).tensors)
    print(json.dumps({"types": types, "answers": answers}))


main()

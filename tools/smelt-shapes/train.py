"""Trains a small vision-language model on what `smelt-shapes stream` sends.

    python train.py --model DIR --stream "smelt-shapes stream --model DIR --threads 8"

DIR holds config.json as `smelt-shapes files` wrote it; model.safetensors (bf16, the names of the
InternVL3 layout), train.log and scores.json are added to it.  One GPU, minutes; a processor works,
and takes more than a week.  --score-only scores what is there and writes nothing.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import queue
import shlex
import struct
import subprocess
import sys
import threading
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

ANSWER_TOKENS_MAX = 64
TASKS = ["describe", "count", "attribute", "where", "beside", "read", "which"]
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads = c["num_attention_heads"]
        self.qkv = nn.Linear(c["hidden_size"], 3 * c["hidden_size"])
        self.proj = nn.Linear(c["hidden_size"], c["hidden_size"])

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1 = nn.Linear(c["hidden_size"], c["intermediate_size"])
        self.fc2 = nn.Linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class VisionLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, eps = c["hidden_size"], c["layer_norm_eps"]
        self.attn, self.mlp = Attention(c), Mlp(c)
        self.norm1, self.norm2 = nn.LayerNorm(h, eps), nn.LayerNorm(h, eps)
        self.ls1, self.ls2 = (nn.Parameter(torch.full((h,), 0.5)) for _ in range(2))

    def forward(self, x):
        x = x + self.ls1 * self.attn(self.norm1(x))
        return x + self.ls2 * self.mlp(self.norm2(x))


class VisionEmbeddings(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, p = c["hidden_size"], c["patch_size"]
        self.class_embedding = nn.Parameter(torch.randn(1, 1, h) * 0.02)
        self.patch_embedding = nn.Conv2d(3, h, p, p)
        count = (c["image_size"] // p) ** 2 + 1
        self.position_embedding = nn.Parameter(torch.randn(1, count, h) * 0.02)

    def forward(self, pixels):
        x = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), -1, -1).to(x.dtype), x], 1)
        return x + self.position_embedding


class Vision(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embeddings = VisionEmbeddings(c)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(VisionLayer(c) for _ in range(c["num_hidden_layers"]))

    def forward(self, pixels):
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        return x[:, 1:]


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class SelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.heads, self.kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        d = c.get("head_dim") or h // self.heads
        bias = c["model_type"] == "qwen2"
        self.q_proj = nn.Linear(h, self.heads * d, bias=bias)
        self.k_proj = nn.Linear(h, self.kv * d, bias=bias)
        self.v_proj = nn.Linear(h, self.kv * d, bias=bias)
        self.o_proj = nn.Linear(self.heads * d, h, bias=False)
        if c["model_type"] == "qwen3":
            self.q_norm, self.k_norm = (RmsNorm(d, c["rms_norm_eps"]) for _ in range(2))

    def forward(self, x, cos, sin, mask):
        b, n, _ = x.shape
        split = lambda y, heads: y.view(b, n, heads, -1)
        q, k = split(self.q_proj(x), self.heads), split(self.k_proj(x), self.kv)
        v = split(self.v_proj(x), self.kv).transpose(1, 2)
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = (rotate(y.transpose(1, 2), cos, sin) for y in (q, k))
        k, v = (y.repeat_interleave(self.heads // self.kv, 1) for y in (k, v))
        x = F.scaled_dot_product_attention(q, k, v, mask)
        return self.o_proj(x.transpose(1, 2).reshape(b, n, -1))


class GatedMlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, i = c["hidden_size"], c["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(h, i, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(i, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, eps = c["hidden_size"], c["rms_norm_eps"]
        self.self_attn, self.mlp = SelfAttention(c), GatedMlp(c)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(h, eps), RmsNorm(h, eps)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    def __init__(self, config, image_token):
        super().__init__()
        v, c = config["vision_config"], config["llm_config"]
        self.config, self.image_token = c, image_token
        self.vision_model = Vision(v)
        wide, h = v["hidden_size"] * 4, c["hidden_size"]
        self.mlp1 = nn.Sequential(
            nn.LayerNorm(wide), nn.Linear(wide, h), nn.GELU(), nn.Linear(h, h)
        )
        self.language_model = nn.Module()
        model = nn.Module()
        model.embed_tokens = nn.Embedding(c["vocab_size"], h)
        model.layers = nn.ModuleList(DecoderLayer(c) for _ in range(c["num_hidden_layers"]))
        model.norm = RmsNorm(h, c["rms_norm_eps"])
        self.language_model.model = model
        self.language_model.lm_head = nn.Linear(h, c["vocab_size"], bias=False)
        self.apply(self.init)
        for layer in [*model.layers, *self.vision_model.encoder.layers]:
            out = [layer.self_attn.o_proj, layer.mlp.down_proj] if hasattr(layer, "self_attn") else [
                layer.attn.proj, layer.mlp.fc2]
            for linear in out:
                linear.weight.data /= math.sqrt(2 * c["num_hidden_layers"])

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.trunc_normal_(module.weight, std=0.04)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.04)

    def see(self, pixels):
        """[n, 3, s, s] to [n, tokens, hidden]; the pixel shuffle of ps_version v2."""
        x = self.vision_model(pixels)
        n, count, c = x.shape
        g = math.isqrt(count)
        x = x.view(n, g, g // 2, 2 * c).permute(0, 2, 1, 3).reshape(n, g // 2, g // 2, 4 * c)
        return self.mlp1(x.permute(0, 2, 1, 3).reshape(n, count // 4, 4 * c))

    def forward(self, batch):
        """Logits of the answers' tokens of a `Batch`."""
        b, n = batch.tokens.shape
        model = self.language_model.model
        seen = self.see(normal(batch.pixels).flatten(0, 1)).view(b, -1, self.config["hidden_size"])
        x = model.embed_tokens(batch.tokens).to(seen.dtype).index_copy(1, batch.image, seen)
        d = self.config.get("head_dim") or x.shape[-1] // self.config["num_attention_heads"]
        powers = torch.arange(0, d, 2, device=x.device).float() / d
        angles = batch.place.float()[..., None] / self.config["rope_theta"] ** powers
        angles = torch.cat([angles, angles], -1)[:, None]
        cos, sin = (x.to(seen.dtype) for x in (angles.cos(), angles.sin()))
        mask = batch.mask(x.dtype)
        for layer in model.layers:
            x = layer(x, cos, sin, mask)
        x = model.norm(x.reshape(b * n, -1)[batch.wanted])
        return self.language_model.lm_head(x)


@dataclasses.dataclass
class Batch:
    """Pictures with all their questions: a row is the tokens that show a picture, then each
    question with its answer, which see the picture and themselves but not one another."""

    pixels: torch.Tensor  # [b, t, s, s, 3] u8
    tokens: torch.Tensor  # [b, n]
    place: torch.Tensor  # [b, n], the position that a token believes to have
    part: torch.Tensor  # [b, n]: 0 shows the picture, 1.. is a question, -1 is nothing
    image: torch.Tensor  # where the image tokens are, the same in every row
    wanted: torch.Tensor  # flat places that predict an answer's tokens
    target: torch.Tensor  # those tokens
    question: torch.Tensor  # which question each of them belongs to
    task: np.ndarray  # [b * q]

    @classmethod
    def pack(cls, pixels, tokens, answers, image_token):
        """Of tokens [b, q, n] and answers [b, q, (first, end, task)]."""
        b, q, _ = tokens.shape
        image = (tokens[0, 0] == image_token).nonzero()[0]
        shared = int(image[-1]) + 1
        assert (tokens[:, :, :shared] == tokens[0, 0, :shared]).all(), "prompts begin alike"
        first, end = (answers[:, :, i].astype(np.int64) for i in range(2))
        begin = shared + np.cumsum(end - shared, 1) - (end - shared)
        # Attention's mask wants rows of whole eights.
        length = -(-int((begin + end - shared).max()) // 8) * 8
        at = np.arange(tokens.shape[-1])
        inside = (at >= shared) & (at < end[..., None])
        of = lambda x: np.broadcast_to(x, inside.shape)[inside]
        row = of(np.arange(b)[:, None, None])
        column = (begin[..., None] + at - shared)[inside]
        packed, place, part = (np.full((b, length), x, np.int64) for x in (0, 0, -1))
        packed[:, :shared], place[:, :shared], part[:, :shared] = tokens[0, 0, :shared], at[:shared], 0
        packed[row, column] = tokens[inside]
        place[row, column] = of(at)
        part[row, column] = of(np.arange(1, q + 1)[:, None])
        answer = (at >= first[..., None]) & inside
        target = tokens[answer].astype(np.int64)
        flat = np.arange(b)[:, None, None] * length + begin[..., None] + at - shared - 1
        question = np.broadcast_to(np.arange(b * q).reshape(b, q, 1), answer.shape)[answer]
        task = answers[:, :, 2].flatten()
        return cls(pixels, packed, place, part, image, flat[answer], target, question, task)

    def to(self, device):
        def put(x):
            x = torch.from_numpy(np.ascontiguousarray(x))
            return x if device == "cpu" else x.pin_memory().to(device, non_blocking=True)

        arrays = dataclasses.asdict(self)
        task = arrays.pop("task")
        return Batch(**{name: put(x) for name, x in arrays.items()}, task=task)

    def mask(self, dtype):
        """[b, 1, n, n], to be added: what each token sees."""
        asks, seen = self.part[:, :, None], self.part[:, None, :]
        n = self.part.shape[-1]
        past = torch.ones(n, n, dtype=torch.bool, device=self.part.device).tril()
        sees = past & ((seen == 0) | (seen == asks))
        return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill_(
            ~sees, -torch.inf)[:, None]


def normal(pixels):
    """[b, t, s, s, 3] bytes to [b, t, 3, s, s]."""
    mean, std = (torch.tensor(x).to(pixels.device, non_blocking=True) for x in (MEAN, STD))
    return ((pixels.float() / 255 - mean) / std).permute(0, 1, 4, 2, 3).contiguous()


def batches(command):
    """What the stream sends: pixels [b, t, s, s, 3] u8, tokens [b, q, l], answers [b, q, 3]."""
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, bufsize=1 << 20)
    while head := process.stdout.read(24):
        magic, b, t, q, n, s = struct.unpack("<6I", head)
        assert magic == 0x31706873, "the stream is out of step"
        read = lambda count, kind: np.frombuffer(
            process.stdout.read(count * np.dtype(kind).itemsize), kind)
        pixels = read(b * t * s * s * 3, np.uint8).reshape(b, t, s, s, 3)
        tokens = read(b * q * n, "<u2").reshape(b, q, n)
        yield pixels, tokens, read(b * q * 3, "<u2").reshape(b, q, 3)


def ahead(items, image_token, device, depth=8):
    """The same batches on the device, read by a thread."""
    full = queue.Queue(depth)

    def work():
        for item in items:
            full.put(Batch.pack(*item, image_token).to(device))
        full.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (item := full.get()) is not None:
        yield item


def told(items, count):
    """The same items, each told of when it is asked for."""
    for number, item in enumerate(items, 1):
        print(f"batch {number} of {count}", file=sys.stderr)
        yield item


@torch.no_grad()
def score(model, items, log):
    """Share of answers that greedy decoding gives to the letter, by task."""
    right, all_ = np.zeros(len(TASKS)), np.zeros(len(TASKS))
    for batch in items:
        with torch.compiler.set_stance("force_eager"):
            miss = model(batch).argmax(-1) != batch.target
        wrong = np.bincount(batch.question[miss].cpu().numpy(), minlength=len(batch.task)) > 0
        right += np.bincount(batch.task, ~wrong, len(TASKS))
        all_ += np.bincount(batch.task, minlength=len(TASKS))
    scores = {name: right[i] / all_[i] for i, name in enumerate(TASKS) if all_[i]}
    scores["all"] = right.sum() / all_.sum()
    scores["questions"] = int(all_.sum())
    log("scores " + json.dumps({k: round(v, 4) for k, v in scores.items()}))
    return scores


@torch.no_grad()
def answer(model, args, end, path):
    """Greedy answers to the first prompts that --prompts sends, a line of JSON each."""
    words = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    lines = []
    for pixels, tokens, answers in batches(args.prompts):
        for question in range(tokens.shape[1]):
            start, stop = (int(x) for x in answers[0, question, :2])
            said = tokens[:, question : question + 1, : stop - 1].astype(np.int64)
            asked = words.decode(said[0, 0, :start].tolist()).split("\n")[-3]
            # What is right is a guess that one pass confirms up to the first token said otherwise.
            while True:
                place = np.array([[[start, said.shape[-1] + 1, 0]]])
                batch = Batch.pack(pixels, np.pad(said, ((0, 0), (0, 0), (0, 1))), place, model.image_token)
                best = model(batch.to("cpu")).argmax(-1).numpy()
                same = np.cumprod(best[:-1] == said[0, 0, start:]).sum()
                said = np.concatenate([said[:, :, : start + same], best[None, None, same : same + 1]], -1)
                if said[0, 0, -1] == end or said.shape[-1] - start >= ANSWER_TOKENS_MAX:
                    break
            said = said[:, :, :-1] if said[0, 0, -1] == end else said
            ids = said[0, 0, start:].tolist()
            lines.append(json.dumps({"question": asked, "answer": words.decode(ids), "tokens": ids}))
            if len(lines) == args.answers:
                return path.write_text("\n".join(lines) + "\n")


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--model", type=pathlib.Path, required=True)
    flags.add_argument("--stream")
    flags.add_argument("--prompts", help="a command; answer what it sends on the CPU, into answers.jsonl")
    flags.add_argument("--answers", type=int, default=500)
    flags.add_argument("--shared", help="a command that sends the training batches instead")
    flags.add_argument("--steps", type=int, default=31336, help="of the schedule, which ends with them")
    flags.add_argument("--pictures", type=int, help="of a batch; fewer go faster and learn less")
    flags.add_argument("--rate", type=float, default=1.3e-3)
    flags.add_argument("--held-out", type=int, default=48, help="batches of the last score")
    flags.add_argument("--eager", action="store_true", help="compile nothing")
    flags.add_argument("--score-every", type=int, default=4000, help="steps")
    flags.add_argument("--log-every", type=int, help="steps; 200, without a GPU 1")
    flags.add_argument("--score-only", action="store_true")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = flags.parse_args()
    if args.prompts:
        args.device = "cpu"
    args.log_every = args.log_every or (1 if args.device == "cpu" else 200)
    if args.pictures:
        args.stream += f" --pictures {args.pictures}"
    file = None if args.prompts or args.score_only else (args.model / "train.log").open("w")

    def log(line):
        print(line, flush=True)
        if file:
            print(line, file=file, flush=True)

    torch.manual_seed(7)
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.config.suppress_errors = True
    config = json.loads((args.model / "config.json").read_text())
    added = json.loads((args.model / "tokenizer.json").read_text())["added_tokens"]
    image_token = next(t["id"] for t in added if t["content"] == "<IMG_CONTEXT>")
    model = Model(config, image_token).to(args.device)
    count = sum(p.numel() for p in model.parameters())
    if not args.prompts:
        log(f"{count} parameters, {torch.__version__}, {args.steps} steps, rate {args.rate}")
    if args.device == "cpu" and not (args.prompts or args.score_only):
        log("no GPU: watch how long a step takes; --steps 20 --pictures 24 --held-out 1 is a trial")
    send = lambda stream: ahead(batches(stream), image_token, args.device)
    held_out = lambda n: send(f"{args.stream} --held-out --count {n}")
    if args.prompts:
        load(model, args.model)
        end = next(t["id"] for t in added if t["content"] == "<|im_end|>")
        return answer(model, args, end, args.model / "answers.jsonl")
    if not args.score_only:
        train(model, args, log, send(args.shared or args.stream), held_out)
        save(model, args.model / "model.safetensors")
    load(model, args.model)
    log("the saved weights in f32:")
    scores = score(model, told(held_out(args.held_out), args.held_out), log)
    if not args.score_only:
        (args.model / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


def save(model, path):
    state = {k: v.detach().bfloat16().contiguous().cpu() for k, v in model.state_dict().items()}
    save_file(state, path, {"format": "pt"})


def load(model, path):
    state = load_file(path / "model.safetensors")
    model.load_state_dict({k: v.float() for k, v in state.items()})


def train(model, args, log, items, held_out):
    # Compiling pays where steps are many.
    if not args.eager and args.device != "cpu":
        for layer in [*model.language_model.model.layers, *model.vision_model.encoder.layers]:
            layer.compile()
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), fused=args.device != "cpu")
    begin, shift = time.time(), 0.0
    losses = []
    for step, batch in enumerate(items):
        done = step / args.steps
        if done >= 1:
            break
        rate = args.rate * min(step / 600 + 1e-3, 1) * (0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(batch)
        loss = F.cross_entropy(logits.float(), batch.target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        if step % args.log_every == args.log_every - 1:
            mean = torch.stack(losses).mean().item()
            losses.clear()
            log(f"step {step + 1} loss {mean:.4f} rate {rate:.2e} {time.time() - begin:.0f} s")
        if step % args.score_every == args.score_every - 1:
            score(model, held_out(16), log)
            save(model, args.model / "model.safetensors")
    log(f"trained for {time.time() - begin:.0f} s, {step} steps")


if __name__ == "__main__":
    main()

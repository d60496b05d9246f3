"""Trains a small CLIP on what `smelt-shapes tiles` sends: how near a tile is to a question.

    python train_clip.py --out DIR --tiles "smelt-shapes tiles"

DIR gets a checkpoint as transformers writes it (CLIPModel, bf16), with tokenizer.json,
preprocessor_config.json, train.log and scores.json.  Nine minutes beside a GPU, which mostly waits for
tiles; an hour and more without one.

Each of a batch's tiles is held against each of its questions: near if the tile shows what the question
is asked of, far if not, left out if only a rim of it reaches in.  The loss is that of SigLIP (Zhai et
al. 2023), so the cosine from which a tile is more likely near than not is the same for all questions.
"""

import argparse
import json
import math
import pathlib
import random
import shlex
import subprocess
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

SIDE = 48
PLACES = 24
MEAN = STD = [0.5, 0.5, 0.5]
SPECIAL = ["<|startoftext|>", "<|endoftext|>"]
CORPUS = 4000
"""Samples whose questions the tokenizer is made from."""
HELD_OUT = 1000
"""Mosaics of four tiles that the last score is of."""


def tiles(command):
    """What is sent: pixels [side, side, 3] u8, questions with what each asks of, words shown and cut."""
    process = subprocess.Popen(shlex.split(command), stdout=subprocess.PIPE, bufsize=1 << 20)
    while line := process.stdout.readline():
        told = json.loads(line)
        pixels = np.frombuffer(process.stdout.read(SIDE * SIDE * 3), np.uint8)
        # Nothing in particular is on every tile.
        yield pixels.reshape(SIDE, SIDE, 3), told["questions"], {"", *told["shows"]}, set(told["cut"])
    process.wait()


def make_tokenizer(texts):
    """Lower case and BPE to words, as CLIP's own has it."""
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    words = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(words, "removed", invert=True), bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, min_frequency=2, end_of_word_suffix="</w>", show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    start, end = ((token, tokenizer.token_to_id(token)) for token in SPECIAL)
    tokenizer.post_processor = processors.RobertaProcessing(
        end, start, trim_offsets=False, add_prefix_space=False)
    return tokenizer


def make_model(tokenizer):
    start, end = (tokenizer.token_to_id(token) for token in SPECIAL)
    tower = dict(num_attention_heads=4, hidden_act="quick_gelu", layer_norm_eps=1e-5, projection_dim=64)
    text = CLIPTextConfig(
        **tower, hidden_size=64, intermediate_size=192, num_hidden_layers=2, max_position_embeddings=PLACES,
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=start, eos_token_id=end, pad_token_id=end)
    vision = CLIPVisionConfig(
        **tower, hidden_size=96, intermediate_size=192, num_hidden_layers=3, image_size=SIDE, patch_size=8)
    return CLIPModel(CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=64))


def see(model, pixels):
    """Rows of length 1 of [n, side, side, 3] bytes."""
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    pixels = (torch.from_numpy(np.stack(pixels)).float() / 255 - mean) / std
    pixels = pixels.permute(0, 3, 1, 2).contiguous().to(model.device)
    out = model.vision_model(pixel_values=pixels)
    return F.normalize(model.visual_projection(out.pooler_output), dim=-1)


def read(model, tokenizer, texts):
    """Rows of length 1 of texts."""
    end = tokenizer.token_to_id(SPECIAL[1])
    ids = [tokenizer.encode(text).ids for text in texts]
    longest = max(map(len, ids))
    ids = torch.tensor([row + [end] * (longest - len(row)) for row in ids], device=model.device)
    out = model.text_model(input_ids=ids)
    return F.normalize(model.text_projection(out.pooler_output), dim=-1)


def train(model, tokenizer, args, log):
    bias = torch.nn.Parameter(torch.tensor(-4.0, device=model.device))
    model.logit_scale.data.fill_(math.log(8.0))
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1] + [bias]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98))
    begin, losses = time.time(), []
    items, draw = tiles(args.tiles), random.Random(7)
    for step in range(args.steps):
        batch = [next(items) for _ in range(args.batch)]
        asked = {tuple(draw.choice(questions)) for _, questions, _, _ in batch if questions}
        asked = draw.sample(sorted(asked), min(args.questions, len(asked)))
        near = torch.tensor([[float(of in shown) for _, of in asked] for _, _, shown, _ in batch])
        open_ = torch.tensor([[of in cut - shown for _, of in asked] for _, _, shown, cut in batch])
        rate = args.rate * min(step / 100 + 1e-2, 1) * (0.5 + 0.5 * math.cos(math.pi * step / args.steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        seen = see(model, [pixels for pixels, *_ in batch])
        words = read(model, tokenizer, [text for text, _ in asked])
        logits = model.logit_scale.exp() * seen @ words.T + bias
        near, weight = near.to(model.device), (~open_).float().to(model.device)
        loss = F.binary_cross_entropy_with_logits(logits, near, weight=weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % args.log_every == args.log_every - 1:
            middle = (-bias / model.logit_scale.exp()).item()
            log(f"step {step + 1} loss {np.mean(losses):.4f} rate {rate:.2e} even at {middle:.3f} "
                f"{time.time() - begin:.0f} s")
            losses.clear()


@torch.no_grad()
def score(model, tokenizer, command, log):
    """How often the one tile that a question is asked of is the nearest, and what thresholds find."""
    sent = list(tiles(f"{command} --held-out --count {HELD_OUT}"))
    first, right, wanted, others = 0, 0, [], []
    for at in range(0, len(sent), 4):
        asked = sent[at][1]
        if not asked:
            continue
        seen = see(model, [pixels for pixels, *_ in sent[at : at + 4]])
        cosines = (seen @ read(model, tokenizer, [text for text, _ in asked]).T).numpy()
        answers = [[of in shown for _, of in asked] for _, _, shown, _ in sent[at : at + 4]]
        answers = np.array(answers).argmax(0)
        right += int((cosines.argmax(0) == answers).sum())
        first += len(asked)
        here = np.eye(4, dtype=bool)[:, answers]
        wanted.extend(cosines[here])
        others.extend(cosines[~here])
    scores = {"questions": first, "nearest": round(right / first, 4)}
    for threshold in [-0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]:
        reached = [round(float((np.array(x) >= threshold).mean()), 4) for x in (wanted, others)]
        scores[f"from {threshold}"] = dict(zip(["wanted", "others"], reached))
    log("scores " + json.dumps(scores))
    return scores


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--out", type=pathlib.Path, required=True)
    flags.add_argument("--tiles", required=True, help="the command that sends them")
    flags.add_argument("--steps", type=int, default=5000)
    flags.add_argument("--batch", type=int, default=256, help="tiles")
    flags.add_argument("--questions", type=int, default=128, help="of a batch, each held against all tiles")
    flags.add_argument("--rate", type=float, default=2e-3)
    flags.add_argument("--log-every", type=int, default=100, help="steps")
    flags.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = flags.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file = (args.out / "train.log").open("w")

    def log(line):
        print(line, flush=True)
        print(line, file=file, flush=True)

    torch.manual_seed(7)
    torch.set_num_threads(1)
    corpus = [text for _, asked, _, _ in tiles(f"{args.tiles} --count {CORPUS}") for text, _ in asked]
    tokenizer = make_tokenizer(corpus)
    model = make_model(tokenizer).to(args.device)
    log(f"{sum(p.numel() for p in model.parameters())} parameters, {len(set(corpus))} questions, "
        f"torch {torch.__version__}, {args}")
    train(model, tokenizer, args, log)
    model.to("cpu", torch.bfloat16).save_pretrained(args.out)
    tokenizer.save(str(args.out / "tokenizer.json"))
    processor = {"image_mean": MEAN, "image_std": STD}
    (args.out / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")
    log("the saved weights in f32:")
    scores = score(model.to(torch.float32).eval(), tokenizer, args.tiles, log)
    (args.out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")


if __name__ == "__main__":
    main()

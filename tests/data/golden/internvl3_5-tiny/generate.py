"""Makes the tiny InternVL3.5 checkpoint and its golden vectors, and checks them.

Run from anywhere: `python generate.py [--search]`.  Everything but the decoder is that of
`../internvl3-tiny/generate.py`, which does the work; the versions are named there.

The decoder is Qwen3's: no bias on q, k and v, an RMSNorm on each head of q and k before they are
rotated, and a head_dim that hidden and heads do not tell.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "internvl3-tiny"))

import generate  # noqa: E402

generate.HERE = HERE
generate.CHECKPOINT = HERE / "checkpoint"
generate.SEED = 51
# Without biases answers vary less than Qwen2's, so clear and varied ones are rarer.
generate.MARGIN = 0.01
generate.DISTINCT_MIN = 9
generate.LLM = dict(
    family="qwen3",
    architecture="Qwen3ForCausalLM",
    qkv_bias=False,
    qk_norm=True,
    hidden=64,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=16,
    inter=112,
    vocab=384,
    rope_scaling=None,
    own_fields={"attention_bias": False, "head_dim": 16},
)

if __name__ == "__main__":
    generate.main(with_text_cases=False)

"""Makes golden.safetensors: small weights and what independent rounders make of them.

Rounding is numpy in float32, GPTQ the published algorithm (Frantar et al., 2022, algorithm 1) with
an explicit inverse Hessian and its Cholesky factor in float64.  Run: python generate.py
"""

import numpy as np
from safetensors.numpy import save_file

GROUP = 32
CLIPS = np.float32([1.0] + [round(1 - 0.02 * n, 2) for n in range(1, 26)])
DAMPING = 0.01


def half(scale):
    return np.float16(scale).astype(np.float32)


def steps(group, asymmetric, clip):
    """Scale and zero point of each row of one group."""
    clip = np.float32(clip)
    if not asymmetric:
        scale = half(np.abs(group).max(1) * clip / np.float32(7.5))
        return scale, np.full(len(group), 8.0, np.float32)
    low, high = np.minimum(group.min(1), 0), np.maximum(group.max(1), 0)
    scale = half((high - low) * clip / np.float32(15))
    return scale, np.clip(np.rint(-low * clip / scale), 0, 15).astype(np.float32)


def levels(values, scale, zero):
    low, high = -zero, 15 - zero
    return np.clip(np.rint(values / scale), low, high) + zero


def fitted(group, asymmetric, search):
    """The steps of a group: the first clip whose squared error is least."""
    best = steps(group, asymmetric, 1.0)

    def error(step):
        rounded = (levels(group, *(s[:, None] for s in step)) - step[1][:, None]) * step[0][:, None]
        return ((group - rounded).astype(np.float64) ** 2).sum(1)

    least = error(best)
    for clip in CLIPS[1:] if search else []:
        step = steps(group, asymmetric, clip)
        cost = error(step)
        better = cost < least
        best = tuple(np.where(better, new, old) for new, old in zip(step, best))
        least = np.where(better, cost, least)
    return best


def rounded(weights, asymmetric, search):
    all_levels, scales, zeros = [], [], []
    for first in range(0, weights.shape[1], GROUP):
        group = weights[:, first : first + GROUP]
        scale, zero = fitted(group, asymmetric, search)
        all_levels.append(levels(group, scale[:, None], zero[:, None]))
        scales.append(scale)
        zeros.append(zero)
    return np.hstack(all_levels), np.stack(scales, 1), np.stack(zeros, 1)


def gptq(weights, x, asymmetric, act_order):
    """Levels, scales, zero points and the order of columns; float64 but for the steps."""
    hessian = 2 * x.T.astype(np.float64) @ x
    order = np.argsort(-np.diag(hessian), kind="stable") if act_order else np.arange(x.shape[1])
    left = weights[:, order].astype(np.float64)
    hessian = hessian[np.ix_(order, order)]
    hessian += DAMPING * np.diag(hessian).mean() * np.eye(len(hessian))
    upper = np.linalg.cholesky(np.linalg.inv(hessian)).T
    out, scales, zeros = np.zeros_like(left), [], []
    for column in range(left.shape[1]):
        if column % GROUP == 0:
            group = left[:, column : column + GROUP].astype(np.float32)
            scale, zero = fitted(group, asymmetric, search=True)
            scales.append(scale)
            zeros.append(zero)
        out[:, column] = levels(left[:, column], scale.astype(np.float64), zero)
        error = left[:, column] - (out[:, column] - zero) * scale
        left[:, column + 1 :] -= np.outer(error / upper[column, column], upper[column, column + 1 :])
    return out, np.stack(scales, 1), np.stack(zeros, 1), order


def main():
    random = np.random.default_rng(20260101)
    rows, width, samples = 16, 80, 40
    weights = random.standard_normal((rows, width)).astype(np.float32) * np.float32(0.05)
    weights[:, 7] *= 6
    # Correlated inputs, two of them far larger than the rest.
    x = random.standard_normal((samples, 12)) @ random.standard_normal((12, width))
    x += 0.3 * random.standard_normal((samples, width))
    x[:, 3] *= 20
    x[:, 50] *= 8
    x = x.astype(np.float32)
    golden = {"weights": weights, "x": x}
    for word, asymmetric in [("int4-g32", False), ("int4-g32-asym", True)]:
        for method, result in [
            ("rtn", rounded(weights, asymmetric, search=False)),
            ("mse", rounded(weights, asymmetric, search=True)),
            ("gptq", gptq(weights, x, asymmetric, act_order=False)),
            ("gptq-act-order", gptq(weights, x, asymmetric, act_order=True)),
        ]:
            golden[f"{word}/{method}/levels"] = result[0].astype(np.uint8)
            golden[f"{word}/{method}/scales"] = result[1]
            golden[f"{word}/{method}/zeros"] = result[2].astype(np.uint8)
            if len(result) > 3:
                golden[f"{word}/{method}/order"] = result[3].astype(np.int32)
    # The writer takes the bytes as they lie.
    save_file({name: np.ascontiguousarray(value) for name, value in golden.items()}, "golden.safetensors")


if __name__ == "__main__":
    main()

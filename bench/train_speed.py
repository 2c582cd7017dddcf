#!/usr/bin/env python3
"""Training speed and peak memory: Adam, vocabulary 4,000, the same random tokens on both sides.

    .venv/bin/python bench/train_speed.py [--rounds 5] [--steps 50] [--threads 2] [--json FILE]
    .venv/bin/python bench/train_speed.py --models mid --precisions f32 bf16 --steps 6

`rnn` and `transformer`: batch 64, length 64. `mid`: 29,794,816 parameters, batch 8, length 256. In bf16
PyTorch runs under autocast. Each cell comes from the same runs, sides and precisions in turn.
"""

import argparse
import json
import time

import common

VOCABULARY = 4000
SIZES = {"rnn": (64, 64), "transformer": (64, 64), "mid": (8, 256)}


def worker(arguments):
    import torch
    import torch_models
    torch_models.torch_threads(arguments.threads)
    imported = common.process_memory("VmRSS")
    torch.manual_seed(0)
    batch_size, length = SIZES[arguments.model]
    model = torch_models.make(arguments.model).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=arguments.fused)
    batch = torch.tensor(common.random_ids(batch_size, length + 1, VOCABULARY))
    ids, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    mixed = arguments.precision == "bf16"

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            loss = torch_models.loss_of(model, ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(arguments.warmup):
        loss = step()
    start = time.perf_counter()
    for _ in range(arguments.steps):
        loss = step()
    seconds = time.perf_counter() - start
    print(json.dumps(dict(tokens_per_second=arguments.steps * batch_size * length / seconds, loss=loss,
                          peak_process_bytes=common.process_memory("VmHWM"), imported_bytes=imported)))


def sides_of(arguments, model):
    """Name -> command, both sides in each precision."""
    sides = {}
    for precision in arguments.precisions:
        steps = ["--steps", arguments.steps, "--threads", arguments.threads, "--warmup", arguments.warmup,
                 "--precision", precision]
        fused = ["--fused"] if arguments.fused else []
        sides[f"torch {precision}"] = common.torch_worker(__file__, "--model", model, *steps, *fused)
        ours = ["--preset", "mid"] if model == "mid" else ["--model", model]
        sides[f"autoreg {precision}"] = [arguments.autoreg, "bench", "train-speed", *ours,
                                         *map(str, steps), "--json"]
    return sides


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser, rounds=5)
    parser.add_argument("--steps", type=int, default=50, help="timed steps a run (default 50)")
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps (default 5)")
    parser.add_argument("--models", nargs="+", default=["rnn", "transformer"], choices=list(SIZES))
    parser.add_argument("--precisions", nargs="+", default=["f32"], choices=["f32", "bf16"])
    parser.add_argument("--fused", action="store_true", help="PyTorch's fused Adam")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--precision", default="f32", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    common.need(arguments)
    rows, results = [], {}
    for model in arguments.models:
        runs = common.alternate(arguments, sides_of(arguments, model))
        speeds = {side: [run["tokens_per_second"] for run in each] for side, each in runs.items()}
        peaks = {side: [run["peak_process_bytes"] / common.MIB for run in each] for side, each in runs.items()}
        results[model] = {side: common.summary(values) for side, values in speeds.items()}
        results[model] |= {f"{side} peak MiB": common.summary(values) for side, values in peaks.items()}
        results[model] |= {f"{side} last loss": each[-1]["loss"] for side, each in runs.items()}
        for precision in arguments.precisions:
            names = [f"torch {precision}", f"autoreg {precision}"]
            cells = [common.spread(speeds[name]) if name in speeds else "-" for name in names]
            memory = [common.spread(peaks[name]) if name in peaks else "-" for name in names]
            ratio = smaller = "-"
            if all(name in speeds for name in names):
                faster = common.ratios(speeds[names[1]], speeds[names[0]])
                less = common.ratios(peaks[names[1]], peaks[names[0]])
                results[model][f"{precision} ratio"], ratio = common.summary(faster), common.spread(faster)
                smaller = common.spread(less)
            rows.append([f"{model} {precision}", *cells, ratio, *memory, smaller])
    common.table(["model", "PyTorch, tokens/s", "autoreg, tokens/s", "ratio", "PyTorch, MiB", "autoreg, MiB",
                  "ratio"], rows)
    common.finish(arguments, "train_speed", results)


if __name__ == "__main__":
    main()

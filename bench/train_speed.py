#!/usr/bin/env python3
"""Training speed: FP32, Adam, batch 64, length 64, vocabulary 4,000, the same random tokens on both sides.

    .venv/bin/python bench/train_speed.py [--rounds 5] [--steps 50] [--threads 2] [--json FILE]
"""

import argparse
import json
import time

import common

BATCH, LENGTH, VOCABULARY = 64, 64, 4000


def worker(arguments):
    import torch
    import torch_models
    torch_models.torch_threads(arguments.threads)
    torch.manual_seed(0)
    model = torch_models.make(arguments.model).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=arguments.fused)
    batch = torch.tensor(common.random_ids(BATCH, LENGTH + 1, VOCABULARY))
    ids, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()

    def step():
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
    print(json.dumps(dict(tokens_per_second=arguments.steps * BATCH * LENGTH / seconds, loss=loss)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser, rounds=5)
    parser.add_argument("--steps", type=int, default=50, help="timed steps a run (default 50)")
    parser.add_argument("--warmup", type=int, default=5, help="PyTorch's untimed steps (default 5)")
    parser.add_argument("--models", nargs="+", default=["rnn", "transformer"], choices=["rnn", "transformer"])
    parser.add_argument("--fused", action="store_true", help="PyTorch's fused Adam")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    common.need(arguments)
    rows, results = [], {}
    for model in arguments.models:
        shared = ["--model", model, "--steps", arguments.steps, "--threads", arguments.threads]
        fused = ["--fused"] if arguments.fused else []
        sides = {
            "torch": common.torch_worker(__file__, *shared, "--warmup", arguments.warmup, *fused),
            "autoreg": [arguments.autoreg, "bench", "train-speed", *map(str, shared), "--json"],
        }
        runs = common.alternate(arguments, sides)
        speeds = {side: [run["tokens_per_second"] for run in each] for side, each in runs.items()}
        results[model] = {side: common.summary(values) for side, values in speeds.items()}
        results[model] |= {f"{side}_last_loss": each[-1]["loss"] for side, each in runs.items()}
        ratio = "-"
        if len(speeds) == 2:
            faster = common.ratios(speeds["autoreg"], speeds["torch"])
            results[model]["ratio"], ratio = common.summary(faster), common.spread(faster)
        rows.append([model, *(common.spread(speeds[s]) if s in speeds else "-" for s in sides), ratio])
    common.table(["model", "PyTorch, tokens/s", "autoreg, tokens/s", "autoreg / PyTorch"], rows)
    common.finish(arguments, "train_speed", results)


if __name__ == "__main__":
    main()

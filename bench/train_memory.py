#!/usr/bin/env python3
"""Peak process memory of five steps: FP32, Adam, batch 64, length 64, vocabulary 4,000, a fresh process a model.

    .venv/bin/python bench/train_memory.py [--rounds 3] [--threads 2] [--json FILE]

PyTorch's peak includes what importing it takes; that is shown, for the CUDA build from PyPI takes far
more than a CPU-only one.
"""

import argparse
import json
import statistics

import common

BATCH, LENGTH, VOCABULARY, STEPS = 64, 64, 4000, 5


def worker(arguments):
    import torch
    import torch_models
    torch_models.torch_threads(arguments.threads)
    imported = common.process_memory("VmRSS")
    torch.manual_seed(0)
    model = torch_models.make(arguments.model).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = torch.tensor(common.random_ids(BATCH, LENGTH + 1, VOCABULARY))
    for _ in range(STEPS):
        loss = torch_models.loss_of(model, batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(json.dumps(dict(peak_process_bytes=common.process_memory("VmHWM"), imported_bytes=imported)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser, rounds=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    common.need(arguments)
    theirs = {model: [] for model in ("rnn", "transformer")}
    ours = {model: [] for model in theirs}
    for _ in range(arguments.rounds):
        if arguments.only != "autoreg":
            for model, runs in theirs.items():
                command = common.torch_worker(__file__, "--model", model, "--threads", arguments.threads)
                runs.append(common.last_json(command, arguments.threads))
        if arguments.only != "torch":
            found = common.last_json([arguments.autoreg, "bench", "train-memory", "--json"], arguments.threads)
            for row in found["rows"]:
                ours.setdefault(row["model"], []).append(row)
    rows, results = [], {}
    for model in ours:
        mib = lambda runs, key: [run[key] / common.MIB for run in runs]
        show = lambda runs, key: common.spread(mib(runs, key)) if runs else "-"
        mine, other = ours[model], theirs.get(model, [])
        ratio = "-"
        if mine and other:
            middle = lambda runs: statistics.median(mib(runs, "peak_process_bytes"))
            ratio = f"{middle(mine) / middle(other):.3f}"
        rows.append([model, show(other, "peak_process_bytes"), show(other, "imported_bytes"),
                     show(mine, "peak_process_bytes"), show(mine, "predicted_process_bytes"), ratio])
        results[model] = dict(torch=other, autoreg=mine)
    common.table(["model", "PyTorch, MiB", "of that: import", "autoreg, MiB", "predicted, MiB",
                  "autoreg / PyTorch"], rows)
    common.finish(arguments, "train_memory", results)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains the two networks in PyTorch on a prepared data folder and prints their test loss, seed by seed.

    .venv/bin/python bench/torch_loss.py DATA [--seeds 6] [--epochs 8] [--autoreg-results results.json]

Same files, same recipe: batches of whole sequences in an order drawn anew each epoch, loss the mean over
real targets, AdamW with decay on matrices that are not embeddings, clip by the global norm, linear
warm-up, then a cosine or a constant; after each epoch the validation loss is taken and the best weights
are the ones tested. With --autoreg-results the rows of a comparison are set beside it.
"""

import argparse
import copy
import json
import math
import pathlib
import random
import statistics
import sys
import time

import common
import token_file


def arguments_of():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="a folder made by `autoreg data prepare`")
    parser.add_argument("--models", nargs="+", default=["rnn", "transformer"], choices=["rnn", "transformer"])
    parser.add_argument("--seeds", type=int, default=6, help="seeds 1 to this (default 6)")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64, help="sequences a step (default 64)")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--min-lr", type=float, default=0.1, help="where the cosine ends, as a part of --lr")
    parser.add_argument("--schedule", choices=["cosine", "constant"], default="cosine")
    parser.add_argument("--warmup", type=int, default=100, help="steps of linear warm-up (default 100)")
    parser.add_argument("--betas", nargs=2, type=float, default=[0.9, 0.999])
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=1.0, help="global gradient norm; 0 for none (default 1)")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--init", choices=["torch", "normal", "same"], default="same",
                        help="initial weights: PyTorch's, N(0, 0.02), or autoreg's distributions (default)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--autoreg-results", type=pathlib.Path, help="results.json of `autoreg compare`")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def batches(sequences, size, order):
    """Padded (ids, targets) of `size` sequences; targets are -100 where there is none."""
    import torch
    for start in range(0, len(order), size):
        rows = [sequences[i] for i in order[start:start + size]]
        longest = max(len(row) for row in rows) - 1
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        targets = torch.full((len(rows), longest), -100, dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, :len(row) - 1] = torch.tensor(row[:-1])
            targets[at, :len(row) - 1] = torch.tensor(row[1:])
        yield ids, targets


def score(model, sequences, size=256):
    """(nats a token, accuracy) over all real targets, without dropout."""
    import torch
    from torch.nn import functional
    nll, correct, count = 0.0, 0, 0
    model.eval()
    with torch.no_grad():
        order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        for ids, targets in batches(sequences, size, order):
            real = targets >= 0
            logits, wanted = model.head(model(ids)[real]), targets[real]
            nll += functional.cross_entropy(logits, wanted, reduction="sum").item()
            correct += int((logits.argmax(-1) == wanted).sum())
            count += len(wanted)
    model.train()
    return nll / count, correct / count


def rate(step, steps, a):
    """The part of --lr at a step, counted from 0."""
    if step < a.warmup:
        return (step + 1) / a.warmup
    if a.schedule == "constant":
        return 1.0
    part = (step - a.warmup) / max(1, steps - a.warmup)
    return a.min_lr + (1 - a.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, part)))


def decays(name, parameter):
    return parameter.dim() == 2 and not name.startswith(("embedding", "positions"))


def train(name, seed, sides, vocabulary, a):
    import torch
    import torch_models
    torch.manual_seed(seed)
    model = torch_models.make(name, vocabulary, a.dropout)
    torch_models.initialise(model, a.init)
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [dict(params=[p for n, p in named if decays(n, p)], weight_decay=a.weight_decay),
         dict(params=[p for n, p in named if not decays(n, p)], weight_decay=0.0)], lr=a.lr, betas=tuple(a.betas))
    shuffle, step, seconds, tokens = random.Random(seed), 0, 0.0, 0
    steps = a.epochs * -(-len(sides["train"]) // a.batch)
    best = (math.inf, 0, None)
    for epoch in range(a.epochs):
        order = list(range(len(sides["train"])))
        shuffle.shuffle(order)
        start = time.perf_counter()
        for ids, targets in batches(sides["train"], a.batch, order):
            for group in optimizer.param_groups:
                group["lr"] = a.lr * rate(step, steps, a)
            loss = torch_models.loss_of(model, ids, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if a.clip > 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
            optimizer.step()
            step += 1
            tokens += int((targets >= 0).sum())
        seconds += time.perf_counter() - start
        valid, _ = score(model, sides["valid"])
        print(f"{name} seed {seed} epoch {epoch + 1}: validation {valid:.4f}", file=sys.stderr)
        if valid < best[0]:
            best = (valid, epoch + 1, copy.deepcopy(model.state_dict()))
    if best[2] is None:
        sys.exit(f"{name}, seed {seed}: no finite validation loss; try a lower --lr")
    model.load_state_dict(best[2])
    loss, accuracy = score(model, sides["test"])
    return dict(seed=seed, test_loss_nats=loss, test_accuracy=accuracy, validation_loss_nats=best[0],
                best_epoch=best[1], train_seconds=seconds, tokens_per_second=tokens / seconds)


def main():
    a = arguments_of()
    import torch_models
    torch_models.torch_threads(a.threads)
    sides, vocabulary = {}, None
    for side in ("train", "valid", "test"):
        size, sides[side] = token_file.read(a.data / f"{side}.tokens")
        if vocabulary not in (None, size):
            sys.exit(f"{a.data}: its sides have vocabularies of {vocabulary} and {size}")
        vocabulary = size
    ours = {}
    if a.autoreg_results:
        ours = {row["model"]: row for row in json.loads(a.autoreg_results.read_text())["rows"]}
    rows, results = [], {}
    for name in a.models:
        runs = [train(name, seed, sides, vocabulary, a) for seed in range(1, a.seeds + 1)]
        losses = [run["test_loss_nats"] for run in runs]
        spread = statistics.stdev(losses) if len(losses) > 1 else float("nan")
        results[name] = dict(runs=runs, mean=statistics.mean(losses), sd_over_seeds=spread)
        accuracy = statistics.mean(run["test_accuracy"] for run in runs)
        row = [name, f"{statistics.mean(losses):.4f}", f"{spread:.4f}", f"{100 * accuracy:.1f} %"]
        mine = ours.get(name, {}).get("test_loss_nats")
        if mine:
            row += [f"{mine['mean']:.4f}", f"{mine['sd_over_seeds'] or float('nan'):.4f}",
                    f"{mine['mean'] - statistics.mean(losses):+.4f}"]
            results[name]["autoreg"] = mine
        rows.append(row + ["-"] * (7 - len(row)))
    common.table(["model", "PyTorch, nats", "sd", "accuracy", "autoreg, nats", "sd", "difference"], rows)
    recipe = {key: value for key, value in vars(a).items() if not isinstance(value, pathlib.Path)}
    print("recipe:", json.dumps(recipe))
    if a.json:
        a.json.write_text(json.dumps(dict(recipe=recipe, results=results, machine=common.machine()), indent=1) + "\n")


if __name__ == "__main__":
    main()

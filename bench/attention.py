#!/usr/bin/env python3
"""Causal attention, FP32, 9 heads of 64, one sequence: forward, and forward with backward.

    .venv/bin/python bench/attention.py [--lengths 1024 2048 4096] [--rounds 5] [--threads 2] [--json FILE]

A run's time is the median of its repetitions; memory is the peak over what the process held before.
"""

import argparse
import json
import statistics
import time

import common

HEADS, SIZE, REPETITIONS = 9, 64, 9


def worker(arguments):
    import torch
    import torch_models
    torch_models.torch_threads(arguments.threads)
    torch.manual_seed(0)
    shape = (1, HEADS, arguments.length, SIZE)
    q, k, v = (torch.randn(shape, requires_grad=arguments.backward) for _ in range(3))
    above = torch.randn(shape)
    base, times = common.process_memory("VmRSS"), []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        if arguments.backward:
            q.grad = k.grad = v.grad = None
            out.backward(above)
        times.append((time.perf_counter() - start) * 1e3)
    peak = common.process_memory("VmHWM")
    print(json.dumps(dict(ms=statistics.median(times[2:]), peak_bytes_over_base=max(0, peak - base))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser, rounds=5)
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 2048, 4096])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    common.need(arguments)
    rows, results = [], []
    for backward in (False, True):
        for length in arguments.lengths:
            row, result = measure(arguments, length, backward)
            rows.append(row)
            results.append(result)
    common.table(["length", "pass", "PyTorch, ms", "autoreg, ms", "PyTorch / autoreg", "PyTorch, MiB",
                  "autoreg, MiB"], rows)
    common.finish(arguments, "attention", results)


def measure(arguments, length, backward):
    shared = ["--length", length, "--threads", arguments.threads] + (["--backward"] if backward else [])
    sides = {
        "torch": common.torch_worker(__file__, *shared),
        "autoreg": [arguments.autoreg, "bench", "attention", *map(str, shared), "--heads", str(HEADS),
                    "--head-dim", str(SIZE), "--json"],
    }
    runs = common.alternate(arguments, sides)
    times = {side: [run["ms"] for run in each] for side, each in runs.items()}
    peaks = {side: [run["peak_bytes_over_base"] / common.MIB for run in each] for side, each in runs.items()}
    name = "forward and backward" if backward else "forward"
    result = dict(length=length, name=name, ms={s: common.summary(t) for s, t in times.items()},
                  peak_mib_over_base={s: common.summary(p) for s, p in peaks.items()})
    ratio = "-"
    if len(times) == 2:
        faster = common.ratios(times["torch"], times["autoreg"])
        result["ratio"], ratio = common.summary(faster), common.spread(faster)
    of = lambda figures, side: common.spread(figures[side]) if side in figures else "-"
    row = [length, name, of(times, "torch"), of(times, "autoreg"), ratio, of(peaks, "torch"), of(peaks, "autoreg")]
    return row, result


if __name__ == "__main__":
    main()

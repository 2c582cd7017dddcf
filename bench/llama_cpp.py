"""autoreg and llama.cpp on the same GGUF file: prefill, decode at several depths, batches, start, memory.

Both sides run in fresh processes, in turn, the order swapped each round. llama.cpp runs with flash
attention off and on; the better of the two is compared with, round by round.

    .venv/bin/python bench/llama_cpp.py --llama DIR_WITH_LLAMA_BENCH models/smollm2-135m-q4_1.gguf

`--llama` names the folder with `llama-bench` and `llama-batched-bench`, however they were built. The
source is in the PyPI package llama-cpp-python (vendor/llama.cpp). Debian's gcc 12.2 builds an AMX path
that dies with SIGILL; clang 16 builds one that runs:

    pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36
    cmake -S vendor/llama.cpp -B build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \\
          -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16
    cmake --build build -t llama-bench llama-batched-bench llama-server

Without AMX on both sides: `--llama-args="--repack 0" --autoreg-args="--isa avx512"` (llama.cpp's AMX path is one
of its repacked buffers).
"""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import common

FLASH = ("off", "on")


def run(command):
    """(standard output, seconds, peak bytes of the process)."""
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    out = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}")
    return out, time.monotonic() - started, used.ru_maxrss * 1024


def llama_bench(options, model, threads, flash, *what):
    command = [options.llama / "llama-bench", "-m", model, "-t", str(threads), "-r", "1", "-o", "json",
               "-fa", flash, *options.llama_args, *map(str, what)]
    out, seconds, peak = run(command)
    return [row["avg_ts"] for row in json.loads(out)], seconds, peak


def llama_batched(options, model, threads, flash, batch):
    command = [options.llama / "llama-batched-bench", "-m", model, "-t", str(threads), "-tb", str(threads),
               "-c", "6144", "-b", "2048", "-ub", "512", "-npp", "128", "-ntg", "64", "-npl", str(batch),
               "-fa", flash, "--output-format", "jsonl", *options.llama_args]
    out, _, _ = run(command)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return rows[-1]["speed_tg"]


def autoreg(options, what, model, threads, *more):
    command = [options.autoreg, "bench", what, model, "--threads", str(threads), "--repeat", "1", "--json",
               *options.autoreg_args, *map(str, more)]
    out, _, peak = run(command)
    found = json.loads(out)
    return found["tokens_per_second"]["median"], found, peak


def cells(options):
    """name -> (ours, theirs): two functions of a model that give tokens/s; theirs also takes flash."""
    out = {}
    for threads in options.threads:
        def prefill(model, threads=threads):
            return autoreg(options, "prefill", model, threads, "--tokens", 512)[0]
        def their_prefill(model, flash, threads=threads):
            return llama_bench(options, model, threads, flash, "-p", 512, "-n", 0)[0][0]
        out[f"prefill 512, {threads} threads"] = (prefill, their_prefill)
        for depth in (0, 128, 512):
            def decode(model, threads=threads, depth=depth):
                return autoreg(options, "decode", model, threads, "--tokens", 128, "--context", max(1, depth))[0]
            def their_decode(model, flash, threads=threads, depth=depth):
                return llama_bench(options, model, threads, flash, "-p", 0, "-n", 128, "-d", depth)[0][0]
            out[f"decode after {depth}, {threads} threads"] = (decode, their_decode)
    threads = max(options.threads)
    for batch in (8, 16):
        def batched(model, batch=batch):
            return autoreg(options, "decode", model, threads, "--tokens", 64, "--context", 128, "--batch", batch)[0]
        def their_batched(model, flash, batch=batch):
            return llama_batched(options, model, threads, flash, batch)
        out[f"batch {batch} after 128, {threads} threads"] = (batched, their_batched)
    return {name: cell for name, cell in out.items() if options.only_cell in name}


def start(options, model, swapped):
    """Seconds of a process that loads the model, reads 8 tokens and decodes one: ours and theirs. The first of
    two processes may pay for pages that the one before gave back, so they take turns at it."""
    threads = str(max(options.threads))
    ours = [options.autoreg, "generate", model, "The quick brown fox jumps over the", "--max-tokens", "1",
            "--greedy", "--threads", threads]
    theirs = [options.llama / "llama-bench", "-m", model, "-p", "8", "-n", "1", "-r", "1", "-t", threads,
              "--no-warmup", *options.llama_args]
    if swapped:
        other = run(theirs)[1]
        return run(ours)[1], other
    return run(ours)[1], run(theirs)[1]


def peaks(options, model):
    """Peak bytes of a process that reads 512 tokens and decodes 128: ours and theirs."""
    threads = str(max(options.threads))
    ours = [options.autoreg, "generate", model, " the" * 512, "--max-tokens", "128", "--greedy",
            "--threads", threads, *options.autoreg_args]
    theirs = [options.llama / "llama-bench", "-m", model, "-p", "512", "-n", "128", "-r", "1", "-t",
              threads, *options.llama_args]
    return run(ours)[2], run(theirs)[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="the folder of llama-bench")
    parser.add_argument("--autoreg", default=str(common.ROOT / "target/release/autoreg"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    parser.add_argument("--only-cell", default="", help="cells whose name has this; start: whole processes alone")
    parser.add_argument("--llama-args", type=shlex.split, default=[],
                        help="further words for llama-bench, as --llama-args=WORDS")
    parser.add_argument("--autoreg-args", type=shlex.split, default=[],
                        help="further words for autoreg, as --autoreg-args=WORDS")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    found = {}
    for model in options.models:
        named = cells(options)
        ours = {name: [] for name in named}
        theirs = {name: {flash: [] for flash in FLASH} for name in named}
        starts, peak = [], []
        for number in range(options.rounds):
            for name, (one, other) in named.items():
                sides = [lambda: ours[name].append(one(model))]
                sides += [lambda f=f: theirs[name][f].append(other(model, f)) for f in FLASH]
                for side in sides if number % 2 == 0 else sides[::-1]:
                    side()
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        if options.only_cell in "start":
            starts = [start(options, model, number % 2 == 1) for number in range(2 * options.rounds)]
            peak = [peaks(options, model) for _ in range(options.rounds)]
        rows, figures = [], {}
        for name in named:
            best = [max(pair) for pair in zip(*theirs[name].values())]
            ratios = common.ratios(ours[name], best)
            rows.append([name, common.spread(ours[name]), *(common.spread(theirs[name][f]) for f in FLASH),
                         f"{statistics.median(ratios):.2f}"])
            figures[name] = {"autoreg": ours[name], "llama": theirs[name], "ratio": common.summary(ratios)}
        print(f"\n{model}")
        if rows:
            common.table(["tokens/s", "autoreg", "llama.cpp, -fa off", "-fa on", "ratio to the better"], rows)
        if starts:
            (loads, their_loads), (most, their_most) = zip(*starts), zip(*peak)
            lines = [["start to first token, ms", *(common.spread([1e3 * x for x in xs]) for xs in (loads, their_loads)),
                      f"{statistics.median(common.ratios(loads, their_loads)):.2f}"],
                     ["peak memory, MiB", *(common.spread([x / common.MIB for x in xs]) for xs in (most, their_most)),
                      f"{statistics.median(common.ratios(most, their_most)):.2f}"]]
            print()
            common.table(["a whole process", "autoreg", "llama.cpp", "ratio"], lines)
            figures["start"], figures["peak"] = starts, peak
        found[model] = figures
    common.finish(options, "llama.cpp", found)


if __name__ == "__main__":
    main()

"""autoreg's server and llama.cpp's, on the same GGUF file, under the same load: `autoreg bench serve`.

Each side is a fresh process, in turn, the order swapped each round; a closed loop of 1, 4, 8 and 16
clients, prompts of 128 random tokens, 64 new tokens each. llama.cpp runs with flash attention off and on;
the better of the two is compared with, figure by figure. Then, for autoreg alone, 16 clients whose prompts
share their first 512 tokens, with the prefix cache and without.

    .venv/bin/python bench/llama_server.py --llama DIR_WITH_LLAMA_SERVER models/smollm2-135m-q4_1.gguf

How to build `llama-server`: see the head of llama_cpp.py.
"""

import argparse
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

import common

# Tokens of a prompt, new ones, and of a prefix that all share.
PROMPT, NEW, SHARED = 128, 64, 512


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def memory(process, key):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/{process.pid}/status has no {key}: this benchmark needs Linux")


@contextlib.contextmanager
def running(command, port):
    """A server that answers, and its process."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            if process.poll() is not None:
                sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}")
            with contextlib.suppress(OSError, urllib.error.URLError):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    if answer.status == 200:
                        break
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(60)


def load(options, port, clients, prompt, shared=0):
    command = [options.autoreg, "bench", "serve", f"http://127.0.0.1:{port}", "--clients", clients,
               "--requests", max(8, 3 * clients), "--warm-up", 1, "--prompt-tokens", prompt,
               "--shared-tokens", shared, "--max-tokens", NEW, "--seed", clients,
               "--json"]
    found = common.last_json(list(map(str, command)), options.threads)[0]
    if found["failures"]:
        sys.exit(f"requests failed: {found['failures']}")
    return found


def side(options, command, port):
    """clients -> figures, and bytes: idle, and the most under load."""
    with running(command, port) as process:
        idle = memory(process, "VmRSS")
        figures = {clients: load(options, port, clients, PROMPT) for clients in options.clients}
        return dict(figures=figures, idle=idle, peak=memory(process, "VmHWM"))


def ours(options, model, port, *more):
    return [options.autoreg, "serve", model, "--port", port, "--threads", options.threads,
            "--max-sequences", max(options.clients), *more, *options.autoreg_args]


def theirs(options, model, port, flash):
    slots = max(options.clients)
    return [options.llama / "llama-server", "-m", model, "--port", port, "-t", options.threads, "-tb",
            options.threads, "-np", slots, "-c", slots * 512, "-fa", flash, *options.llama_args]


def prefix(options, model):
    """p50 of the first token in ms with the prefix cache and without."""
    out = []
    for more in ([], ["--no-prefix-cache"]):
        port = free_port()
        with running(ours(options, model, port, *more), port):
            clients = max(options.clients)
            out.append(load(options, port, clients, SHARED + 32, SHARED)["time_to_first_token"]["p50_ms"])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama", type=pathlib.Path, required=True, help="the folder of llama-server")
    parser.add_argument("--autoreg", default=str(common.ROOT / "target/release/autoreg"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--llama-args", nargs="*", default=[], help="further words for llama-server")
    parser.add_argument("--autoreg-args", nargs="*", default=[], help="further words for autoreg serve")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    results = {}
    for model in options.models:
        sides = {"autoreg": lambda port: ours(options, model, port),
                 "llama.cpp, -fa off": lambda port: theirs(options, model, port, "off"),
                 "llama.cpp, -fa on": lambda port: theirs(options, model, port, "on")}
        found, prefixes = {name: [] for name in sides}, []
        for number in range(options.rounds):
            for name in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                port = free_port()
                found[name].append(side(options, sides[name](port), port))
            prefixes.append(prefix(options, model))
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        show(options, model, found, prefixes)
        results[model] = dict(sides=found, shared_prefix_first_token_ms=prefixes)
    common.finish(options, "llama.cpp's server", results)


def show(options, model, found, prefixes):
    own, others = found["autoreg"], [found[name] for name in found if name != "autoreg"]

    def line(what, of, better):
        pairs = [better(map(of, peers)) for peers in zip(*others)]
        ratio = statistics.median(common.ratios(map(of, own), pairs))
        return [what, common.spread(list(map(of, own))), *(common.spread(list(map(of, o))) for o in others),
                f"{ratio:.2f}"]

    rows = []
    for clients in options.clients:
        rows.append(line(f"{clients} clients: tokens/s",
                         lambda one: one["figures"][clients]["tokens_per_second"], max))
        rows.append(line(f"{clients} clients: first token, p50 ms",
                         lambda one: one["figures"][clients]["time_to_first_token"]["p50_ms"], min))
    rows.append(line("memory idle, MiB", lambda one: one["idle"] / common.MIB, min))
    rows.append(line("memory peak, MiB", lambda one: one["peak"] / common.MIB, min))
    print(f"\n{model}")
    common.table(["", *found, "ratio to the better"], rows)
    shared, alone = zip(*prefixes)
    ratio = statistics.median(common.ratios(alone, shared))
    print(f"\n{SHARED} tokens shared, {max(options.clients)} clients: first token p50 {common.spread(shared)} ms "
          f"with the prefix cache, {common.spread(alone)} ms without: {ratio:.1f} times")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The simulator against the server: medians that `autoreg plan fleet` predicts from steps timed on this
machine, beside those that `autoreg bench serve` measures, for several loads.

Each round starts a server, measures every load, stops it, times steps and simulates each load again. Rounds
in which other programs took more than a little of the processors are made again. A ratio is predicted by
measured, round by round.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import time

import common

FIGURES = [("first token", "first_token"), ("a token", "per_token")]


class Server:
    def __init__(self, arguments):
        words = [arguments.autoreg, "serve", arguments.model, "--port", "0", "--threads", str(arguments.threads),
                 "--max-sequences", str(arguments.max_sequences), "--no-prefix-cache"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            sys.exit(f"the server did not start: {line!r}")
        self.url = found.group()

    def __enter__(self):
        return self.url

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Busy:
    """The share of the processors that other programs take meanwhile: a round that they disturb is no round."""

    def __enter__(self):
        self.began = self.now()
        return self

    def __exit__(self, *_):
        taken, ours, wall = (after - before for after, before in zip(self.now(), self.began))
        self.others = max(0.0, taken - ours) / (wall * os.cpu_count())

    @staticmethod
    def now():
        user, nice, system, _, _, irq, soft, steal = map(int, open("/proc/stat").readline().split()[1:9])
        taken = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        uses = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        return taken, sum(use.ru_utime + use.ru_stime for use in uses), time.monotonic()


def measured(arguments, path):
    words = [arguments.autoreg, "bench", "serve", "--json", "--clients", ",".join(map(str, arguments.clients)),
             "--requests", str(arguments.requests), "--warm-up", "4", "--vocabulary", str(arguments.vocabulary),
             "--prompt-tokens", str(arguments.prompt_tokens), "--max-tokens", str(arguments.max_tokens)]
    with Server(arguments) as url:
        path.write_text(json.dumps(common.last_json([*words, url], arguments.threads)))


def compared(arguments, path):
    words = [arguments.autoreg, "plan", "fleet", arguments.model, "--calibrate", "--against", str(path), "--json",
             "--threads", str(arguments.threads), "--max-sequences", str(arguments.max_sequences)]
    return common.last_json(words, arguments.threads)


def rounds(arguments):
    """As many as were asked for in which others took little; the calmest of all where there are too few."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "seen.json"
        for _ in range(arguments.tries):
            with Busy() as busy:
                measured(arguments, path)
                rows = compared(arguments, path)
            seen.append((busy.others, rows))
            ratios = ", ".join(f"{row[key]['ratio']:.2f}" for row in rows for _, key in FIGURES)
            print(f"others took {100 * busy.others:.0f} % of the processors; ratios {ratios}", file=sys.stderr)
            if sum(others <= arguments.others for others, _ in seen) >= arguments.rounds:
                break
    return sorted(seen, key=lambda one: one[0])[:arguments.rounds]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    common.add_arguments(parser, rounds=3)
    parser.add_argument("model", nargs="?", default=str(common.ROOT / "models/smollm2-135m-q4_1.gguf"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16], help="loads (default 1 4 16)")
    parser.add_argument("--requests", type=int, default=48, help="requests a load (default 48)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-sequences", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--others", type=float, default=0.05,
                        help="share of the processors that other programs may take in a round (default 0.05)")
    parser.add_argument("--tries", type=int, default=12, help="rounds in all, disturbed ones included (default 12)")
    arguments = parser.parse_args()
    common.need(arguments)
    all_rounds = rounds(arguments)
    rows, results = [], []
    for at, clients in enumerate(arguments.clients):
        for title, key in FIGURES:
            pairs = [one[at][key] for _, one in all_rounds]
            of = lambda what: [pair[what] for pair in pairs]
            rows.append([f"{clients} clients, {title}", common.spread(of("predicted_ms")),
                         common.spread(of("measured_ms")), common.spread(of("ratio"))])
            results.append(dict(clients=clients, figure=title, predicted_ms=of("predicted_ms"),
                                measured_ms=of("measured_ms"), ratio=common.summary(of("ratio"))))
    common.table(["p50", "predicted ms", "measured ms", "ratio"], rows)
    worst = max(abs(row["ratio"]["median"] - 1) for row in results)
    others = max(share for share, _ in all_rounds)
    print(f"\nfurthest from what was measured: {100 * worst:.0f} %; others took at most {100 * others:.0f} % "
          "of the processors")
    common.finish(arguments, "fleet", results)


if __name__ == "__main__":
    main()

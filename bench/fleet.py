#!/usr/bin/env python3
"""The simulator against the server: medians that `autoreg plan fleet` predicts from steps timed on this
machine, beside those that `autoreg bench serve` measures, for several loads.

A server runs all the time. A round of a load measures it, then times steps and simulates the same load, a
few seconds each, so that both see the same machine. Loads come in turn; of all rounds of a load those count
in which other programs took least of the processors. A ratio is predicted by measured, round by round.
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
    """A server with a cache that no two prompts share."""

    def __init__(self, arguments):
        words = [arguments.autoreg, "serve", arguments.model, "--port", "0", "--threads", str(arguments.threads),
                 "--max-sequences", str(arguments.max_sequences), "--no-prefix-cache"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            sys.exit(f"the server did not start: {line!r}")
        self.url = found.group()

    def seconds(self):
        """Of processors that it has used."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Busy:
    """The share of the processors that other programs take meanwhile."""

    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.began = self.now()
        return self

    def __exit__(self, *_):
        taken, ours, wall = (after - before for after, before in zip(self.now(), self.began))
        self.others = max(0.0, taken - ours) / (wall * os.cpu_count())

    def now(self):
        user, nice, system, _, _, irq, soft, steal = map(int, open("/proc/stat").readline().split()[1:9])
        taken = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        uses = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        own = sum(use.ru_utime + use.ru_stime for use in uses)
        return taken, own + self.server.seconds(), time.monotonic()


def compared(arguments, server, clients, path):
    """A load measured, then simulated with steps timed right after: the row of `plan fleet --against`."""
    words = [arguments.autoreg, "bench", "serve", server.url, "--json", "--clients", str(clients),
             "--requests", str(max(arguments.requests, 3 * clients)), "--warm-up", "1",
             "--vocabulary", str(arguments.vocabulary),
             "--prompt-tokens", str(arguments.prompt_tokens), "--max-tokens", str(arguments.max_tokens)]
    path.write_text(json.dumps(common.last_json(words, arguments.threads)))
    words = [arguments.autoreg, "plan", "fleet", arguments.model, "--calibrate", "--against", str(path), "--json",
             "--threads", str(arguments.threads), "--max-sequences", str(arguments.max_sequences)]
    return common.last_json(words, arguments.threads)[0]


def rounds(arguments):
    """clients -> [(share of others, row)], the calmest of all that were made."""
    seen = {clients: [] for clients in arguments.clients}
    with tempfile.TemporaryDirectory() as folder, Server(arguments) as server:
        for number in range(arguments.tries):
            for clients in arguments.clients:
                with Busy(server) as busy:
                    row = compared(arguments, server, clients, pathlib.Path(folder) / "seen.json")
                seen[clients].append((busy.others, row))
                ratios = ", ".join(f"{row[key]['ratio']:.2f}" for _, key in FIGURES)
                print(f"{number + 1}: {clients} clients, ratios {ratios}; others took "
                      f"{100 * busy.others:.0f} % of the processors", file=sys.stderr, flush=True)
            calm = lambda made: sum(others <= arguments.others for others, _ in made) >= arguments.rounds
            if all(map(calm, seen.values())):
                break
    return {clients: sorted(made, key=lambda one: one[0])[:arguments.rounds] for clients, made in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    common.add_arguments(parser, rounds=5)
    parser.add_argument("model", nargs="?", default=str(common.ROOT / "models/smollm2-135m-q4_1.gguf"))
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 12], help="loads (default 1 4 12)")
    parser.add_argument("--requests", type=int, default=16, help="requests a load and round (default 16)")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--max-sequences", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=40_000)
    parser.add_argument("--others", type=float, default=0.05,
                        help="share of the processors that other programs may take in a round (default 0.05)")
    parser.add_argument("--tries", type=int, default=12, help="rounds in all, disturbed ones included (default 12)")
    arguments = parser.parse_args()
    common.need(arguments)
    made = rounds(arguments)
    rows, results = [], []
    for clients, kept in made.items():
        for title, key in FIGURES:
            of = lambda what: [row[key][what] for _, row in kept]
            rows.append([f"{clients} clients, {title}", common.spread(of("predicted_ms")),
                         common.spread(of("measured_ms")), common.spread(of("ratio"))])
            results.append(dict(clients=clients, figure=title, others=[others for others, _ in kept],
                                predicted_ms=of("predicted_ms"), measured_ms=of("measured_ms"),
                                ratio=common.summary(of("ratio"))))
    common.table(["p50", "predicted ms", "measured ms", "ratio"], rows)
    worst = max(abs(row["ratio"]["median"] - 1) for row in results)
    others = max(share for kept in made.values() for share, _ in kept)
    print(f"\nfurthest from what was measured: {100 * worst:.0f} %; others took at most {100 * others:.0f} % "
          "of the processors")
    common.finish(arguments, "fleet", results)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A draft model made from the model that it guesses for, and what it saves: tokens/s with it and without.

The draft is some of the model's layers, evenly spaced, with its embedding, trained on texts that the model itself wrote, then
stored as the model is or smaller. Both sides are servers of one client, in turn; their answers must be the same.
"""

import argparse
import http.client
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import common

SUBJECTS = ["a river", "the old bridge", "a train", "the market", "winter", "a small boat", "the school", "bread",
            "a garden", "the harbour", "a letter", "the clock", "music", "a mountain", "the library", "rain"]
FORMS = ["Once upon a time there was {}.", "The history of {} begins", "Explain {} to a child:", "A short essay about {}.\n\n"]
UNSEEN = ["The most important thing about the sea is", "Once upon a time there was a fox.",
          "The history of the bicycle begins", "A short essay about honesty.\n\n", "Explain the moon to a child:"]


class Server:
    """A server of the binary; `with` ends it."""

    def __init__(self, options, *more):
        command = [options.autoreg, "serve", options.model, "--port", "0", "--threads", str(options.threads), *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"://(\S+)", line) or sys.exit(f"{' '.join(command)}: {line!r}")
        self.address = found.group(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def complete(self, prompt, **more):
        connection = http.client.HTTPConnection(self.address, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": prompt, **more}))
        answer = connection.getresponse()
        body = json.loads(answer.read())
        return body if answer.status == 200 else sys.exit(f"{answer.status}: {body}")


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}: {done.stderr[-2000:]}")


def texts(options, file):
    """What the model writes by itself, a JSON line each."""
    prompts = [(form.format(subject), seed) for form in FORMS for subject in SUBJECTS for seed in range(options.texts)]

    def one(asked):
        prompt, seed = asked
        more = dict(max_tokens=options.length, seed=seed, temperature=options.temperature)
        return prompt + server.complete(prompt, **more)["choices"][0]["text"]

    with Server(options) as server, ThreadPoolExecutor(16) as pool:
        lines = [json.dumps({"text": text}) for text in pool.map(one, prompts)]
    file.write_text("\n".join(lines) + "\n")
    return len(lines)


def cut(folder, out, layers):
    """A Hugging Face folder with so many of another's layers, from the first to the last."""
    from safetensors.numpy import load_file, save_file
    config = json.loads((folder / "config.json").read_text())
    last = config["num_hidden_layers"] - 1
    kept = [round(i * last / (layers - 1)) for i in range(layers)]
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        layer = re.search(r"\.layers\.(\d+)\.", name)
        if layer is None:
            tensors[name] = tensor
        elif int(layer.group(1)) in kept:
            tensors[name.replace(layer.group(0), f".layers.{kept.index(int(layer.group(1)))}.")] = tensor
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (out / file.name).write_bytes(file.read_bytes())
    config["num_hidden_layers"] = layers
    (out / "config.json").write_text(json.dumps(config, indent=1))


def make(options, work):
    """The draft's file; what is there already is kept."""
    draft = work / f"draft-{options.to}.gguf"
    if draft.exists():
        return draft
    file, began = work / "texts.jsonl", time.time()
    if not file.exists():
        count = texts(options, file)
        print(f"{count} texts of {options.length} tokens: {time.time() - began:.0f} s", file=sys.stderr)
    if not (work / "whole").exists():
        run(options.autoreg, "convert", options.model, work / "whole", "--to", "safetensors")
    if not (work / "cut").exists():
        cut(work / "whole", work / "cut", options.layers)
    began = time.time()
    if not (work / "run").exists():
        run(options.autoreg, "train", "--init", work / "cut", "--text", file, "--out", work / "run", "--epochs",
            options.epochs, "--batch", 4, "--micro-batch", 4, "--max-len", 256, "--learning-rate",
            options.learning_rate, "--warmup-steps", 10, "--precision", options.precision)
        print(f"trained: {time.time() - began:.0f} s", file=sys.stderr)
    run(options.autoreg, "convert", work / "run/huggingface", draft, "--to", options.to)
    return draft


def measure(server, options, temperature):
    """Tokens/s of each answer after its first token, accepted and guessed tokens, and the texts."""
    speeds, accepted, guessed, said = [], 0, 0, []
    for seed, prompt in enumerate(UNSEEN):
        answer = server.complete(prompt, max_tokens=options.tokens, temperature=temperature, seed=seed,
                                 ignore_eos=True, receipt=True)
        written, timings = answer["usage"]["completion_tokens"], answer["receipt"]["timings"][0]
        speeds.append(1e3 * (written - 1) / timings["decode"]["ms"])
        accepted += timings["guesses"]["accepted"]
        guessed += timings["guesses"]["drafted"]
        said.append(answer["choices"][0]["text"])
    return statistics.median(speeds), accepted, guessed, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    common.add_arguments(parser, rounds=3)
    parser.add_argument("model")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="the folder for texts and drafts")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--texts", type=int, default=2, help="texts a prompt")
    parser.add_argument("--length", type=int, default=128, help="tokens a text")
    parser.add_argument("--temperature", type=float, default=0.7, help="of the texts")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--to", default="q4_0", help="how the draft is stored")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--tokens", type=int, default=96, help="tokens an answer")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    draft = make(options, options.work)
    sides = {"without": []}
    for tokens in options.draft_tokens:
        sides[f"look-up, {tokens} tokens"] = ["--draft-tokens", str(tokens)]
        sides[f"draft, {tokens} tokens"] = ["--draft", str(draft), "--draft-tokens", str(tokens)]
    rows, results = [], {}
    for temperature in (0.0, 0.7):
        found = {name: [] for name in sides}
        for number in range(options.rounds):
            names = list(sides) if number % 2 == 0 else list(sides)[::-1]
            for name in names:
                with Server(options, *sides[name]) as server:
                    found[name].append(measure(server, options, temperature))
        said = found["without"][0][3]
        if any(one[3] != said for all in found.values() for one in all):
            sys.exit("an answer changed")
        plain = [one[0] for one in found["without"]]
        for name, all in found.items():
            speeds, (_, accepted, guessed, _) = [one[0] for one in all], all[0]
            share = f"{accepted / guessed:.2f}" if guessed else "-"
            ratio = statistics.median(common.ratios(speeds, plain))
            rows.append([f"temperature {temperature:g}, {name}", common.spread(speeds), share, f"{ratio:.2f}"])
            results[f"{temperature:g} {name}"] = {"tokens_per_second": speeds, "accepted": accepted, "guessed": guessed}
    common.table(["tokens/s, one client", "autoreg", "accepted", "to without"], rows)
    common.finish(options, "draft", results)


if __name__ == "__main__":
    main()

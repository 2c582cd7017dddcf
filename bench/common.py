"""What the benchmarks share: the two sides in processes of their own, medians, a table and JSON.

Each side runs in a fresh process, in turn (first one, then the other, the order swapped each round),
so that a machine that slows down slows both. A ratio is the median of the rounds' own ratios.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20


def add_arguments(parser, rounds):
    parser.add_argument("--autoreg", default=str(ROOT / "target/release/autoreg"),
                        help="the binary (default: target/release/autoreg)")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"rounds of both sides (default {rounds})")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each side (default: all)")
    parser.add_argument("--json", type=pathlib.Path, help="also write all figures there")
    parser.add_argument("--only", choices=["torch", "autoreg"], help="run one side alone")


def last_json(command, threads):
    """Runs a command and reads the JSON object it prints: the last line, or all of it."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    shown = " ".join(map(str, command))
    if run.returncode != 0:
        sys.exit(f"{shown}: exit code {run.returncode}: {run.stderr.strip()[-2000:]}")
    for text in (run.stdout, (run.stdout.strip().splitlines() or [""])[-1]):
        try:
            return json.loads(text)
        except ValueError:
            continue
    sys.exit(f"{shown}: expected JSON, found: {run.stdout[:500]!r}")


def torch_worker(script, *arguments):
    """The command that runs this script's PyTorch side."""
    return [sys.executable, str(script), "--worker", *map(str, arguments)]


def need(arguments):
    """Ends with one clear line where a side cannot run."""
    if arguments.only != "torch" and not pathlib.Path(arguments.autoreg).exists():
        sys.exit(f"{arguments.autoreg}: no such binary; cargo build --release, or --only torch")


def alternate(arguments, sides):
    """sides: name -> command. Returns name -> list of results, one a round."""
    out = {name: [] for name in sides}
    for number in range(arguments.rounds):
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            if arguments.only in (None, name.split()[0]):
                out[name].append(last_json(sides[name], arguments.threads))
    return {name: results for name, results in out.items() if results}


def spread(values):
    """Median (least-most) as words."""
    show = lambda v: f"{v:,.0f}" if abs(v) >= 100 else f"{v:.2f}"
    return f"{show(statistics.median(values))} ({show(min(values))}-{show(max(values))})"


def ratios(above, below):
    """Round by round."""
    return [a / b for a, b in zip(above, below)]


def summary(values):
    return dict(median=statistics.median(values), least=min(values), most=max(values), values=values)


def table(headings, rows):
    widths = [max(len(str(line[at])) for line in [headings, *rows]) for at in range(len(headings))]
    for line in [headings, ["-" * width for width in widths], *rows]:
        print("  ".join(str(cell).ljust(width) if at == 0 else str(cell).rjust(width)
                        for at, (cell, width) in enumerate(zip(line, widths))))


def machine():
    """The processor, and how busy it was: a figure without these is none."""
    name = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
            break
    return dict(processor=name, processors=os.cpu_count(), load_average=os.getloadavg())


def finish(arguments, what, results):
    about = machine()
    print(f"\n{about['processor']}, {about['processors']} processors, {arguments.threads} threads, "
          f"{arguments.rounds} rounds, load average {about['load_average'][0]:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(dict(benchmark=what, threads=arguments.threads,
                                                  machine=about, results=results), indent=1) + "\n")
        print(f"written: {arguments.json}")


def process_memory(key):
    """VmRSS or VmHWM of this process, bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {key}: these benchmarks need Linux")


def random_ids(rows, columns, vocabulary):
    """The batch that both sides train on: the id of (row, column) is mix(1 ^ mix(1000 row + column)) modulo
    `vocabulary`, where mix is one step of SplitMix64, as in `autoreg bench`."""
    mask = (1 << 64) - 1

    def mix(x):
        z = (x + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    return [[mix(1 ^ mix(1000 * row + column)) % vocabulary for column in range(columns)] for row in range(rows)]

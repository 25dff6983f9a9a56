"""Train one network with this project, timm, fastai and Lightning, and compare whole processes.

    pip install fastai lightning nvidia-ml-py
    python tests/benchmarks/whole_runs.py --photos DIR --timm-script train.py

Each row is a whole process. All train with random crops and flips, AdamW, a warm-up and a cosine decay, label
smoothing, and a validation pass after each epoch, on a GPU in bfloat16 and channels_last. `train.py` comes from timm's
repository. The programs of fastai and Lightning are in `programs/`. All rows run in every round. The table states
medians.
"""

import argparse
import csv
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch

try:
    import pynvml
except ImportError:
    pynvml = None

PROGRAMS = Path(__file__).parent / "programs"
CHECKOUT = Path(__file__).parents[2]
SAMPLED = 0.1  # seconds between two readings of the GPU's use


@dataclass
class Ran:
    """What one training process took: seconds, validation accuracy in percent, mean GPU use in percent, busy cores."""

    row: str
    seconds: float
    accuracy: float
    gpu_use: float | None
    busy_cores: float


def ours(flags: argparse.Namespace, *overrides: str) -> list[str]:
    command = ["-m", "trainer", "aug=leaderboard", "data=folder", f"data.root={flags.photos}", f"aug.size={flags.size}"]
    command += ["model=timm", f"model.name={flags.model}", f"fit.epochs={flags.epochs}", f"seed={flags.seed}"]
    command += [f"fit.batch_size={flags.batch_size}", f"fit.lr={flags.lr}", "fit.optimizer=adamw"]
    command += ["fit.weight_decay=0.05", "fit.label_smoothing=0.1", f"fit.device={flags.device}"]
    if flags.device == "cuda":
        command.append("fit.precision=bf16")
    return [*command, "hydra.run.dir=run", *overrides]


def our_accuracy(_: str) -> float:
    rows = Path("run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return 100 * json.loads(rows[-1])["val_accuracy"]


def with_timm(flags: argparse.Namespace) -> list[str]:
    command = [str(flags.timm_script), "--data-dir", str(flags.photos), "--train-split", "train", "--val-split", "val"]
    command += ["--model", flags.model, "--num-classes", str(flags.classes), "--img-size", str(flags.size)]
    command += ["--batch-size", str(flags.batch_size), "--epochs", str(flags.epochs), "--seed", str(flags.seed)]
    command += ["--opt", "adamw", "--lr", str(flags.lr), "--weight-decay", "0.05", "--sched", "cosine"]
    command += ["--warmup-epochs", str(flags.epochs // 4), "--sched-on-updates", "--smoothing", "0.1", "--workers"]
    command += [str(flags.workers), "--scale", "0.35", "1", "--color-jitter", "0", "--crop-pct", "0.9"]
    command += ["--device", flags.device, "--output", "out", "--experiment", "run"]
    return command + (["--amp", "--amp-dtype", "bfloat16", "--channels-last", "--pin-mem"] * (flags.device == "cuda"))


def timm_accuracy(_: str) -> float:
    with Path("out/run/summary.csv").open(encoding="utf-8", newline="") as file:
        return float(list(csv.DictReader(file))[-1]["eval_top1"])


def program(name: str, flags: argparse.Namespace) -> list[str]:
    command = [str(PROGRAMS / name)]
    for key in ("photos", "model", "epochs", "size", "batch_size", "workers", "seed", "lr", "device"):
        command += [f"--{key.replace('_', '-')}", str(getattr(flags, key))]
    return command


def printed_accuracy(output: str) -> float:
    found = re.findall(r"^accuracy ([\d.]+)", output, re.MULTILINE)
    return 100 * float(found[-1])


Row = tuple[Callable[[argparse.Namespace], list[str]], Callable[[str], float]]
ROWS: dict[str, Row] = {
    "this project": (ours, our_accuracy),
    "this project without cache": (lambda flags: ours(flags, "aug.cache=off"), our_accuracy),
    "timm's train.py": (with_timm, timm_accuracy),
    "fastai": (lambda flags: program("with_fastai.py", flags), printed_accuracy),
    "Lightning": (lambda flags: program("with_lightning.py", flags), printed_accuracy),
}


def measured(name: str, flags: argparse.Namespace) -> Ran:
    """Run one row in an empty folder."""
    command, accuracy = ROWS[name]
    tokens = [sys.executable, *command(flags)]
    path = os.pathsep.join([str(CHECKOUT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with GPUUse() as gpu:
        ran = subprocess.run(tokens, capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode:
        raise SystemExit(f"{name} failed:\n{ran.stdout[-2000:]}\n{ran.stderr[-4000:]}")
    worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(name, seconds, accuracy(ran.stdout), gpu.mean(), worked / seconds)


class GPUUse:
    """Sample how busy the first GPU is, in percent, while the block runs."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._stop = Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "GPUUse":
        if pynvml and torch.cuda.is_available():
            pynvml.nvmlInit()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def mean(self) -> float | None:
        return mean(self.samples) if self.samples else None

    def _sample(self) -> None:
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        while not self._stop.wait(SAMPLED):
            self.samples.append(pynvml.nvmlDeviceGetUtilizationRates(device).gpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--timm-script", type=lambda text: Path(text).resolve())
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), default=Path("whole_runs.json").resolve())
    flags = parser.parse_args()
    flags.classes = sum(folder.is_dir() for folder in (flags.photos / "train").iterdir())
    names = [name for name in flags.rows if flags.timm_script or name != "timm's train.py"]
    results = []
    for seed in range(flags.rounds):
        flags.seed = seed
        for name in names:
            with TemporaryDirectory() as folder:
                os.chdir(folder)
                results.append(measured(name, flags))
                os.chdir("/")
            print(results[-1], flush=True)
            flags.out.write_text(json.dumps([asdict(ran) for ran in results]), encoding="utf-8")
    print(f"{'row':24} {'seconds':>8} {'accuracy':>9} {'GPU use':>8} {'cores':>6}")
    for name in names:
        rows = [ran for ran in results if ran.row == name]
        use = [ran.gpu_use for ran in rows if ran.gpu_use is not None]
        shown = f"{median(use):7.0f}%" if use else "       -"
        seconds, accuracy = median(ran.seconds for ran in rows), mean(ran.accuracy for ran in rows)
        print(f"{name:24} {seconds:8.1f} {accuracy:8.2f}% {shown} {median(ran.busy_cores for ran in rows):6.1f}")


if __name__ == "__main__":
    main()

"""The benchmark of training: windows (with a fake clock), report, verdict, bare loop and command."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from rich.console import Console
from torch import Tensor

from augment.cli.benchmark import BenchReport
from augment.pipeline.batch import Batch
from augment.support import timing
from augment.support.timing import Result
from trainer.loop.graphs import WARM_UP, DisturbedError, UncapturableError
from trainer.run.fit import Fit
from trainer.tools.bench import windows
from trainer.tools.bench.by_hand import ByHand
from trainer.tools.bench.command import main
from trainer.tools.bench.report import make_report
from trainer.tools.bench.verdict import Facts, fastest, verdict
from trainer.tools.bench.windows import Metered, TimedRow, Window

TINY = ["aug.size=16", "fit.batch_size=4", "fit.device=cpu", "fit.threads=1", "--rounds", "2", "--seconds", "0.02"]

FACTS = Facts(
    loader=20_000, synthetic=10_000, fed=9_880, share=0.988, issue=0.2, graph=True, precision="bf16", decode="mixed",
    cached=False,
)  # fmt: skip


class Clock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def stream(self, seconds: float, image_files: int = 4) -> Iterator[Batch]:
        """Yield batches that take this long to load."""
        batch = Batch(torch.zeros(image_files, 3, 2, 2), torch.zeros(image_files), torch.zeros(image_files))
        for _ in repeat(None):
            self.now += seconds
            yield batch

    def work(self, seconds: float) -> Any:
        def consume(batches: Metered) -> None:
            # As the learner does: it asks for no more than there are.
            iterator = iter(batches)
            for _ in range(len(batches)):
                if next(iterator, None) is None:
                    return
                self.now += seconds

        return consume


# --- windows ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (windows, timing):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


def test_a_window_times_its_own_batches_and_their_work_only(clock):
    metered = Metered(clock.stream(0.25), 3, ahead=5)
    clock.work(0.5)(metered)
    window = metered.window
    assert (window.images, window.batches) == (12, 3)
    assert window.seconds == pytest.approx(3 * 0.75)
    assert window.waited == pytest.approx(3 * 0.25)
    assert window.issue == pytest.approx(0.5)
    assert clock.now == pytest.approx(8 * 0.75)


def test_windows_reach_the_requested_length(clock):
    row = TimedRow(lambda: clock.stream(0.01), clock.work(0.03), ahead=1)
    row.warm_up(2.0)
    assert row.time(2.0).seconds == pytest.approx(2.0)
    assert row.time(2.0).speed == pytest.approx(100)


def test_the_device_is_synchronized_only_at_the_ends_of_a_window(clock, monkeypatch):
    waits = []
    for module in (windows, timing):
        monkeypatch.setattr(module, "synchronize", lambda: waits.append(clock.now))
    clock.work(1.0)(Metered(clock.stream(0.0), 10, ahead=1))
    assert waits == [0.0, 1.0, 11.0]


# --- the report ---


def result(name: str, *speeds: float, left_out: str = "") -> Result:
    made = tuple(Window(round(2 * s), 2.0, 1.0, 0.0, batches=20, waited=0.5, issue=0.02) for s in speeds)
    return Result(name, f"row {name}", made, left_out)


def report(gpu: str | None = None) -> BenchReport:
    rows = (
        result("loader", 300, 200, 300),
        result("synthetic", 100, 50, 100),
        result("fed", 90, 45, 99),
        result("bare_synthetic", 100, 50, 100),
        result("bare", 100, 50, 90),
        result("aug.decode=cpu", 80, 40, 80),
        result("aug.cache=gpu", left_out="no GPU"),
    )
    settings = {
        "model": {"kind": "cnn"},
        "aug": {"size": 16, "decode": "mixed", "cache": "off"},
        "fit": {"batch_size": 4, "graph": True, "precision": "fp32"},
        "rounds": 3,
        "seconds": 2.0,
        "gpu_memory_mib": {"peak": 1000, "used": 2000, "total": 3000} if gpu else None,
        "hardware": {"cores": 2, "gpu": gpu},
    }
    return make_report(rows, settings, ("aug.decode=cpu", "aug.cache=gpu"))


def test_ratios_are_medians_over_rounds():
    plain = json.loads(json.dumps(report().plain()))
    rows = {row["name"]: row for row in plain["rows"]}
    assert rows["fed"]["of_synthetic"] == pytest.approx(0.9)  # of 0.9, 0.9 and 0.99
    assert rows["fed"]["of_bare"] == pytest.approx(0.9)  # of 0.9, 0.9 and 1.1
    assert rows["synthetic"]["of_bare"] == 1
    assert rows["aug.decode=cpu"]["of_synthetic"] == pytest.approx(0.8)
    assert rows["fed"]["waiting"] == 0.25
    assert rows["fed"]["step_ms"] == 100
    assert plain["facts"]["share"] == pytest.approx(0.9)


@pytest.mark.parametrize("gpu", [None, "H200"])
def test_the_table_has_a_line_for_each_measured_row(gpu):
    console = Console(width=120)
    with console.capture() as captured:
        console.print(report(gpu).table())
    lines = captured.get().splitlines()
    assert sum(line.lstrip().startswith("row ") for line in lines) == 6
    assert any("start it" in line for line in lines) == bool(gpu)
    assert any("row fed" in line and "0.900" in line and "25.0%" in line for line in lines)
    assert any("left out: row aug.cache=gpu (no GPU)" in line for line in lines)
    assert any("1,000 MiB at most" in line for line in report(gpu).lines) == bool(gpu)


def test_the_chart_has_a_ratio_next_to_each_bar_that_is_compared():
    made = report()
    assert [made._note(row) for row in made.results[:5]] == ["", "", "0.900 of synthetic", "", ""]


# --- the verdict ---


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Bound by the model: feeding costs 1.2%."),
        ({"share": 1.003}, "Bound by the model: feeding costs nothing."),
        ({"precision": "fp32"}, "Bound by the model: feeding costs 1.2%; try fit.precision=bf16."),
        ({"precision": "fp32", "issue": None}, "Bound by the model: feeding costs 1.2%."),
        (
            {"loader": 9_800, "synthetic": 14_200, "share": 0.68},
            "Bound by the input pipeline: the loader gives 9,800 img/s where the model could take 14,200; "
            "try aug.cache=gpu or aug.decode=auto.",
        ),
        (
            {"loader": 9_800, "synthetic": 14_200, "share": 0.68, "decode": "auto"},
            "Bound by the input pipeline: the loader gives 9,800 img/s where the model could take 14,200; "
            "try aug.cache=gpu.",
        ),
        (
            {"issue": 0.97, "graph": False},
            "Bound by kernel launches: the host takes 97% of a step to start the GPU's work; feeding costs 1.2%; "
            "try fit.graph=true, a larger fit.batch_size.",
        ),
    ],
)
def test_verdicts(changes, sentence):
    assert verdict(replace(FACTS, **changes)) == sentence


def test_hints_do_not_repeat_current_settings():
    starved = replace(FACTS, loader=5_000, share=0.5)
    assert "augment bench" in verdict(replace(starved, cached=True))
    assert "aug." not in verdict(replace(starved, issue=None)).replace("aug.size", "")
    assert "fit.graph" not in verdict(replace(FACTS, issue=0.9))
    shared = verdict(replace(FACTS, share=0.8, fed=8_000))
    assert shared.startswith("Bound by loader and model together")
    assert all(figure in shared for figure in ("8,000", "20,000", "10,000"))


def test_fastest_placement_is_named():
    speeds = {"aug.decode=mixed": 100.0, "aug.cache=gpu": 150.0, "aug.decode=cpu": 120.0}
    assert fastest(speeds) == "Fastest here: aug.cache=gpu, 25.0% ahead of aug.decode=cpu."
    assert fastest({"aug.decode=cpu": 1.0}) == ""


# --- the bare loop ---


def test_the_bare_loop_does_forward_backward_and_step_of_each_batch():
    model, losses = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 3)), []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(torch.nn.functional.cross_entropy(outputs, targets))
        return losses[-1]

    before = model[2].weight.detach().clone()
    batch = Batch(torch.randn(4, 3, 2, 2), torch.tensor([0, 1, 2, 0]), torch.arange(4))
    ByHand(Fit(optimizer="adamw"), model, loss, torch.device("cpu")).train([batch] * 3)
    assert len(losses) == 3
    assert model[1].num_batches_tracked == 3
    torch.testing.assert_close(model[2].weight, before)
    assert model[2].weight.grad is None


class Tape:
    """A stand-in for CUDA graphs: a replay repeats the work on the same tensors; the first recording is disturbed."""

    def __init__(self, *, works: bool) -> None:
        self.works, self.disturbed, self.replays = works, True, 0

    def aside(self, work: Any) -> Any:
        return work()

    def record(self, work: Any, memory: str) -> Any:
        if not self.works:
            raise UncapturableError("it waits")
        if self.disturbed:
            self.disturbed = False
            raise DisturbedError("another one waits")

        def replay() -> None:
            self.replays += 1
            work()

        return replay, ()


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_bare_loop_trains_on_each_batch_recorded_or_not(works, whole):
    model, seen = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)), []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(targets.tolist())
        return torch.nn.functional.cross_entropy(outputs, targets)

    bare, tape = ByHand(Fit(), model, loss, torch.device("cpu")), Tape(works=works)
    bare._backend, bare._whole = tape, whole
    steps = []
    bare._optimizer.register_step_post_hook(lambda *_: steps.append(len(seen)))
    targets = [[0, 1], [1, 2], [2, 0]]
    bare.train(Batch(torch.randn(2, 3, 2, 2), torch.tensor(t), torch.arange(2)) for t in targets)
    assert seen == [targets[0]] * WARM_UP + targets
    assert steps == list(range(1, WARM_UP + 4))
    assert tape.replays == (3 if works else 0)


# --- the command ---


@pytest.mark.usefixtures("no_settling", "sample_drawn")
def test_all_rows_run_and_are_reported(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    files = ["--out", str(tmp_path / "made")]
    stages = ["fit.epochs=2", "fit.stages={a: {epochs: 1, size: 16}, b: {epochs: 1}}"]  # which do not count
    assert main(["+aug=imagenette", *TINY, *stages, *files, "--placements"]) == 0
    printed = capsys.readouterr().out
    assert "Bound by " in printed
    assert "left out: training, aug.cache=gpu (no GPU)" in printed
    found = json.loads((tmp_path / "made" / "bench.json").read_text())
    rows = {row["name"]: row for row in found["rows"] if not row["left_out"]}
    assert list(rows) == ["loader", "synthetic", "fed", "bare_synthetic", "bare"]
    for row in rows.values():
        assert row["title"] in printed
        assert len(row["rounds"]) == 2
        assert all(window["images"] == 4 * window["batches"] for window in row["rounds"])
    assert (tmp_path / "made" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit.batchsize=4"], "Did you mean 'batch_size'?"),
        (["--round", "3"], "Did you mean '--rounds'?"),
        (["--seconds", "0"], "'0' is not allowed"),
        (["+aug=imagenet"], "imagenette"),
        (["fit.gpus=2"], "fit.gpus: 2, but this process trains alone."),
        (["--out", f"{__file__}/x"], f"{__file__} is not a folder"),
    ],
)
def test_mistakes_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("graph", ["true", "false"])
def test_all_rows_run_on_the_gpu(graph, optimizer, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    sizes = [
        "aug.size=32",
        "fit.batch_size=16",
        "fit.precision=bf16",
        f"fit.graph={graph}",
        f"fit.optimizer={optimizer}",
    ]
    flags = ["--rounds", "2", "--seconds", "0.1", "--placements", "--out", str(tmp_path)]
    assert main(["+aug=imagenette", "fit.device=cuda", *sizes, *flags]) == 0
    printed = capsys.readouterr().out
    for text in ("GPU memory: ", "Bound by ", "Fastest here: ", "start", "training, aug.cache=gpu"):
        assert text in printed
    found = json.loads((tmp_path / "bench.json").read_text())
    assert all(row["images_per_second"] > 0 and row["issue_ms"] > 0 for row in found["rows"])
    assert len(found["rows"]) == 8

"""The benchmark of training: its windows by a clock of its own, its sentence, and that it runs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest
import torch
from fakes import needs_gpu
from torch import Tensor

from augment.bench.report import Result
from augment.loader import Batch
from trainer.bench import windows
from trainer.bench.by_hand import ByHand
from trainer.bench.report import Report
from trainer.bench.run import main
from trainer.bench.verdict import Facts, fastest, verdict
from trainer.bench.windows import Metered, Row, Window
from trainer.config import Fit
from trainer.graphs import WARM_UP, UncapturableError

TINY = ["aug.size=16", "fit.batch_size=4", "fit.device=cpu", "fit.threads=1", "--rounds", "2", "--seconds", "0.02"]

FACTS = Facts(loader=20_000, synthetic=10_000, fed=9_880, share=0.988, issue=0.2, graph=True, precision="bf16")


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def stream(self, seconds: float, pictures: int = 4) -> Iterator[Batch]:
        """Batches that take so long to come."""
        batch = Batch(torch.zeros(pictures, 3, 2, 2), torch.zeros(pictures), torch.zeros(pictures))
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


def test_a_window_times_its_batches_with_their_work_and_no_other():
    clock = Clock()
    metered = Metered(clock.stream(0.25), 3, ahead=5, clock=clock)
    clock.work(0.5)(metered)
    window = metered.window
    assert (window.pictures, window.batches) == (12, 3)
    assert window.seconds == pytest.approx(3 * 0.75)
    assert window.waited == pytest.approx(3 * 0.25)
    assert window.issue == pytest.approx(0.5)
    assert clock.now == pytest.approx(8 * 0.75)


def test_windows_become_as_long_as_asked_for():
    clock = Clock()
    row = Row(lambda: clock.stream(0.01), clock.work(0.03), clock=clock)
    row.warm_up(2.0)
    assert row.time(2.0).seconds == pytest.approx(2.0)
    assert row.time(2.0).speed == pytest.approx(100)


def test_the_device_is_waited_for_at_the_edges_only(monkeypatch):
    waits = []
    monkeypatch.setattr(windows, "synchronize", lambda: waits.append(clock.now))
    clock = Clock()
    clock.work(1.0)(Metered(clock.stream(0.0), 10, clock=clock))
    assert waits == [0.0, 1.0, 11.0]


# --- the report ---


def result(name: str, *speeds: float, left_out: str = "") -> Result:
    made = tuple(Window(round(2 * s), 2.0, 1.0, 0.0, batches=20, waited=0.5, issue=0.02) for s in speeds)
    return Result(name, f"row {name}", made, left_out)


def report(gpu: str | None = None) -> Report:
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
    return Report(rows, settings, {"aug.decode=cpu": "aug.decode=cpu", "aug.cache=gpu": "aug.cache=gpu"})


def test_ratios_are_those_of_the_rounds():
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
def test_the_table_is_markdown(gpu):
    lines = report(gpu).table().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 6
    assert ("ms to start it" in lines[0]) == bool(gpu)
    assert any("row fed" in line and "0.900" in line and "25.0 %" in line for line in lines)
    notes = "\n".join(report(gpu).notes())
    assert "left out: row aug.cache=gpu (no GPU)" in notes
    assert ("1,000 MiB at most" in notes) == bool(gpu)


# --- the sentence ---


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, "Bound by the model: feeding costs 1.2 %."),
        ({"share": 1.003}, "Bound by the model: feeding costs nothing."),
        ({"precision": "fp32"}, "Bound by the model: feeding costs 1.2 %; try fit.precision=bf16."),
        ({"precision": "fp32", "issue": None}, "Bound by the model: feeding costs 1.2 %."),
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
            "Bound by kernel launches: the host takes 97 % of a step to start the GPU's work; feeding costs 1.2 %; "
            "try fit.graph=true, a larger fit.batch_size.",
        ),
    ],
)
def test_sentence(changes, sentence):
    assert verdict(replace(FACTS, **changes)) == sentence


def test_hints_are_not_what_is_there_already():
    starved = replace(FACTS, loader=5_000, share=0.5)
    assert "augment.bench" in verdict(replace(starved, cached=True))
    assert "aug." not in verdict(replace(starved, issue=None)).replace("aug.size", "")
    assert "fit.graph" not in verdict(replace(FACTS, issue=0.9))
    shared = verdict(replace(FACTS, share=0.8, fed=8_000))
    assert shared.startswith("Bound by loader and model together")
    assert all(figure in shared for figure in ("8,000", "20,000", "10,000"))


def test_fastest_placement_is_named():
    speeds = {"aug.decode=mixed": 100.0, "aug.cache=gpu": 150.0, "aug.decode=cpu": 120.0}
    assert fastest(speeds) == "Fastest here: aug.cache=gpu, 25.0 % ahead of aug.decode=cpu."
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
    """Stands in for CUDA graphs: a replay is the work done again on the same tensors."""

    def __init__(self, *, works: bool) -> None:
        self.works, self.replays = works, 0

    def aside(self, work: Any) -> Any:
        return work()

    def record(self, work: Any, memory: str) -> Any:
        if not self.works:
            raise UncapturableError("it waits")

        def replay() -> None:
            self.replays += 1
            work()

        return replay, ()


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_bare_loop_trains_on_each_batch_whether_or_not_it_is_recorded(works, whole):
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


def test_all_rows_run_and_are_written_down(tmp_path, capsys):
    files = ["--json", str(tmp_path / "made" / "bench.json"), "--figure", str(tmp_path / "bench.png")]
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
        assert all(window["pictures"] == 4 * window["batches"] for window in row["rounds"])
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit.batchsize=4"], "Did you mean 'batch_size'?"),
        (["--round", "3"], "Did you mean '--rounds'?"),
        (["--seconds", "0"], "'0' is not allowed"),
        (["+aug=imagenet"], "imagenette"),
        (["--json", f"{__file__}/x.json"], f"{__file__} is no folder"),
        (["--figure", f"{__file__}/x.png"], f"{__file__} is no folder"),
        (["--figure", "bench.jpg"], "'bench.jpg' is not allowed. Allowed: the name of a file that ends in .png"),
    ],
)
def test_mistakes_are_explained(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("graph", ["true", "false"])
def test_all_rows_run_on_the_gpu(graph, optimizer, tmp_path, capsys):
    sizes = [
        "aug.size=32",
        "fit.batch_size=16",
        "fit.precision=bf16",
        f"fit.graph={graph}",
        f"fit.optimizer={optimizer}",
    ]
    flags = ["--rounds", "2", "--seconds", "0.1", "--placements", "--json", str(tmp_path / "bench.json")]
    assert main(["+aug=imagenette", "fit.device=cuda", *sizes, *flags]) == 0
    printed = capsys.readouterr().out
    for text in ("GPU memory: ", "Bound by ", "Fastest here: ", "ms to start it", "training, aug.cache=gpu"):
        assert text in printed
    found = json.loads((tmp_path / "bench.json").read_text())
    assert all(row["images_per_second"] > 0 and row["issue_ms"] > 0 for row in found["rows"])
    assert len(found["rows"]) == 8

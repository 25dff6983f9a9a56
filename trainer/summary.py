"""How a run ended."""

from dataclasses import dataclass
from pathlib import Path

from augment.files import shown, write_json
from trainer.checkpoint import LAST
from trainer.tasks import JUDGING, task_of

SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes:
        status: finished, interrupted or failed.
        folder: where the run lies.
        epochs: epochs that were finished.
        best: row of the best epoch, by the checkpoint's monitor; empty if there is none. It was chosen by its score on
            the validation data, which is therefore too good.
        last: row of the last epoch, which nothing was chosen by; empty if there is none.
        seconds: of this process's part of the run.
        error: what it failed of.
        stopped: why a callback ended it before the last epoch.
        monitor: the value that the best epoch was chosen by; empty: what the task is judged by.
        planned: epochs that there were to be; 0: not known.
    """

    status: str
    folder: Path
    epochs: int
    best: dict[str, float]
    last: dict[str, float]
    seconds: float
    error: str = ""
    stopped: str = ""
    monitor: str = ""
    planned: int = 0

    def write(self) -> None:
        """Write summary.json."""
        values = {**vars(self), "folder": str(self.folder)}
        write_json(self.folder / SUMMARY_FILE, values)

    def __str__(self) -> str:
        key = JUDGING[task_of([self.best, self.last])].monitor
        best = self.best.get(key)
        score = f"no {key}"
        if best is not None:
            epoch, chosen = int(self.best["epoch"]) + 1, self.monitor in ("", key)
            score = f"best {key} {best:.4f} in epoch {epoch}" if chosen else f"{key} {best:.4f} in epoch {epoch}"
            score += "" if chosen else f", the best by {self.monitor}"
        final = f", last {self.last[key]:.4f}" if key in self.last else ""
        early = f" (stopped early: {self.stopped})" if self.stopped else ""
        took = f"{self.seconds:.0f} s, in {shown(self.folder)}"
        fewer = f" of {self.planned}" if self.planned > self.epochs else ""
        epochs = f"{self.epochs}{fewer} epoch{'' if (self.planned or self.epochs) == 1 else 's'}"
        on = f"; fit.resume={shown(self.folder)} goes on" if self._can_go_on() else ""
        return f"{self.status} after {epochs}{early}: {score}{final}, {took}{on}"

    def _can_go_on(self) -> bool:
        return self.status == "interrupted" and (self.folder / LAST).is_file()

"""The MLflow tracker."""

import os
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any, ClassVar

from augment.params import SENDS, Flag, Text, setting
from augment.support.nested import leaves
from augment.support.untrusted_files import locked
from trainer.callbacks.tracker import MODEL, TrackedRun, Tracker
from trainer.loop.callback import configurable

_LOCAL = Path("outputs")
_STATUSES = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

_PARAMS, _TEXT, _NAME = 100, 5000, 240  # parameters per request, and maximum lengths of values and names

_ID = "dali_trainer.id"  # the tag that identifies a run, even after it is resumed


@configurable
@dataclass(eq=False)
class Mlflow(Tracker):
    """Sends the run to MLflow: to a database in outputs/, or to the server in MLFLOW_TRACKING_URI."""

    experiment: str | None = setting(
        Text(
            optional=True,
            doc="name of the experiment. Default: MLFLOW_EXPERIMENT_NAME, otherwise dali-trainer",
            reach=SENDS,
        )
    )
    tracking_uri: str | None = setting(
        Text(
            optional=True,
            doc="database or server. Default: MLFLOW_TRACKING_URI, otherwise sqlite:///outputs/mlflow.db",
            reach=SENDS,
        )
    )
    checkpoint: bool = setting(Flag(default=False, doc="send best.pt at the end, as an artifact"))
    package: ClassVar[str] = "mlflow"
    _client: Any = field(default=None, init=False)
    _run: str = field(default="", init=False)

    def start(self, run: TrackedRun) -> int:
        """Create an MLflow run, or continue the MLflow run of a resumed run. Return the last epoch that MLflow has."""
        # By default, MLflow sends usage data to its developers.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")  # otherwise, MLflow prints between the lines of epochs
        from mlflow.entities import Param

        experiment = self._open_experiment()
        known = self._client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'") if run.resumed else []
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING", name=run.name[:_TEXT] if run.named else None)
            return int(known[0].data.metrics.get("epoch", -1))
        texts = {"group": run.group or "", "tags": ", ".join(run.tags)}
        texts |= {"mlflow.source.git.commit": run.revision, "mlflow.source.name": "python -m trainer"}
        tags = {_ID: run.id, **{name: text[:_TEXT] for name, text in texts.items() if text}}
        self._run = self._client.create_run(experiment, run_name=run.name[:_TEXT] or None, tags=tags).info.run_id
        params = list(self._named(dict(leaves(run.config))).items())
        for first in range(0, len(params), _PARAMS):
            self.send_each(
                lambda few: self._client.log_batch(self._run, params=[Param(k, str(v)[:_TEXT]) for k, v in few]),
                params[first : first + _PARAMS],
            )
        return -1

    def _open_experiment(self) -> str:
        """Connect to MLflow, and return the ID of the experiment, which is created if it does not exist."""
        from mlflow import MlflowClient

        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        local = _LOCAL.resolve()
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "dali-trainer"
        local.mkdir(parents=True, exist_ok=True)
        with nullcontext() if uri else locked(local / "mlflow.lock"):  # several jobs may create the database
            self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{local / 'mlflow.db'}")
            if found := self._client.get_experiment_by_name(name):
                return str(found.experiment_id)
            files = None if uri else (local / "mlflow").as_uri()
            return str(self._client.create_experiment(name, artifact_location=files))

    def accepted(self, name: str) -> str:
        """Return a name that MLflow accepts: a normalized path of allowed characters."""
        parts = re.sub(r"[^/\w.\- :]", "_", name)[:_NAME].split("/")
        return re.sub(r"^\.\.", "__", "/".join("_" if part in ("", ".", "..") else part for part in parts))

    def log(self, values: Mapping[str, float], step: int, epoch: int | None = None) -> None:
        """Log epoch values with the epoch as step, and running values with the number of batches."""
        from mlflow.entities import Metric

        now, at = int(1000 * time()), step if epoch is None else epoch
        metrics = [Metric(name, float(value), now, at) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def image(self, name: str, file: Path, step: int) -> None:
        self._client.log_artifact(self._run, str(file))

    def artifact(self, file: Path) -> None:
        self._client.log_artifact(self._run, str(file), MODEL)

    def reached(self, scores: Mapping[str, float], report: Path | None) -> None:
        """Log the final scores, and the report's path as a tag."""
        # The best score was already sent. Sending it here would add a point at epoch 0 to its curve.
        new = [(name, value) for name, value in scores.items() if name not in self._of_epoch]
        self.send_each(lambda items: self.log(dict(items), 0), new)
        self._client.set_tag(self._run, "report", str(report or ""))

    def finish(self, status: str) -> None:
        self._client.set_terminated(self._run, _STATUSES[status])

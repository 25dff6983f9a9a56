"""Runs and sweeps of versions up to 0.12, which had three settings of the loss, keep their names and resume."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from runs import config_of

from augment.support.errors import UserError
from trainer.run.config import CONFIG_FILE, config_text, load_config
from trainer.run.fit import parse_fit
from trainer.run.identity import identity, identity_text
from trainer.run.older import renamed
from trainer.run.run_folder import RunFolder
from trainer.sweeps.ledger import job_id

UNET = {"model": {"kind": "unet"}}


@pytest.mark.parametrize(
    ("loss", "older", "more", "name"),
    [
        (None, {}, {}, "758a17e73c"),
        ("mse", {"regression_loss": "mse"}, {}, "c0d9aed845"),
        ("huber", {"regression_loss": "huber"}, {}, "758a17e73c"),
        ("focal", {"loss": "focal"}, {}, "b2d069b99e"),
        (None, {}, UNET, "28d9bbf341"),
        ("ce", {"mask_loss": "ce"}, UNET, "28d9bbf341"),
        ("ce+dice", {"mask_loss": "ce+dice"}, UNET, "b645fb0523"),
        ("focal", {"mask_loss": "focal"}, UNET, "67f57abcd9"),
    ],
)
def test_names_of_jobs_are_those_of_0_12(
    loss: str | None, older: dict[str, str], more: dict[str, Any], name: str, tmp_path: Path
) -> None:
    config = config_of(**more, fit={"loss": loss})
    assert job_id(config) == name
    written: Any = OmegaConf.to_container(OmegaConf.create(config_text(config)))
    written["fit"] |= {"regression_loss": "huber", "mask_loss": "ce", "loss": None} | older
    (tmp_path / CONFIG_FILE).write_text(OmegaConf.to_yaml(OmegaConf.create(written)))
    loaded = load_config(tmp_path)
    assert parse_fit(loaded["fit"]).loss in (loss, None)
    assert identity_text(identity(loaded)) == identity_text(identity(config))


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        (["++fit.regression_loss=mse", "fit.lr=1"], ["++fit.loss=mse", "fit.lr=1"]),
        (["fit.mask_loss=ce,dice"], ["fit.loss=ce,dice"]),
        (["~fit.mask_loss"], ["~fit.loss"]),
        (["++fit.loss=dice", "fit.mask_loss=ce"], ["++fit.loss=dice"]),
        (["run.name=fit.mask_loss", "+aug=segment"], ["run.name=fit.mask_loss", "+aug=segment"]),
    ],
)
def test_overrides_of_older_versions(saved: list[str], now: list[str], tmp_path: Path) -> None:
    assert renamed(saved) == now
    (tmp_path / "job.json").write_text(json.dumps({"order": 0, "overrides": saved, "varied": saved}))
    run = RunFolder(tmp_path)
    assert run.job is not None
    assert (run.job["overrides"], run.job["varied"]) == (tuple(now), tuple(now))


@pytest.mark.parametrize("key", ["regression_loss", "mask_loss"])
def test_the_older_settings_are_refused(key: str) -> None:
    with pytest.raises(UserError, match=rf"^fit\.{key}: unknown key\. Did you mean 'loss'"):
        parse_fit({key: "mse"})

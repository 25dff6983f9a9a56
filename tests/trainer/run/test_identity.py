"""Test which configurations make the same run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runs import config_of

from augment.support.errors import UserError
from trainer.run.config.equality import identity, identity_text
from trainer.run.config.fit import parse_fit
from trainer.sweeps.ledger import job_id

STEPS: dict[str, Any] = {"rotate": {}, "flip": {}}
VIEWS: dict[str, Any] = {"strong": {"steps": {"invert": {}, "solarize": {}}}, "weak": {}}
OWN: dict[str, Any] = {"source": "own", "train": "mine.Photos", "val": "mine.Photos"}
CLASSES: dict[str, Any] = {"cat": 0, "dog": 1}


def backwards(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(reversed(values.items()))


def text_of(given: Mapping[str, Any]) -> str:
    return identity_text(identity(config_of(**given).resolved))


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"fit": {"resume": "outputs/run"}}, True),
        ({"run": {"name": "other", "tags": ["b"]}}, True),
        ({"callbacks": {"wandb": {"project": "birds"}, "ema": {}}}, True),
        ({"callbacks": {"wandb": {}}}, False),
        ({"fit": {"lr": 0.5}}, False),
        ({"seed": 1}, False),
        ({"data": {"source": "sample", "dir": "elsewhere"}}, False),
    ],
    ids=str,
)
def test_what_makes_a_configuration_another_one(changed: dict[str, Any], same: bool) -> None:
    kept = {"callbacks": {"ema": {}}, "aug": {"train": STEPS}}
    assert (text_of(kept) == text_of(kept | changed)) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"aug": {"train": STEPS}}, {"aug": {"train": backwards(STEPS)}}, False),
        ({"aug": {"val": STEPS}}, {"aug": {"val": backwards(STEPS)}}, False),
        *(
            ({"aug": {"train": {op: {"steps": STEPS}}}}, {"aug": {"train": {op: {"steps": backwards(STEPS)}}}}, False)
            for op in ("one_of", "some_of")
        ),
        ({"aug": {"views": VIEWS}}, {"aug": {"views": backwards(VIEWS)}}, False),
        (
            {"aug": {"views": VIEWS}},
            {"aug": {"views": VIEWS | {"strong": {"steps": backwards(VIEWS["strong"]["steps"])}}}},
            False,
        ),
        ({"aug": {"views": {"count": 2, "crop": "same"}}}, {"aug": {"views": {"crop": "same", "count": 2}}}, True),
        ({"aug": {"train": {}, "size": 64}}, {"aug": {"size": 64, "train": {}}}, True),
        (
            {"fit": {"stages": {"a": {"epochs": 2, "size": 32}, "b": {}}}},
            {"fit": {"stages": {"b": {}, "a": {"size": 32, "epochs": 2}}}},
            False,
        ),
        ({"fit": {"optimizer_options": {"a": 1, "b": 2}}}, {"fit": {"optimizer_options": {"b": 2, "a": 1}}}, True),
        (  # arguments go by name; what one of them holds may be enumerated
            {"data": OWN | {"options": {"a": 1, "classes": CLASSES}}},
            {"data": OWN | {"options": {"classes": CLASSES, "a": 1}}},
            True,
        ),
        (
            {"data": OWN | {"options": {"classes": CLASSES}}},
            {"data": OWN | {"options": {"classes": backwards(CLASSES)}}},
            False,
        ),
        ({"callbacks": {"ema": {}, "grad_clip": {}}}, {"callbacks": {"grad_clip": {}, "ema": {}}}, True),
    ],
    ids=str,
)
def test_order_counts_where_it_changes_results(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    assert (text_of(one) == text_of(other)) is same


def test_the_order_of_callbacks_of_plugins_counts() -> None:
    """They run in the order in which they were given."""
    one, other = {"callbacks": {"mine": {}, "yours": {}}}, {"callbacks": {"yours": {}, "mine": {}}}
    assert identity_text(identity(one)) != identity_text(identity(other))


def test_settings_that_are_gone_count_with_their_defaults() -> None:
    old = {"fit": {"epochs": 1, "auto_batch_size": False, "skip_nonfinite": 0}}
    assert identity_text(identity(old)) == identity_text(identity({"fit": {"epochs": 1}}))
    assert '"skip_nonfinite": 0' in identity_text(identity({"fit": {"epochs": 1}}))
    changed = {"fit": {"epochs": 1, "skip_nonfinite": 3}}
    assert identity_text(identity(changed)) != identity_text(identity(old))


def test_settings_that_older_versions_lack_count_once_they_are_changed() -> None:
    plain = {"aug": {"size": 64}, "fit": {"epochs": 1}}
    later = {"aug": {"size": 64, "min_visible": 0.1, "fill_label": 255}, "fit": {"epochs": 1, "loss": None}}
    assert identity_text(identity(plain)) == identity_text(identity(later))
    later |= {"model": {"options": None, "checkpointing": False}, "data": {"group": None, "cache_gb": None}}
    assert identity_text(identity({**plain, "model": {}, "data": {}})) == identity_text(identity(later))
    changed = {**later, "fit": {"epochs": 1, "loss": "dice"}}
    assert identity_text(identity(plain)) != identity_text(identity(changed))


UNET = {"model": {"kind": "unet"}}


@pytest.mark.parametrize(
    ("more", "name"), [({}, "758a17e73c"), ({"fit": {"lr": 0.5}}, None), (UNET, "28d9bbf341")], ids=str
)
def test_ids_of_jobs_stay_the_same(more: dict[str, Any], name: str | None) -> None:
    found = job_id(config_of(**more))
    assert found == name if name else found != "758a17e73c"


@pytest.mark.parametrize("key", ["regression_loss", "mask_loss"])
def test_removed_settings_are_unknown_keys(key: str) -> None:
    with pytest.raises(UserError, match=rf"^fit\.{key}: unknown key\..* Did you mean 'loss'"):
        parse_fit({key: "mse"})


def test_corrections_count_by_their_content(tmp_path: Path) -> None:
    texts = []
    for name, label in (("a.csv", "cat"), ("b.csv", "cat"), ("c.csv", "dog")):
        (tmp_path / name).write_text(f"path,label\ntrain/1.jpg,{label}\n")
        texts.append(text_of({"data": {"source": "sample", "labels": str(tmp_path / name)}}))
    assert texts[0] == texts[1]
    assert len({*texts, text_of({"data": {"source": "sample"}})}) == 3


def test_the_label_audit_and_no_corrections_keep_older_identities() -> None:
    plain = text_of({"callbacks": {}})
    assert text_of({"callbacks": {"label_audit": {}}}) == plain
    assert '"labels"' not in plain

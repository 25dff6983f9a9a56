"""What tests of progressive resizing share."""

import weakref
from typing import Any

import pytest
from fakes import CLASSES
from nvidia.dali.pipeline import Pipeline

import augment.pipeline.loader
from augment.data.dataset import Dataset, Split


@pytest.fixture
def data(image_files: Split, monkeypatch: pytest.MonkeyPatch) -> Split:
    """The images that every configuration finds."""
    monkeypatch.setattr("trainer.run.config.load_dataset", lambda *_: Dataset(CLASSES, image_files, image_files))
    return image_files


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> "weakref.WeakSet[Pipeline]":
    """Every pipeline that a loader built and somebody still holds."""
    built: weakref.WeakSet[Pipeline] = weakref.WeakSet()
    build = augment.pipeline.loader.build_pipeline

    def spy(*given: Any, **options: Any) -> Pipeline:
        pipeline = build(*given, **options)
        built.add(pipeline)
        return pipeline

    monkeypatch.setattr(augment.pipeline.loader, "build_pipeline", spy)
    return built

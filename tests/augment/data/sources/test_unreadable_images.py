"""Images that do not decode, in every source: named, or left out if the user says so."""

from collections.abc import Callable

import pytest
from files_of_sources import ALL, Sample, load, name_of, put_both, said

pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize("source", [source for source in ALL if source != "numpy"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: b"no image", "is not an image that DALI decodes. Allowed: JPEG, PNG"),
        (lambda whole: whole[:-200], "is broken: "),
        (lambda whole: b"", "is empty (0 bytes)"),
    ],
    ids=["none", "cut", "empty"],
)
def test_an_image_that_does_not_decode_is_named_or_left_out(
    source: str, damage: Callable[[bytes], bytes], message: str, samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    bad = (damage(samples[4][0]), samples[4][1], "")
    settings = put_both(source, [*samples[:4], bad, samples[5]], samples[:3])
    text = said(source, settings)
    assert text.startswith("data: 1 of 6 train images cannot be used:\n  ")
    assert f"{name_of(source, 4)} {message}" in text
    assert "set data.skip_bad=true to leave it out" in text
    dataset = load(source, settings | {"skip_bad": True})
    assert sorted(dataset.train.targets) == [0, 0, 1, 2, 2]
    assert "data.skip_bad=true: left out 1 of 6 train images:" in caplog.text


@pytest.mark.parametrize("source", [source for source in ALL if source != "numpy"])
@pytest.mark.parametrize("name", ["train", "val"])
def test_a_class_whose_last_image_is_left_out_is_reported(
    source: str, name: str, samples: list[Sample], caplog: pytest.LogCaptureFixture
) -> None:
    broken = [(image[:-200] if target == 1 else image, target, text) for image, target, text in samples]
    splits = {"train": samples, "val": samples} | {name: broken}
    settings = put_both(source, splits["train"], splits["val"])
    load(source, settings | {"skip_bad": True})
    one = "class 1" if source == "folder" else "1"
    assert f"1 of 3 classes has no image in {name}: {one}." in caplog.text
    assert caplog.text.count("has no image in") == 1


def test_remaining_classes_of_val_must_be_in_train(samples: list[Sample]) -> None:
    broken = [(image[: -200 if target else None], target, text) for image, target, text in samples]
    settings = put_both("parquet", broken, samples[1:3])
    message = said("parquet", settings | {"skip_bad": True})
    classes = "Training images have 0, but validation images have 1, 2"
    assert message == f"data: the splits share no class. {classes}. Use the same classes in both."

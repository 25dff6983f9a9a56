"""Images in larger files work everywhere: checks, previews, exports."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from stores import write_arrays, write_shards

from augment.data.check import check_files
from augment.data.dataset import ImageRef, Split
from augment.data.images import are_decoded, are_paths, read_encoded
from augment.data.sources import parse_data
from augment.pipeline.graph.sample_order import ImageFeed, Reading

Images = tuple[ImageRef, ...]


@pytest.fixture(scope="module")
def stores(image_files: Split, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Images]:
    """The images as paths, in a tar shard, and, resized, in an array."""
    folder = tmp_path_factory.mktemp("stores")
    files = [Path(str(file)) for file in image_files.files]
    shard = write_shards(folder, files, image_files.targets, 1)
    x, y = write_arrays(folder, files, image_files.targets)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tar = parse_data({"source": "webdataset", "train": shard, "val": shard}).load().train.files
        raw = {"source": "numpy", "train": x, "train_targets": y, "val": x, "val_targets": y}
        return {"folder": tuple(files), "tar": tar, "array": parse_data(raw).load().train.files}


def test_one_encoded_image_makes_the_split_encoded(stores: dict[str, Images]) -> None:
    """Of two splits of one source, train may come decoded and val not."""
    both = (stores["array"][0], stores["tar"][0])
    assert are_decoded(stores["array"])
    assert not are_decoded(both)
    assert not are_paths((stores["folder"][0], stores["tar"][0]))
    first, second = ImageFeed(Reading(both, 2, seed=0))(SimpleNamespace(iteration=0))[0]
    assert bytes(first[:2]) == b"P6"
    assert bytes(second) == bytes(read_encoded(both[1]))


def test_an_image_in_a_larger_file_that_cannot_be_read_is_not_remembered(tmp_path: Path) -> None:
    lost = Mock(spec=["name", "read"], read=Mock(side_effect=OSError(5, "Input/output error")))
    lost.name = "lost"
    (reason,) = check_files([lost], cache=tmp_path / "cache.json").values()
    assert reason == "cannot be read: Input/output error"
    assert not (tmp_path / "cache.json").exists()

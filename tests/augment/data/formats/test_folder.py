from pathlib import Path
from typing import Any

import pytest

from augment.data.dataset import Dataset, Split
from augment.data.formats.folder import EXTENSIONS, scan_folder, scan_split
from augment.data.formats.raster_files import RASTER_EXTENSIONS
from augment.support.errors import UserError


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def message(root: Path, **options: Any) -> str:
    """Return what training would say."""
    try:
        text = scan_folder(root, **options).problems[0]
    except UserError as error:
        text = str(error)
    assert text.startswith(f"data.root={root}: ")
    return text


def test_classes_files_and_targets(tmp_path: Path) -> None:
    make(tmp_path, "train/owl/2024/b.jpg", "train/owl/a.jpg", "train/cat/z.jpg", "val/owl/v.jpg", "val/cat/w.jpg")
    assert scan_folder(tmp_path) == Dataset(
        classes=("cat", "owl"),
        train=Split(
            tuple(tmp_path / "train" / name for name in ("cat/z.jpg", "owl/2024/b.jpg", "owl/a.jpg")), (0, 1, 1)
        ),
        val=Split((tmp_path / "val/cat/w.jpg", tmp_path / "val/owl/v.jpg"), (0, 1)),
    )


def test_class_without_a_val_folder_keeps_its_index(tmp_path: Path) -> None:
    dataset = scan_folder(make(tmp_path, "train/ant/a.jpg", "train/bee/b.jpg", "train/cat/c.jpg", "val/cat/v.jpg"))
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.val.targets == (2,)


def test_each_misspelled_class_gets_a_hint(tmp_path: Path) -> None:
    make(tmp_path, "train/heron/a.jpg", "train/stork/b.jpg", "val/heorn/c.jpg", "val/storck/d.jpg")
    text = message(tmp_path)
    assert f"heorn, storck in {tmp_path / 'val'} are classes without training images. Did you mean 'heron'" in text
    assert "'heorn'? Did you mean 'stork' instead of 'storck'? Add training images" in text


def test_extensions_in_either_case(tmp_path: Path) -> None:
    names = [f"train/cat/a{ending}" for some in EXTENSIONS - RASTER_EXTENSIONS for ending in (some, some.upper())]
    make(tmp_path, *names, "val/cat/v.jpg")
    assert len(scan_folder(tmp_path).train) == len(names)


def test_hidden_and_other_files_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/a.jpg", "val/cat/v.jpg", "train/.DS_Store", "train/readme.txt")
    make(tmp_path, "train/cat/._a.jpg", "train/cat/.b.jpg", "train/cat/notes.txt", "train/cat/.thumbs/c.jpg")
    make(tmp_path, "train/cat/d.npy", "train/.ipynb_checkpoints/e.jpg")
    dataset = scan_folder(tmp_path)
    assert dataset.classes == ("cat",)
    assert dataset.train.files == (tmp_path / "train/cat/a.jpg",)


def test_links_to_files_and_class_folders(tmp_path: Path) -> None:
    store = make(tmp_path / "store", "one.jpg", "owls/two.jpg")
    root = make(tmp_path / "root", "train/cat/a.jpg", "val/cat/v.jpg")
    (root / "train/cat/link.jpg").symlink_to(store / "one.jpg")
    (root / "train/owl").symlink_to(store / "owls", target_is_directory=True)
    assert [file.name for file in scan_folder(root).train.files] == ["a.jpg", "link.jpg", "two.jpg"]


def test_missing_root_suggests_a_neighbor(tmp_path: Path) -> None:
    make(tmp_path, "imagenette2/train/a/b.jpg", "other/c.jpg")
    (tmp_path / "imagenete2.zip").touch()  # nearer, but a file
    text = message(tmp_path / "imagenete2")
    assert f"the folder does not exist. Did you mean {tmp_path / 'imagenette2'}?" in text
    assert "Set data.root" in text


def test_an_archive_must_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "images.tar").write_bytes(b"x")
    assert "Unpack it" in message(tmp_path / "images.tar")


def test_classes_without_a_split_are_train_if_val_is_cut_from_it(tmp_path: Path) -> None:
    dataset = scan_folder(make(tmp_path, "cat/a.jpg", "owl/b.jpg", "owl/more/c.jpg"), cuts_val=True)
    assert (dataset.classes, dataset.train.targets, len(dataset.val)) == (("cat", "owl"), (0, 1, 1), 0)


def test_folders_of_other_names(tmp_path: Path) -> None:
    make(tmp_path, "training_set/training_set/cat/a.jpg", "test_set/cat/v.jpg")
    assert "Did you mean data.train_dir=training_set? Use train" in message(tmp_path)
    assert "Did you mean" in message(tmp_path, cuts_val=True)  # rather than two classes, training_set and test_set
    dataset = scan_folder(tmp_path, train_dir="training_set/training_set", val_dir="test_set")
    assert (dataset.classes, len(dataset.train), len(dataset.val)) == (("cat",), 1, 1)
    assert scan_folder(tmp_path, train_dir="test_set", cuts_val=True).train.files == dataset.val.files


def test_images_of_other_formats_are_kept_in_mind(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/a.jpg", "train/owl/b.jpg", "train/owl/c.HEIC", "train/owl/d.txt", "val/cat/v.jpg")
    assert scan_folder(tmp_path).train.foreign == (tmp_path / "train/owl/c.HEIC",)


def test_a_scan_goes_on_after_problems(tmp_path: Path) -> None:
    make(tmp_path, "train/cat/a.jpg", "train/owl/notes.txt")
    dataset = scan_folder(tmp_path)
    assert (dataset.classes, dataset.train.targets, len(dataset.val)) == (("cat", "owl"), (0,), 0)
    assert ["no folder val, only" in dataset.problems[0], "owl holds no images" in dataset.problems[1]] == [True, True]
    assert dataset.problems[1].endswith(". Add images, or remove the folder.")


@pytest.mark.parametrize("split", ["train", "val", "train/cat"])
def test_root_one_or_two_levels_too_deep(tmp_path: Path, split: str) -> None:
    make(tmp_path, "train/cat/a.jpg", "val/cat/v.jpg")
    assert f"Did you mean data.root={tmp_path}?" in message(tmp_path / split)


def test_a_similar_name_of_a_split_is_suggested(tmp_path: Path) -> None:
    text = message(make(tmp_path, "train/cat/a.jpg", "valid/cat/v.jpg", "test/cat/t.jpg"))
    assert text.endswith("no folder val, only test, train, valid. Did you mean data.val_dir=valid?")
    assert len(scan_folder(tmp_path, val_dir="valid").val) == 1
    text = message(make(tmp_path / "both", "Training/cat/a.jpg", "Validation/cat/v.jpg"))
    assert text.endswith("Did you mean data.train_dir=Training data.val_dir=Validation?")


def test_missing_val(tmp_path: Path) -> None:
    text = message(make(tmp_path, "train/cat/a.jpg", "test/cat/v.jpg"))
    assert "no folder val, only test, train." in text
    assert "or folders named by data.train_dir and data.val_dir" in text


@pytest.mark.parametrize("split", ["train", "val"])
def test_split_without_class_folders(tmp_path: Path, split: str) -> None:
    make(tmp_path, "train/cat/a.jpg", "val/cat/v.jpg")
    for file in (tmp_path / split).rglob("*.jpg"):
        file.rename(tmp_path / split / file.name)
    (tmp_path / split / "cat").rmdir()
    text = message(tmp_path)
    assert f"{tmp_path / split} holds no class folders, such as {split}/<class>/<image>, only " in text


def test_a_folder_with_a_test_split_is_no_split(tmp_path: Path) -> None:
    make(tmp_path, "train/ant/a.jpg", "test/ant/b.jpg")
    with pytest.raises(UserError, match=f"Did you mean {tmp_path / 'test'}"):
        scan_split(tmp_path, ["ant"])

"""Splits by group: whole groups on one side, about the share of images and classes, and clear mistakes."""

import re
from pathlib import Path

import numpy as np
import pytest
from lazily import LazyModule
from PIL import Image

from augment.data.dataset import Dataset, Split
from augment.data.selection import distribute_groups, join_groups, take_fold, take_val
from augment.data.sources import load_dataset, parse_data
from augment.support.errors import UserError

sklearn = LazyModule("sklearn.model_selection")


def of_groups(seed: int, groups: int = 30) -> tuple[Dataset, list[int]]:
    """Images of three classes in groups of 1 to 20."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat(np.arange(groups), rng.integers(1, 20, groups))).tolist()
    files = tuple(Path(f"train/{index}.jpg") for index in range(len(group)))
    targets = tuple(int(n) for n in rng.integers(0, 3, len(files)))
    return Dataset(("a", "b", "c"), Split(files, targets), Split((), ())), group


@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_in_one_fold_and_folds_are_alike(seed: int) -> None:
    whole, groups = of_groups(seed)
    group_of = dict(zip(whole.train.files, groups, strict=True))
    rounds = [take_fold(whole, folds=4, fold=fold, seed=seed, groups=groups) for fold in range(4)]
    assert sorted(file for one in rounds for file in one.val.files) == sorted(whole.train.files)
    for one in rounds:
        assert not {group_of[file] for file in one.val.files} & {group_of[file] for file in one.train.files}
        assert len(one.val) == pytest.approx(len(whole.train) / 4, rel=0.1)
        for label in range(3):
            assert one.val.targets.count(label) == pytest.approx(whole.train.targets.count(label) / 4, rel=0.4)
    assert rounds[0] == take_fold(whole, folds=4, fold=0, seed=seed, groups=groups)


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.7])
def test_val_has_the_share_as_near_as_whole_groups_make_it(fraction: float) -> None:
    whole, groups = of_groups(0)
    group_of = dict(zip(whole.train.files, groups, strict=True))
    cut = take_val(whole, fraction=fraction, seed=0, groups=groups)
    assert len(cut.val) == pytest.approx(fraction * len(whole.train), rel=0.1)
    assert not {group_of[file] for file in cut.val.files} & {group_of[file] for file in cut.train.files}


def test_one_stratum_is_shared_out_as_by_scikit_learn() -> None:
    groups = np.array(of_groups(5)[1])
    part = distribute_groups(groups, np.zeros_like(groups), [0.2] * 5, np.zeros(30))
    theirs = [len(test) for _, test in sklearn.GroupKFold(5).split(groups, groups=groups)]
    assert sorted(np.bincount(part).tolist()) == sorted(theirs)


def test_copies_join_groups() -> None:
    assert join_groups(["a", "b", "a", "c"], [0, 0, 1, 2]).tolist() == [0, 0, 0, 1]
    whole, groups = of_groups(0)
    same = {whole.train.files[0]: 0, whole.train.files[groups.index(1 if groups[0] != 1 else 2)]: 0}
    whole = Dataset(whole.classes, whole.train, whole.val, copies=same)
    for fold in range(3):
        val = set(take_fold(whole, folds=3, fold=fold, seed=0, groups=groups).val.files)
        assert len(val & set(same)) in (0, 2)


def test_too_few_groups_are_rejected() -> None:
    whole, groups = of_groups(0, groups=3)
    with pytest.raises(UserError, match=r"^data\.folds=4: data\.group forms only 3 groups, too few for 4 parts\."):
        take_fold(whole, folds=4, fold=0, seed=0, groups=groups)
    with pytest.raises(UserError, match=r"^data\.val_fraction=0\.2: data\.group forms only 1 group"):
        take_val(whole, fraction=0.2, seed=0, groups=[0] * len(groups))


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Ten videos of two classes, four frames each; list.csv names the videos."""
    lines = ["path,label,video"]
    for number in range(40):
        video, label = number // 4, "ab"[number // 4 % 2]
        file = tmp_path / "photos" / label / f"video{video}_{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(file)
        lines.append(f"{file.relative_to(tmp_path)},{label},v{video}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize(
    "given",
    [
        {"source": "folder", "root": "photos", "group": r"(video\d+)_"},
        {"source": "filelist", "train": "list.csv", "group": "video"},
        {"source": "filelist", "train": "list.csv", "group": r"(video\d+)_", "label": "label"},
    ],
    ids=["folder", "csv", "csv by name"],
)
def test_frames_of_a_video_stay_together(
    given: dict[str, object], videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(videos)
    for more in ({"val_fraction": 0.2}, {"folds": 5, "fold": 1}):
        data = load_dataset(parse_data({**given, **more}))
        red = [{int(pixel(image)) // 4 for image in split.files} for split in (data.train, data.val)]
        assert not red[0] & red[1]
        assert (len(data.train), len(data.val)) == (32, 8)
        assert set(data.val.targets) == {0, 1}


def pixel(image: object) -> int:
    from augment.data.images import open_image

    with open_image(image) as opened:  # type: ignore[arg-type]
        return opened.getpixel((0, 0))[0]  # type: ignore[index, return-value]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": "filelist", "train": "list.csv", "group": "vido"}, "data.group: list.csv (data.train) has no"),
        ({"source": "filelist", "train": "list.csv", "group": "vido"}, "Did you mean 'video'?"),
        ({"source": "folder", "root": "photos", "group": "video"}, "data.group=video: this dataset has no columns."),
        ({"source": "folder", "root": "photos", "group": "(video"}, "data.group=(video: missing )"),
        ({"source": "folder", "root": "photos", "group": "(a)(b)"}, "data.group=(a)(b) has 2 groups in ( )."),
        ({"source": "filelist", "train": "list.csv", "group": r"video\d"}, r"data.group=video\d has 0 groups in ( )."),
        ({"source": "folder", "root": "photos", "group": "(o1)"}, "does not match a/video0_0.png."),
    ],
)
def test_mistakes(given: dict[str, object], message: str, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(videos)
    with pytest.raises(UserError, match=re.escape(message)):
        load_dataset(parse_data({**given, "val_fraction": 0.2}))


def test_an_image_in_two_groups_is_rejected(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(videos)
    rows = Path("list.csv").read_text().splitlines()
    names = rows[0].split(",")
    last = dict(zip(names, rows[-1].split(","), strict=True)) | {"video": "other"}
    Path("list.csv").write_text("\n".join([*rows, ",".join(last[name] for name in names)]) + "\n")
    given = {"source": "filelist", "train": "list.csv", "group": "video", "val_fraction": 0.2}
    with pytest.raises(UserError, match=r"^data\.train: line \d+ of list\.csv: .* is in another group above\."):
        load_dataset(parse_data(given))


def test_a_group_without_a_cut_is_rejected(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(videos)
    given = {"source": "filelist", "train": "list.csv", "val": "list.csv", "group": "video"}
    with pytest.raises(UserError, match=r"^data\.group=video has no effect, .* Add data\.val_fraction"):
        load_dataset(parse_data(given))


def test_an_image_without_a_group_is_rejected(videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(videos)
    table = videos / "list.csv"
    table.write_text(table.read_text().replace("video3_12.png,b,v3", "video3_12.png,b,"))
    with pytest.raises(UserError, match=r"^data\.group=video: no value for photos/b/video3_12\.png\. Add a value"):
        load_dataset(parse_data({"source": "filelist", "train": "list.csv", "group": "video", "val_fraction": 0.2}))

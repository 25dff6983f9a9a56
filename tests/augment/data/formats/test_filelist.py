"""Lists of images: lines, columns and error messages."""

import re
import shutil
from pathlib import Path

import pytest

from augment.data.dataset import Dataset
from augment.data.formats.filelist import read_image_list
from augment.data.sources import LOADED, load_dataset, parse_data
from augment.support.errors import UserError


@pytest.fixture
def lists(tmp_path: Path, photos: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images a.png to d.png and "e f.png", in which lists are written."""
    monkeypatch.chdir(tmp_path)  # below which the check of the files is kept
    for name, photo in zip(("a.png", "b.png", "c.png", "d.png", "e f.png"), photos, strict=False):
        (tmp_path / name).symlink_to(photo)
    return tmp_path


def load(folder: Path, train: str, val: str, *, ending: str = "txt", **settings: object) -> Dataset:
    (folder / f"train.{ending}").write_text(train)
    (folder / f"val.{ending}").write_text(val)
    files = {name: str(folder / f"{name}.{ending}") for name in ("train", "val")}
    LOADED.clear()
    return load_dataset(parse_data({"source": "filelist", **files, **settings}))


def test_one_class_per_image(lists: Path) -> None:
    """Quotes as in a shell; a comment begins where a word does; blank lines count for nothing but the number."""
    found = load(lists, "# ours\na.png dog\n\nb.png cat # not sure\n'e f.png' C#\n", "c.png dog\nd.png C#\n")
    assert (found.task, found.classes) == ("classify", ("C#", "cat", "dog"))
    assert found.train.files == (lists / "a.png", lists / "b.png", lists / "e f.png")
    assert (found.train.targets, found.val.targets) == ((2, 1, 0), (2, 0))


def test_several_labels(lists: Path) -> None:
    found = load(lists, "a.png dog cat\nb.png cat\n", "c.png dog\n")
    assert (found.task, found.classes) == ("multilabel", ("cat", "dog"))
    assert (found.train.targets, found.val.targets) == (((1.0, 1.0), (1.0, 0.0)), ((0.0, 1.0),))
    none = load(lists, "a.png dog\nb.png\n", "c.png\n", multilabel=True)
    assert (none.task, none.train.targets, none.val.targets) == ("multilabel", ((1.0,), (0.0,)), ((0.0,),))


def test_an_image_with_a_line_for_each_label_is_noticed(lists: Path) -> None:
    found = load(lists, "a.png dog\nb.png cat\na.png dog\na.png cat\n", "c.png dog\nd.png cat\n")
    notice, repeated = found.notices
    assert notice.startswith("data: 1 line lists an image again with a different target, such as line 4 of")
    assert "1 line is repeated" in repeated
    assert "such as line 3 of" in repeated


def test_given_classes_determine_the_indices(lists: Path) -> None:
    (lists / "names.txt").write_text("zebra\nant\n")
    found = load(lists, "a.png ant\nb.png zebra\n", "c.png zebra\n", classes=str(lists / "names.txt"))
    assert (found.classes, found.train.targets, found.val.targets) == (("zebra", "ant"), (1, 0), (0,))
    found = load(lists, "a.png 2\nb.png 1\n", "c.png 1\n", classes=str(lists / "names.txt"), label_offset=1)
    assert (found.classes, found.train.targets, found.val.targets) == (("zebra", "ant"), (1, 0), (0,))
    (lists / "names.txt").write_text("1984\nant\n3\n")  # numbers that are names are no places
    found = load(lists, "a.png ant\nb.png 3\n", "c.png 3\nd.png 1984\n", classes=str(lists / "names.txt"))
    assert (found.train.targets, found.val.targets) == ((1, 2), (2, 0))


@pytest.mark.parametrize(
    ("train", "settings", "names"),
    [
        ("path,score\na.png,.5\nb.png,2\n", {}, ("score",)),
        ("path,size,score\na.png,1,.5\nb.png,3,2\n", {"label": "score"}, ("score",)),
        ("path,label\na.png,.5\nb.png,2\n", {}, ("target",)),
        ("path,score\na.png,.5;3\nb.png,2;4.5\n", {}, ("target_1", "target_2")),
    ],
)
def test_numbers_in_one_column_have_its_name(
    train: str, settings: dict[str, str], names: tuple[str, ...], lists: Path
) -> None:
    found = load(lists, train, train, ending="csv", **settings)
    assert (found.task, found.classes) == ("regress", names)


CSV = 'id,path,label,age,height\n0,a.png,dog; cat,3,1.5\n1,"e f.png",cat,4,.5\n'


def test_columns(lists: Path) -> None:
    found = load(lists, CSV, CSV, ending="csv")
    assert (found.task, found.train.targets) == ("multilabel", ((1.0, 1.0), (1.0, 0.0)))
    assert found.train.files == (lists / "a.png", lists / "e f.png")
    numbers = load(lists, CSV, CSV, ending="csv", targets=["height", "age"])
    assert (numbers.task, numbers.classes, numbers.train.targets) == (
        "regress",
        ("height", "age"),
        ((1.5, 3.0), (0.5, 4.0)),
    )
    chosen = load(lists, CSV, CSV, ending="csv", image="path", label="id")
    assert (chosen.task, chosen.train.targets) == ("classify", (0, 1))
    words = "path,label\na.png,1_2\nb.png,2_1\n"  # which Python reads as 12 and 21
    assert load(lists, words, words, ending="csv").classes == ("1_2", "2_1")
    flags = "file,cat,dog\na.png,0,0\nb.png,1,1\n"
    hot = load(lists, flags, flags, ending="csv", targets=["cat", "dog"], multilabel=True)
    assert (hot.task, hot.classes, hot.train.targets) == ("multilabel", ("cat", "dog"), ((0.0, 0.0), (1.0, 1.0)))


def test_another_root(lists: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("lists")
    found = load(elsewhere, "a.png x\n", f"{lists / 'b.png'} x\n", root=str(lists))
    assert (found.train.files, found.val.files) == ((lists / "a.png",), (lists / "b.png",))


def whole(message: str, folder: Path, ending: str) -> str:
    """Spell "train:2:" out, and {} as the folder."""
    place = rf"data.\1: line \2 of {folder}/\1.{ending}: "
    return re.sub(r"^(train|val):(\d+): ", place, message).replace("{}", str(folder))


@pytest.mark.parametrize(
    ("train", "val", "settings", "message"),
    [
        ("a.png 0\n", "# x\nb.png -1\n", {}, "val:2: b.png has the label -1, which is out of range. Allowed: 0 to 0, "
         "because the highest label in train is 0. To predict numbers, set data.task=regress."),
        ("a.png x\nb.png\n", "c.png x\n", {}, "train:2: b.png has no label. Give each image one label"),
        ("a.png\n", "c.png\n", {}, "train:1: a.png has no label."),
        ("a.png x\n", "b.png x y\n", {"task": "classify"}, "val:1: b.png has 2 labels. Give each image one label"),
        ("a.png x\nz.png x\ny.png x\n", "b.png x\n", {}, "data.train: cannot find {}/z.png (and 1 more), line 2"),
        ("a.png x\ne f.png 3\n", "b.png x\n", {}, "data.train: cannot find {}/e, line 2 of {}/train.txt: e."),
        ("# nothing\n", "b.png x\n", {}, "data.train: {}/train.txt lists no images."),
        ("a" * 70_000, "b.png x\n", {}, "data.train: line 1 of {}/train.txt has 70,000 characters."),
        ("a.png 1.5 2\nb.png 1\n", "b.png 1 1\n", {"task": "regress"}, "train:2: b.png has 1 number, but line 1 "
         "of {}/train.txt: a.png has 2. Give every image the same count of numbers."),
        ("a.png 1.5\nb.png tall\n", "b.png 1\n", {"task": "regress"}, "train:1: a.png has the label 1.5, and "),
        ("a.png 1.5\n", "b.png\n", {"task": "regress"}, "val:1: b.png has no number."),
        ("a.png x\n", "b.png x\n", {"label": "kind"}, "data.train: {}/train.txt is not a CSV file and"),
        ("a.png x\n", "b.png x\n", {"classes": "none.txt"}, "data.classes: the file none.txt does not exist."),
    ],
)  # fmt: skip
def test_malformed_lists_are_rejected(
    train: str, val: str, settings: dict[str, object], message: str, lists: Path
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(whole(message, lists, 'txt'))}"):
        load(lists, train, val, **settings)


@pytest.mark.parametrize(("train", "some"), [("a.png x\nz.png x\n", True), ("z.png x\ny.png x\n", False)])
def test_missing_images_next_to_others_can_be_left_out(train: str, some: bool, lists: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(lists, train, "b.png x\n")
    assert ("data.skip_bad=true" in str(caught.value)) == some


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (CSV, {"label": "lable"}, "data.label: {}/train.csv (data.train) has no column 'lable'. Did you mean 'label'?"),
        (CSV.replace("label", "kind"), {}, "data.train: {}/train.csv has no column 'label'. Set data.label=NAME "
         "for a class, data.targets=[NAME,...] for numbers"),
        (CSV, {"targets": ["hight"]}, "data.targets: {}/train.csv (data.train) has no column 'hight'."),
        (CSV, {"targets": ["age", "age"]}, "data.targets: age, age. List each column once."),
        ("path,label,label\na.png,dog,cat\n", {}, "data.label: {}/train.csv (data.train) has 2 columns 'label'."),
        (CSV, {"targets": ["label"]}, "train:2: a.png has the label 'dog; cat', which is not a number. data.task"),
        (CSV, {"targets": ["age"], "multilabel": True}, "train:2: a.png has the target 3. "
         "data.task=multilabel needs 0 and 1 for age."),
        (CSV, {"targets": ["age"], "task": "classify"}, "data.targets is for numbers, but data.task=classify."),
        (CSV + "3,b.png,dog\n", {}, "data.train: line 4 of {}/train.csv has 3 cells, but the header has 5."),
        ("a.png\nb.png\n", {}, "data.train: line 1 of {}/train.csv is a.png. Write a header with at least"),
        ("path;label\na.png;dog\n", {}, "data.train: line 1 of {}/train.csv is path;label. Write a header "
         "with at least two columns, separated by ',', such as path,label."),
        ("a.png,dog\nb.png,cat\n", {}, "data.train: line 1 of {}/train.csv is a.png,dog. Write a header"),
        ("0,a.png,dog\n1,b.png,cat\n", {}, "data.train: line 1 of {}/train.csv is 0,a.png,dog. Write a header"),
        ("path,label\n.\\a.png,dog\n", {}, "data.train: cannot find {}/.\\a.png, line 2 of"),
        ("path,label\n,dog\n", {}, "data.train: cannot find {}, line 2 of {}/train.csv: . {} is a folder."),
    ],
)  # fmt: skip
def test_wrong_columns_are_rejected(text: str, settings: dict[str, object], message: str, lists: Path) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(whole(message, lists, 'csv'))}"):
        load(lists, text, CSV, ending="csv", **settings)


@pytest.mark.parametrize("settings", [{}, {"label": "kind"}])
def test_errors_suggest_the_column_of_paths(settings: dict[str, object], lists: Path) -> None:
    text = "id,file,kind\n7,a.png,dog\n8,b.png,cat\n"
    problems: tuple[str, ...]
    try:
        problems = load(lists, text, text, ending="csv", **settings).problems
    except UserError as error:
        problems = (str(error),)
    assert problems[0].endswith(" If column 'file' holds the paths of the images, set data.image=file.")
    assert "Allowed names: id, kind." in problems[0] or settings
    assert not load(lists, text, text, ending="csv", image="file", label="kind").problems


def test_no_such_list(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^data.val: .*none.txt does not exist\. .* contains no files. Allowed: a list of images"
    ):
        read_image_list("data.val", tmp_path / "none.txt", image=None, label=None, targets=())
    (tmp_path / "latin.txt").write_bytes("ä".encode("latin-1"))
    with pytest.raises(UserError, match=r"^data.val: .*latin.txt is not UTF-8 text"):
        read_image_list("data.val", tmp_path / "latin.txt", image=None, label=None, targets=())


def test_the_multilabel_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("augment.data.generated.sample.SCENES", {"train": 8, "val": 4})
    found = load_dataset(parse_data({"source": "sample_multilabel", "dir": str(tmp_path)}))
    assert (found.task, len(found.train), len(found.val), len(found.classes)) == ("multilabel", 8, 4, 10)


ZEROS = ["007", "07", "7", "010"]


@pytest.mark.parametrize("settings", [{}, {"task": "classify"}, {"multilabel": True}])
@pytest.mark.parametrize("ending", ["txt", "csv"])
def test_labels_with_zeros_in_front_are_names(settings: dict[str, object], ending: str, lists: Path) -> None:
    form, head = ("{}.png {}\n", "") if ending == "txt" else ("{}.png,{}\n", "path,label\n")
    train = "".join(form.format(image, label) for image, label in zip("abcd", ZEROS, strict=True))
    found = load(
        lists, head + train, head + form.format("e f" if ending == "csv" else "a", "7"), ending=ending, **settings
    )
    assert found.classes == ("007", "010", "07", "7")
    assert found.val.targets[0] in (3, (0.0, 0.0, 0.0, 1.0)), "7 alone is text as well"


def test_labels_with_zeros_in_front_are_numbers_in_regression(lists: Path) -> None:
    assert load(lists, "a.png 007\nb.png 10\n", "c.png 1\n", task="regress").train.targets == ((7.0,), (10.0,))
    assert load(lists, "a.png 007\nb.png 1.5\n", "c.png 1\n").train.targets == ((7.0,), (1.5,))


def test_labels_with_zeros_in_front_are_not_numbers_of_classes(lists: Path) -> None:
    (lists / "names.txt").write_text("cat\ndog\nemu\n")
    with pytest.raises(UserError, match=r"line 1 of .*00', which is unknown.* Known: cat, dog, emu"):
        load(lists, "a.png 00\nb.png 02\n", "c.png 00\n", classes=str(lists / "names.txt"))


def test_names_that_look_alike_are_noticed(lists: Path) -> None:
    for other in ("ants", "An ts", "\uff21nts"):
        found = load(lists, f"a.png Ants\nb.png '{other}'\n", "c.png Ants\n")
        assert len(found.classes) == 2
        assert any("'Ants'" in notice and repr(other) in notice for notice in found.notices)
    long = "a" * 201
    found = load(lists, f"a.png {long}\nb.png {long.upper()}\n", f"c.png {long}\n")
    assert "differ only in case" not in str(found.notices)


@pytest.mark.parametrize("separator", [" ", "|", ", "])
def test_several_labels_that_are_read_as_one_are_noticed(lists: Path, separator: str) -> None:
    joined = f"red{separator}blue"
    found = load(
        lists, f'path,label\na.png,"{joined}"\nb.png,red\nc.png,blue\n', "path,label\nd.png,red\n", ending="csv"
    )
    assert any("1 of 3 labels" in notice and repr(joined) in notice for notice in found.notices)
    python = load(lists, "path,label\na.png,['a']\nb.png,\"['a','b']\"\n", "path,label\nc.png,['a']\n", ending="csv")
    assert "2 of 2 labels seem to be several" in str(python.notices)
    other = load(lists, "path,label\na.png,red fox\nb.png,red\n", "path,label\nc.png,red\n", ending="csv")
    assert "several labels" not in str(other.notices)


def test_lines_that_repeat_a_label_are_noticed(lists: Path) -> None:
    """In Oxford-IIIT Pet's lists, each path is followed by a class, a species and a breed."""
    found = load(lists, "a.png 1 1 1\nb.png 1 2 3\n", "c.png 2 1 2\n")
    assert any(f"2 lines repeat a label, such as line 1 of {lists / 'train.txt'}." in text for text in found.notices)
    assert "repeat" not in str(load(lists, "a.png 1 2\nb.png 1\n", "c.png 2\n").notices)


def test_the_folder_of_images_is_called_root(lists: Path) -> None:
    with pytest.raises(UserError, match=r"^data\.images: unknown key\. Did you mean 'root'\?"):
        load(lists, "a.png 1\n", "c.png 1\n", images="photos")


def test_numbers_that_float32_rounds_are_noticed(lists: Path) -> None:
    found = load(lists, "a.png 1700000001\nb.png 1700000033\n", "c.png 1700000060\n", task="regress")
    assert any("Subtract an offset" in notice for notice in found.notices)
    assert not load(lists, "a.png 0.1\nb.png 0.3\n", "c.png 7\n", task="regress").notices


def test_many_whole_numbers_are_noticed_as_classes(lists: Path) -> None:
    for number in range(21):
        shutil.copy(lists / "a.png", lists / f"{number}.png")
    for count, settings, noticed in ((21, {}, True), (20, {}, False), (21, {"task": "classify"}, False)):
        text = "".join(f"{number}.png {number}\n" for number in range(count))
        found = load(lists, text, text, **settings)
        assert any("set data.task=regress" in notice for notice in found.notices) == noticed


def test_ids_without_an_extension_are_completed_by_one_image(lists: Path) -> None:
    (lists / "images" / "sub").mkdir(parents=True)
    for name in "ab":
        (lists / f"{name}.png").rename(lists / "images" / "sub" / f"{name}.png")
    text = "id,label\nsub/a,cat\nsub/b,dog\n"
    with pytest.raises(UserError, match=r"relative to data\.root.*without an extension.* exactly one image"):
        load(lists, text, text, ending="csv")
    assert load(lists, text, text, ending="csv", root=str(lists / "images")).classes == ("cat", "dog")
    (lists / "c.jpg").symlink_to(lists / "c.png")
    with pytest.raises(UserError, match=r"without an extension.* exactly one image"):
        load(lists, "id,label\nc,cat\n", "id,label\nc,cat\n", ending="csv")

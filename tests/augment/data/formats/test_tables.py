"""CSV files of points and of boxes."""

from pathlib import Path

import pytest
from annotated import load, photo

from augment.data.targets.keypoints import Keypoints
from augment.support.errors import UserError

pytestmark = pytest.mark.usefixtures("own_folder")

POINTS = "path,x_nose,y_nose,x_left_eye,y_left_eye,v_left_eye,x_Right_eye,y_Right_eye"
BOXES = "path,left,top,right,bottom,class"


def put(*lines: str) -> str:
    for number in range(3):
        photo(Path(f"{number}.jpg"), 40, 20)
    Path("t.csv").write_text("\n".join(lines) + "\n")
    return "t.csv"


def test_points_have_names_and_may_not_be_labeled() -> None:
    train = put(POINTS, "0.jpg,1,2,3,4,1,5,6.5", "1.jpg,,,3,4,0,39.5,-.5")
    dataset = load("points", train=train, val=train)
    assert dataset.classes == ("nose", "left_eye", "Right_eye")
    assert dataset.train.targets == (((1, 2, 2), (3, 4, 1), (5, 6.5, 2)), ((0, 0, 0), (0, 0, 0), (39.5, -0.5, 2)))
    assert isinstance(dataset.kind, Keypoints)
    assert dataset.kind.flip_pairs == ((1, 2),)
    dataset = load("points", train=train, val=train, flip_pairs=[["nose", "Right_eye"]])
    assert isinstance(dataset.kind, Keypoints)
    assert dataset.kind.flip_pairs == ((0, 2),)


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_points_of_the_image_as_it_is_shown_are_turned_to_its_file(orientation: int) -> None:
    train = put("path,x_a,y_a", "0.jpg,0,3", "1.jpg,0,0")
    photo(Path("0.jpg"), 40, 20, orientation=orientation)
    dataset = load("points", train=train, val=train)
    expected = {2: (39, 3), 3: (39, 16), 6: (3, 19), 8: (36, 0)}[orientation]
    assert dataset.train.targets[0][0] == pytest.approx((*expected, 2))


@pytest.mark.parametrize(
    ("header", "line", "why"),
    [
        (POINTS, "0.jpg,1,2,3,4,1,5", "line 2 of t.csv has 7 cells, but the header has 8"),
        (
            POINTS,
            "0.jpg,1,2,3,4,1,5,x",
            r"0.jpg has a bad object, line 2 of t.csv: Right_eye is 5,x, instead of",
        ),
        (POINTS, "0.jpg,1,2,3,4,3,5,6", r"left_eye is 3,4,3 instead"),
        (POINTS, "0.jpg,1,2,3,,1,5,6", r"left_eye is 3,,1 instead"),
        (POINTS, "0.jpg,inf,2,3,4,1,5,6", r"nose is inf,2, instead"),
        (POINTS, "0.jpg,1,2,3,4,1,40,6", r"0.jpg has the point Right_eye outside its 40 x 20 pixels, line 2 of"),
        (POINTS, "1.jpg,1,2,3,4,1,4,6", "1.jpg is listed 2 times"),
        ("path,x_a,y_a,z", "0.jpg,1,2,3", "the column 'z' is unknown. Use path, then x_NAME, y_NAME"),
        ("path,x_a", "0.jpg,1", "the column 'a'"),
        ("path", "0.jpg", "such as path,x_NAME,y_NAME"),
        ("file,x_a,y_a", "0.jpg,1,2", "must have one column 'path'"),
    ],
)
def test_points_that_are_wrong_are_named(header: str, line: str, why: str) -> None:
    last = "1.jpg" + ",1" * header.count(",")
    train = put(header, line, last.replace(",1", ",,")[: len(last)] if header != POINTS else "1.jpg,1,1,1,1,1,1,1")
    with pytest.raises(UserError, match=why):
        load("points", train=train, val=train)


def test_boxes_are_a_line_an_object() -> None:
    train = put(BOXES, "0.jpg,1,2,3,4,dog", "1.jpg", "0.jpg,0,0,40,20,cat", "2.jpg,,,,,")
    dataset = load("boxes", train=train, val=train)
    assert dataset.classes == ("background", "cat", "dog")
    assert [target.labels.tolist() for target in dataset.train.targets] == [[2, 1], [], []]
    assert dataset.train.targets[0].boxes.tolist() == [[1, 2, 3, 4], [0, 0, 40, 20]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0.jpg,1,2,1,4,dog", "0.jpg has a bad object, line 2 of t.csv: the box .* has no area"),
        ("0.jpg,1,2,x,4,dog", "0.jpg has a bad object, line 2 of t.csv: could not convert string to float: 'x'"),
        ("0.jpg,1,2,3,4,", "0.jpg has a bad object, line 2 of t.csv: no class"),
        ("9.jpg,1,2,3,4,dog", "data.train: cannot find 9.jpg, line 2 of t.csv.* Paths are relative to data.root"),
        ("0.jpg,1,2", "line 2 of t.csv has 3 cells, but the header has 6"),
        ("0.jpg,1,2\n0.jpg,1", r"^data.train: line 2 of .*\ndata.train: line 3 of t.csv has 2 cells, [^\n]*$"),
    ],
)
def test_boxes_that_are_wrong_are_named(line: str, why: str) -> None:
    train = put(BOXES, line, "1.jpg,1,2,3,4,dog")
    with pytest.raises(UserError, match=why):
        load("boxes", train=train, val=train)
    if "bad object" in why:
        assert load("boxes", train=train, val=train, skip_bad=True).classes == ("background", "dog")


@pytest.mark.parametrize(
    ("source", "header", "line"),
    [("boxes", BOXES, "0.jpg,0.1,0.2,0.9,1,dog"), ("points", "path,x_a,y_a,x_b,y_b", "0.jpg,0.1,0.2,,")],
)
def test_shares_of_the_sides_are_no_pixels(source: str, header: str, line: str) -> None:
    train = put(header, line)
    with pytest.raises(
        UserError, match=r"^data: all coordinates are at most 1, such as in line 2 of t\.csv, .* Multipl"
    ):
        load(source, train=train, val=train)


def test_the_columns_of_boxes_are_named() -> None:
    train = put("path,left,top,right,class", "0.jpg,1,2,3,dog")
    with pytest.raises(UserError, match=r"must have one column 'bottom'\. Allowed: .* path, left, .*, class\."):
        load("boxes", train=train, val=train)


@pytest.mark.parametrize(("source", "name"), [("points", "t.csv"), ("boxes", "t.csv"), ("coco", "t.json")])
def test_files_that_are_too_large_are_not_read(source: str, name: str) -> None:
    put(POINTS)
    with Path(name).open("ab") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="limit"):
        load(source, train=name, val=name)

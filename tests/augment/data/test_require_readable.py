"""Splits with images that cannot be used: rejected, or left out."""

from pathlib import Path

import pytest
from image_bytes import encoded, write

from augment.data import check
from augment.data.check import check_files, leave_out
from augment.data.dataset import Split
from augment.support.errors import UserError


def split_of(tmp_path: Path, good: int, bad: int) -> Split:
    """Return good files of class 1 that alternate with bad ones of class 0 as long as there are any."""
    names = sorted([f"{i:02d}_good.jpg" for i in range(good)] + [f"{i:02d}_bad.jpg" for i in range(bad)])
    files = tuple(write(tmp_path, name, encoded("JPEG") if "good" in name else b"") for name in names)
    return Split(files, tuple(int("good" in name) for name in names))


def require_readable(split: Split, name: str, *, skip_bad: bool) -> Split:
    """Check a split and return the part of it that can be decoded."""
    return leave_out(split, name, check_files(split.files), skip_bad=skip_bad)


def test_bad_files_raise_with_count_reasons_and_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_SHOWN", 5)
    with pytest.raises(UserError) as caught:
        require_readable(split_of(tmp_path, 2, 7), "train", skip_bad=False)
    first, *listed, advice = str(caught.value).splitlines()
    assert first == "data: 7 of 9 train images cannot be used:"
    shown = [f"  {tmp_path}/{i:02d}_bad.jpg is empty (0 bytes)" for i in range(5)]
    assert listed == [*shown[:4], f"{shown[4]} and 2 more"]
    assert "data.skip_bad=true" in advice


def test_skip_bad_with_nothing_left_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 of 2 val images cannot be used, so no image is left"):
        require_readable(split_of(tmp_path, 0, 2), "val", skip_bad=True)

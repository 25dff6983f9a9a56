"""Imagenette and Imagewoof: their archives, and the names of their classes."""

import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
from archives import Server, names_in, server

from augment.data.sources import Imagenette, Imagewoof, download, parse_data
from augment.data.sources.imagenette import CLASS_NAMES
from augment.support.errors import UserError

__all__ = ["server"]


def test_mirror_under_the_official_name_must_have_the_official_md5(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"md5 is not {Imagenette.archives['160'].md5}"):
        Imagenette(dir=str(tmp_path), url=server.url("imagenette2-160.tgz")).load()


def test_no_network_names_url_folder_and_alternative(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"http://127.0.0.1:{port}/imagenette2-160.tgz"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time", Mock())
    with pytest.raises(UserError) as caught:
        Imagenette(dir=str(tmp_path), url=url).load()
    message = str(caught.value)
    assert message.startswith(f"{url} cannot be downloaded: [Errno 111] Connection refused.\n")
    assert f"put imagenette2-160.tgz (md5 {Imagenette.archives['160'].md5}) into {tmp_path}" in message
    assert "data=sample" in message
    assert names_in(tmp_path) == []


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        Imagenette(dir=str(tmp_path / "file" / "data")).load()


def test_unknown_variant_names_the_allowed_ones() -> None:
    with pytest.raises(UserError, match=r"data\.variant.*'16'.*Did you mean '160'"):
        parse_data({"source": "imagenette", "variant": "16"})


def test_official_archives_have_different_checksums() -> None:
    for name, archives in (("imagenette2", Imagenette.archives), ("imagewoof2", Imagewoof.archives)):
        assert {variant: archive.name for variant, archive in archives.items()} == {
            "full": f"{name}.tgz",
            "320": f"{name}-320.tgz",
            "160": f"{name}-160.tgz",
        }
    archives = (*Imagenette.archives.values(), *Imagewoof.archives.values())
    assert len({archive.md5 for archive in archives} - {None}) == 6
    assert len({archive.url for archive in archives}) == 6


@pytest.mark.parametrize(("source", "name"), [(Imagenette, "imagenette2"), (Imagewoof, "imagewoof2")])
def test_each_source_has_its_own_archives(
    source: type[Imagenette], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that an archive would be unpacked to is there already, so that nothing is asked for."""
    for split in ("train", "val"):
        for wnid in ("n02086240", "n01440764"):
            (tmp_path / f"{name}-320" / split / wnid).mkdir(parents=True)
            (tmp_path / f"{name}-320" / split / wnid / "a.JPEG").touch()
    monkeypatch.setattr(download, "_download", None)
    assert source(dir=str(tmp_path), variant="320").load().classes == ("tench", "Shih-Tzu")
    assert source(dir=str(tmp_path)) != {Imagenette: Imagewoof, Imagewoof: Imagenette}[source](dir=str(tmp_path))


def test_an_unknown_checksum_is_logged_and_classes_have_names(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = server.url("other.tgz")
    assert Imagewoof(dir=str(tmp_path), url=url).load().classes == ("tench",)
    assert (tmp_path / "other" / "train").is_dir()
    assert f"{url}: its md5 is not known" in caplog.text


def test_another_imagewoof_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="is damaged or another archive: its md5 is not 3d200a7be99704a0d7509be2a9fbfe15"
    ):
        Imagewoof(dir=str(tmp_path), url=server.url("imagewoof2-160.tgz")).load()


def test_classes_without_a_known_name_keep_theirs(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name in ("n01440764", "n02115641", "owl"):
            (tmp_path / "imagenette2-160" / split / name).mkdir(parents=True)
            (tmp_path / "imagenette2-160" / split / name / "a.JPEG").touch()
    dataset = Imagenette(dir=str(tmp_path)).load()
    assert (dataset.classes, dataset.train.targets) == (("tench", "dingo", "owl"), (0, 1, 2))
    assert len(set(CLASS_NAMES.values())) == 20

"""Imagenette and Imagewoof: their archives, and the names of their classes."""

import socket
from pathlib import Path
from unittest.mock import Mock

import pytest
from archives import Server, names_in, server

from augment.data.sources import Imagenette, Imagewoof, imagenette
from augment.support.errors import UserError

__all__ = ["server"]


@pytest.mark.parametrize("source", [Imagenette, Imagewoof])
def test_a_mirror_must_have_the_official_archive(source: type[Imagenette], server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"does not match the known hash: expected md5:{source.archives['160'].md5}"):
        source(dir=str(tmp_path), url=server.url("other.zip?x=1")).load()


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
    assert message.startswith(f"{url} cannot be downloaded: ")
    assert "Connection refused" in message
    assert f"put imagenette2-160.tgz (md5 {Imagenette.archives['160'].md5}) into {tmp_path}" in message
    assert "data=sample" in message
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(("source", "name"), [(Imagenette, "imagenette2"), (Imagewoof, "imagewoof2")])
def test_each_source_has_its_own_archives(
    source: type[Imagenette], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that an archive would be unpacked to is there already, so that nothing is asked for."""
    for split in ("train", "val"):
        for wnid in ("n02086240", "n01440764", "owl"):
            (tmp_path / f"{name}-320" / split / wnid).mkdir(parents=True)
            (tmp_path / f"{name}-320" / split / wnid / "a.JPEG").touch()
    monkeypatch.setattr(imagenette, "_downloaded", None)
    assert source(dir=str(tmp_path), variant="320").load().classes == ("tench", "Shih-Tzu", "owl")
    assert source(dir=str(tmp_path)) != {Imagenette: Imagewoof, Imagewoof: Imagenette}[source](dir=str(tmp_path))

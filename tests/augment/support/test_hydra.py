"""Private names of Hydra and OmegaConf: the installed versions have them, and they do what they are used for."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from packaging.requirements import Requirement

from augment.support.hydra import TESTED, FileConfigSource, find, get_yaml_loader, register_resolver

ROOT = Path(__file__).parents[3]


def test_the_versions_that_were_tested_may_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    allowed = {name.name: name.specifier for name in map(Requirement, project)}
    for hydra, omegaconf in TESTED:
        assert allowed["hydra-core"].contains(hydra, prereleases=True)
        assert allowed["omegaconf"].contains(omegaconf, prereleases=True)


def test_a_version_without_a_name_is_refused_in_a_sentence() -> None:
    assert find("omegaconf:NoSuchName", "omegaconf:OmegaConf") is OmegaConf
    expected = f"Hydra {version('hydra-core')} with OmegaConf {version('omegaconf')} has no omegaconf:NoSuchName or "
    with pytest.raises(ImportError, match=f"^{re.escape(expected)}hydra.gone:Name. Allowed: such as hydra-core=="):
        find("omegaconf:NoSuchName", "hydra.gone:Name")


def test_yaml_is_read_as_hydra_reads_it(tmp_path: Path) -> None:
    text = "a: 1e-3\nb: 2020-01-01\nc: .5\nd: ${x}\ne: 'é'\nf: {g: [yes, 0x10, null]}\ni: 1_0\nj: 1:30\n"
    (tmp_path / "x.yaml").write_text(text)
    assert yaml.load(text, Loader=get_yaml_loader()) == OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml"))
    with pytest.raises(yaml.YAMLError, match="found duplicate key a"):
        yaml.load("a: 1\na: 2", Loader=get_yaml_loader())


def test_a_source_reads_files_and_their_headers(tmp_path: Path) -> None:
    (tmp_path / "aug").mkdir()
    (tmp_path / "aug" / "mine.yaml").write_text("# @package _global_\nsize: 64\n")
    found = FileConfigSource("user", f"file://{tmp_path}").load_config("aug/mine")
    assert (found.config, found.header["package"]) == ({"size": 64}, "_global_")


def test_a_resolver_may_be_cached_and_replaced() -> None:
    for value in (1, 2):
        register_resolver("counted", lambda value=value: object(), use_cache=True, replace=True)
        config = OmegaConf.create({"a": "${counted:}"}, flags={"allow_objects": True})
        assert config.a is config.a
    OmegaConf.clear_resolver("counted")

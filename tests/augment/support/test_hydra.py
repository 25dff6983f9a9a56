"""What differs between versions of Hydra and OmegaConf."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from augment.support.hydra import get_yaml_loader


def test_yaml_is_read_as_hydra_reads_it(tmp_path: Path) -> None:
    text = "a: 1e-3\nb: 2020-01-01\nc: .5\nd: ${x}\ne: 'é'\nf: {g: [yes, 0x10, null]}\ni: 1_0\nj: 1:30\n"
    (tmp_path / "x.yaml").write_text(text)
    assert yaml.load(text, Loader=get_yaml_loader()) == OmegaConf.to_container(OmegaConf.load(tmp_path / "x.yaml"))
    with pytest.raises(yaml.YAMLError, match="found duplicate key a"):
        yaml.load("a: 1\na: 2", Loader=get_yaml_loader())

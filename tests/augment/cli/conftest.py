"""What tests of the command line share."""

from collections.abc import Iterator

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from augment.cli.conf import CONF
from augment.support.hydra import VERSION_BASE


@pytest.fixture
def conf() -> Iterator[None]:
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), **VERSION_BASE):
        yield

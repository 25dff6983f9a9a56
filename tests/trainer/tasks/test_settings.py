"""The settings of losses name what there is, without importing it."""

from trainer.tasks import settings
from trainer.tasks.losses import REGRESSION_LOSSES
from trainer.tasks.tta import TTA


def test_the_settings_name_what_there_is() -> None:
    assert tuple(REGRESSION_LOSSES) == settings.REGRESSION_LOSSES
    assert tuple(TTA) == settings.VIEWS

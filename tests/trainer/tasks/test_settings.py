"""The settings of losses name what there is, without importing it."""

from trainer.tasks import settings
from trainer.tasks.losses import regression_loss
from trainer.tasks.tta import TTA


def test_the_settings_name_what_there_is() -> None:
    assert all(callable(regression_loss(name)) for name in settings.REGRESSION_LOSSES)
    assert tuple(TTA) == settings.VIEWS

"""What is said about an `aug` section that is refused."""

import pytest

from augment.recipe.steps import parse_aug
from augment.support.errors import UserError


def refusal(given: object) -> str:
    with pytest.raises(UserError) as caught:
        parse_aug(given)
    return str(caught.value)


def step_refusal(**steps: object) -> str:
    return refusal({"train": steps})

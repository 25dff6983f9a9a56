"""The built-in ops, in the order of the op table; importing this module registers them."""
# ruff: noqa: F401, I001

import augment.crops
import augment.geometry
import augment.color
import augment.local
import augment.mix
import augment.policies
import augment.papers

"""The built-in ops, in the order of the op table; importing this package registers them."""
# ruff: noqa: F401, I001

import augment.ops.crops
import augment.ops.geometry
import augment.ops.color
import augment.ops.local
import augment.ops.mix
import augment.ops.policies
import augment.ops.papers

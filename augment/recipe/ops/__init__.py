"""Built-in ops, in the order of the op table; importing this package registers them."""
# ruff: noqa: F401, I001

import augment.recipe.ops.crops
import augment.recipe.ops.geometry
import augment.recipe.ops.color
import augment.recipe.ops.local
import augment.recipe.ops.elastic
import augment.recipe.ops.mix
import augment.recipe.ops.policies
import augment.recipe.ops.papers

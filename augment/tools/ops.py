"""List all ops, or describe the given ops: parameters, an example, and names in other libraries."""

from collections.abc import Sequence

from augment.cli.compose import compose_recipe
from augment.cli.help_text import explain_op, op_list, print_help
from augment.cli.parser import Parser, readable_errors

_EXAMPLES = """\
  python -m augment ops                               all ops by kind
  python -m augment ops rotate cutmix                 two ops
  python -m augment ops HorizontalFlip                the equivalent op
  python -m augment ops fade aug.plugins=[my_ops]     an op of your own
"""


def main(arguments: Sequence[str]) -> int:
    with readable_errors():
        parser = Parser("augment ops", __doc__, _EXAMPLES, arguments="[NAME ...] [key=value ...]")
        _, rest = parser.split(arguments)
        compose_recipe([token for token in rest if "=" in token])  # imports plugins
        names = [token for token in rest if "=" not in token]
        print_help("\n".join(explain_op(name, "NAME") for name in names) if names else op_list())
    return 0

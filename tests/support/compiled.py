"""Compile the kernel for a GPU of compute capability 9.0, which needs none; with an argument, with every op."""

import sys

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from augment.pipeline import kernel

POINTERS = {"images": "*u8", "buffers": "*u8", "tables": "*u8", "planes": "*fp32", "programs": "*fp32", "out": "*fp32"}
COUNTS = {"stages", "numbers", "room", "size"}


def main(*, every_op: bool) -> None:
    constants = {"raw": False, "every_op": every_op, "block": kernel._BLOCK}
    kinds = POINTERS | dict.fromkeys(COUNTS, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: kinds.get(name, "fp32") for name in kernel._run.arg_names}
    source = ASTSource(fn=kernel._run, signature=signature, constexprs=constants)
    compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel._WARPS})


if __name__ == "__main__":
    main(every_op="every op" in sys.argv)

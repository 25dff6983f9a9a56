"""Compile the kernels for a GPU of compute capability 9.0, which needs none."""

from typing import Any

from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from augment.pipeline.kernels import any_channels, mix, stages

POINTERS = {
    "images": "*u8", "buffers": "*u8", "tables": "*u8", "planes": "*fp32", "programs": "*fp32", "out": "*fp32",
    "mixed": "*fp32", "targets": "*i64", "shares": "*fp32", "records": "*fp32", "quantization": "*fp32",
}  # fmt: skip
COUNTS = ("stages", "numbers", "room", "height", "width", "columns")


def _build(function: Any, constants: dict[str, Any], **kinds: str) -> None:
    """Compile a kernel; arguments of no other kind are floats."""
    kinds = POINTERS | dict.fromkeys(COUNTS, "i32") | dict.fromkeys(constants, "constexpr") | kinds
    signature = {name: kinds.get(name, "fp32") for name in function.arg_names}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": stages._WARPS})


def compile_kernels(every: bool) -> None:
    """Compile each kernel, or every variant of it."""
    for every_op in (False, True) if every else (True,):
        _build(stages._run, {"raw": False, "every_op": every_op, "block": stages._BLOCK})
    _build(mix._mix, {"labels": False, "block": mix._BLOCK}, images="*fp32")
    _build(mix._mix, {"labels": True, "block": mix._BLOCK}, images="*fp32", targets="*fp32")
    tile = {"channels": 10, "group_size": 2, "block": 512}
    for stored, levels in (("*u16", "*fp32"), ("*u8", "*u8"), ("*i16", "*fp32"))[: 3 if every else 1]:
        _build(any_channels._resize, tile, images=stored, windows="*fp32", out=levels, rows="i32", low="*fp32",
               scale="*fp32")  # fmt: skip
        _build(any_channels._run, {**tile, "raw": False}, images=levels, buffers=levels, mean="*fp32", scale="*fp32")

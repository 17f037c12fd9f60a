"""Makes vLLM find Triton on a CPU, with Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
import triton.language as tl
from triton.backends import Backend, backends
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle, _implicit_cvt


class NoCompiler(BaseBackend):
    """Never asked to compile: kernels are interpreted."""

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == "cpu"

    def hash(self) -> str:
        return "cpu"

    def parse_options(self, options: dict) -> dict:
        return options

    def add_stages(self, stages: dict, options: object, language: object) -> None:
        raise NotImplementedError("nothing is compiled here")

    def load_dialects(self, context: object) -> None:
        raise NotImplementedError("nothing is compiled here")

    def get_module_map(self) -> dict:
        return {}


class CpuDriver(DriverBase):
    """The device that is there: this process."""

    def __init__(self) -> None:
        pass

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cpu", 0, 1)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        return None


def install() -> None:
    """Comes before vLLM is imported, which looks for a backend of this name."""
    backends.clear()
    backends["cpu"] = Backend(NoCompiler, CpuDriver)
    _take_first_configuration()
    _convert_what_grids_add()
    _take_masks_of_bytes()


def _take_first_configuration() -> None:
    """Kernels that tune themselves: there is nothing to measure."""
    make = Autotuner.__init__

    def made(self: Autotuner, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        del self.configs[1:]

    Autotuner.__init__ = made


def _convert_what_grids_add() -> None:
    """Tensors that a grid's function adds to a kernel's arguments, as vLLM's convolution does:
    Triton takes them, its interpreter converts arguments before it asks for the grid."""
    make = GridExecutor.__init__

    def made(self: GridExecutor, fn: Any, names: Any, grid: Any, *args: Any, **kwargs: Any) -> None:
        def converted(arguments: dict[str, Any]) -> tuple[int, ...]:
            size = grid(arguments)
            for name, value in arguments.items():
                if isinstance(value, torch.Tensor):
                    arguments[name] = _implicit_cvt(value)
            return size

        make(self, fn, names, converted if callable(grid) else grid, *args, **kwargs)

    GridExecutor.__init__ = made


def _take_masks_of_bytes() -> None:
    """Masks read from tensors of booleans: bytes to the interpreter, which takes only bits."""
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def bits(mask: TensorHandle) -> TensorHandle:
        return TensorHandle(mask.data.astype(bool), tl.int1)

    def masked_load(self: Any, pointers: Any, mask: TensorHandle, *args: Any) -> Any:
        return load(self, pointers, bits(mask), *args)

    def masked_store(self: Any, pointers: Any, value: Any, mask: TensorHandle, *args: Any) -> Any:
        return store(self, pointers, value, bits(mask), *args)

    InterpreterBuilder.create_masked_load = masked_load
    InterpreterBuilder.create_masked_store = masked_store

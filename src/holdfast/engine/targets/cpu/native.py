"""LLVM text to machine code in memory: the last stage of the compiler.

    object_code(text)      LLVM assembly → an object file for this CPU, as bytes
    NativeLibrary(code)    those bytes → functions that ctypes can call

Object files hold code for one kind of CPU, so ``host()`` (its name and features) is part of every cache key.
LLVM comes inside the llvmlite wheel: no compiler is needed on the user's machine. Importing this module raises
``ImportError`` where llvmlite is missing, damaged or too old; ``scan`` then takes the plain loop, with one warning.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite
import llvmlite.binding as llvm

__all__ = ["NativeLibrary", "host", "object_code"]

OLDEST = (20,)  # LLVM, as llvmlite 0.45 has it: before that, llvmlite's pointers have types and ours have none


def _check_llvm() -> None:
    try:
        version = llvm.llvm_version_info
    except (OSError, AttributeError) as error:  # the shared library is missing, or llvmlite is older than this name
        raise ImportError(f"llvmlite cannot be used: {error}", name="a working llvmlite") from error
    if version < OLDEST:
        needed = "llvmlite 0.45 or newer"
        raise ImportError(f"{needed} is needed, and {llvmlite.__version__} is installed", name=needed)


_check_llvm()


@functools.cache
def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    features = llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


@functools.cache
def host() -> str:
    """This CPU and this LLVM, as text: code made for one is not run on another."""
    version = ".".join(map(str, llvm.llvm_version_info))
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {version}"


def object_code(text: str) -> bytes:
    """Optimise LLVM assembly for this CPU and return the object file."""
    machine = _target_machine()
    module = llvm.parse_assembly(text)
    module.verify()
    # The code is vectors already, in loops as long as they should be: more passes take time and make nothing faster.
    options = llvm.PipelineTuningOptions(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


class NativeLibrary:
    """Machine code loaded into this process; keep it alive as long as its functions are called."""

    def __init__(self, code: bytes):
        backing = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(backing, _target_machine_for_engine())
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function starts; wrap it as ``ctypes.CFUNCTYPE(...)(address)``."""
        return self._engine.get_function_address(name)


def _target_machine_for_engine() -> Any:
    # An MCJIT engine takes ownership of its target machine, so each needs a fresh one.
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=3, jit=True)

"""Exported C, compiled with every warning as an error and called from Python."""

import ctypes
import re
import shutil
import subprocess

import numpy as np
import pytest

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this machine")
STRICT = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-Wconversion", "-Wshadow", "-Wdouble-promotion"]


def compiled(folder, *names):
    """All C files of a folder, or those named, as one library: one run of gcc."""
    files = [str(folder / f"{name}.c") for name in names] or sorted(map(str, folder.glob("*.c")))
    library = folder / "models.so"
    done = subprocess.run(
        ["gcc", *STRICT, "-O1", "-shared", "-fPIC", "-o", str(library), *files, "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return ctypes.CDLL(str(library))


class Model:
    """One exported model: ``step(x)`` gives its outputs."""

    def __init__(self, library, header, name):
        text = header.read_text()
        self.known = {key: int(value) for key, value in re.findall(rf"#define {name.upper()}_(\w+) (\d+)", text)}
        self.library, self.name = library, name
        self.state = ctypes.create_string_buffer(self.known["STATE_BYTES"])
        self._call("init", self.state)

    def _call(self, function, *args):
        return getattr(self.library, f"{self.name}_{function}")(*args)

    def reset(self):
        self._call("reset", self.state)

    def step(self, x):
        y = np.full(self.known["OUTPUTS"], np.nan, np.float32)
        given = ctypes.c_int32(int(x)) if "TOKENS" in self.known else _pointer(np.asarray(x, np.float32))
        self.returned = self._call("step", self.state, given, _pointer(y))
        return y

    def silent_step(self, x):
        """A step without an answer."""
        given = ctypes.c_int32(int(x)) if "TOKENS" in self.known else _pointer(np.asarray(x, np.float32))
        self._call("step", self.state, given, None)
        return True

    def chosen(self, y):
        """The number of the class that outputs are for."""
        return self._call("class", _pointer(y))

    def label(self, index):
        names = (ctypes.c_char_p * self.known["CLASSES"]).in_dll(self.library, f"{self.name}_labels")
        return names[index].decode()

    def run(self, xs):
        """Every step's outputs, (time, outputs), from the state as it is."""
        return np.stack([self.step(x) for x in xs])

    def numbers(self):
        """The state as floats."""
        return np.frombuffer(self.state.raw, np.float32)


def _pointer(array):
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

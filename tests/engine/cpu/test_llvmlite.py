"""An llvmlite that the compiler cannot work with costs speed and one warning, never a crash."""

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import warnings
    import llvmlite.binding, torch
    {change}
    import holdfast
    from holdfast.errors import FusedError
    cell, xs = holdfast.LSTMCell(2, 6), torch.randn(4, 64, 2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outputs = [holdfast.scan(cell, xs)[0] for _ in range(2)]
    print(*(f"{{w.category.__name__}}: {{w.message}}" for w in seen), sep="\\n")
    assert torch.equal(outputs[0], holdfast.scan(cell, xs, backend="reference")[0])
    assert torch.equal(*outputs)
    try:
        holdfast.scan(cell, xs, backend="fused")
    except FusedError as error:
        print("FusedError:", error)
"""
OLD = "llvmlite.binding.llvm_version_info = (15, 0, 7)"
DAMAGED = "del llvmlite.binding.llvm_version_info"


@pytest.mark.parametrize(
    ("change", "reason"), [(OLD, "llvmlite 0.45 or newer is not installed"), (DAMAGED, "a working llvmlite is not")]
)
def test_an_unfit_llvmlite_is_named_once_and_the_plain_loop_runs(change, reason):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(change=change)],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    warning, error = done.stdout.splitlines()
    assert warning.startswith("FusedFallbackWarning: scan of LSTMCell runs on the slower reference backend")
    assert error.startswith("FusedError: scan of LSTMCell cannot run on the fused backend")
    assert reason in warning
    assert reason in error

"""The compiled flow, held to the loop that it is."""

import pytest
import torch

from holdfast.engine.kernels.flow import compiled_flow
from holdfast.errors import ShapeError


@pytest.mark.parametrize("size", [1, 15, 16, 31, 33, 47, 64, 80, 100, 113, 128, 200, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_loop_takes_every_size_and_layout(size, dtype):
    """Sums over many columns, over 16, over those that zeros fill up; transposed matrices; one drive, or one a step."""
    M, start, drives = (torch.rand(shape, dtype=dtype) for shape in ((size, size), (size,), (9, size)))
    M = M / size
    kept = drives.clone()
    for matrix in (M, M.mT):
        for drive in (drives, drives[3]):
            expected = [start]
            for t in range(1, 9):
                expected.append(expected[-1] @ matrix + drive.expand(9, -1)[t])
            torch.testing.assert_close(compiled_flow(matrix, start, drive, 9), torch.stack(expected))
    assert torch.equal(drives, kept)
    assert compiled_flow(M, start, start, 1).tolist() == [start.tolist()]


@pytest.mark.parametrize("rows", [1, 9])
def test_several_flows_at_once_are_the_flows_one_by_one(rows):
    """Matrices in both layouts, drives of one row and of one per step, sizes that zeros fill up and others."""
    for size in (5, 32):
        M, start, drives = torch.rand(3, size, size) / size, torch.rand(3, size), torch.rand(3, rows, size)
        for matrix in (M, M.mT):
            for drive in (drives, drives[:, 0]):
                alone = [compiled_flow(*flow, rows) for flow in zip(matrix, start, drive, strict=True)]
                assert torch.equal(compiled_flow(matrix, start, drive, rows), torch.stack(alone))


def test_the_compiled_loop_reads_nothing_that_is_not_there():
    M, start = torch.rand(5, 5), torch.rand(5)
    for drive in (torch.rand(1), torch.rand(8, 5), torch.rand(5, dtype=torch.float32)):
        with pytest.raises(ShapeError, match=r"a drive \(5,\) or \(9, 5\)"):
            compiled_flow(M, start, drive, 9)
    with pytest.raises(ShapeError):
        compiled_flow(M, start[:1], start, 9)
    with pytest.raises(ShapeError):
        compiled_flow(M[:, :3], start, start, 9)
    with pytest.raises(ShapeError, match="all or none with a number of flows in front"):
        compiled_flow(M.expand(2, 5, 5), start, start, 9)

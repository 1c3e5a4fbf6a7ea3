"""Linear maps on sequences and images, as SciPy matrices: differences, stencils, moving averages.

Images are flattened row by row, sequences of vectors step by step.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


def stencil(kernel: np.ndarray, height: int, width: int) -> sp.csr_array:
    """Return X -> kernel * X, (HW, HW), as a network correlates: zeros outside the image, the same size.

    Args:
        kernel: (2 a + 1, 2 b + 1).
        height: H.
        width: W.
    """
    rows, columns = (size // 2 for size in kernel.shape)
    total = sp.csr_array((height * width, height * width))
    for i, j in np.argwhere(kernel != 0):
        vertical = sp.eye_array(height, k=int(i) - rows)
        horizontal = sp.eye_array(width, k=int(j) - columns)
        total = total + kernel[i, j] * sp.kron(vertical, horizontal)
    return sp.csr_array(total)


def differences(length: int) -> sp.csr_array:
    """Return x -> (x_2 - x_1, ..., x_T - x_{T-1}), (T - 1, T)."""
    return sp.csr_array(sp.eye_array(length - 1, length, k=1) - sp.eye_array(length - 1, length))


def second_differences(length: int) -> sp.csr_array:
    """Return x -> x_{t+1} - 2 x_t + x_{t-1} for the inner t, (T - 2, T)."""
    return sp.csr_array(differences(length - 1) @ differences(length))


def image_gradient(height: int, width: int) -> sp.csr_array:
    """Return X -> the forward differences (to the right, downwards) of each pixel in turn, (2 HW, HW).

    At the last column and row they are 0.
    """
    right = sp.kron(sp.eye_array(height), _padded(differences(width)))
    down = sp.kron(_padded(differences(height)), sp.eye_array(width))
    pixels = height * width
    alternating = np.arange(2 * pixels).reshape(2, pixels).T.reshape(-1)
    return sp.csr_array(sp.csr_array(sp.vstack([right, down]))[alternating])


def _padded(matrix: sp.csr_array) -> sp.csr_array:
    _, width = matrix.shape  # type: ignore[misc]
    return sp.csr_array(sp.vstack([matrix, sp.csr_array((1, width))]))


def gaussian_kernel(size: int, sigma: float) -> np.ndarray:
    """Return a (size, size) Gaussian kernel of sum 1."""
    places = np.arange(size) - (size - 1) / 2
    weights = np.exp(-(places.reshape(-1, 1) ** 2) / (2 * sigma**2) - places**2 / (2 * sigma**2))
    return weights / weights.sum()


def window_sums(x: Tensor, width: int, dims: int) -> Tensor:
    """Return the sums over windows of `width` (odd) in each of the last `dims` dimensions, zeros outside."""
    for dim in range(-dims, 0):
        edge = torch.zeros_like(x.narrow(dim, 0, 1)).repeat_interleave(width // 2, dim=dim)
        x = torch.cat([edge, x, edge], dim=dim).unfold(dim, width, 1).sum(dim=-1)
    return x
